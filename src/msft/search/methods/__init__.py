"""The methods: one file each, one function each, one line each in `METHODS`.

Read `msft.py` first: the paper's Algorithm 1, line by line. To add a method, write
`methods/<name>.py` with a function of a `Run`, add it here, and test it on scripted curves. A
recipe may also name a function of the user's own. A method may import nothing but the search.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from msft.errors import OptionError
from msft.own_code import BadCode, imported
from msft.search.curves import PeakRule
from msft.search.falls import FEWEST_TICKS
from msft.search.methods.continual import continual
from msft.search.methods.dynamix import dynamix
from msft.search.methods.ies import ies
from msft.search.methods.msft import msft
from msft.search.methods.sft import sft
from msft.search.methods.soft_sro import soft_sro
from msft.search.methods.soup import kinds, soup
from msft.search.methods.sro import sro
from msft.search.options import (
    MixtureOptions,
    RolloutOptions,
    SureExclusion,
    checked,
    option_names,
    refuse_unknown,
)
from msft.search.rollout import EndedBy, Method, Run

METHODS: dict[str, Method] = {
    "sft": sft,
    "continual": continual,
    "dynamix": dynamix,
    "ies": ies,
    "sro": sro,
    "soft_sro": soft_sro,
    "msft": msft,
    "soup": soup,
}
"""The paper's seven, and `soup`, which is ours."""

ROLLING_BACK = ("msft", "continual")
"""Methods whose length is `compute_budget`; that of the other ones is `num_train_epochs`."""

_ROLLOUT = ("patience", "on_rollback", "score_excluded")
_SHARED = (*_ROLLOUT, "rehearsal_fraction")
SHARED_OPTIONS = {
    "continual": _SHARED,
    "sro": ("score_excluded", "rehearsal_fraction"),
    "msft": _SHARED,
}
"""Options of the roll-out and of the mixture that mean something for a method; the search of
`sro` and `soft_sro` needs every peak, so patience would only spoil it."""


@dataclass(frozen=True, slots=True)
class PreparedMethod:
    """A method with its options, checked.

    peaks: where a curve peaks, if the method does not leave that to the recipe.
    averages: how many it makes, as far as its options say.
    """

    name: str
    options: Mapping[str, Any]
    carry_out: Callable[[Run], EndedBy | None]
    rollout_options: RolloutOptions
    mixture_options: MixtureOptions
    peaks: PeakRule | None = None
    averages: int = 0


def prepare(
    method: str | Method, options: Mapping[str, Any], compute_budget: int, peaks: PeakRule
) -> PreparedMethod:
    """Find the method and check its options; every mistake is an `OptionError` with the cure."""
    name, function = _named(method)
    what = f"method {name}"
    refuse_unknown(options, known_options(method), f"option of {what}:")
    rollout = {key: value for key, value in options.items() if key in _ROLLOUT}
    mixture = {key: value for key, value in options.items() if key == "rehearsal_fraction"}
    rest = {key: value for key, value in options.items() if key not in _SHARED}
    own = checked(function, rest, what)
    rollout_options = RolloutOptions(**checked(RolloutOptions, rollout, what))
    mixture_options = MixtureOptions(**checked(MixtureOptions, mixture, what))
    if function is msft and compute_budget == 1 and not peaks.include_start:
        raise OptionError(
            "compute_budget is one tick and peaks.include_start is false: every sub-dataset would "
            "peak at the only tick and none could ever be excluded; raise compute_budget or "
            "evals_per_epoch, or include the start",
            "compute_budget",
        )
    if function is msft and own.get("exclude") is not None:
        _refuse_short(compute_budget, rollout_options)
    sure = own.get("exclude")
    plain = {**own, **({"exclude": asdict(sure)} if isinstance(sure, SureExclusion) else {})}
    carry_out = partial(function, **own)
    prepared = PreparedMethod(name, plain, carry_out, rollout_options, mixture_options)
    if function is soup:  # averaging with a model that was not trained would spoil it
        averages = len(kinds(own.get("of", "span")))
        return replace(prepared, peaks=replace(peaks, include_start=False), averages=averages)
    return prepared


def known_options(method: str | Method) -> tuple[str, ...]:
    """Every option that a method takes."""
    name, function = _named(method)
    shared = SHARED_OPTIONS.get(name, ()) if METHODS.get(name) is function else _SHARED
    return (*option_names(function), *shared)


def _refuse_short(compute_budget: int, rollout: RolloutOptions) -> None:
    """A fall needs a peak, its neighbours, and three ticks after them."""
    for key, ticks in (("compute_budget", compute_budget), ("patience", rollout.patience)):
        if ticks is not None and ticks < FEWEST_TICKS:
            raise OptionError(
                f"{key} is {ticks} ticks, but exclude compares the peak with the last three ticks "
                f"of a roll-out, which takes {FEWEST_TICKS} ticks or more; raise {key}"
                + (" or evals_per_epoch" if key == "compute_budget" else ""),
                key,
            )


def _named(method: str | Method) -> tuple[str, Method]:
    if callable(method):
        return getattr(method, "__name__", type(method).__name__), method
    if method in METHODS:
        return method, METHODS[method]
    if ":" not in method:
        refuse_unknown([method], (*METHODS, "package.module:function"), "method", "method")
    try:
        return method, imported(method)
    except BadCode as error:
        raise OptionError(f"method {method!r} cannot be imported: {error}", "method") from error
