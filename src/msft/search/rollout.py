"""The roll-out, and the run that answers for it: all that a method can see.

A method is a function of a `Run`. It asks for roll-outs, reads their curves, says what it
decided, and asks for the next one. It never sees a weight, a file or a clock, which is why it
can be tested in milliseconds and resumed by simply calling it again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

from msft.search.curves import SELECTION, Curve, MeanRule, PeakRule, Scores, SelectionSplit
from msft.search.falls import Fall
from msft.search.feeds import SHUFFLED, FeedSpec, Mixture
from msft.search.judging import Finding, JudgedRows

CheckpointId = NewType("CheckpointId", str)
"""`base`, `r<roll-out>-t<tick>` with roll-outs counted from 0 and ticks from 1, or `a<n>`: the
average numbered n, from 0."""

BASE = CheckpointId("base")

OptimizerStart = Literal["fresh", "kept"]
Keep = Literal["contenders", "span", "best", "all"] | tuple[int, ...]
"""Which ticks of a roll-out a method may ask for when it is over, besides the best so far.

contenders: those that could still become a sub-dataset's peak; when it is over, the peaks.
span: every tick from the first of those on.
best: none, for methods that never go back. The last tick is there all the same: the newest always
    is, and its moments with it.
all: every one; numbers: these ticks. Both are held to the end of the run.
"""
CONTENDERS: Keep = "contenders"
EndedBy = Literal["all_excluded", "no_gain", "max_stages", "max_epochs", "budget", "early_stopping"]


def checkpoint_id(rollout: int, tick: int) -> CheckpointId:
    return CheckpointId(f"r{rollout}-t{tick}")


def average_id(number: int) -> CheckpointId:
    return CheckpointId(f"a{number}")


def is_average(checkpoint: CheckpointId) -> bool:
    return checkpoint.startswith("a")


def place_of(checkpoint: CheckpointId) -> tuple[int, int]:
    """Roll-out and tick of a checkpoint; the base model stands before all of them. An average has
    no place: ask `History.reach` for the latest tick in it."""
    if checkpoint == BASE:
        return (-1, 0)
    rollout, tick = checkpoint.split("-")
    return int(rollout[1:]), int(tick[1:])


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation of a roll-out, after `steps` steps since the one before.

    `scores` may lack excluded sub-datasets, never active ones.
    """

    tick: int
    checkpoint: CheckpointId
    scores: Scores
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished roll-out: the point it started from and one point per tick."""

    start: CheckpointId
    mixture: Mixture
    points: tuple[Point, ...]
    rule: PeakRule

    @property
    def ticks(self) -> int:
        """Ticks as run: fewer than asked for if patience ended it."""
        return len(self.points) - 1

    @property
    def last(self) -> int:
        """C, the last tick with a step: where an epoch has fewer steps than ticks, the ones after
        it are the same model."""
        return max((point.tick for point in self.points if point.steps), default=0)

    @property
    def end(self) -> CheckpointId:
        """theta(C)"""
        return self.points[-1].checkpoint

    def at(self, tick: int) -> CheckpointId:
        """theta(c)"""
        return self.points[tick].checkpoint

    def curve(self, name: str) -> Curve:
        """score(i, c) for every tick c, the start included; by the rule, its probability."""
        return [self.rule.height(point.scores[name]) for point in self.points]

    def peaks(self) -> dict[str, int]:
        """c_i* = argmax_c score(i, c) for every active sub-dataset i."""
        return {name: self.rule.peak(self.curve(name)) for name in self.mixture.active}


class Run(Protocol):
    """What a method is given."""

    @property
    def base(self) -> CheckpointId:
        """theta_0"""

    @property
    def mixture(self) -> Mixture:
        """D"""

    @property
    def compute_budget(self) -> int:
        """C of msft and continual, in ticks."""

    @property
    def train_ticks(self) -> int:
        """`num_train_epochs` of the other methods, in ticks."""

    @property
    def evals_per_epoch(self) -> int: ...

    @property
    def seed(self) -> int:
        """The recipe's, for a method that draws with `msft.search.draws`."""

    @property
    def best(self) -> CheckpointId | None:
        """The best point so far; None before anything is scored."""

    @property
    def early_stopping_patience(self) -> int | None:
        """A roll-out ends after so many evaluations in a row without a better mean."""

    def rollout(
        self,
        start: CheckpointId,
        mixture: Mixture,
        ticks: int,
        *,
        feed: FeedSpec = SHUFFLED,
        optimizer: OptimizerStart | None = None,
        eligible: bool = True,
        keep: Keep = CONTENDERS,
        scored: bool = True,
    ) -> Rollout:
        """Train `mixture` from `start` and score every tick.

        optimizer: `fresh`, or `kept` to go on with the moments saved at `start`; by default what
            the recipe's `on_rollback` says.
        eligible: whether its points may be reported as the best.
        keep: which of its ticks must be there when it is over; each takes a copy of the weights.
        scored: whether ticks are scored; else they are only trained and saved.
        """

    def average(self, checkpoints: Sequence[CheckpointId]) -> CheckpointId:
        """The mean of the weights at these checkpoints, scored like any point.

        One that is named twice counts twice. The average starts no roll-out, is not averaged
        again, and is the result only by `report`; unless it was, the next roll-out drops it.
        """

    def score(self, checkpoint: CheckpointId) -> Scores:
        """Scores of all sub-datasets; those not known yet are measured."""

    def falls(self, rollout: Rollout, confidence: float) -> Mapping[str, Fall]:
        """How every active sub-dataset fell after its peak in this roll-out, and who for sure."""

    def questions(self) -> Mapping[str, Sequence[str]]:
        """What each training row of each sub-dataset asks; copies of a row ask the same."""

    def judge(
        self, judge: CheckpointId, rows: Mapping[str, Sequence[int]]
    ) -> Mapping[str, JudgedRows]:
        """What a checkpoint says of these training rows, and of all validation rows."""

    def find(self, findings: Mapping[str, Finding]) -> None:
        """Record what the judges of a round found."""

    def exclude(self, names: Sequence[str], checkpoint: CheckpointId, tick: int) -> None:
        """Record that these sub-datasets leave at this tick, and that `checkpoint` goes on."""

    def go_on(self, checkpoint: CheckpointId) -> None:
        """Record that nobody leaves and that `checkpoint` goes on."""

    def report(self, checkpoint: CheckpointId) -> None:
        """Record that this checkpoint is the result, whatever scored best."""


