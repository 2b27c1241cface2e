"""What holds for every method on every curve."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import floor
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mortal import Killed, MortalLog, quick_folder
from msft.run.history import History, summary_of
from msft.run.log import Event, Log, PointEvent, RolloutEvent
from msft.run.rows import Scored
from msft.search.curves import Leader, Number, PeakRule, accuracy
from msft.search.draws import stream
from msft.search.feeds import Batch, Losses, Mixture
from msft.search.methods import METHODS
from msft.search.methods.soft_sro import proportioned
from msft.testing import Learner, SimulatedEngine, simulate

thorough = settings(max_examples=120, deadline=None, derandomize=True)


class NoisyEngine(SimulatedEngine):
    """Any curve at all: scores are drawn from the weights' hash, with few levels and many ties."""

    def __init__(self, learners: Mapping[str, Learner], noise: int, levels: int) -> None:
        super().__init__(learners)
        self._noise = noise
        self._levels = levels
        self.trained = Counter[str]()

    def score(self, names: Sequence[str], split: str) -> Scored:
        state = repr(self.weights())
        uniform = {name: stream(self._noise, name, split, state).random() for name in names}
        top = self._levels
        return Scored({n: accuracy(floor(u * (top + 1)), top) for n, u in uniform.items()}, 1)

    def work(self, batch: Batch) -> tuple[Losses, int]:
        if batch.use == "train":
            self.trained.update(name for name, _ in batch.rows)
        return super().work(batch)


@dataclass(frozen=True)
class Trial:
    """A run with everything about it drawn."""

    method: str
    options: Mapping[str, Any]
    peaks: Mapping[str, Any]
    rows: tuple[int, ...]
    batch_size: int
    evals_per_epoch: int
    ticks: int
    noise: int
    levels: int
    memory: int | None

    @property
    def learners(self) -> dict[str, Learner]:
        return {f"d{number}": Learner(rows=rows) for number, rows in enumerate(self.rows)}

    def run(
        self, folder: Path, log: Log | None = None, engine: NoisyEngine | None = None
    ) -> History:
        return simulate(
            self.method,
            self.learners,
            compute_budget=self.ticks / self.evals_per_epoch,
            num_train_epochs=self.ticks / self.evals_per_epoch,
            evals_per_epoch=self.evals_per_epoch,
            train_batch_size=self.batch_size,
            peaks=self.peaks,
            method_options=self.options,
            folder=folder,
            memory_copies=self.memory,
            log=log,
            engine=engine or self.engine(),
        )

    def engine(self) -> NoisyEngine:
        return NoisyEngine(self.learners, self.noise, self.levels)


ROLLOUT = {
    "patience": st.integers(1, 4),
    "on_rollback": st.sampled_from(["reset", "restore"]),
    "score_excluded": st.sampled_from(["every", "rollback"]),
    "rehearsal_fraction": st.sampled_from([0.0, 0.3]),
}
OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "msft": {
        "drop_ties": st.sampled_from(["one", "all"]),
        "max_stages": st.integers(1, 6),
        "max_epochs": st.integers(1, 8),
        **ROLLOUT,
    },
    "continual": ROLLOUT,
    "sro": {key: ROLLOUT[key] for key in ("score_excluded", "rehearsal_fraction")},
    "dynamix": {"preset": st.sampled_from(["original", "msft-paper"])},
    "ies": {"threshold": st.sampled_from([0.01, 0.5]), "smoothing_window": st.integers(1, 3)},
}


@st.composite
def trials(draw: st.DrawFn, methods: Sequence[str] = tuple(METHODS)) -> Trial:
    method = draw(st.sampled_from(methods))
    options = draw(st.fixed_dictionaries({}, optional=OPTIONS.get(method, {})))
    peaks = {
        "smooth": draw(st.sampled_from([0, 0, 1, 2])),
        "min_delta": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "include_start": draw(st.booleans()),
    }
    ticks = draw(st.integers(1, 6))
    assume(method != "msft" or ticks > 1 or peaks["include_start"])
    return Trial(
        method=method,
        options=options,
        peaks=peaks,
        rows=tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))),
        batch_size=draw(st.integers(1, 4)),
        evals_per_epoch=draw(st.sampled_from([1, 2, 4])),
        ticks=ticks,
        noise=draw(st.integers(0, 10**6)),
        levels=draw(st.sampled_from([1, 2, 5, 100])),
        memory=draw(st.sampled_from([None, None, 1, 2, 4])),
    )


