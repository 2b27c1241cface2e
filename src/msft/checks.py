"""Values against annotations: what does not fit is refused before anything starts.

The keys of a recipe and the options of a method are written once, as annotated fields and
parameters with their bounds: `Annotated[int | None, AtLeast(1)]`. `_fit` is the one interpreter of
these annotations. Every error says which key is wrong, what was found and what would fit.
"""

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msft.errors import OptionError, RecipeError
from msft.text import shown

FEW = 10
"""So many names can be listed without hiding the one that was probably meant."""

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": -float("inf"),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A bound for an annotated option."""

    least: float

    def __contains__(self, number: float) -> bool:
        return self.least <= number < inf

    def __str__(self) -> str:
        return f"{self.least} or more"


@dataclass(frozen=True, slots=True)
class Above:
    """A bound for an annotated option."""

    bound: float

    def __contains__(self, number: float) -> bool:
        return self.bound < number < inf

    def __str__(self) -> str:
        return f"more than {self.bound}"


@dataclass(frozen=True, slots=True)
class Inside:
    """A bound for an annotated option."""

    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low < number < self.high

    def __str__(self) -> str:
        return f"more than {self.low} and less than {self.high}"


@dataclass(frozen=True, slots=True)
class Between:
    """A bound for an annotated option."""

    least: float
    most: float

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Within:
    """A bound for an annotated option."""

    least: float
    below: float

    def __contains__(self, number: float) -> bool:
        return self.least <= number < self.below

    def __str__(self) -> str:
        return f"{self.least} or more, below {self.below}"


def checked(owner: Callable[..., Any], options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`options` if they fit the owner's parameters, else an `OptionError` that says what would."""
    refuse_unknown(options, option_names(owner), f"option of {what}:")
    hints = _annotations(owner)
    return {key: _fit(value, hints[key], what, key) for key, value in options.items()}


def fit_fields(owner: Any, what: str, except_for: Collection[str]) -> None:
    """Check every field of a frozen dataclass against its annotation, in place."""
    for key, hint in _annotations(type(owner)).items():
        if key in except_for:
            continue
        value = getattr(owner, key)
        try:
            object.__setattr__(owner, key, _fit(value, hint, what, key))
        except OptionError as error:
            kinds = _kinds(hint)
            number = isinstance(value, str) and type(plain(value)) in (*kinds, int)
            cure = "; write it without quotes" if number and str not in kinds else ""
            raise RecipeError(f"{error}{cure}", (key,)) from error


def _fit(value: Any, hint: Any, what: str, key: str) -> Any:
    """The value as the annotation wants it: a whole number as a float, a path as text."""
    at, kinds = f"{what}: {key}" if what else key, _kinds(hint)
    bounds = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    if value is None and NoneType in kinds:
        return None
    if str in kinds and isinstance(value, os.PathLike):
        value = os.fspath(value)
    for kind in kinds:
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
            return _nested(kind, value, at, key)
        if kind in (Any, inspect.Parameter.empty) or _is_a(value, kind):
            outside = [bound for bound in bounds if value not in bound]
            if outside:
                raise OptionError(f"{at} is {value!r}; expected {outside[0]}", key)
            if kind is str:
                return checked_text(value, at, key)
            return float(value) if kind is float else value
    if str in kinds:
        cure = "; put it in quotes" if isinstance(value, int | float) else ""
        raise OptionError(f"{at} is {shown(value)}; expected text{cure}", key)
    expected = " or ".join(_described(kind) for kind in kinds)
    raise OptionError(f"{at} is {value!r}; expected {expected}", key)


def _nested(kind: type[Any], value: Mapping[str, Any], at: str, key: str) -> Any:
    """An option that has options: a dataclass from a mapping."""
    try:
        return kind(**checked(kind, value, at))
    except OptionError as error:
        error.place = (key, *error.place)
        raise


def _annotations(owner: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(owner, eval_str=True).parameters
    return {name: parameter.annotation for name, parameter in parameters.items()}


def _kinds(hint: Any) -> tuple[Any, ...]:
    """int and None of `Annotated[int | None, AtLeast(1)]`"""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_a(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    kind = get_origin(kind) or kind
    return isinstance(kind, type) and isinstance(value, kind)


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    if get_origin(kind) is list:
        return "a list"
    if is_dataclass(kind):
        return "keys and values, of the keys " + ", ".join(f.name for f in fields(kind))
    names = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def option_names(owner: Callable[..., Any]) -> list[str]:
    """The options of a method's function, or the fields of an options class."""
    parameters = inspect.signature(owner).parameters.values()
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in parameters] if inspect.isclass(owner) else keyword_only


def given(options: Mapping[str, Any], except_for: tuple[str, ...]) -> dict[str, Any]:
    """Those options that are not None."""
    return {k: v for k, v in options.items() if v is not None and k not in except_for}


def refuse_unknown(names: Iterable[str], known: Iterable[str], what: str, option: str = "") -> None:
    """OptionError naming the first unknown name, the nearest known one, and all known ones.

    A long list is left out where the nearest one is named.
    option: the key to blame, where the names are not keys but the value of one.
    """
    known = list(known)
    for name in names:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            listed = "" if near and len(known) > FEW else f" (known: {', '.join(known) or 'none'})"
            raise OptionError(f"unknown {what} {name!r}{hint}{listed}", option or name)


@contextmanager
def recipe_place(*place: str | int) -> Iterator[None]:
    """What is wrong inside is wrong in the recipe, at a key under `place`."""
    try:
        yield
    except (OptionError, RecipeError) as error:
        raise RecipeError(str(error), (*place, *error.place), error.because) from error


def checked_text(text: str, at: str, key: str) -> str:
    """Text that can stand in a file, a path and on a terminal."""
    if not text.strip():
        raise OptionError(f"{at} is {text!r}; expected text, or leave the key out", key)
    if _UNWRITABLE.search(text):
        raise OptionError(
            f"{at} is {shown(text)}; expected text without control characters; remove them", key
        )
    return text


def plain(text: str) -> Any:
    """What unquoted text means, by YAML 1.2 rules."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 100 else float(text.replace("_", ""))
    return float(text) if _FLOAT.fullmatch(text) else text
