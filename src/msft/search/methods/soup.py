"""Soup: SFT once, and the mean of the weights over the span in which sub-datasets peak.

This method is ours, not the paper's. It trains nothing more than SFT and selects no checkpoint:
where SFT reports the one tick that scored best, this reports an average over ticks of the same
roll-out. Its relatives: stochastic weight averaging (arXiv 1803.05407), model soups (2203.05482),
latest-weight averaging (2209.14981) and SWAD (2102.08604). The kinds beside the span are controls.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal, get_args

from msft.errors import OptionError
from msft.search.draws import sampled
from msft.search.options import Ge
from msft.search.rollout import CheckpointId, Keep, Rollout, Run

Kind = Literal["span", "peaks", "last", "random", "all"]
COUNTED = ("last", "random")
"""Kinds that take a number of ticks."""
DEFAULT_K = 8


def soup(
    run: Run, *, of: Kind | list[Any] = "span", k: Annotated[int | None, Ge(1)] = None
) -> None:
    """One roll-out of `num_train_epochs`; the average is the result, whatever scored best.

    of: `span`, every tick from the first sub-dataset's peak to the last one's; `peaks`, one tick
        for each sub-dataset, so that one at which two peak counts twice; `last` and `random`, k
        of the trained ticks; `all`. Of a list the first is the result, and the others are scored
        beside it.
    k: how many ticks `last` and `random` average, where there are as many.

    Peaks are at tick 1 at the earliest, and the earliest of equal ones. A tick without a step does
    not count.
    """
    wanted = kinds(of)
    if k is not None and not any(kind in COUNTED for kind in wanted):
        raise OptionError(
            f"soup: k is {k}, but of: {', '.join(wanted)} has no number of ticks; leave k out, or "
            "use of: last or of: random",
            "k",
        )
    k, planned = k or DEFAULT_K, run.train_ticks
    ticks = {kind: _numbers(run, kind, k, planned) for kind in wanted}
    stops = wanted[0] in COUNTED and run.early_stopping_patience  # nobody knows which are last
    keep = "all" if stops or len(wanted) > 1 else _keep(wanted[0], ticks[wanted[0]])
    rollout = run.rollout(run.base, run.mixture, planned, keep=keep)
    if rollout.ticks < planned:
        ticks = {kind: _numbers(run, kind, k, rollout.ticks) for kind in wanted}
    for number, kind in enumerate(wanted):
        average = run.average(_checkpoints(rollout, kind, ticks[kind]))
        if number == 0:
            run.report(average)


def kinds(of: str | Sequence[Any]) -> list[str]:
    """What is averaged, the result first."""
    named = [of] if isinstance(of, str) else list(of)
    unknown = [kind for kind in named if kind not in get_args(Kind)]
    if unknown or not named or any(named.count(kind) > 1 for kind in named):
        raise OptionError(
            f"soup: of is {of!r}; expected one of {', '.join(get_args(Kind))}, or a list of some "
            "of them, each once",
            "of",
        )
    return named


def _numbers(run: Run, kind: str, k: int, last: int) -> tuple[int, ...]:
    """The ticks up to the last one, where they are known before the roll-out, so that no others
    need be held."""
    match kind:
        case "last":
            return tuple(range(max(1, last - k + 1), last + 1))
        case "random":
            return tuple(sorted(tick + 1 for tick in sampled(last, k, run.seed, "soup")))
        case "all":
            return tuple(range(1, last + 1))
    return ()


def _keep(kind: str, ticks: tuple[int, ...]) -> Keep:
    if kind in COUNTED:
        return ticks
    return "span" if kind == "span" else "contenders" if kind == "peaks" else "all"


def _checkpoints(rollout: Rollout, kind: str, ticks: Sequence[int]) -> list[CheckpointId]:
    """What to average, in order."""
    peaks = list(rollout.peaks().values())
    if kind == "peaks":
        return [rollout.at(tick) for tick in peaks]
    steps = list(accumulate(point.steps for point in rollout.points))
    once: dict[int, int] = {}
    for tick in ticks or range(min(peaks), max(peaks) + 1):
        once.setdefault(steps[tick], tick)
    return [rollout.at(tick) for tick in once.values()]