Method = Callable[..., EndedBy | None]
"""A method: `method(run, *, option=default, …)`; None means that its budget was used up."""


ScoreTest = Literal["none", "best", "rollbacks", "every"]


FAST = "fast"
"""The engine of a run whose log names none."""


DiskPolicy = Literal["lean", "paper"]
"""What is on disk while memory has room: what a crash must not lose, or all that Algorithm 4 has
there."""

LEAN: DiskPolicy = "lean"
"""The policy of a run whose log names none."""

ALL_DATA = "data without exclude_rows"
"""Of a run with `exclude_rows`: the digest of its rows as a run on all of them has it."""


COMPUTED = "computed"
"""Which tokens an evaluation counts, where a log does not say: those that the model computed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is: together with the method and the data it determines the log.

    optim: the optimizer, where it is not the usual one in full precision.
    ema_decay: of the moving average that is scored and kept; recorded where there is one.
    evaluation_tokens: the tokens that an evaluation counts; recorded where it counts others than
        the model computed.
    engine: what trains; recorded where it is not the fast engine.
    adapter: weights of the adapter that alone is trained; recorded where there is one.
    lanes: of which a step's gradient is the sum; recorded where there are several.
    disk_policy: which checkpoints are on disk; recorded where it is not lean.
    selection_split: the rows that decide and choose; recorded where they are those of test.
    score_test: which points are also scored on the test split, which then decides nothing.
    tested: the sub-datasets that have test rows; None, and not recorded, where all or none have.
    watched: sub-datasets that are scored and never trained, each with the splits of its rows. Ticks
        are scored on the first split, the result also on test. Recorded where there are some.
    guards: for each guarded sub-dataset, the drop below the base model that a result may have, in
        score units; recorded where there are some.
    early_stopping_patience: as `Run` has it; recorded where there is one.
    fingerprint: digests of what the log does not spell out (data, tokenizer, base model).
    """

    mixture: Mixture
    compute_budget: int
    train_ticks: int
    evals_per_epoch: int
    seed: int = 20
    peaks: PeakRule = field(default_factory=PeakRule)
    mean: MeanRule = "macro"
    selection_split: SelectionSplit = SELECTION
    score_test: ScoreTest = "none"
    tested: tuple[str, ...] | None = None
    watched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    guards: Mapping[str, float] = field(default_factory=dict)
    early_stopping_patience: int | None = None
    optim: str = "adamw"
    ema_decay: float | None = None
    evaluation_tokens: str = COMPUTED
    engine: str = FAST
    adapter: int = 0
    lanes: int = 1
    disk_policy: DiskPolicy = LEAN
    fingerprint: Mapping[str, str] = field(default_factory=dict)
