"""Every mistake of a recipe at once, each with its place.

Each key is checked by itself first. One that is wrong is noted, and its default stands in for it,
so that the others can be compared with each other. What follows from a mistake is not said twice.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from msft.errors import OptionError, Place, RecipeError
from msft.recipe.yaml import place_of, plain
from msft.search.options import fitted
from msft.text import shown

Made = TypeVar("Made")


class WrongKeys(RecipeError):
    """Everything that is wrong with a recipe or a sub-dataset.

    made: the object, with defaults in place of what is wrong.
    """

    def __init__(self, mistakes: Sequence[RecipeError], made: Any = None) -> None:
        head = [] if len(mistakes) == 1 else [f"{len(mistakes)} mistakes in the recipe:"]
        super().__init__("\n  ".join([*head, *map(str, mistakes)]), mistakes[0].place)
        self.mistakes = mistakes
        self.made = made


class Mistakes:
    """What has been found wrong so far."""

    def __init__(self) -> None:
        self._found = list[RecipeError]()

    def note(self, error: OptionError | RecipeError, *under: str | int) -> None:
        """Remember a mistake, if it does not follow from another one.

        under: where its keys stand.
        """
        for each in error.mistakes if isinstance(error, WrongKeys) else [error]:
            place = (*under, *each.place)
            found = self._found
            if not any(k.place == place or _spoils(k, place, each.because) for k in found):
                self._found.append(RecipeError(str(each), place, each.because))

    @contextmanager
    def noting(self, *under: str | int) -> Iterator[None]:
        """What is wrong inside is remembered, and the work goes on behind it."""
        try:
            yield
        except (OptionError, RecipeError) as error:
            self.note(error, *under)

    def fit_fields(self, owner: Any, what: str) -> None:
        """Give every key of a frozen dataclass the form that its annotation asks for.

        what: stands before the key in messages, but before a name, which it has in it.
        """
        for key in fields(owner):
            if not key.compare:  # not a key: what is known about how the recipe was read
                continue
            value = getattr(owner, key.name)
            try:
                fitting = fitted(value, key.type, "" if key.name == "name" else what, key.name)
            except OptionError as error:
                cure = "; write it without quotes" if _fits_unquoted(value, key.type) else ""
                self.note(RecipeError(f"{error}{cure}", error.place))
                fitting = _stand_in(key, value)
            object.__setattr__(owner, key.name, fitting)

    def made(
        self,
        options: Mapping[str, Any],
        build: Callable[[dict[str, Any]], Made],
        wrong: Callable[[OptionError], RecipeError | None],
    ) -> Made | None:
        """What `build` makes of options, without those that are wrong; None where it makes nothing.

        wrong: the mistake as one of the recipe; None: it is none.
        """
        kept = dict(options)
        while True:
            try:
                return build(kept)
            except OptionError as error:
                mistake = wrong(error)
                if mistake is not None:
                    self.note(mistake)
                if kept.pop(str(error.place[0]), MISSING) is MISSING:
                    return None

    def refuse(self, made: Any = None) -> None:
        """One RecipeError with all mistakes, if there are any."""
        if self._found:
            raise WrongKeys(self._found, made)


def placed(error: RecipeError, where: str, places: Mapping[Place, str]) -> RecipeError:
    """The same error with the place of each mistake before it, in the order of the file."""
    mistakes = error.mistakes if isinstance(error, WrongKeys) else [error]
    order = {place: number for number, place in enumerate(places)}

    def position(mistake: RecipeError) -> int:
        """What is missing stands with the thing that should have it."""
        ends = range(len(mistake.place), 0, -1)
        return next((order[p] for p in (mistake.place[:n] for n in ends) if p in order), len(order))

    return WrongKeys(
        [
            RecipeError(f"{place_of(each.place, where, places)}{each}", each.place, each.because)
            for each in sorted(mistakes, key=position)
        ]
    )


def _spoils(known: RecipeError, place: Place, because: Sequence[str]) -> bool:
    """Whether a mistake at this place may follow from a known one, in the same sub-dataset."""
    is_apart = known.place[:1] == place[:1] == ("datasets",) and known.place[:2] != place[:2]
    return bool(known.place) and known.place[-1] in because and not is_apart


def _fits_unquoted(value: Any, hint: Any) -> bool:
    """Whether text would fit as the number or the truth value that is written in it."""
    try:
        return (
            bool(value) and isinstance(value, str) and fitted(plain(value), hint, "", "") != value
        )
    except OptionError:
        return False


def _stand_in(key: "Field[Any]", value: Any) -> Any:
    """The default of a key; of one without a default, which is text, something like it."""
    if key.default_factory is not MISSING:
        return key.default_factory()
    return str(value) if key.default is MISSING else key.default


# Kinds of values
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""What `report_to` may name."""
ALL_LINEAR = "all-linear"
"""Every linear layer but the head."""
LONGEST_TEMPLATE = 1_000_000

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _path_as_text(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def writable(text: str) -> str:
    """Text that can stand in a file, a path and on a terminal."""
    if not text.strip():
        raise ValueError("expected text, or leave the key out")
    if _UNWRITABLE.search(text):
        raise ValueError("expected text without control characters; remove them")
    return text


Text = Annotated[str, BeforeValidator(_path_as_text), AfterValidator(writable)]
"""Text; a path is taken too."""


def _template(given: Any) -> str | None:
    if given is None or (isinstance(given, str) and is_template(given) and "\0" not in given):
        return given
    if not isinstance(given, str):
        raise ValueError("expected a .jinja file, or the text of a template")
    return writable(given)


Template = Annotated[str | None, PlainValidator(_template)]
"""A chat template: its text, or the name of its file."""


def is_template(written: str) -> bool:
    """Whether this is the text of a chat template, not the name of a file."""
    return "{{" in written or "{%" in written


def template_in(file: Path, at: str) -> str:
    """The text of a template's file; `at` stands before messages."""
    try:
        with file.open("rb") as stream:
            text = stream.read(LONGEST_TEMPLATE + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{at}{file} cannot be read as a chat template: {error}", ("chat_template",)
        ) from error
    if len(text) > LONGEST_TEMPLATE or not is_template(text):
        raise RecipeError(
            f"{at}{file} is no chat template: expected Jinja with {{{{ or {{% in it, and "
            f"{LONGEST_TEMPLATE:,} characters at most",
            ("chat_template",),
        )
    return text


def _trackers(given: Any) -> str | list[str]:
    several = isinstance(given, list | tuple)
    names = list(given) if several else [given]
    known = TRACKERS if several else ("none", *TRACKERS)
    if any(name not in known for name in names):
        more = "" if several else ", or a list of trackers"
        raise ValueError(f"expected {', '.join(map(repr, known))}{more}")
    if len(set(names)) < len(names):
        raise ValueError("name each tracker once")
    return names or "none" if several else str(given)


Trackers = Annotated[str | Sequence[str], PlainValidator(_trackers)]
"""`none`, a tracker, or a list of different ones."""


def _layers(given: Any) -> str | list[str]:
    if given in (ALL_LINEAR, [ALL_LINEAR], (ALL_LINEAR,)):  # TRL reads a list of one as its name
        return ALL_LINEAR
    named = isinstance(given, list | tuple) and given and all(isinstance(n, str) for n in given)
    if not named or not all(name.strip() for name in given):
        raise ValueError(
            f"expected {ALL_LINEAR}, or a list of layers' names such as [q_proj, v_proj]"
        )
    if len(set(given)) < len(given):
        raise ValueError("name each layer once")
    return list(given)


Layers = Annotated[str | Sequence[str], PlainValidator(_layers)]
"""`all-linear`, or a list of different names."""


def options_like(example: str) -> PlainValidator:
    """Options by name, copied; an example of them is shown where there are none."""

    def block(given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ValueError(f"expected options {example}")
        return dict(given)

    return PlainValidator(block)


def plain_option(value: Any, option: str, block: str) -> Any:
    """A copy of an option's value, which is what YAML can hold: it is written down."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain_option(inner, option, block) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_option(inner, option, block) for inner in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    said = "expected text, a finite number, true, false, null, or lists and mappings of them"
    try:
        if isinstance(value, str):
            return writable(value)
    except ValueError as error:
        said = str(error)
    raise OptionError(f"{block}.{option} is {shown(value)}; {said}", option)
