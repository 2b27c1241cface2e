"""The paper's numbers beside scores: the gain in two parts (Eq. 4), the divergence of peaks,
bounds on disk, the compute of OLMo 2, and how other teams train.

**Divergence** (section 3.1): training is split at a checkpoint into two branches. One goes on with
everybody, the other without the sub-dataset that overfitted first. The change of a survivor's
optimal compute is c'_j - c_j: its peak in the branch without, less its peak in the branch with all.

**OLMo 2** (Fig. 1 and Appendix A): training costs 6·|theta| FLOPs per token. The appendix states
the tokens of mid-training (and of the 32B model's pre-training), so these cells are computed here.
It does not state the other pre-training tokens nor the mean lengths of SFT and DPO rows, and its
RLVR cells follow from about 2,714 tokens per episode instead of the 4,096 of its formula: those
cells are taken as printed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import fsum

from msft.run.history import Exclusion, History, train_flops
from msft.search.curves import TEST
from msft.search.rollout import BASE, CheckpointId
from msft.text import listed


@dataclass(frozen=True, slots=True)
class Parts:
    """A gain and its parts, which add up to it.

    gain: None where one of the results has no score.
    prevention, forgetting: None where the equation is undefined; `why` says the reason.
    rest: the gain that the equation says nothing about; of a mean, the share of those for whom it
        is undefined.
    """

    gain: Fraction | None
    prevention: Fraction | None = None
    forgetting: Fraction | None = None
    rest: Fraction = Fraction(0)
    why: str = ""


def decomposition(sft: History, msft: History, split: str | None = None) -> dict[str, Parts]:
    """The parts of every sub-dataset of an mSFT run that the SFT run has too, on the split that
    selects or on another."""
    split = split or msft.selection
    left = {each.name: each for each in msft.exclusions}
    return {
        name: _parts(sft, msft, name, split, left.get(name))
        for name in msft.start.datasets
        if name in sft.start.datasets
    }


def decomposition_split(sft: History, msft: History) -> str:
    """Test if it has every score that the equation needs, else the split that selects.

    Roll-back points are scored on test only with `score_test: rollbacks` or `every`.
    """
    needed = [(sft, sft.best or BASE), (msft, msft.best or BASE)]
    needed += [(msft, exclusion.checkpoint) for exclusion in msft.exclusions]
    missing = any(run.missing(checkpoint, TEST) for run, checkpoint in needed)
    return msft.selection if missing else TEST


def mean_parts(shares: Sequence[Parts]) -> Parts:
    """The mean of all; where the equation is undefined, the gain goes into the rest."""
    gains = [share.gain for share in shares if share.gain is not None]
    reasons = listed(dict.fromkeys(share.why for share in shares if share.why))
    if not gains or len(gains) < len(shares):
        return Parts(None, why=reasons)
    prevention, forgetting, rest = (
        sum((getattr(share, part) or Fraction(0) for share in shares), Fraction(0)) / len(shares)
        for part in ("prevention", "forgetting", "rest")
    )
    gain = sum(gains, Fraction(0)) / len(shares)
    if all(share.prevention is None for share in shares):
        return Parts(gain, rest=rest, why=reasons)
    return Parts(gain, prevention, forgetting, rest, reasons)


def mean_decomposition(pairs: Sequence[Mapping[str, Parts]]) -> dict[str, Parts]:
    """The mean over several pairs of runs (seeds, models), by sub-dataset."""
    names = dict.fromkeys(name for pair in pairs for name in pair)
    return {name: mean_parts([pair[name] for pair in pairs if name in pair]) for name in names}


def _parts(
    sft: History, msft: History, name: str, split: str, exclusion: Exclusion | None
) -> Parts:
    best = msft.best or BASE
    result, reference = _height(msft, best, name, split), _height(sft, sft.best, name, split)
    if result is None or reference is None:
        return Parts(None, why=f"not scored on {split}")
    gain = result - reference
    if exclusion is None:
        return Parts(gain, rest=gain, why="never left")
    peak = _height(msft, exclusion.checkpoint, name, split)
    if peak is None:
        return Parts(gain, rest=gain, why=f"not scored on {split} where it left")
    forgetting = result - peak
    return Parts(gain, gain - forgetting, forgetting)


def _height(
    history: History, checkpoint: CheckpointId | None, name: str, split: str
) -> Fraction | None:
    score = history.known(checkpoint or BASE, split).get(name)
    return Fraction(score.height) if score else None


def changes(with_all: History, without: History, excluded: str) -> dict[str, float]:
    """The change of each survivor's optimal compute, in epochs; below 0 it peaks earlier now.

    with_all, without: runs whose last roll-outs are the two branches, from the same checkpoint.
    """
    full, reduced = _branch(with_all), _branch(without)
    if excluded not in with_all.stages[full].asked.active:
        raise ValueError(f"{excluded!r} is not trained in the branch with all sub-datasets")
    if excluded in without.stages[reduced].asked.active:
        raise ValueError(f"{excluded!r} is trained in the branch that was to go on without it")
    return {
        name: _optimum(without, reduced, name) - _optimum(with_all, full, name)
        for name in with_all.stages[full].asked.active
        if name in without.stages[reduced].asked.active
    }


def left_out(with_all: History, without: History) -> str:
    """The one sub-dataset that only the first branch trains."""
    reduced = without.stages[_branch(without)].asked.active
    full = with_all.stages[_branch(with_all)].asked.active
    names = [name for name in full if name not in reduced]
    if len(names) != 1:
        raise ValueError(f"the branches differ by {len(names)} sub-datasets; expected one")
    return names[0]


def mean_shift(moved: Mapping[str, float]) -> float:
    """Mean absolute change, as in the paper's Fig. 3b."""
    return fsum(abs(change) for change in moved.values()) / len(moved) if moved else 0.0


