"""How little is on disk, and what a crash costs for that."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from mortal import (
    LEARNERS,
    PLAIN,
    STORES,
    VARIED,
    Killed,
    MortalLog,
    kill,
    left_by,
    quick_folder,
)
from msft.run.history import History, summary_of
from msft.run.log import AverageEvent, PointEvent, read_log
from msft.search.feeds import Batch, Losses
from msft.search.methods import METHODS
from msft.search.rollout import CheckpointId, Run
from msft.testing import Learner, SimulatedEngine, promised_log, simulate

ROOM_FOR_ALL = 99


def paper(seed: int) -> dict[str, Learner]:
    """Ten sub-datasets that learn and overfit at different times."""
    random = Random(seed)
    return {
        f"d{number}": Learner(
            start=random.uniform(0.2, 0.5),
            ceiling=random.uniform(0.6, 0.9),
            passes=random.uniform(0.3, 2),
            limit=random.uniform(0.2, 2.5),
            damage=random.uniform(0.02, 0.4),
        )
        for number in range(10)
    }


@pytest.mark.parametrize("options", [{}, {"patience": 4, "on_rollback": "restore"}])
@pytest.mark.parametrize("seed", range(3))
def test_two_sets_of_weights_are_on_disk_where_the_paper_has_four(
    seed: int, options: dict[str, object]
) -> None:
    """Its settings: N = 10, C = 3 epochs, four evaluations in each."""
    with quick_folder() as folder:
        history = simulate(
            "msft",
            paper(seed),
            method_options=options,
            folder=folder,
            memory_copies=ROOM_FOR_ALL,
        )
    assert len(history.stages) >= 10
    assert max(disk.copies for disk in history.disk) == 2
    assert 1 < summary_of(history)["disk"]["mean_copies"] < 2


@pytest.mark.parametrize("method", METHODS)
def test_it_is_never_more_than_two_with_any_method(method: str) -> None:
    with quick_folder() as folder:
        history = PLAIN[method].run(folder, ROOM_FOR_ALL)
    assert max(disk.copies for disk in history.disk) <= 2


@pytest.mark.parametrize("seed", range(4))
def test_under_the_paper_s_policy_the_disk_has_peaks_start_and_best(seed: int) -> None:
    """N = 10 and E = 12 as in its appendix: N + 1 copies at most, and a mean below (N + 5)/2."""
    found = {}
    for policy in ("lean", "paper"):
        with quick_folder() as folder:
            history = simulate(
                "msft", paper(seed), folder=folder, memory_copies=2, disk_policy=policy
            )
            left = [path.name for path in (folder / "checkpoints").iterdir()]
        assert left == [f"{history.best}.weights"]
        found[policy] = history
    copies = [disk.copies for disk in found["paper"].disk]
    assert copies == counted(found["paper"])
    disk = summary_of(found["paper"])["disk"]
    assert disk["mean_copies"] == sum(copies) / len(copies)
    assert max(copies) <= disk["peak_copies"] <= 11
    assert disk["mean_copies"] == pytest.approx(3.5, abs=0.3)  # as docs/paper.md says
    assert summary_of(found["lean"])["disk"]["mean_copies"] < disk["mean_copies"]


def counted(history: History) -> list[int]:
    """Copies on disk while each tick was trained, by hand: the peak so far of each that is active,
    where the stage began, and the best so far; the base model is no copy."""
    found: list[int] = []
    means: dict[str, Fraction] = {}
    for stage in history.stages:
        curves: dict[str, list[Fraction]] = {name: [] for name in stage.asked.active}
        for number, place in enumerate(stage.checkpoints):
            scores = history.known(place)
            means[place] = sum((Fraction(s.value) for s in scores.values()), Fraction(0)) / 10
            for name, curve in curves.items():
                curve.append(Fraction(scores[name].value))
            peaks = {stage.checkpoints[curve.index(max(curve))] for curve in curves.values()}
            best = max(means, key=means.__getitem__)
            if number + 1 < len(stage.checkpoints):
                found.append(len({*peaks, stage.asked.start, best} - {"base"}))
    return found


@pytest.mark.parametrize("memory", STORES.values())
@pytest.mark.parametrize("method", METHODS)
def test_the_policies_differ_in_what_is_on_disk_and_in_nothing_else(
    method: str, memory: int | None
) -> None:
    with quick_folder() as place:
        left = {}
        for policy in ("lean", "paper"):
            case = replace(PLAIN[method], disk_policy=policy, score_test="best")
            left[policy] = left_by(case.run(place / policy, memory), place / policy)
        logs = {policy: promised_log(place / policy / "run.jsonl") for policy in left}
    first = json.loads(logs["paper"].splitlines()[0])
    assert first["settings"].pop("disk_policy") == "paper"
    assert first == json.loads(logs["lean"].splitlines()[0])
    assert logs["paper"].splitlines()[1:] == logs["lean"].splitlines()[1:]
    lean, paper_s = left["lean"], left["paper"]
    assert paper_s.checkpoints == lean.checkpoints
    assert (paper_s.verdicts, paper_s.samples) == (lean.verdicts, lean.samples)
    assert paper_s.schedule == lean.schedule
    assert {**paper_s.summary, "disk": None} == {**lean.summary, "disk": None}


def test_a_candidate_is_never_in_memory_alone() -> None:
    """After each tick: what the method may ask for is a whole folder on disk, and no other is."""
    case, seen = replace(PLAIN["msft"], disk_policy="paper"), 0
    with quick_folder() as place:
        whole = case.run(place / "whole", 2)
        events = read_log(place / "whole/run.jsonl")
        moments = [(n + 1, False) for n, event in enumerate(events) if type(event) is PointEvent]
        for folder in case.killed(place / "killed", 2, moments).values():
            there = {p.name.partition(".")[0] for p in (folder / "checkpoints").iterdir()}
            known = History(read_log(folder / "run.jsonl"))
            stage = known.stages[-1]
            number = len(known.stages) - 1
            peaks = {
                stage.checkpoints[known.rule.peak(known.curve(number, name))]
                for name in stage.asked.active
            }
            assert there == {*peaks, stage.asked.start, known.best} - {"base"}
            seen += len(there)
    assert seen > whole.candidates


def test_an_average_is_on_disk_with_the_ticks_it_is_made_of() -> None:
    case = replace(PLAIN["soup"], options={"of": "all"}, disk_policy="paper")
    with quick_folder() as place:
        whole = case.run(place / "whole", ROOM_FOR_ALL)
        events = read_log(place / "whole/run.jsonl")
        last = next(n for n, event in enumerate(events) if isinstance(event, AverageEvent))
        kill(case, place / "killed", ROOM_FOR_ALL, last + 1, written=False)
        there = {path.name.partition(".")[0] for path in (place / "killed/checkpoints").iterdir()}
    assert there == {"a0", *whole.stages[0].checkpoints[1:]}
    assert whole.averages[CheckpointId("a0")].disk.peak_copies == len(there)


NEVER_BACK = ("sft", "ies", "dynamix", "sro", "soft_sro")


@pytest.mark.parametrize("method", NEVER_BACK)
def test_a_method_that_never_goes_back_keeps_the_best_and_the_newest(method: str) -> None:
    """Without memory, at N = 10; with a contender for each sub-dataset it was 4.5 to 7."""
    with quick_folder() as folder:
        history = simulate(method, paper(1), folder=folder)
    disk = summary_of(history)["disk"]
    mean = {"sft": 1.625, "ies": 1.625, "dynamix": 1.8, "sro": 12 / 11, "soft_sro": 1.275}[method]
    assert disk["mean_copies"] == pytest.approx(mean)
    assert max(disk.copies for disk in history.disk) == 2
    assert disk["peak_copies"] == 3, "the next one is written before one goes"
    assert disk["peak_bytes"] == 3 * 4 * SimulatedEngine.num_parameters + 2 * 8000


def sft(run: Run) -> None:
    """As it was when it held a contender for each sub-dataset."""
    run.rollout(run.base, run.mixture, run.train_ticks)


@pytest.mark.parametrize("memory", STORES.values())
def test_a_run_that_began_with_more_copies_ends_with_the_same_result(memory: int | None) -> None:
    case = PLAIN["sft"]
    with quick_folder() as place:
        whole = left_by(case.run(place / "whole", memory), place / "whole")
        moments = [(last, True) for last in range(2, whole.log.count(b"\n"))]
        begun = replace(case, method=sft).killed(place / "killed", memory, moments)
        for folder in begun.values():
            left = left_by(case.run(folder, memory), folder)
            assert left.checkpoints == whole.checkpoints
            assert left.summary["best"] == whole.summary["best"]
            if memory == ROOM_FOR_ALL:
                assert left == whole, "the log has the same bytes"


class CountingEngine(SimulatedEngine):
    """Counts its steps of training."""

    def __init__(self, learners: Mapping[str, Learner] = LEARNERS) -> None:
        super().__init__(learners)
        self.steps = 0

    def work(self, batch: Batch) -> tuple[Losses, int]:
        self.steps += batch.use == "train"
        return super().work(batch)


def logged(folder: Path) -> int:
    events = read_log(folder / "run.jsonl")
    return sum(event.steps for event in events if isinstance(event, PointEvent))


@pytest.mark.parametrize("name", ["msft", "msft-restored", "continual", "sro"])
def test_a_crash_costs_no_more_than_the_stage_it_comes_in(name: str) -> None:
    """With room in memory: what was lost is trained again once, from the stage's start at most."""
    case = replace((PLAIN | VARIED)[name], compute_budget=4)
    with quick_folder() as place:
        case.run(place / "whole", ROOM_FOR_ALL)
        total = logged(place / "whole")
        costs = list[int]()
        lines = (place / "whole/run.jsonl").read_bytes().count(b"\n")
        moments = [(last, True) for last in range(2, lines)]
        for folder in case.killed(place / "killed", ROOM_FOR_ALL, moments, lag=0).values():
            engine = CountingEngine()
            done = logged(folder)
            stages = History(read_log(folder / "run.jsonl")).stages
            steps = [sum(point.steps for point in stage.points) for stage in stages]
            case.run(folder, ROOM_FOR_ALL, engine=engine, lag=0)
            costs.append(done + engine.steps - total)
            assert costs[-1] <= next((count for count in reversed(steps) if count), 0), folder
    assert 0 in costs
    assert max(costs) > 0


