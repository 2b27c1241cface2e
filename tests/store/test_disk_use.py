"""How little is on disk, and what a crash costs for that."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
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
from msft.run.history import History
from msft.run.log import Reached, read_log
from msft.run.summary import summary_of
from msft.search.feeds import Batch, Losses
from msft.search.methods import METHODS
from msft.search.rollout import Run
from msft.testing import Learner, SimulatedEngine, simulate

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
        for last in range(2, whole.log.count(b"\n")):
            folder = place / str(last)
            kill(replace(case, method=sft), folder, memory, last, written=True)
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
    return sum(event.steps for event in events if isinstance(event, Reached))


@pytest.mark.parametrize("name", ["msft", "msft-restored", "continual", "sro"])
def test_a_crash_costs_no_more_than_the_stage_it_comes_in(name: str) -> None:
    """With room in memory: what was lost is trained again once, from the stage's start at most."""
    case = replace((PLAIN | VARIED)[name], compute_budget=4)
    with quick_folder() as place:
        case.run(place / "whole", ROOM_FOR_ALL)
        total = logged(place / "whole")
        costs = list[int]()
        for last in range(2, (place / "whole/run.jsonl").read_bytes().count(b"\n")):
            folder, engine = place / str(last), CountingEngine()
            kill(case, folder, ROOM_FOR_ALL, last, written=True, lag=0)
            done = logged(folder)
            stages = History(read_log(folder / "run.jsonl")).stages
            steps = [sum(point.steps for point in stage.points) for stage in stages]
            case.run(folder, ROOM_FOR_ALL, engine=engine, lag=0)
            costs.append(done + engine.steps - total)
            assert costs[-1] <= next((count for count in reversed(steps) if count), 0), last
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
