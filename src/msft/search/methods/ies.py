"""IES (arXiv 2502.07547): instance-dependent early stopping, as a feed inside one roll-out.

A row whose loss has stopped bending, |L^t - 2·L^(t-1) + L^(t-2)| < threshold, gets no gradient
in the next epoch. Three looks are needed, so the first effect is in epoch 4.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from msft.errors import OptionError
from msft.search.feeds import Batch, FeedContext, Losses, RowId, RowLosses, epoch_and_steps
from msft.search.options import Ge, Gt
from msft.search.rollout import Run


@dataclass(frozen=True, slots=True)
class Ies:
    """Settings of the feed."""

    threshold: float
    smoothing_window: int
    permanent: bool
    track_excluded: bool

    def open(self, place: FeedContext) -> "IesFeed":
        return IesFeed(self, place)


def ies(
    run: Run,
    *,
    threshold: Annotated[float, Gt(0)] = 0.01,
    smoothing_window: Annotated[int, Ge(1)] = 1,
    permanent: bool | None = None,
    track_excluded: bool = True,
) -> None:
    """One roll-out.

    smoothing_window: each loss is first averaged with the ones before it, this many in all
        (1: as it is; the authors' code uses 3).
    permanent: a row that stopped never returns (default: it may).
    track_excluded: stopped rows get a forward pass at the end of each epoch, so that they can
        return. False is the paper's FLOPs accounting, and stopping is then permanent.
    """
    if permanent is False and not track_excluded:
        raise OptionError(
            "ies: permanent: false contradicts track_excluded: false, since a row that is not "
            "looked at can never return; leave one of them out",
            "permanent",
        )
    feed = Ies(threshold, smoothing_window, bool(permanent) or not track_excluded, track_excluded)
    run.rollout(run.base, run.mixture, run.train_ticks, feed=feed, keep="best")


class IesFeed:
    """The shuffled feed without the rows that rest in this epoch."""

    def __init__(self, spec: Ies, place: FeedContext) -> None:
        self._spec, self._place = spec, place
        self._looks, self._resting = RowLosses(place.mixture), set[RowId]()
        self._epoch, self._rows = -1, list[RowId]()

    def batches(self, tick: int) -> Iterator[Batch]:
        per_epoch = self._place.evals_per_epoch
        epoch, within = divmod(tick - 1, per_epoch)
        if within == 0:
            self._looks.begin_epoch()
            stopped = {row for row, losses in self._looks.losses.items() if self._stops(losses)}
            self._resting = stopped | self._resting if self._spec.permanent else stopped
        if epoch != self._epoch:
            everybody = self._place.shuffled_epoch(epoch)
            self._epoch, self._rows = epoch, [r for r in everybody if r not in self._resting]
        batches = self._place.in_steps(self._rows)
        for step in epoch_and_steps(tick, len(batches), per_epoch)[1]:
            yield Batch(batches[step])
        if within == per_epoch - 1 and self._spec.track_excluded:
            for rows in self._place.in_steps(sorted(self._resting)):
                yield Batch(rows, "track")

    def _stops(self, losses: list[float]) -> bool:
        if len(losses) < 3:
            return False
        now, before, earlier = (
            sum(part) / len(part)
            for end in range(len(losses), len(losses) - 3, -1)
            for part in [losses[max(0, end - self._spec.smoothing_window) : end]]
        )
        return abs(now - 2 * before + earlier) < self._spec.threshold

    def observe(self, batch: Batch, losses: Losses) -> None:
        self._looks.add(batch.rows, losses.rows)

    def state(self) -> Any:
        return {**self._looks.state(), "resting": sorted(self._resting)}

    def restore(self, state: Any) -> None:
        self._looks.restore(state)
        self._resting = {(name, number) for name, number in state["resting"]}
