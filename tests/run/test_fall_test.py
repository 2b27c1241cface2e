"""The test of falls is a recorded question: killed anywhere, with or without its verdicts, a run
resumes to the same answers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mortal import VARIED, Left, MortalEngine, left_by
from msft.errors import Diverged
from msft.run import log
from msft.run.log import from_line, read_log, to_line
from msft.run.rows import Verdict, Verdicts, read_row_tokens, read_verdicts
from msft.search.curves import SELECTION, TEST
from msft.search.falls import Fall
from msft.search.rollout import BASE, CheckpointId, Run
from msft.testing import Learner, simulate

NAMES = ["msft-sure", "msft-sure-restored"]


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def tear(path: Path) -> None:
    """Half of the file is lost, in the middle of a line."""
    if path.exists():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path: Path) -> None:
    if path.exists():
        path.write_text("no JSON\n")


def change(path: Path) -> None:
    """Rows that do not make up the score of their line in the log."""
    if path.exists():
        path.write_text(path.read_text().replace('"rows":"1', '"rows":"0'))


DAMAGES: list[Callable[[Path], None]] = [remove, tear, garble, change]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_lost_verdicts_are_measured_again_wherever_it_was_killed(
    name: str, damage: Callable[[Path], None], place: Path
) -> None:
    case = VARIED[name]
    whole = left_by(case.run(place / "whole", 2), place / "whole")
    assert whole.log.count(b'"event":"falls"') >= 2
    moments = [(last, last % 2 == 0) for last in range(whole.log.count(b"\n"))]
    for moment, folder in case.killed(place / "killed", 2, moments).items():
        damage(folder / "verdicts.jsonl")
        again: Left = left_by_log(case.run(folder, 2), folder, whole)
        assert again == whole, moment


def left_by_log(history: object, folder: Path, whole: Left) -> Left:
    """What a run left behind, but for the verdicts, which are not all there any more."""
    try:
        found = left_by(history, folder)  # type: ignore[arg-type]
    except (OSError, ValueError):
        (folder / "verdicts.jsonl").write_text("")
        found = left_by(history, folder)  # type: ignore[arg-type]
    return replace(found, verdicts=whole.verdicts)


def test_a_finished_test_is_not_made_again(place: Path) -> None:
    case = VARIED["msft-sure"]
    whole = left_by(case.run(place), place)
    remove(place / "verdicts.jsonl")
    (place / "verdicts.jsonl").write_text("")
    case.run(place, engine=MortalEngine(0))
    assert (place / "run.jsonl").read_bytes() == whole.log


def test_the_event_comes_back_as_it_was(place: Path) -> None:
    VARIED["msft-sure"].run(place)
    tested = [event for event in read_log(place / "run.jsonl") if isinstance(event, log.FallsEvent)]
    for event in tested:
        assert from_line(to_line(event)) == event
    first = tested[0]
    assert (first.checkpoint, first.rollout, first.confidence) == ("r0-t6", 0, 0.95)
    assert set(first.falls) == {"a", "b", "c"}
    fall = first.falls["a"]
    assert isinstance(fall, Fall)
    line = json.loads(to_line(first))
    assert line["event"] == "falls"
    assert line["falls"]["a"] == {
        "peaks": list(fall.peaks),
        "fall": fall.fall,
        "error": fall.error,
        "p": fall.p,
        "sure": True,
        "learned": "above",
    }


def test_another_confidence_under_a_started_run_is_refused(place: Path) -> None:
    def asks(confidence: float) -> Callable[[Run], None]:
        def method(run: Run) -> None:
            run.falls(run.rollout(run.base, run.mixture, 6), confidence)

        return method

    simulate(asks(0.9), {"a": Learner()}, folder=place)
    with pytest.raises(Diverged, match=r"confidence.*0\.8"):
        simulate(asks(0.8), {"a": Learner()}, folder=place)


def test_a_tick_without_a_step_is_no_tick_of_the_test(place: Path) -> None:
    """Eight ticks an epoch and two steps: the other ticks would be three equal ones at the end."""

    def method(run: Run) -> None:
        rollout = run.rollout(run.base, run.mixture, 40)
        assert sum(point.steps > 0 for point in rollout.points) == 10
        found = run.falls(rollout, 0.95)["a"]
        stepped = {point.tick for point in rollout.points if point.steps or not point.tick}
        assert set(found.peaks) <= stepped
        assert found.leaves

    learner = Learner(rows=16, limit=0.3, damage=0.6)
    simulate(method, {"a": learner}, evals_per_epoch=8, train_batch_size=8, folder=place)


# Verdicts.


def checkpoint(name: str) -> CheckpointId:
    return CheckpointId(name)


def test_tokens_of_rows_are_written_once_before_the_first_losses(place: Path) -> None:
    path = place / "verdicts.jsonl"
    verdicts = Verdicts(path)
    for tick in (1, 2):
        losses: dict[str, Verdict] = {"a": [1.5, 2.5], "b": "10"}
        verdicts.add(checkpoint(f"r0-t{tick}"), SELECTION, losses, {"a": [3, 4]})
    verdicts.add(checkpoint("r0-t2"), TEST, {"a": [0.5]}, {"a": [7]})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [i for i, line in enumerate(lines) if "tokens" in line] == [0, 5]
    assert lines[0] == {"split": SELECTION, "dataset": "a", "tokens": [3, 4]}
    assert read_row_tokens(path) == {(SELECTION, "a"): [3, 4], (TEST, "a"): [7]}
    assert read_verdicts(path)[checkpoint("r0-t1"), SELECTION, "a"] == [1.5, 2.5]
    assert len(read_verdicts(path)) == 5


def test_what_was_forgotten_is_read_from_the_file(place: Path) -> None:
    verdicts = Verdicts(place / "verdicts.jsonl")
    for tick in (1, 2):
        verdicts.add(checkpoint(f"r0-t{tick}"), SELECTION, {"a": "10"[:tick]})
    verdicts.forget(all_but=(BASE, checkpoint("r0-t2")))
    assert verdicts.at(checkpoint("r0-t1"), "a") == "1"
    assert verdicts.at(checkpoint("r0-t2"), "a") == "10"
    assert verdicts.at(checkpoint("r0-t3"), "a") is None


def test_without_a_file_what_was_forgotten_is_gone() -> None:
    verdicts = Verdicts()
    verdicts.add(checkpoint("r0-t1"), SELECTION, {"a": "1"}, {"a": [2]})
    assert verdicts.at(checkpoint("r0-t1"), "a") == "1"
    verdicts.forget(all_but=())
    assert verdicts.at(checkpoint("r0-t1"), "a") is None
    assert verdicts.tokens("a") == [2]
