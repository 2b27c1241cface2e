"""A simulated engine: sub-datasets that learn and overfit in numbers instead of in a model.

Each sub-dataset has a skill and a memory of its own rows. Training on its rows raises both;
training on other rows costs a little skill. Skill raises the score, memory beyond a limit lowers
it. Memory grows faster the larger the sub-dataset's share of a step is, because fewer other rows
dilute it. So a peak depends on who else is trained: exclude a sub-dataset and the others memorise
sooner and peak elsewhere, which is the point of §3.1 of the paper and the reason why SRO's peaks
go stale.

Time is counted in passes: one row of a sub-dataset of n rows is 1/n of a pass.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum
from pathlib import Path
from typing import Any

from msft.run.history import History
from msft.run.log import Log
from msft.run.recorded_run import RecordedRun
from msft.run.rows import Sample, Samples, Scored, Verdicts
from msft.run.worker import EngineWorker
from msft.search.curves import SELECTION, TEST, PeakRule, Score, SelectionSplit, accuracy
from msft.search.feeds import Batch, Losses, Mixture, Part, RowId
from msft.search.methods import prepare
from msft.search.options import made_of, ticks_of
from msft.search.rollout import LEAN, DiskPolicy, Method, ScoreTest, Settings
from msft.store.store import CheckpointStore, DiskTier, DurableTier, MemoryTier


@dataclass(frozen=True, slots=True)
class Learner:
    """How a sub-dataset behaves.

    rows, tokens: its size, and the tokens of each row.
    start, ceiling: the base model's score, and the one it would reach without overfitting.
    passes: passes until 63 % of the way is learned.
    limit: passes that may be memorised without harm.
    damage: score lost per pass memorised beyond that.
    drift: by how much a score on test lies below that on validation.
    known: passes that the base model is as skilled as after; training on others makes it forget.
    """

    rows: int = 64
    tokens: int = 10
    start: float = 0.2
    ceiling: float = 0.9
    passes: float = 1.0
    limit: float = 1.5
    damage: float = 0.15
    drift: float = 0.02
    validation_rows: int = 200
    validation_tokens: int = 20
    keep: bool = False
    known: float = 0.0


@dataclass(slots=True)
class _Mind:
    """A sub-dataset's state; `passes` of the whole run are reckoned with so far."""

    skill: float = 0.0
    memory: float = 0.0
    passes: float = 0.0


class SimulatedEngine:
    """A `Trainer` in numbers, with scores. A cold optimizer learns slowly.

    forget: skill lost per pass over others.
    dilution: memory gained per own pass is (share of the step) to the power of this.
    """

    num_parameters = 1000
    num_trainable = 1000

    def __init__(
        self, learners: Mapping[str, Learner], forget: float = 0.005, dilution: float = 0.5
    ) -> None:
        self._forget = forget
        self._dilution = dilution
        self._learners = learners
        self.load(None)
        self.load_optimizer(None)

    def load(self, weights: Any | None) -> None:
        state = weights or {"passes": 0.0, "minds": {}}
        self._passes: float = state["passes"]
        self._minds = {
            name: _Mind(*state["minds"].get(name, (learner.known,)))
            for name, learner in self._learners.items()
        }

    def load_optimizer(self, moments: Any | None) -> None:
        self._steps: int = moments["steps"] if moments else 0

    def weights(self) -> Any:
        minds = {n: [m.skill, m.memory, m.passes] for n, m in self._minds.items()}
        return {"passes": self._passes, "minds": minds}

    def optimizer(self) -> Any:
        return {"steps": self._steps}

    def average(self, weights: Iterable[Any]) -> Any:
        held = list(weights)
        minds = [[*zip(*(each["minds"][n] for each in held), strict=True)] for n in self._minds]
        means = [[fsum(values) / len(held) for values in mind] for mind in minds]
        passes = fsum(each["passes"] for each in held) / len(held)
        return {"passes": passes, "minds": dict(zip(self._minds, means, strict=True))}

    def seed(self, number: int) -> None:
        pass  # nothing here is random

    def work(self, batch: Batch) -> tuple[Losses, int]:
        tokens = sum(self._learners[name].tokens for name, _ in batch.rows)
        losses = self._losses(batch.rows)
        if batch.use == "track":
            return Losses(losses), tokens
        before = self.weights() if batch.use == "look_ahead" else None
        self._learn(batch.rows, 1.0 if batch.step == "sgd" else 1 - 0.5 ** (self._steps + 1))
        if batch.use == "look_ahead":
            after = self._losses(batch.rows)
            self.load(before)
            return Losses(losses, after), tokens
        self._steps += 1
        return Losses(losses), tokens

    def score(self, names: Sequence[str], split: str) -> Scored:
        scores: dict[str, Score] = {}
        tokens = 0
        for name in names:
            learner = self._learners[name]
            rows = learner.validation_rows
            right = round(rows * self._share(name, split))
            scores[name] = accuracy(right, rows)
            tokens += rows * learner.validation_tokens
        verdicts = {
            n: "1" * int(s.total) + "0" * (s.count - int(s.total)) for n, s in scores.items()
        }
        samples = {name: [self._sample(name, split)] for name in names}
        return Scored(scores, tokens, verdicts, samples=samples)

    def _sample(self, name: str, split: str = SELECTION) -> Sample:
        """The first row, which is right if any is; the answer tells models apart."""
        quality = self._quality(name)
        answer = f"{quality:.6f}"
        return Sample(0, f"a row of {name}", "1", answer, self._share(name, split) > 0)

    def soft_score(self, names: Sequence[str], split: str) -> Scored:
        """As `score`, with the quality itself as the probability of the right choice."""
        scored = self.score(names, split)
        soft = {
            name: replace(score, probability=self._share(name, split))
            for name, score in scored.scores.items()
        }
        return replace(scored, scores=soft)

    def _share(self, name: str, split: str) -> float:
        """The share of right rows of a split."""
        drift = self._learners[name].drift if split == TEST else 0.0
        return min(1.0, max(0.0, self._quality(name) - drift))

    def _learn(self, rows: Sequence[RowId], rate: float) -> None:
        seen = Counter(name for name, _ in rows)
        passes = {name: rate * count / self._learners[name].rows for name, count in seen.items()}
        for name, own in passes.items():
            mind = self._minds[name]
            mind.skill = self._skill(mind) + own
            mind.memory += own * (seen[name] / len(rows)) ** self._dilution
            mind.passes = self._passes + own
            self._passes += own

    def _skill(self, mind: _Mind) -> float:
        """What is left after the passes over others since it was last trained."""
        return max(0.0, mind.skill - self._forget * (self._passes - mind.passes))

    def _quality(self, name: str) -> float:
        learner, mind = self._learners[name], self._minds[name]
        skill = self._skill(mind) / learner.passes
        learned = (learner.ceiling - learner.start) * (1 - exp(-skill))
        return learner.start + learned - learner.damage * max(0.0, mind.memory - learner.limit)

    def _losses(self, rows: Sequence[RowId]) -> list[float]:
        """A row's loss falls with its sub-dataset's skill; odd rows are harder than even ones."""
        level = {
            name: exp(-self._minds[name].skill / self._learners[name].passes)
            for name in {name for name, _ in rows}
        }
        return [level[name] * (1.0 + 0.5 * (number % 2)) for name, number in rows]