class WitnessLog(Log):
    """Looks at the disk, and at what was trained, whenever an event is written."""

    def __init__(self, folder: Path, trial: "Trial", engine: NoisyEngine) -> None:
        Log.__init__(self, folder / "run.jsonl")
        self.checkpoints = folder / "checkpoints"
        self.smooth = trial.peaks["smooth"]
        self.averaged = trial.ticks + 1 if trial.method == "soup" else 0  # a span may be all ticks
        self.engine = engine
        self.num_active = [0]  # of the roll-out before too, until the first point of the next
        self.trained: list[Counter[str]] = []

    def append(self, event: Event) -> None:
        there = {path.name for path in self.checkpoints.iterdir()}
        copies = sum(name.endswith((".weights", ".weights.tmp")) for name in there)
        bound = max(max(self.num_active) + 2 + 1 + self.smooth, self.averaged)
        assert copies <= bound, f"{sorted(there)} for {self.num_active} active sub-datasets"
        if isinstance(event, PointEvent):
            assert event.disk.copies <= event.disk.peak_copies <= bound
            assert copies <= event.disk.peak_copies
            self.num_active = self.num_active[-1:]
        if isinstance(event, RolloutEvent):
            assert event.start == "base" or f"{event.start}.weights" in there
            self.num_active = [*self.num_active[-1:], len(event.active)]
            self.engine.trained = Counter()
            self.trained.append(self.engine.trained)
        Log.append(self, event)


def witnessed(trial: Trial) -> tuple[History, WitnessLog]:
    with quick_folder() as folder:
        engine = trial.engine()
        log = WitnessLog(folder, trial, engine)
        return trial.run(folder, log, engine), log


@thorough
@given(trials())
def test_every_run_ends_within_its_bounds_and_keeps_no_more_than_it_may(trial: Trial) -> None:
    """The witness checks the disk at every event, and that each roll-out's start is on it."""
    history, _ = witnessed(trial)
    summary = summary_of(history)
    assert summary["status"] == "finished"
    asked = [stage.asked for stage in history.stages]
    assert all(1 <= stage.ticks <= stage.asked.ticks for stage in history.stages)
    if trial.method == "msft":
        limit = trial.options.get("max_stages", 2 * len(trial.rows))
        assert len(asked) <= limit
        assert summary["epochs_trained"] <= trial.options.get("max_epochs", 10**9)
        if summary["ended_by"] == "all_excluded":
            assert {n for s in summary["stages"] for n in s["excluded"]} == set(trial.learners)
    else:
        assert len(asked) <= 1 + len(trial.rows)


@thorough
@given(trials(methods=["msft", "sro", "continual"]))
def test_who_has_left_is_not_trained_again_unless_rehearsed(trial: Trial) -> None:
    history, log = witnessed(trial)
    gone = set[str]()
    for stage, trained in zip(history.stages, log.trained, strict=True):
        active, rehearsed = set(stage.asked.active), set(stage.asked.rehearsed)
        assert not active & gone
        assert set(trained) <= active | rehearsed
        assert rehearsed <= gone
        assert not rehearsed or trial.options["rehearsal_fraction"] > 0
        gone |= {name for name, _ in stage.excluded}


@thorough
@given(trials(methods=["msft"]))
def test_the_active_set_of_msft_only_shrinks(trial: Trial) -> None:
    history, _ = witnessed(trial)
    actives = [list(stage.asked.active) for stage in history.stages]
    assert actives[0] == list(trial.learners)
    for stage, before, after in zip(history.stages, actives, actives[1:], strict=False):
        left = [name for name, _ in stage.excluded]
        assert after == [name for name in before if name not in left]


@settings(thorough, max_examples=60)
@given(trials(), st.data())
def test_any_run_killed_and_resumed_is_the_run_that_was_not(
    trial: Trial, data: st.DataObject
) -> None:
    with quick_folder() as whole, quick_folder() as killed:
        expected = trial.run(whole)
        log = (whole / "run.jsonl").read_bytes()
        last = data.draw(st.integers(0, log.count(b"\n") - 1), label="last event")
        written = data.draw(st.booleans(), label="written")
        try:
            trial.run(killed, MortalLog(killed / "run.jsonl", last, written))
        except Killed:
            history = trial.run(killed)
        assert (killed / "run.jsonl").read_bytes() == log
        assert summary_of(history) == summary_of(expected)


