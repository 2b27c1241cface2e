"""The methods: one file each, one function each, one line each in `METHODS`.

To add one, write `methods/<name>.py` with a function of a `Run`, add it here, and give it a test
on scripted curves (see CONTRIBUTING.md). A recipe may also name a function of the user's own as
`package.module:function`.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from msft.search.methods.continual import continual
from msft.search.methods.dynamix import dynamix
from msft.search.methods.ies import ies
from msft.search.methods.msft import msft
from msft.search.methods.sft import sft
from msft.search.methods.soft_sro import soft_sro
from msft.search.methods.sro import sro
from msft.search.options import (
    MixtureOptions,
    RolloutOptions,
    checked,
    option_names,
    refuse_unknown,
)
from msft.search.peaks import PeakRule
from msft.search.rollout import EndedBy, Method, Run

METHODS: dict[str, Method] = {
    "sft": sft,
    "continual": continual,
    "dynamix": dynamix,
    "ies": ies,
    "sro": sro,
    "soft_sro": soft_sro,
    "msft": msft,
}

_ROLLOUT = ("patience", "on_rollback", "score_excluded")
SHARED_OPTIONS = {
    "continual": (*_ROLLOUT, "rehearsal_fraction"),
    "sro": ("score_excluded", "rehearsal_fraction"),
    "msft": (*_ROLLOUT, "rehearsal_fraction"),
}
"""Options of the roll-out and of the mixture that mean something for a method; the search of
`sro` and `soft_sro` needs every peak, so patience would only spoil it."""


@dataclass(frozen=True, slots=True)
class PreparedMethod:
    """A method with its options, checked."""

    name: str
    options: Mapping[str, Any]
    carry_out: Callable[[Run], EndedBy | None]
    rollout_options: RolloutOptions
    mixture_options: MixtureOptions


def prepare(
    method: str | Method, options: Mapping[str, Any], compute_budget: int, peaks: PeakRule
) -> PreparedMethod:
    """Find the method and check its options; every mistake is a ValueError that says the cure."""
    name, function = _found(method)
    built_in = METHODS.get(name) is function
    shared = SHARED_OPTIONS.get(name, ()) if built_in else (*_ROLLOUT, "rehearsal_fraction")
    own = option_names(function)
    refuse_unknown(options, (*own, *shared), f"option of method {name}:")
    rollout = {key: value for key, value in options.items() if key in _ROLLOUT}
    mixture = {key: value for key, value in options.items() if key == "rehearsal_fraction"}
    rest = {key: value for key, value in options.items() if key not in rollout | mixture}
    if function is msft and compute_budget == 1 and not peaks.include_start:
        raise ValueError(
            "compute_budget is one tick and peaks.include_start is false: every sub-dataset would "
            "peak at the only tick and none could ever be excluded; raise compute_budget or "
            "evals_per_epoch, or include the start"
        )
    what = f"method {name}"
    own_options = checked(function, rest, what)
    return PreparedMethod(
        name,
        own_options,
        partial(function, **own_options),
        RolloutOptions(**checked(RolloutOptions, rollout, what)),
        MixtureOptions(**checked(MixtureOptions, mixture, what)),
    )


def _found(method: str | Method) -> tuple[str, Method]:
    if callable(method):
        return getattr(method, "__name__", type(method).__name__), method
    if method in METHODS:
        return method, METHODS[method]
    if ":" not in method:
        refuse_unknown([method], (*METHODS, "package.module:function"), "method")
    module, _, attribute = method.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"method {method!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"method {method!r} is not a function")
    return method, function