class JsonCodec:
    """Simulated state as a file."""

    def write(self, payload: Any, folder: Path) -> None:
        (folder / "state.json").write_text(json.dumps(payload))

    def read(self, folder: Path) -> Any:
        return json.loads((folder / "state.json").read_text())


def simulate(
    method: str | Method,
    learners: Mapping[str, Learner],
    *,
    compute_budget: float = 3,
    num_train_epochs: float = 10,
    evals_per_epoch: int = 4,
    train_batch_size: int = 64,
    seed: int = 20,
    peaks: Mapping[str, Any] | None = None,
    method_options: Mapping[str, Any] | None = None,
    selection_split: SelectionSplit = SELECTION,
    score_test: ScoreTest = "none",
    folder: Path | None = None,
    memory_copies: int | None = None,
    engine: SimulatedEngine | None = None,
    log: Log | None = None,
    disk: "DurableTier | None" = None,
    disk_policy: DiskPolicy = LEAN,
    watched: Mapping[str, Learner] | None = None,
    guards: Mapping[str, float] | None = None,
    early_stopping_patience: int | None = None,
) -> History:
    """A whole run over the simulated engine.

    watched: who is scored and never trained.
    folder: where log, verdicts, samples and checkpoints go (none: memory only). Called again on
        the same folder it resumes, as `msft train` does.
    memory_copies: checkpoints that memory holds before the disk is used; with a folder, none.
    disk: where checkpoints go, instead of the folder.
    """
    rule = made_of(PeakRule, peaks or {}, "peaks")
    budget = ticks_of(compute_budget, evals_per_epoch, "compute_budget")
    prepared = prepare(method, method_options or {}, budget, rule)
    parts = tuple(Part(n, item.rows, item.rows, keep=item.keep) for n, item in learners.items())
    settings = Settings(
        mixture=Mixture(parts, prepared.mixture_options.rehearsal_fraction),
        compute_budget=budget,
        train_ticks=ticks_of(num_train_epochs, evals_per_epoch, "num_train_epochs"),
        evals_per_epoch=evals_per_epoch,
        seed=seed,
        peaks=rule,
        selection_split=selection_split,
        score_test=score_test,
        disk_policy=disk_policy,
        watched=dict.fromkeys(watched or {}, (SELECTION, TEST)),
        guards=guards or {},
        early_stopping_patience=early_stopping_patience,
    )
    engine = engine or SimulatedEngine({**learners, **(watched or {})})
    worker = EngineWorker(
        engine,
        engine.score if rule.by == "score" else engine.soft_score,
        seed=seed,
        batch_size=train_batch_size,
        evals_per_epoch=evals_per_epoch,
    )
    if disk is None and folder is not None:
        disk = DiskTier(folder / "checkpoints", JsonCodec())
    copies = (0 if folder else 10**9) if memory_copies is None else memory_copies
    store = CheckpointStore(
        [MemoryTier("host", copies)] if copies else [], disk, engine.num_parameters * 4, 8000
    )
    opened = log or Log(folder / "run.jsonl" if folder else None)
    verdicts = Verdicts(folder and folder / "verdicts.jsonl", selection=selection_split)
    samples = Samples(folder and folder / "samples.jsonl", selection=selection_split)
    try:
        return RecordedRun(
            settings, prepared, worker, opened, store, verdicts, samples=samples
        ).carry_out()
    finally:
        opened.close()