def _branch(history: History) -> int:
    """The last roll-out that has a point."""
    for number in range(len(history.stages) - 1, -1, -1):
        if history.stages[number].points:
            return number
    raise ValueError("this branch has no evaluation yet; wait until it has been trained")


def _optimum(history: History, stage: int, name: str) -> float:
    """Epochs from the start of a roll-out to a sub-dataset's peak."""
    return history.rule.peak(history.curve(stage, name)) / history.evals_per_epoch


def fork_of(history: History, candidates: Sequence[str]) -> tuple[str, list[int]] | None:
    """The sub-dataset that overfitted first in a run of `with_everybody`, and the ticks of each
    roll-out up to its peak."""
    legs: list[int] = []
    for number, stage in enumerate(history.stages):
        last = max((tick for tick, point in enumerate(stage.points, 1) if point.steps), default=0)
        peaks = {name: history.rule.peak(history.curve(number, name)) for name in candidates}
        first = min(peaks.values())
        if first < last:
            return next(name for name in candidates if peaks[name] == first), [*legs, first]
        legs.append(stage.ticks)
    return None


@dataclass(frozen=True, slots=True)
class DiskBounds:
    """most: at the second stage, a peak of each of N - 1, the start and the best. mean: of the
    most of each stage; rule: how it follows from N."""

    mean: float
    most: int
    rule: str


def disk_bounds(history: History) -> DiskBounds | None:
    """The bounds for N sub-datasets and E evaluations a stage; None of other methods."""
    if history.start.method != "msft":
        return None
    many = len(history.start.datasets)
    looks = int(history.start.settings["compute_budget"])
    stages = [min(many - stage, looks) + 2 for stage in range(many)]
    rule = "(N + 5)/2" if looks >= many else f"E = {looks} < N"
    return DiskBounds(sum(stages) / many, many + 1, rule)


BASE_STAGES = ("pre-training", "mid-training")
POST_STAGES = ("SFT", "DPO", "RLVR-grad", "RLVR-roll")


