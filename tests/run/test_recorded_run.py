"""The recorded run: what it notices, what it refuses, and what it repairs."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mortal import (
    LEARNERS,
    PLAIN,
    VARIED,
    Killed,
    MortalEngine,
    files_of,
    kill,
    left_by,
    unseal,
)
from msft.errors import BadScore, Diverged, LogError, NotReproducible
from msft.run.history import History, summary_of
from msft.run.log import EndEvent, Log, PointEvent, read_log, to_line
from msft.run.recorded_run import rollout_event
from msft.run.rows import Scored
from msft.run.worker import Question
from msft.search.curves import nll
from msft.search.draws import shuffled
from msft.search.feeds import SHUFFLED, Batch, Feed, FeedContext, FeedSpec, Losses, Mixture
from msft.search.methods import METHODS
from msft.search.methods.ies import Ies
from msft.search.rollout import BASE, CONTENDERS, CheckpointId, Run, checkpoint_id
from msft.testing import Learner, SimulatedEngine, simulate


def small(folder: Path | None = None, method: Any = "msft", **changed: Any) -> History:
    """A run in which everything can be changed."""
    settings: dict[str, Any] = {
        "learners": LEARNERS,
        "compute_budget": 1.5,
        "num_train_epochs": 2,
        "evals_per_epoch": 2,
        "train_batch_size": 8,
        **changed,
    }
    learners: Mapping[str, Learner] = settings.pop("learners")
    return simulate(method, learners, folder=folder, **settings)


# What changed under a started run is noticed, and the event is named.

CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "sft"}, 'method was "msft", now it is "sft"'),
    "method option": ({"method_options": {"drop_ties": "all"}}, "settings.method.drop_ties was"),
    "roll-out option": (
        {"method_options": {"patience": 3}},
        "settings.rollout.patience was null, now it is 3",
    ),
    "seed": ({"seed": 21}, "seed was 20, now it is 21"),
    "peak rule": ({"peaks": {"min_delta": 0.1}}, "settings.peaks.min_delta was 0.0, now it is 0.1"),
    "evals_per_epoch": (
        {"evals_per_epoch": 4, "compute_budget": 0.75, "num_train_epochs": 1},
        "settings.evals_per_epoch was",
    ),
    "compute_budget": ({"compute_budget": 2}, "settings.compute_budget was"),
    "num_train_epochs": ({"num_train_epochs": 3}, "settings.train_ticks was"),
    "score_test": ({"score_test": "every"}, "settings.score_test was"),
    "rows": ({"learners": LEARNERS | {"a": Learner(rows=17)}}, "datasets.a was"),
    "sub-datasets": ({"learners": LEARNERS | {"new": Learner()}}, "datasets.new was null"),
    "order": (
        {"learners": dict(reversed(LEARNERS.items()))},
        "the sub-datasets were in another order",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_under_a_started_run_is_refused_at_its_first_event(
    change: str, folder: Path
) -> None:
    small(folder)
    before = files_of(folder)
    keys, said = CHANGES[change]
    with pytest.raises(Diverged, match=r"^this folder holds another run: ") as refusal:
        small(folder, **keys)
    assert said in str(refusal.value)
    assert "changed under a started run" in str(refusal.value)
    assert files_of(folder) == before, "nothing was touched"


def test_another_feed_is_refused_at_the_roll_out(folder: Path) -> None:
    small(folder, "dynamix", method_options={"preset": "original"})
    log = folder / "run.jsonl"
    log.write_bytes(unseal(log).replace(b'"beta":4.0', b'"beta":5.0'))
    with pytest.raises(Diverged, match='"event":"rollout"'):
        small(folder, "dynamix", method_options={"preset": "original"})


def in_order(run: Run, names: Sequence[str]) -> None:
    for name in names:
        run.rollout(run.base, run.mixture.only(name), 1)


def test_another_way_through_the_code_is_refused_where_it_parts(folder: Path) -> None:
    def method(run: Run) -> None:
        in_order(run, order)

    order = ["a", "b", "c"]
    small(folder, method)
    order = ["a", "c", "b"]
    with pytest.raises(Diverged, match=r'"rollout":1.*"active":\{"b":16\}.*"active":\{"c":8\}'):
        small(folder, method)


def test_a_log_that_goes_on_after_the_end_is_refused(folder: Path) -> None:
    def method(run: Run) -> None:
        in_order(run, order)

    order = ["a", "b"]
    small(folder, method)
    order = ["a"]
    with pytest.raises(Diverged, match='"event":"rollout","rollout":1'):
        small(folder, method)
    log = folder / "run.jsonl"
    log.write_bytes(unseal(log) + to_line(EndEvent("budget", BASE)))
    order = ["a", "b"]
    with pytest.raises(Diverged, match='"event":"end"'):
        small(folder, method)


def test_a_flipped_answer_is_noticed_when_a_decision_hangs_on_it(folder: Path) -> None:
    """The answers themselves are believed; a decision that does not follow from them is not."""
    small(folder)
    events = read_log(folder / "run.jsonl")
    at = next(n for n, event in enumerate(events) if isinstance(event, PointEvent))
    point = events[at]
    assert isinstance(point, PointEvent)
    worse = {n: replace(score, total=0) for n, score in point.scores.items()}
    events[at] = replace(point, scores=worse)
    (folder / "run.jsonl").write_bytes(b"".join(map(to_line, events)))
    with pytest.raises(Diverged, match='"event":"decision"'):
        small(folder)


def test_a_log_torn_in_its_middle_starts_nothing(folder: Path) -> None:
    small(folder)
    log = folder / "run.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"event":"decision"', b'"event":"decisiom"', 1))
    before = files_of(folder)
    with pytest.raises(LogError, match="line 7"):
        small(folder)
    assert files_of(folder) == before


# No decision from what is not a number.


class FaultyEngine(SimulatedEngine):
    """From its `healthy`th evaluation or training step on, gives something else."""

    def __init__(self, healthy: int, score: Any = ..., loss: Any = ...) -> None:
        super().__init__(LEARNERS)
        self.healthy = healthy
        self.faulty_score = score
        self.faulty_loss = loss

    def score(self, names: Sequence[str], split: str) -> Scored:
        scored = super().score(names, split)
        if self.faulty_score is ... or self._healthy_still():
            return scored
        scores = {n: s for n, s in scored.scores.items() if n != "b" or self.faulty_score}
        return replace(
            scored, scores=scores | ({"b": self.faulty_score} if self.faulty_score else {})
        )

    def work(self, batch: Batch) -> tuple[Losses, int]:
        losses, tokens = super().work(batch)
        if self.faulty_loss is ... or self._healthy_still():
            return losses, tokens
        return Losses([*losses.rows[:-1], self.faulty_loss]), tokens

    def _healthy_still(self) -> bool:
        self.healthy -= 1
        return self.healthy >= 0


BAD_SCORES = {
    "nan": nll(float("nan"), 10),
    "inf": nll(float("inf"), 10),
    "of no rows": nll(0.0, 0),
    "missing": None,
}


@pytest.mark.parametrize("healthy", [0, 1, 6])
@pytest.mark.parametrize("fault", BAD_SCORES)
def test_a_score_that_is_no_number_decides_nothing_and_the_run_can_go_on(
    fault: str, healthy: int, folder: Path
) -> None:
    case = VARIED["msft-accounted"] if healthy == 6 else PLAIN["msft"]
    expected = left_by(case.run(folder / "whole"), folder / "whole")
    with pytest.raises(BadScore, match=r"^b at (base|r\d-t\d)"):
        case.run(folder / "faulty", engine=FaultyEngine(healthy, score=BAD_SCORES[fault]))
    written = (folder / "faulty/run.jsonl").read_bytes()
    assert expected.log.startswith(written)
    assert len(written) < len(expected.log)
    assert left_by(case.run(folder / "faulty"), folder / "faulty") == expected


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("healthy", [0, 7])
def test_a_loss_that_is_no_number_never_reaches_a_checkpoint(
    healthy: int, loss: float, folder: Path
) -> None:
    case = PLAIN["msft"]
    expected = left_by(case.run(folder / "whole"), folder / "whole")
    with pytest.raises(BadScore, match=r"loss before r\d-t\d is not a number"):
        case.run(folder / "faulty", engine=FaultyEngine(healthy, loss=loss))
    points = [e for e in read_log(folder / "faulty/run.jsonl") if isinstance(e, PointEvent)]
    saved = {path.name.split(".")[0] for path in (folder / "faulty/checkpoints").iterdir()}
    assert saved <= {point.checkpoint for point in points}
    assert left_by(case.run(folder / "faulty"), folder / "faulty") == expected


# Lost checkpoints.


def flip(path: Path) -> None:
    content = bytearray((path / "state.json").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "state.json").write_bytes(content)


LOSSES: dict[str, Callable[[Path], object]] = {
    "deleted": shutil.rmtree,
    "flipped": flip,
    "truncated": lambda path: (path / "state.json").write_bytes(b'{"pas'),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["msft", "msft-restored", "sro", "ies"])
def test_a_lost_checkpoint_is_trained_again_to_the_same_end(
    name: str, loss: str, folder: Path
) -> None:
    """Killed at any event, then each checkpoint part on disk in turn is lost, then all."""
    case = (PLAIN | VARIED)[name]
    expected = left_by(case.run(folder / "whole"), folder / "whole")
    for last in range(4, expected.log.count(b"\n") - 1, 3):
        kill(case, folder / "killed", None, last, written=True)
        parts = sorted(path.name for path in (folder / "killed/checkpoints").iterdir())
        assert parts
        for lost in ([part] for part in parts) if last % 2 else [parts]:
            shutil.copytree(folder / "killed", folder / "lossy")
            for part in lost:
                LOSSES[loss](folder / "lossy/checkpoints" / part)
            left = left_by(case.run(folder / "lossy"), folder / "lossy")
            kept = {k: v for k, v in left.checkpoints.items() if ".bad/" not in k}
            assert replace(left, checkpoints=kept) == expected, (last, lost)
            shutil.rmtree(folder / "lossy")
        shutil.rmtree(folder / "killed")


def test_a_damaged_checkpoint_is_set_aside_not_deleted(folder: Path) -> None:
    kill(PLAIN["sft"], folder, None, 5, written=True)
    flip(folder / "checkpoints/r0-t3.weights")
    damaged = (folder / "checkpoints/r0-t3.weights/state.json").read_bytes()
    PLAIN["sft"].run(folder)
    assert (folder / "checkpoints/r0-t3.weights.bad/state.json").read_bytes() == damaged


class ForgetfulEngine(SimulatedEngine):
    """Counts other tokens than the one before it: the data is not what it was."""

    def work(self, batch: Batch) -> tuple[Losses, int]:
        losses, tokens = super().work(batch)
        return losses, tokens + 1


def test_training_that_does_not_repeat_itself_is_refused(folder: Path) -> None:
    kill(PLAIN["sft"], folder, None, 5, written=True)
    shutil.rmtree(folder / "checkpoints")
    before = (folder / "run.jsonl").read_bytes()
    with pytest.raises(NotReproducible, match="r0-t1 was lost and trained again"):
        PLAIN["sft"].run(folder, engine=ForgetfulEngine(LEARNERS))
    assert (folder / "run.jsonl").read_bytes() == before
    PLAIN["sft"].run(folder)


def test_only_the_lost_tick_is_trained_again(folder: Path) -> None:
    """Killed after tick 3 of 4: the two steps of the last one are enough, one is not."""
    kill(PLAIN["sft"], folder, None, 5, written=True)
    with pytest.raises(Killed):
        PLAIN["sft"].run(folder, engine=MortalEngine(1))
    assert PLAIN["sft"].run(folder, engine=MortalEngine(2)).ended is not None


# What a method may ask for.


def test_a_roll_out_needs_a_tick_and_a_start_that_is_kept() -> None:
    def nothing(run: Run) -> None:
        run.rollout(run.base, run.mixture, 0)

    def unknown(run: Run) -> None:
        run.rollout(CheckpointId("r7-t1"), run.mixture, 1)

    def dropped(run: Run) -> None:
        run.rollout(run.base, run.mixture, 4)
        run.rollout(checkpoint_id(0, 1), run.mixture, 1)

    with pytest.raises(ValueError, match="0 ticks"):
        small(None, nothing)
    with pytest.raises(ValueError, match=r"r7-t1 .* not kept"):
        small(None, unknown)
    curve = small(None, "sft").curve(0, "b")
    assert max(curve) > curve[1], "or it would be kept"
    with pytest.raises(ValueError, match=r"r0-t1 .* not kept"):
        small(None, dropped, learners={"b": LEARNERS["b"]})


def test_a_method_of_ones_own_may_score_and_ask_nothing_else(folder: Path) -> None:
    seen = list[Mapping[str, Any]]()

    def method(run: Run) -> None:
        seen.append(run.score(run.base))
        seen.append(run.score(run.base))

    history = small(folder, method)
    assert seen[0] == seen[1]
    assert set(seen[0]) == set(LEARNERS)
    assert history.best == BASE
    assert [event.event for event in read_log(folder / "run.jsonl")] == ["run", "scores", "end"]


def test_the_history_is_a_fold_over_the_log() -> None:
    log = Log()
    history = small(None, log=log)
    assert summary_of(History(log.events)) == summary_of(history)


def test_test_scores_decide_nothing(folder: Path) -> None:
    plain = small(folder / "plain", learners=LEARNERS)
    tested = small(folder / "tested", learners=LEARNERS, score_test="every")
    told = [summary_of(history) for history in (plain, tested)]
    for key in ("stages", "ended_by", "epochs_trained"):
        assert told[0][key] == told[1][key]
    assert told[0]["best"]["checkpoint"] == told[1]["best"]["checkpoint"]
    every = [event.checkpoint for s in tested.stages for event in s.points]
    assert set(every) <= set(tested.scores["test"])


def test_no_clock_host_or_path_is_in_the_log(folder: Path) -> None:
    small(folder)
    text = (folder / "run.jsonl").read_text()
    assert str(folder) not in text
    keys = {key for line in text.splitlines() for key in json.loads(line)}
    assert not keys & {"time", "date", "host", "path", "pid"}


@pytest.mark.parametrize("name", METHODS)
def test_order_of_rows_depends_on_the_seed_alone(name: str) -> None:
    """Runs of another seed differ in their losses, runs of the same do not."""
    first, second, third = (
        [point.loss for stage in small(None, name, seed=seed).stages for point in stage.points]
        for seed in (1, 2, 1)
    )
    assert first == third
    assert shuffled(16, 1, "order", 0, 0) != shuffled(16, 2, "order", 0, 0)
    assert first != second


class Own:
    """A feed without settings."""

    def open(self, place: FeedContext) -> Feed:
        return SHUFFLED.open(place)


def fed(feed: FeedSpec) -> Mapping[str, Any]:
    question = Question(0, BASE, Mixture.of({"a": 8}), 1, feed)
    return rollout_event(question, "fresh", True, CONTENDERS).feed


def test_the_log_describes_a_feed_by_name_and_settings() -> None:
    assert fed(SHUFFLED) == {"name": "shuffled"}
    assert fed(Own()) == {"name": "own"}
    assert fed(Ies(0.01, 1, False, True)) == {
        "name": "ies",
        "threshold": 0.01,
        "smoothing_window": 1,
        "permanent": False,
        "track_excluded": True,
    }
