"""Options: a mistyped or contradictory one is refused before anything starts.

A method's options are the keyword parameters of its function, so they are written once, with
their defaults and bounds: `Annotated[int | None, Ge(1)]`. The keys of a recipe are annotated in the
same way. pydantic decides whether a value fits its annotation; this file says in words which option
is wrong, what was found and what would fit. The options of the roll-out and of the mixture belong
to no method's file; they stand here.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge as Ge
from annotated_types import Gt as Gt
from annotated_types import Interval as Interval

from msft.errors import OptionError
from msft.text import shown

Made = TypeVar("Made")

FEW = 10
"""So many names can be listed without hiding the one that was probably meant."""


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How every roll-out of a run is done.

    patience: end a roll-out when this many ticks have passed since the earliest peak.
    on_rollback: the next stage starts with a fresh optimizer (the paper: parameters only), or
        with the moments that were saved with the peak.
    score_excluded: excluded sub-datasets are scored at every tick, or once per stage at the
        checkpoint that goes on (the paper's FLOPs accounting; only fully scored points can then
        become the best).
    """

    patience: Annotated[int | None, Ge(1)] = None
    on_rollback: Literal["reset", "restore"] = "reset"
    score_excluded: Literal["every", "rollback"] = "every"


@dataclass(frozen=True, slots=True)
class MixtureOptions:
    """What remains of an excluded sub-dataset: see `Mixture.rehearsal_fraction`."""

    rehearsal_fraction: Annotated[float, Interval(ge=0, le=0.999)] = 0.0


@dataclass(frozen=True, slots=True)
class SureExclusion:
    """Only those leave whose fall after the peak is real; see `falls.py`.

    confidence: that nobody leaves by chance after a roll-out in which nobody falls.
    """

    confidence: Annotated[float, Interval(ge=0.5, lt=1)] = 0.95


def ticks_of(epochs: float, evals_per_epoch: int, key: str) -> int:
    """Epochs as whole ticks, or an error that names the option."""
    ticks = Fraction(repr(float(epochs))) * evals_per_epoch
    if ticks < 1 or ticks.denominator != 1:
        raise OptionError(
            f"{key} is {epochs} epochs; expected a positive multiple of 1/{evals_per_epoch} "
            f"(evals_per_epoch is {evals_per_epoch})",
            key,
            because=("evals_per_epoch",),
        )
    return int(ticks)


