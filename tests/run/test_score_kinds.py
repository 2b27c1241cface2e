"""A metric may return true or false for some rows and numbers for others; the checkpoints of a run
are compared in one unit all the same."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import fsum
from pathlib import Path

import pytest

from mortal import Killed
from msft.errors import BadScore
from msft.run.history import History
from msft.run.log import PointEvent, RolloutEvent, RunEvent, ScoresEvent, Tokens, read_log
from msft.run.rows import Scored, coerce_kind, read_verdicts
from msft.search.curves import SELECTION, Score, accuracy, value
from msft.search.rollout import BASE, CheckpointId
from msft.testing import Learner, SimulatedEngine, simulate

LEARNERS = {"a": Learner(rows=16), "b": Learner(rows=16)}

Worths = Sequence[float | bool]


class Judged(SimulatedEngine):
    """Each evaluation has the next of these worths of rows, counted as an evaluator counts them.

    None: the process is killed there. Samples that a resumed run has lost come with the last.
    """

    def __init__(self, *evaluations: tuple[Worths, Worths] | None) -> None:
        super().__init__(LEARNERS)
        self._coming = list(evaluations)

    def score(self, names: Sequence[str], split: str) -> Scored:
        coming = self._coming.pop(0) if len(self._coming) > 1 else self._coming[0]
        if coming is None:
            raise Killed
        worths = dict(zip("ab", coming, strict=True))
        found = {name: _counted(worths[name]) for name in names}
        scores = {name: score for name, (score, _) in found.items()}
        verdicts = {name: verdict for name, (_, verdict) in found.items()}
        return Scored(scores, 1, verdicts, samples={name: [self._sample(name)] for name in names})


def _counted(worths: Worths) -> tuple[Score, str | list[float]]:
    if all(isinstance(worth, bool) for worth in worths):
        return accuracy(sum(map(int, worths)), len(worths)), "".join(str(int(w)) for w in worths)
    return value(fsum(worths), len(worths)), [*map(float, worths)]


def run(folder: Path, *evaluations: tuple[Worths, Worths] | None) -> History:
    options = {"num_train_epochs": 2, "evals_per_epoch": 2, "train_batch_size": 8}
    return simulate("sft", LEARNERS, folder=folder, engine=Judged(*evaluations), **options)  # type: ignore[arg-type]


UNSURE = ([0.0, 0.1], [0.1, 0.0])
GOOD = ([0.9, 0.8], [0.9, 0.8])
BETTER = ([True, True], [0.9, True])
BEST = ([True, True], [True, True])
RUN = (UNSURE, GOOD, BETTER, BEST, BETTER)


def test_a_row_of_right_answers_does_not_change_the_unit_of_the_mean(folder: Path) -> None:
    """The plain mean of the second tick is higher than a gain of the third could be."""
    history = run(folder, *RUN)
    assert history.best == "r0-t3"
    assert [float(history.mean(p.checkpoint)) for p in history.stages[0].points] == pytest.approx(
        [0.85, 0.975, 1.0, 0.975]
    )
    assert {s.metric for scores in history.scores[SELECTION].values() for s in scores.values()} == {
        "value"
    }
    rows = read_verdicts(folder / "verdicts.jsonl")
    assert rows[CheckpointId("r0-t3"), SELECTION, "b"] == [1.0, 1.0]


def test_a_resumed_run_has_the_same_kinds(folder: Path) -> None:
    whole = run(folder / "whole", *RUN)
    with pytest.raises(Killed):
        run(folder / "cut", *RUN[:2], None)
    assert run(folder / "cut", *RUN[2:]).best == whole.best
    logs = [(folder / name / "run.jsonl").read_bytes() for name in ("whole", "cut")]
    assert logs[0] == logs[1]


def test_truths_stay_counts_and_a_number_among_them_is_refused(folder: Path) -> None:
    truths = ([True, False], [False, False])
    history = run(folder / "whole", truths, truths, ([1.0, False], [True, 0]), truths, truths)
    assert history.known(CheckpointId("r0-t2")) == {"a": accuracy(1, 2), "b": accuracy(1, 2)}
    assert history.mean(CheckpointId("r0-t2")) == Fraction(1, 2)
    with pytest.raises(BadScore, match=r"^b: its metric gave 0\.5 for a row, but for the base .*0"):
        run(folder / "refused", truths, truths, (truths[0], [True, 0.5]))
    assert (
        len([e for e in read_log(folder / "refused/run.jsonl") if isinstance(e, PointEvent)]) == 1
    )


def test_a_log_from_before_goes_on_in_its_own_way() -> None:
    """Means of own metrics stood alone there, and a sub-dataset could have both kinds."""
    scored = Scored({"a": value(1.5, 3), "b": accuracy(2, 4)}, 0, {"a": [1.0, 0.5, 0.0]})
    plain = coerce_kind(scored, {"a": value(0.25), "b": value(0.5)})
    assert plain.scores == {"a": value(0.5), "b": value(0.5)}
    assert plain.verdicts == scored.verdicts
    rows, settings = {"b": 8}, {"mean": "macro", "evals_per_epoch": 1, "peaks": {}}
    history = History(
        [
            RunEvent("sft", 20, 1000, rows, settings, {}),
            RolloutEvent(0, BASE, rows, {}, 1, {"name": "shuffled"}, "fresh", True),
            ScoresEvent(BASE, SELECTION, Tokens(), {"b": accuracy(0, 4)}),
            ScoresEvent(CheckpointId("r0-t1"), SELECTION, Tokens(), {"b": value(0.25)}),
        ]
    )
    number = coerce_kind(replace(scored, scores={"b": value(3.0, 4)}), history.patterns)
    assert number.scores == {"b": value(0.75)}
