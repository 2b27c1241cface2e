"""A method on curves that are written down beforehand."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from msft.run.history import History
from msft.run.log import Log, Tokens
from msft.run.recorded_run import RecordedRun
from msft.run.rows import Scored
from msft.run.worker import Question, Work
from msft.search.curves import SELECTION, PeakRule, value
from msft.search.feeds import Mixture
from msft.search.methods import prepare
from msft.search.options import made_of, ticks_of
from msft.search.rollout import BASE, CheckpointId, Method, Settings, checkpoint_id
from msft.store.store import CheckpointStore, MemoryTier

Curves = Mapping[str, Sequence[float]]
Answer = Callable[[int, CheckpointId, tuple[str, ...], int], Curves]
"""answer(index, start, active, ticks): every sub-dataset's score at tick 0, 1, …, ticks."""
RowCurves = Mapping[str, Sequence[Sequence[float]]]
RowAnswer = Callable[[int, CheckpointId, tuple[str, ...], int], RowCurves]
"""rows(index, start, active, ticks): what each validation row of every active sub-dataset got
(1 right, 0 wrong) at tick 0, 1, …, ticks."""

AverageAnswer = Callable[[list[CheckpointId]], Mapping[str, float]]
"""average(ids): every sub-dataset's score of the mean of these checkpoints."""

ROWS = 100


@dataclass(frozen=True, slots=True)
class Scripted:
    """What a method did on scripted curves.

    rollouts: (start, active sub-datasets, ticks as run), in order.
    excluded: name and tick of leaving, in order.
    averaged: what was averaged, in order.
    best, best_mean: the reported checkpoint and its mean score over all sub-datasets.
    """

    rollouts: list[tuple[CheckpointId, tuple[str, ...], int]]
    excluded: list[tuple[str, int]]
    averaged: list[list[CheckpointId]]
    best: CheckpointId
    best_mean: float
    history: History