def test_what_was_lost_is_put_back_on_the_way() -> None:
    """The way to the newest tick passes the peaks before it, so none is trained for again."""
    learners = dict([*paper(1).items()][:5])

    def killed_and_resumed(folder: Path, last: int) -> int:
        """Steps in all."""
        engines = [CountingEngine(learners) for _ in range(2)]
        for engine in engines:
            folder.mkdir(exist_ok=True)
            log = MortalLog(folder / "run.jsonl", last if engine is engines[0] else -1, True)
            with suppress(Killed):
                simulate(
                    "msft",
                    learners,
                    engine=engine,
                    folder=folder,
                    memory_copies=ROOM_FOR_ALL,
                    log=log,
                )
        return sum(engine.steps for engine in engines)

    with quick_folder() as place:
        total = killed_and_resumed(place / "whole", -1)
        events = (place / "whole/run.jsonl").read_bytes().count(b"\n")
        lasts = range(20, events, 5)
        costs = [killed_and_resumed(place / str(n), n) - total for n in lasts]
    assert sum(costs) == 35, costs


def test_without_memory_a_crash_costs_the_tick_it_comes_in() -> None:
    with quick_folder() as place:
        PLAIN["msft"].run(place / "whole")
        total = logged(place / "whole")
        for last in range(2, (place / "whole/run.jsonl").read_bytes().count(b"\n")):
            folder, engine = place / str(last), CountingEngine()
            kill(PLAIN["msft"], folder, None, last, written=True)
            done = logged(folder)
            PLAIN["msft"].run(folder, engine=engine)
            assert done + engine.steps == total