@cache
def _signature(owner: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(owner, eval_str=True)


def checked(owner: Callable[..., Any], options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`options` if they fit the owner's parameters, else an `OptionError` that says what would."""
    refuse_unknown(options, option_names(owner), f"option of {what}:")
    parameters = _signature(owner).parameters
    return {
        key: fitted(value, parameters[key].annotation, what, key) for key, value in options.items()
    }


def made_of(kind: Callable[..., Made], options: Mapping[str, Any], what: str) -> Made:
    """Options of a kind, such as a `PeakRule`, from keys and values that fit it."""
    return kind(**checked(kind, options, what))


def without_wrong(
    options: Mapping[str, Any], build: Callable[[dict[str, Any]], Made]
) -> tuple[Made | None, list[OptionError]]:
    """What `build` makes of the options that are not wrong, and the mistake of each other one.

    None where it makes nothing of them, since the mistake is none of theirs.
    """
    kept, mistakes = dict(options), list[OptionError]()
    while True:
        try:
            return build(kept), mistakes
        except OptionError as error:
            mistakes.append(error)
            if error.place[0] not in kept:
                return None, mistakes
            del kept[str(error.place[0])]


def fitted(value: Any, hint: Any, what: str, key: str) -> Any:
    """The value as its annotation wants it, a whole number as a float say; else an `OptionError`.

    A validator in the annotation says after "expected" what would fit, or raises an `OptionError`
    about a part of the value.
    """
    at, kinds = f"{what}: {key}" if what else key, _kinds(hint)
    for kind in kinds:
        if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
            try:  # an option that has options
                return made_of(kind, value, at)
            except OptionError as error:
                error.place = (key, *error.place)
                raise
    from pydantic import ValidationError  # it takes a tenth of a second to load

    try:
        return _validator(hint)(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
    said = next((each["ctx"]["error"] for each in wrong if each["type"] == "value_error"), None)
    if isinstance(said, OptionError):
        inside = OptionError(f"{what}: {said}" if what else str(said), key)
        inside.place = (key, *said.place)
        raise inside
    if said is None:
        is_outside = any(each["type"] in _OUTSIDE for each in wrong)
        said = f"expected {_bounds(hint) if is_outside else _described(kinds)}"
        if str in kinds and isinstance(value, int | float):
            said += "; put it in quotes"
        elif isinstance(value, str) and _fits_unquoted(value, hint):
            said += "; write it without quotes"
    raise OptionError(f"{at} is {shown(value)}; {said}", key)


def fit_fields(owner: Any) -> list[OptionError]:
    """Give every field of a frozen dataclass that is compared the form that its annotation asks
    for; one that is wrong gets its default, and its mistake is in the list.
    """
    mistakes = list[OptionError]()
    for each in fields(owner):
        if not each.compare:
            continue
        value = getattr(owner, each.name)
        try:
            fitting = fitted(value, each.type, "", each.name)
        except OptionError as error:
            mistakes.append(error)
            fitting = str(value) if each.default is MISSING else each.default
            if each.default_factory is not MISSING:
                fitting = each.default_factory()
        object.__setattr__(owner, each.name, fitting)
    return mistakes


def _fits_unquoted(text: str, hint: Any) -> bool:
    """Whether the number or the truth value that is written in a text would fit."""
    try:
        meant = json.loads(text.lower())
        return not isinstance(meant, str) and _validator(hint)(meant) == meant
    except ValueError:
        return False


_OUTSIDE = {
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"),
}
"""What pydantic calls a number outside of its bounds."""


@cache
def _validator(hint: Any) -> Callable[[Any], Any]:
    """pydantic's check of one annotation: strict, so that neither '3' nor true is a number."""
    from pydantic import ConfigDict, TypeAdapter

    rules = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    hint = Any if hint is inspect.Parameter.empty else hint
    return TypeAdapter(hint, config=rules).validate_python


def _kinds(hint: Any) -> tuple[Any, ...]:
    """int and None of `Annotated[int | None, Ge(1)]`"""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    arms = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(get_args(arm)[0] if get_origin(arm) is Annotated else arm for arm in arms)


def _bounds(hint: Any) -> str:
    """The bounds of an annotation, or of one of its kinds."""
    found = dict[str, float]()
    for part in (hint, *get_args(hint)):
        for bound in getattr(part, "__metadata__", ()):
            known = ((name, getattr(bound, name, None)) for name in ("ge", "gt", "le", "lt"))
            found |= {name: value for name, value in known if value is not None}
    if {"ge", "le"} <= found.keys():
        return f"{found['ge']} to {found['le']}"
    words = {"ge": "{} or more", "gt": "more than {}", "lt": "below {}", "le": "{} at most"}
    said = (text.format(found[name]) for name, text in words.items() if name in found)
    return ", ".join(said) or "a finite number"


def _described(kinds: Iterable[Any]) -> str:
    """What values of these kinds look like."""
    names = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    words = list[str]()
    for kind in kinds:
        if kind is str:
            return "text"
        if get_origin(kind) is Literal:
            words += map(repr, get_args(kind))
        elif is_dataclass(kind):
            words.append("keys and values, of the keys " + ", ".join(f.name for f in fields(kind)))
        elif get_origin(kind) is list:
            words.append("a list")
        elif get_origin(kind) is dict:
            words.append("keys and values")
        else:
            words.append(names.get(kind, getattr(kind, "__name__", str(kind))))
    return " or ".join(words)


def option_names(owner: Callable[..., Any]) -> list[str]:
    """The options of a method's function, or the fields of an options class."""
    parameters = _signature(owner).parameters.values()
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in parameters] if inspect.isclass(owner) else keyword_only


def refuse_unknown(names: Iterable[str], known: Iterable[str], what: str, option: str = "") -> None:
    """OptionError for the first unknown name; as `unknown`."""
    known = list(known)
    for name in names:
        if name not in known:
            raise unknown(name, known, what, option)


def unknown(name: str, known: Sequence[str], what: str, option: str = "") -> OptionError:
    """An error that names an unknown name, the nearest known one, and all known ones.

    A long list is left out where the nearest one is named.
    option: the key to blame, where the name is not a key but the value of one.
    """
    near = get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = "" if near and len(known) > FEW else f" (known: {', '.join(known) or 'none'})"
    return OptionError(f"unknown {what} {name!r}{hint}{listed}", option or name)