def scripted(
    method: str | Method,
    datasets: Sequence[str],
    answer: Answer,
    compute_budget: float = 3,
    num_train_epochs: float = 10,
    evals_per_epoch: int = 4,
    sizes: Mapping[str, int] | Sequence[int] | None = None,
    peaks: Mapping[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
    log: Log | None = None,
    average: AverageAnswer | None = None,
    rows: RowAnswer | None = None,
    watched: Sequence[str] = (),
    guards: Mapping[str, float] | None = None,
    early_stopping_patience: int | None = None,
) -> Scripted:
    """Run a method (a name or a function) whose every roll-out is answered by `answer`.

    average: answers for averages; without it they score the mean of what was averaged.
    watched: names that are answered for, and never trained.
    guards: the drops that a result may surely have at most; they need `rows`.
    rows: for methods that test falls and for guards, what each row got. Tick 0 of a later roll-out
        is where it starts, so its rows are those of the roll-out before it.
    """
    sizes_by_name = _rows(datasets, sizes)
    rule = made_of(PeakRule, peaks or {}, "peaks")
    budget = ticks_of(compute_budget, evals_per_epoch, "compute_budget")
    prepared = prepare(method, method_options or {}, budget, rule)
    settings = Settings(
        mixture=Mixture.of(sizes_by_name, prepared.mixture_options.rehearsal_fraction),
        compute_budget=budget,
        train_ticks=ticks_of(num_train_epochs, evals_per_epoch, "num_train_epochs"),
        evals_per_epoch=evals_per_epoch,
        peaks=rule,
        watched=dict.fromkeys(watched, (SELECTION,)),
        guards=guards or {},
        early_stopping_patience=early_stopping_patience,
    )
    store = CheckpointStore([MemoryTier("memory", capacity=10**9)])
    worker = _ScriptedWorker(answer, (*datasets, *watched), average, rows)
    history = RecordedRun(settings, prepared, worker, log or Log(), store).carry_out()
    best = history.best or BASE
    return Scripted(
        rollouts=[(s.asked.start, tuple(s.asked.active), s.ticks) for s in history.stages],
        excluded=[leaving for stage in history.stages for leaving in stage.excluded],
        averaged=[list(made.of) for made in history.averages.values()],
        best=best,
        best_mean=float(history.mean(best)),
        history=history,
    )


def _rows(
    datasets: Sequence[str], sizes: Mapping[str, int] | Sequence[int] | None
) -> dict[str, int]:
    """Rows of each sub-dataset."""
    if not datasets or len(set(datasets)) < len(datasets):
        raise ValueError(f"datasets is {list(datasets)}; expected one or more different names")
    if sizes is None:
        return dict.fromkeys(datasets, ROWS)
    listed = sizes if isinstance(sizes, Mapping) else dict(zip(datasets, sizes, strict=True))
    if set(listed) != set(datasets) or min(listed.values()) < 1:
        raise ValueError(f"sizes is {sizes}; expected 1 or more rows for each of {list(datasets)}")
    return {name: listed[name] for name in datasets}


class _ScriptedWorker:
    """Holds no weights, only the place on the script: which roll-out, which tick. The weights of
    an average are several places."""

    num_parameters = 1

    def __init__(
        self,
        answer: Answer,
        datasets: tuple[str, ...],
        average: AverageAnswer | None,
        rows: RowAnswer | None = None,
    ) -> None:
        self._answer = answer
        self._average = average
        self._averaged: list[tuple[int, int]] = []
        self._rows_of = rows
        self._rows: dict[int, RowCurves] = {}
        self._datasets = datasets
        self._curves: dict[int, Curves] = {}
        self._place = (0, 0)

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        number, start, active = question.rollout, question.start, question.mixture.active
        if number not in self._curves:
            self._curves[number] = self._ask(number, start, active, question.ticks)
            if self._rows_of is not None:
                self._rows[number] = self._rows_of(number, start, active, question.ticks)
        self._place, self._averaged = (question.rollout, tick), []

    def advance(self, tick: int) -> Work:
        self._place = (self._place[0], tick)
        return Work(1, (0.0, 0), Tokens())

    def load(self, weights: Any | None) -> None:
        self._averaged = weights if isinstance(weights, list) else []
        self._place = (0, 0) if self._averaged else weights or (0, 0)

    def average(self, parts: Iterable[Any]) -> Any:
        return list(parts)

    def score(self, names: Sequence[str], split: str) -> Scored:
        if self._averaged and self._average:
            ids = [checkpoint_id(*place) if place[1] else BASE for place in self._averaged]
            scores = self._average(ids)
            return Scored({name: value(float(scores[name])) for name in names}, 0)
        places = self._averaged or [self._place]
        means = {name: fsum(self._at(p, name) for p in places) / len(places) for name in names}
        rows = {} if self._averaged else self._rows.get(self._place[0], {})
        tick = self._place[1]
        verdicts = {n: [*map(float, rows[n][tick])] for n in names if n in rows}
        return Scored({name: value(mean) for name, mean in means.items()}, 0, verdicts)

    def _at(self, place: tuple[int, int], name: str) -> float:
        rollout, tick = place
        curves = self._curves.get(rollout)
        if curves is None:  # the base model's score was asked for before any roll-out
            curves = self._ask(rollout, BASE, self._datasets, 0)
        return float(curves[name][tick])

    def weights(self) -> Any:
        return self._place

    def training(self) -> Any:
        return {}

    def _ask(self, index: int, start: CheckpointId, active: tuple[str, ...], ticks: int) -> Curves:
        curves = self._answer(index, start, active, ticks)
        for name in self._datasets:
            if name not in curves or len(curves[name]) <= ticks:
                raise ValueError(
                    f"answer({index}, {start!r}, {active}, {ticks}) gave "
                    f"{list(curves.get(name, []))} for {name!r}; expected {ticks + 1} scores, "
                    f"for tick 0 to {ticks}"
                )
        return curves