@thorough
@given(trials(methods=["sro"]))
def test_sro_trains_each_sub_dataset_exactly_to_its_peak(trial: Trial) -> None:
    history, _ = witnessed(trial)
    search, *stages = history.stages
    assert search.ticks == trial.ticks
    for name in trial.learners:
        trained = sum(stage.ticks for stage in stages if name in stage.asked.active)
        assert trained == history.rule.peak(history.curve(0, name))
    assert all(stage.asked.optimizer == "kept" for stage in stages[1:])
    assert all(
        stage.asked.start == before.points[-1].checkpoint for before, stage in pairwise(stages)
    )


# Which ticks could still become the peak.

heights = st.one_of(
    st.integers(0, 3).map(lambda right: Fraction(right, 3)), st.floats(-2, 2, width=16)
)
curves = st.lists(heights, min_size=2, max_size=12)
rules = st.builds(
    PeakRule,
    smooth=st.integers(0, 3),
    min_delta=st.sampled_from([0.0, 0.1, 0.5]),
    include_start=st.booleans(),
)


def contenders_over_time(rule: PeakRule, curve: Sequence[Number]) -> list[list[int]]:
    leader: Leader | None = None
    found = []
    for length in range(1, len(curve) + 1):
        leader = rule.update_leader(leader, curve[:length])
        found.append(rule.contenders(leader, curve[:length]))
    return found


@settings(thorough, max_examples=400)
@given(rules, curves)
def test_the_peak_was_a_contender_at_every_time_before(rule: PeakRule, curve: list[Number]) -> None:
    peak = rule.peak(curve)
    for tick, contenders in enumerate(contenders_over_time(rule, curve)):
        assert peak in contenders or peak > tick


@settings(thorough, max_examples=200)
@given(st.booleans(), st.sampled_from([0.0, 0.1]), curves)
def test_without_smoothing_the_only_contender_is_the_peak_so_far(
    include_start: bool, min_delta: float, curve: list[Number]
) -> None:
    rule = PeakRule(min_delta=min_delta, include_start=include_start)
    for tick, contenders in enumerate(contenders_over_time(rule, curve)):
        possible = tick > 0 or include_start
        assert contenders == ([rule.peak(curve[: tick + 1])] if possible else [])


@settings(thorough, max_examples=200)
@given(rules, curves)
def test_no_more_contenders_than_the_leader_and_the_unsettled(
    rule: PeakRule, curve: list[Number]
) -> None:
    assert all(len(ticks) <= 1 + rule.smooth for ticks in contenders_over_time(rule, curve))


# Soft SRO's mixture, against the pseudo-code of Algorithm 3.


def algorithm_3(sizes: Mapping[str, int], peaks: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Lines 4 to 17: per sub-dataset the full copies and the sampled rows."""
    z = sum(peaks[name] * size for name, size in sizes.items())
    proportioned = {}
    for name, size in sizes.items():
        r = sum(sizes.values()) * Fraction(peaks[name] * size, z)
        copies = 0
        while r >= size:
            copies += 1
            r -= size
        proportioned[name] = (copies, floor(r) if r > 0 else 0)
    return proportioned


@thorough
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_soft_sro_mixes_exactly_as_algorithm_3(found: list[tuple[int, int]], seed: int) -> None:
    assume(any(peak for _, peak in found))
    sizes = {f"d{number}": size for number, (size, _) in enumerate(found)}
    peaks = {f"d{number}": peak for number, (_, peak) in enumerate(found)}
    mixture = proportioned(Mixture.of(sizes), peaks)
    expected = algorithm_3(sizes, peaks)
    epochs = [mixture.epoch(seed, 1, epoch) for epoch in range(2)]
    assert epochs[0] == epochs[1], "drawn once"
    times = Counter(epochs[0])
    for name, (copies, rest) in expected.items():
        seen = [times[name, number] for number in range(sizes[name])]
        assert sorted(seen) == [copies] * (sizes[name] - rest) + [copies + 1] * rest
    assert mixture.rows == len(epochs[0]) <= sum(sizes.values())


def test_soft_sro_leaves_the_mixture_as_it_is_if_nobody_learned() -> None:
    mixture = Mixture.of({"a": 3, "b": 5})
    assert proportioned(mixture, {"a": 0, "b": 0}) == mixture
