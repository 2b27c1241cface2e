"""Bookkeeping stays small beside training, and grows no faster than the scores it holds."""

from time import process_time

from mortal import quick_folder
from msft.testing import Learner, simulate


def timed(num_datasets: int, max_stages: int, ticks: int = 12) -> tuple[float, int, int]:
    """Processor time, bytes of the log, and scores in it, of an mSFT run on disk; best of three."""
    learners = {
        f"d{number}": Learner(rows=4, limit=0.2 + 0.1 * (number % 10), damage=0.5)
        for number in range(num_datasets)
    }
    seconds = list[float]()
    for _ in range(3):
        with quick_folder() as folder:
            start = process_time()
            history = simulate(
                "msft",
                learners,
                compute_budget=ticks / 4,
                train_batch_size=4 * num_datasets,
                method_options={"max_stages": max_stages},
                folder=folder,
            )
            seconds.append(process_time() - start)
            size = (folder / "run.jsonl").stat().st_size
    assert len(history.stages) == max_stages
    return min(seconds), size, max_stages * ticks * num_datasets


def test_a_run_of_the_papers_size_takes_less_than_a_second() -> None:
    seconds, size, scores = timed(10, max_stages=10)
    assert seconds < 1
    assert size < 60 * scores


def test_time_and_log_grow_with_the_scores_and_not_faster() -> None:
    runs = [timed(number, max_stages=2, ticks=4) for number in (10, 100, 1000)]
    per_score = [seconds / scores for seconds, _, scores in runs]
    assert per_score[2] < 4 * per_score[1] < 16 * per_score[0]
    assert all(size < 60 * scores for _, size, scores in runs)


def test_twice_the_stages_take_twice_the_time() -> None:
    few, many = timed(20, max_stages=4, ticks=4), timed(20, max_stages=16, ticks=4)
    assert many[0] < 4 * 4 * few[0]
    assert many[1] < 1.5 * 4 * few[1]
