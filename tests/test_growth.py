"""Bookkeeping stays small beside training, and grows no faster than the scores it holds."""

import gc
from collections.abc import Callable, Iterator
from time import process_time

import pytest

from mortal import quick_folder
from msft.data.partition import partition
from msft.data.splits import shared_between
from msft.example import Example, Split
from msft.planning.counting import Script, counted_run
from msft.recipe.dataset import DatasetSpec
from msft.search.curves import SELECTION, PeakRule
from msft.search.feeds import Mixture
from msft.search.methods import prepare
from msft.search.rollout import Settings
from msft.testing import Learner, simulate


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """The garbage collector visits all that other tests of this process left behind, so what it
    takes says nothing about the code that is timed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def quickest(work: Callable[[], object], times: int = 3) -> float:
    """Processor time in seconds, the best of several tries."""
    found = list[float]()
    for _ in range(times):
        begun = process_time()
        work()
        found.append(process_time() - begun)
    return min(found)


def timed(num_datasets: int, max_stages: int, ticks: int = 12) -> tuple[float, int, int]:
    """Processor time, bytes of the log, and scores in it, of an mSFT run on disk; best of three."""
    learners = {
        f"d{number}": Learner(rows=4, limit=0.2 + 0.1 * (number % 10), damage=0.5)
        for number in range(num_datasets)
    }
    seconds = list[float]()
    for _ in range(3):
        with quick_folder() as folder:
            begun = process_time()
            history = simulate(
                "msft",
                learners,
                compute_budget=ticks / 4,
                train_batch_size=4 * num_datasets,
                method_options={"max_stages": max_stages},
                folder=folder,
            )
            seconds.append(process_time() - begun)
            size = (folder / "run.jsonl").stat().st_size
    assert len(history.stages) == max_stages
    return min(seconds), size, max_stages * ticks * num_datasets


def test_a_run_of_the_papers_size_takes_seconds() -> None:
    seconds, size, scores = timed(10, max_stages=10)
    assert seconds < 3
    assert size < 60 * scores


def test_time_and_log_grow_with_the_scores_and_not_faster() -> None:
    """A hundred times as many sub-datasets: the time of a score stays; a square would take a
    hundred times as long. The limit lies between, so that a busy machine does not reach it."""
    runs = [timed(number, max_stages=2, ticks=4) for number in (10, 1000)]
    few, many = (seconds / scores for seconds, _, scores in runs)
    assert many < 10 * few
    assert all(size < 60 * scores for _, size, scores in runs)


def test_four_times_the_stages_take_four_times_the_time() -> None:
    few, many = timed(20, max_stages=4, ticks=4), timed(20, max_stages=16, ticks=4)
    assert many[0] < 4 * 4 * few[0]
    assert many[1] < 1.5 * 4 * few[1]


def rows_of(number: int, split: str) -> tuple[Example, ...]:
    return tuple(
        Example(
            f"a question that is long enough, {split} {number} {row}", "b", subject=f"v{number}"
        )
        for row in range(4)
    )


def test_reading_and_counting_grow_with_the_sub_datasets_and_not_with_their_square() -> None:
    """Twenty times as many take twenty times as long; a square would be four hundred times. The
    limit lies between."""

    def seconds(number: int) -> list[float]:
        parts = {f"v{n}": {s: rows_of(n, s) for s in ("train", "test")} for n in range(number)}
        whole = {
            split: Split(tuple(r for each in parts.values() for r in each[split]), "messages")
            for split in ("train", "test")
        }
        spec = DatasetSpec("a", path="b", split_by="v", split_min_rows=1)
        sizes = dict.fromkeys(parts, 4)
        settings = Settings(Mixture.of(sizes), 1, 1, 1)
        tokens = {name: [1] * 4 for name in parts}
        everybody = Script(lambda mixture: mixture.active)
        scored = {(name, SELECTION): 1 for name in parts}
        sft = prepare("sft", {}, 1, PeakRule())
        work: list[Callable[[], object]] = [
            lambda: partition(spec, whole),
            lambda: shared_between(parts),
            lambda: counted_run(settings, sft, 16, tokens, scored, everybody),
        ]
        return [quickest(each) for each in work]

    few, many = seconds(200), seconds(4000)
    assert all(large < 90 * small for small, large in zip(few, many, strict=True))