@dataclass(frozen=True, slots=True)
class Training:
    """A model's way from nothing to the released one.

    tokens: of the stages of which the appendix states them.
    printed: FLOPs of the others, as printed.
    """

    name: str
    num_parameters: int
    tokens: dict[str, int]
    printed: dict[str, float]

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs of each stage, in the order of training."""
        return {
            stage: (
                float(train_flops(self.num_parameters, self.tokens[stage]))
                if stage in self.tokens
                else self.printed[stage]
            )
            for stage in BASE_STAGES + POST_STAGES
        }

    @property
    def base(self) -> float:
        """FLOPs of pre- and mid-training."""
        return sum(self.flops[stage] for stage in BASE_STAGES)

    @property
    def post(self) -> float:
        """FLOPs of post-training."""
        return sum(self.flops[stage] for stage in POST_STAGES)

    @property
    def total(self) -> float:
        return sum(self.flops.values())

    def share(self, stage: str, factor: float = 1.0) -> float:
        """The share of a stage in all training compute, if that stage cost `factor` as much."""
        cost = self.flops[stage] * factor
        return cost / (self.total - self.flops[stage] + cost)


OLMO_2 = (
    Training(
        name="OLMo 2 7B",
        num_parameters=7_000_000_000,
        tokens={"mid-training": 3 * 50 * 10**9},
        printed={
            "pre-training": 1.64e23,
            "SFT": 2.85e19,
            "DPO": 1.94e19,
            "RLVR-grad": 7.12e19,
            "RLVR-roll": 7.60e20,
        },
    ),
    Training(
        name="OLMo 2 13B",
        num_parameters=13_000_000_000,
        tokens={"mid-training": (3 * 100 + 300) * 10**9},
        printed={
            "pre-training": 3.90e23,
            "SFT": 5.29e19,
            "DPO": 3.70e19,
            "RLVR-grad": 1.32e20,
            "RLVR-roll": 1.41e21,
        },
    ),
    Training(
        name="OLMo 2 32B",
        num_parameters=32_000_000_000,
        tokens={"pre-training": 6_060 * 10**9, "mid-training": (6_600 - 6_060) * 10**9},
        printed={"SFT": 1.20e20, "DPO": 1.26e20, "RLVR-grad": 3.26e20, "RLVR-roll": 3.47e21},
    ),
)
"""The three models of the appendix."""


HOMOGENEOUS = "homogeneous"


@dataclass(frozen=True, slots=True)
class Team:
    """The SFT of a model according to its report.

    epochs: by what they were trained on; none where a search finds them.
    source: the report, as the paper cites it.
    """

    model: str
    type: str
    epochs: Mapping[str, int]
    source: str

    @property
    def epochs_in_words(self) -> str:
        if len(self.epochs) == 1:
            return str(*self.epochs.values())
        return " + ".join(f"{number} ({what})" for what, number in self.epochs.items()) or "dynamic"


TEAMS = (
    Team("Magistral", HOMOGENEOUS, {"all": 2}, "rastogi2025magistral"),
    Team("OLMo", HOMOGENEOUS, {"all": 3}, "groeneveld-etal-2024-olmo"),
    Team("OLMo 2", HOMOGENEOUS, {"all": 2}, "walsh2025"),
    Team("OLMo 3", HOMOGENEOUS, {"all": 2}, "olmo2025olmo"),
    Team("DeepSeek-V3", HOMOGENEOUS, {"all": 2}, "liu2024deepseek"),
    Team("DeepSeek-R1", HOMOGENEOUS, {"all": 2}, "guo2025deepseek"),
    Team("Qwen2.5", HOMOGENEOUS, {"all": 2}, "qwen2025qwen25technicalreport"),
    Team("Qwen3", HOMOGENEOUS, {"all": 2}, "yang2025qwen3technicalreport"),
    Team(
        "Nemotron-4",
        f"multi-stage {HOMOGENEOUS}",
        {"code": 1, "general": 3},
        "nvidia2024nemotron4340btechnicalreport",
    ),
    Team("mSFT", "heterogeneous", {}, "the paper"),
)
"""The rows of the table, as printed."""

TEAMS_NOTE = (
    "As the paper prints it; --json has its citations. Homogeneous: every sub-dataset is trained "
    "for the same number of epochs."
)
