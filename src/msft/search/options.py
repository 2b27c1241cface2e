"""Options: a mistyped or contradictory one is refused before anything starts.

A method's options are the keyword parameters of its function, so they are written once, with
their defaults and bounds. The options of the roll-out and of the mixture belong to no method's
file; they stand here.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


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
class Between:
    """A bound for an annotated option."""

    least: float
    most: float

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"


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

    patience: Annotated[int | None, AtLeast(1)] = None
    on_rollback: Literal["reset", "restore"] = "reset"
    score_excluded: Literal["every", "rollback"] = "every"


@dataclass(frozen=True, slots=True)
class MixtureOptions:
    """What remains of an excluded sub-dataset: see `Mixture.rehearsal_fraction`."""

    rehearsal_fraction: Annotated[float, Between(0, 0.999)] = 0.0


def option_names(owner: Callable[..., Any]) -> list[str]:
    """The options of a method's function, or the fields of an options class."""
    parameters = inspect.signature(owner).parameters.values()
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in parameters] if inspect.isclass(owner) else keyword_only


FEW = 10
"""So many names can be listed without hiding the one that was probably meant."""


def refuse_unknown(found: Iterable[str], known: Iterable[str], what: str) -> None:
    """ValueError naming the first unknown key, the nearest known one, and all known ones.

    A long list is left out where the nearest one is named.
    """
    known = list(known)
    for key in found:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            listed = "" if near and len(known) > FEW else f" (known: {', '.join(known) or 'none'})"
            raise ValueError(f"unknown {what} {key!r}{hint}{listed}")


def checked(owner: Callable[..., Any], options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`options` if they fit the owner's parameters, else a ValueError that says what would."""
    refuse_unknown(options, option_names(owner), f"option of {what}:")
    parameters = inspect.signature(owner, eval_str=True).parameters
    return {
        key: _fitting(value, parameters[key].annotation, f"{what}: {key}")
        for key, value in options.items()
    }


def given(options: Mapping[str, Any], except_for: tuple[str, ...]) -> dict[str, Any]:
    """Those options that are not None."""
    return {k: v for k, v in options.items() if v is not None and k not in except_for}


def _fitting(value: Any, hint: Any, what: str) -> Any:
    bounds: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        bounds = tuple(rest)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind in (Any, inspect.Parameter.empty) or (
            isinstance(kind, type) and _is_a(value, kind)
        ):
            outside = [bound for bound in bounds if value not in bound]
            if outside:
                raise ValueError(f"{what} is {value!r}; expected {outside[0]}")
            return float(value) if kind is float else value
    expected = " or ".join(_described(kind) for kind in kinds)
    raise ValueError(f"{what} is {value!r}; expected {expected}")


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, kind)


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    names = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))
