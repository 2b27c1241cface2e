"""The kinds of values that keys hold, and the error that tells of every wrong key.

A key of `Recipe` and of `DatasetSpec` is a field whose annotation is the kind of its values. This
file has the kinds that need more than a plain type: each has a function that returns the value, or
raises a ValueError that says what was expected.

One error tells of all mistakes of a recipe (`WrongKeys`). A wrong key gets its default, so that the
other keys can still be compared with each other. A mistake that follows from another is not told.
"""

import os
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from msft.errors import KeyPath, OptionError, RecipeError
from msft.recipe.templates import TEMPLATES
from msft.recipe.yaml import place_of
from msft.text import shown

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""What `report_to` may name."""
ALL_LINEAR = "all-linear"
"""Every linear layer but the head."""

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


# Kinds of values


def writable(text: str) -> str:
    """Text that can stand in a file, a path and on a terminal."""
    if not text.strip():
        raise ValueError("expected text, or leave the key out")
    if _UNWRITABLE.search(text):
        raise ValueError("expected text without control characters; remove them")
    return text


_TEXT_OF_PATH = BeforeValidator(lambda x: os.fspath(x) if isinstance(x, os.PathLike) else x)
Text = Annotated[str, _TEXT_OF_PATH, AfterValidator(writable)]
"""Text; a path is taken too."""


def is_template(written: str) -> bool:
    """Whether this is the text of a chat template, not the name of a file."""
    return "{{" in written or "{%" in written


def _template(given: Any) -> str:
    if isinstance(given, str) and is_template(given) and "\0" not in given:
        return given
    if not isinstance(given, str):
        raise ValueError(
            f"expected a template of ours ({', '.join(TEMPLATES)}), a .jinja file, or the text of "
            "a template"
        )
    return writable(given)


Template = Annotated[str, PlainValidator(_template)] | None
"""A chat template: the name of one of ours, its text, or the name of its file."""


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
    """A kind of values: options by name, copied. A message about another value has the example."""

    def block(given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ValueError(f"expected options {example}")
        return dict(given)

    return PlainValidator(block)


def plain_options(options: Any, *block: str) -> tuple[dict[str, Any], list[RecipeError]]:
    """A copy of the options that YAML can hold, since they are written down; the mistake of each
    other one.

    block: where they stand in the recipe.
    """
    kept, mistakes, at = dict[str, Any](), list[RecipeError](), ".".join(block)
    if not isinstance(options, Mapping):
        said = f"{at} is {shown(options)}; expected options such as {{patience: 3}}"
        return {}, [RecipeError(said, block)]
    for option, value in options.items():
        try:
            kept[option] = _copied(value)
        except ValueError as error:
            mistakes.append(RecipeError(f"{at}.{option} is {error}", (*block, option)))
    return kept, mistakes


def _copied(value: Any) -> Any:
    """A copy of what YAML can hold; a ValueError shows the part that it cannot."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner) for inner in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    said = "expected text, a finite number, true, false, null, or lists and mappings of them"
    try:
        if isinstance(value, str):
            return writable(value)
    except ValueError as error:
        said = str(error)
    raise ValueError(f"{shown(value)}; {said}")


# Mistakes


class WrongKeys(RecipeError):
    """Everything that is wrong with a recipe or a sub-dataset.

    mistakes: those found, without the ones that follow from another one.
    made: the object, with defaults in place of what is wrong.
    """

    def __init__(self, found: Sequence[RecipeError], made: Any = None) -> None:
        mistakes = list[RecipeError]()
        for each in found:
            if not any(known.place == each.place or _spoils(known, each) for known in mistakes):
                mistakes.append(each)
        head = [] if len(mistakes) == 1 else [f"{len(mistakes)} mistakes in the recipe:"]
        super().__init__("\n  ".join([*head, *map(str, mistakes)]), mistakes[0].place)
        self.mistakes = mistakes
        self.made = made


def _spoils(known: RecipeError, mistake: RecipeError) -> bool:
    """Whether a mistake may follow from a known one, in the same sub-dataset."""
    one, other = known.place, mistake.place
    is_apart = one[:1] == other[:1] == ("datasets",) and one[:2] != other[:2]
    return bool(one) and one[-1] in mistake.because and not is_apart


def mistakes_of(error: OptionError | RecipeError, *under: str | int) -> list[RecipeError]:
    """The mistakes that an error tells of.

    under: where their keys stand.
    """
    every = error.mistakes if isinstance(error, WrongKeys) else [error]
    return [RecipeError(str(each), (*under, *each.place), each.because) for each in every]


def with_places(
    found: Sequence[RecipeError], where: str, places: Mapping[KeyPath, str]
) -> WrongKeys:
    """One error with the place of each mistake before it, in the order of the file."""
    order = {place: number for number, place in enumerate(places)}

    def position(mistake: RecipeError) -> int:
        """The number of a key in the file; of a missing key, that of the block it belongs into."""
        ends = range(len(mistake.place), 0, -1)
        return next((order[p] for p in (mistake.place[:n] for n in ends) if p in order), len(order))

    return WrongKeys(
        [
            RecipeError(f"{place_of(each.place, where, places)}{each}", each.place, each.because)
            for each in sorted(WrongKeys(found).mistakes, key=position)
        ]
    )
