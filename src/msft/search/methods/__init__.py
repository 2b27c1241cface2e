"""The methods: one file each, one function each, one line each in `METHODS`.

Read `msft.py` first: the paper's Algorithm 1, line by line. To add a method, write
`methods/<name>.py` with a function of a `Run`, add it here, and test it on scripted curves. A
recipe may also name a function of the user's own. A method may import nothing but the search.

Before a run a method is prepared, which checks its options, and rehearsed: it comes to its first
question, which says what it has against its options and how many checkpoints the run will hold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, NoReturn

from msft.errors import OptionError
from msft.own_code import BadCode, imported
from msft.search.curves import PeakRule
from msft.search.falls import FEWEST_TICKS
from msft.search.feeds import SHUFFLED, FeedSpec, Mixture
from msft.search.methods.audit import audit
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
    made_of,
    option_names,
    refuse_unknown,
)
from msft.search.rollout import (
    BASE,
    CONTENDERS,
    CheckpointId,
    EndedBy,
    Keep,
    Method,
    OptimizerStart,
    Run,
    Settings,
)

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

STOPPING_EARLY = ("sft", "soup", "dynamix", "ies")
"""Methods of one roll-out, which `early_stopping_patience` may end."""

AUDIT = "audit"
"""The method of an audit in its log."""

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
    finds: its outcome is findings, not a model.
    """

    name: str
    options: Mapping[str, Any]
    carry_out: Callable[[Run], EndedBy | None]
    rollout_options: RolloutOptions
    mixture_options: MixtureOptions
    peaks: PeakRule | None = None
    averages: int = 0
    finds: bool = False


def prepared_audit(rounds: int) -> PreparedMethod:
    """The audit, which is no way to train a model and so not in `METHODS`."""
    carry_out, options = partial(audit, rounds=rounds), {"rounds": rounds}
    how = (RolloutOptions(), MixtureOptions())
    return PreparedMethod(AUDIT, options, carry_out, *how, finds=True)


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
    rollout_options = made_of(RolloutOptions, rollout, what)
    mixture_options = made_of(MixtureOptions, mixture, what)
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
        function = imported(method)
        option_names(function)  # a class of C has no signature
    except (BadCode, ValueError) as error:
        raise OptionError(f"method {method!r} cannot be imported: {error}", "method") from error
    return method, function


# The rehearsal of a method


@dataclass(frozen=True, slots=True)
class FirstRollout:
    """The first roll-out that a method asks for: its ticks, and which of them must be held.

    plain: of the whole mixture, from the base model, in the usual order of rows.
    """

    ticks: int
    keep: Keep
    plain: bool


class _Enough(Exception):
    """The method has asked its first question."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A `Run` that ends with the method's first question."""

    mixture: Mixture
    compute_budget: int
    train_ticks: int
    evals_per_epoch: int
    early_stopping_patience: int | None = None
    base: ClassVar[CheckpointId] = BASE
    seed: ClassVar[int] = 0
    best: ClassVar[CheckpointId | None] = None

    def rollout(
        self,
        start: Any,
        mixture: Any,
        ticks: int,
        *,
        feed: FeedSpec = SHUFFLED,
        optimizer: OptimizerStart | None = None,
        keep: Keep = CONTENDERS,
        **how: Any,
    ) -> NoReturn:
        whole = start == BASE and mixture == self.mixture
        plain = whole and feed is SHUFFLED and optimizer != "kept"
        raise _Enough(FirstRollout(ticks, keep, plain))

    def score(self, *question: Any, **how: Any) -> NoReturn:
        raise _Enough(None)

    average = falls = judge = find = exclude = go_on = report = score

    def questions(self) -> Mapping[str, Sequence[str]]:
        return {name: [*map(str, range(size))] for name, size in self.mixture.sizes.items()}


def rehearse(carry_out: Callable[[Run], EndedBy | None], run: Rehearsal) -> FirstRollout | None:
    """Let a method check its options; what it finds wrong is its own `OptionError`.

    None where its first question is no roll-out.
    """
    try:
        carry_out(run)
    except _Enough as asked:
        first: FirstRollout | None = asked.args[0]
        return first
    return None


def most_held(method: PreparedMethod, settings: Settings) -> int:
    """Checkpoints that a run may need at a time, as its method's first roll-out says: those ticks,
    the start, the newest and the best, and the averages that it makes."""
    names = settings.mixture.active
    run = Rehearsal(
        settings.mixture,
        settings.compute_budget,
        settings.train_ticks,
        settings.evals_per_epoch,
        settings.early_stopping_patience,
    )
    try:
        first = rehearse(method.carry_out, run)
    except Exception:  # a method of the user's own; the run will say what is wrong
        first = None
    besides = 2 + max(1, method.averages)  # a method that averages starts from the base model
    match first.keep if first else CONTENDERS:
        case "contenders":
            return len(names) + besides
        case "best":  # with room for the next one, which comes before anything goes
            return besides + 1
        case "span" | "all":
            return (first.ticks if first else 0) + method.averages
        case numbers:
            return len(numbers) + besides
