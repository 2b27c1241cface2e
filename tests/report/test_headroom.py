"""Headroom: from logs and verdicts alone, naive beside cross-fitted."""

import json
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msft.cli import main
from msft.errors import UsageError
from msft.report import write_report
from msft.report.headroom import (
    Headroom,
    Heights,
    crossfitted,
    headroom_of,
    headroom_words,
    shares_of,
)
from msft.run.folder import read_history, row_tokens_of, verdicts_of
from msft.run.history import History
from msft.run.log import EndEvent, PointEvent, RolloutEvent, RunEvent, ScoresEvent, Tokens
from msft.run.rows import Scored
from msft.search.curves import Score, Scores, accuracy, nll, value
from msft.search.draws import number
from msft.search.rollout import BASE, CheckpointId, checkpoint_id
from msft.store.store import Disk
from msft.testing import Learner, SimulatedEngine, simulate

NOISE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "noise.py"))

LEARNERS = {
    "early": Learner(limit=0.3, damage=0.3),
    "late": Learner(passes=3.0, limit=9.0),
    "middle": Learner(limit=1.0),
}


def trained(folder: Path, method: str = "sft", **settings: Any) -> History:
    folder.mkdir(parents=True, exist_ok=True)
    given = {"num_train_epochs": 4, "folder": folder, **settings}
    return simulate(method, given.pop("learners", LEARNERS), **given)


def found_in(folder: Path) -> Headroom:
    return headroom_of(read_history(folder), verdicts_of(folder), row_tokens_of(folder))


class OtherMetrics(SimulatedEngine):
    """`early` has a loss over rows of 1, 2, 3, … tokens, `late` a metric of its own."""

    losses: Sequence[str] = ("early",)
    values: Sequence[str] = ("late",)

    def score(self, names: Sequence[str], split: str) -> Scored:
        scored = super().score(names, split)
        scores: dict[str, Score] = dict(scored.scores)
        verdicts: dict[str, Any] = dict(scored.verdicts)
        tokens = {name: [*range(1, 201)] for name in names if name in self.losses}
        for name, counts in tokens.items():
            rows = [(2 - int(mark)) * n for mark, n in zip(verdicts[name], counts, strict=True)]
            scores[name], verdicts[name] = nll(float(sum(rows)), sum(counts)), rows
        for name in names:
            if name in self.values:
                verdicts[name] = [0.5 * int(mark) for mark in verdicts[name]]
                scores[name] = value(sum(verdicts[name]) / 200)
        return Scored(scores, scored.tokens, verdicts, tokens)


class Losses(OtherMetrics):
    losses, values = tuple(LEARNERS), ()


def test_the_naive_figure_is_own_peak_minus_peak_of_the_mean(tmp_path: Path) -> None:
    history = trained(tmp_path)
    found = found_in(tmp_path)
    places = [BASE, *(point.checkpoint for point in history.stages[0].points)]
    curves = {n: [Fraction(history.known(p)[n].value) for p in places] for n in LEARNERS}
    best = places.index(history.best or BASE)
    expected = {name: max(curve) - curve[best] for name, curve in curves.items()}
    assert {n: gain.naive for n, gain in found.datasets.items()} == pytest.approx(
        {name: float(gain) for name, gain in expected.items()}
    )
    assert found.mean.naive == pytest.approx(float(sum(expected.values()) / 3))
    assert found.mean.naive > 0.01
    assert found.mean_tick == best
    assert found.ticks == {name: curve.index(max(curve)) for name, curve in curves.items()}
    assert found.rows == 600


def test_real_headroom_is_found_and_its_interval_is_above_nothing(tmp_path: Path) -> None:
    trained(tmp_path, learners={**LEARNERS, "early": Learner(limit=0.1, damage=0.9)})
    found = found_in(tmp_path)
    assert found.mean.low > 0
    assert found.mean.low < found.mean.crossfitted < found.mean.high
    early = found.datasets["early"]
    assert early.low > 0.05
    assert early.crossfitted == pytest.approx(early.naive, rel=0.3)
    assert "Some of it would hold" in headroom_words(read_history(tmp_path), found)


def test_of_pure_noise_nothing_is_left() -> None:
    """The naive figure is above a point in each of them."""
    rng = np.random.default_rng(0)
    naive, crossed = [], []
    for _ in range(20):
        rows = [(rng.random((13, 200)) < 0.5).astype(float) for _ in range(5)]
        curves = np.array([each.mean(axis=1) for each in rows])
        naive.append((curves.max(axis=1) - curves[:, curves.mean(axis=0).argmax()]).mean())
        heights = {str(i): Heights(each, np.ones(200), 0.2) for i, each in enumerate(rows)}
        crossed.append(crossfitted(heights, 20)[None][0])
    assert min(naive) > 0.01
    assert abs(np.mean(crossed)) < 0.005


def test_a_split_is_the_same_every_time(tmp_path: Path) -> None:
    trained(tmp_path)
    assert found_in(tmp_path) == found_in(tmp_path)


def ratio(values: Any, weights: Any) -> tuple[float, float]:
    mean = values.sum() / weights.sum()
    rest = ((values - mean * weights) ** 2).sum() / weights.sum() ** 2
    return mean, rest * len(values) / (len(values) - 1)


@pytest.mark.parametrize("splits", [7, 100])
def test_every_number_is_that_of_the_definition(splits: int) -> None:
    """Split by split: a half chooses everybody's candidate and the mean's, the other measures."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(1, 9, size=9).astype(float)
    heights = {
        "a": Heights(rng.normal(size=(6, 5)), np.ones(5), 0.3),
        "b": Heights(rng.normal(size=(6, 9)) * tokens, tokens, 0.5),
    }
    gains, variances = dict.fromkeys(heights, 0.0), dict.fromkeys(heights, 0.0)
    sequences = {
        name: np.random.RandomState(number(0, "headroom", name) % 2**32).random_sample(
            (splits, len(each.weights))
        )
        for name, each in heights.items()
    }
    for split in range(splits):
        first = {name: np.argsort(each[split]) for name, each in sequences.items()}
        for turned in (False, True):
            curves, measuring = {}, {}
            for name, each in heights.items():
                cut = len(each.weights) // 2
                halves = first[name][:cut], first[name][cut:]
                chooses, measuring[name] = halves[::-1] if turned else halves
                curves[name] = each.rows[:, chooses].sum(axis=1) / each.weights[chooses].sum()
            common = sum(each.share * curves[name] for name, each in heights.items()).argmax()
            for name, each in heights.items():
                moved = each.rows[curves[name].argmax()] - each.rows[common]
                here = measuring[name]
                gain, variance = ratio(moved[here], each.weights[here])
                gains[name] += gain / 2 / splits
                variances[name] += variance / 4 / splits
    found = crossfitted(heights) if splits == 100 else crossfitted(heights, splits)
    whole = 0.3 * gains["a"] + 0.5 * gains["b"]
    error = np.sqrt(1.5 * (0.3**2 * variances["a"] + 0.5**2 * variances["b"]))
    assert found[None] == pytest.approx((whole, error))
    for name in heights:
        assert found[name] == pytest.approx((gains[name], np.sqrt(1.5 * variances[name])))


@pytest.mark.parametrize(
    ("scores", "mean", "shares"),
    [
        ({"a": accuracy(1, 10), "b": accuracy(2, 30)}, "macro", {"a": 1 / 2, "b": 1 / 2}),
        ({"a": accuracy(1, 10), "b": accuracy(2, 30)}, "pooled", {"a": 1 / 4, "b": 3 / 4}),
        ({"a": accuracy(1, 10), "b": nll(8.0, 2)}, "pooled", {"a": 1 / 2, "b": 1 / 8}),
        ({"a": value(3.0), "b": nll(0.0, 2)}, "macro", {"a": 1 / 2, "b": 0.0}),
        ({"a": nll(3.0, 1), "b": nll(8.0, 2)}, "macro", {"a": 1 / 2, "b": 1 / 2}),
    ],
)
def test_what_a_sub_dataset_counts_in_the_mean(
    scores: Scores, mean: str, shares: dict[str, float]
) -> None:
    peaks = {"smooth": 0, "min_delta": 0.0, "include_start": True}
    settings = {"evals_per_epoch": 4, "compute_budget": 4, "train_ticks": 4, "mean": mean}
    start = RunEvent("sft", 20, 1000, {"a": 8, "b": 8}, {**settings, "peaks": peaks}, {})
    assert shares_of(History([start, ScoresEvent(BASE, "validation", Tokens(), scores)])) == shares


def test_four_rows_are_enough_and_three_are_not(tmp_path: Path) -> None:
    trained(tmp_path / "four", learners={"a": Learner(validation_rows=4)})
    assert found_in(tmp_path / "four").rows == 4
    trained(tmp_path / "three", learners={"a": Learner(validation_rows=3)})
    with pytest.raises(UsageError, match="no four rows of a at base"):
        found_in(tmp_path / "three")


def test_rows_that_all_agree_leave_no_doubt() -> None:
    """Two sub-datasets, each at its best at another tick, by one on every row."""
    curves = np.array([[0.0, 1.0, 0.0], [0.0, 0.5, 1.5]])
    heights = {
        str(i): Heights(np.repeat(curve[:, None], 8, axis=1), np.ones(8), 0.5)
        for i, curve in enumerate(curves)
    }
    found = crossfitted(heights)
    assert found["0"] == pytest.approx((1.0, 0.0)) or found["1"] == pytest.approx((1.0, 0.0))
    assert found[None] == pytest.approx((0.5, 0.0))


def test_tokens_weigh_the_rows_of_a_loss() -> None:
    tokens = np.array([1.0, 2.0, 3.0, 4.0] * 5)
    curve = -np.array([3.0, 1.0, 2.0])
    heights = {
        "a": Heights(curve[:, None] * tokens, tokens, 0.5),
        "b": Heights(np.array([[0.0], [0.0], [9.0]]) * np.ones(20), np.ones(20), 0.5),
    }
    found = crossfitted(heights)
    assert found["a"] == pytest.approx((1.0, 0.0))


def test_a_gain_of_a_loss_is_a_decrease(tmp_path: Path) -> None:
    history = trained(tmp_path, engine=Losses(LEARNERS))
    found = found_in(tmp_path)
    best = history.known(history.best or BASE)
    places = [BASE, *(point.checkpoint for point in history.stages[0].points)]
    for name, gain in found.datasets.items():
        lowest = min(float(history.known(place)[name].value) for place in places)
        assert gain.naive == pytest.approx(float(best[name].value) - lowest)
    assert found.mean.naive > 0
    assert "nats saved" in headroom_words(history, found)


def test_the_cross_fitted_gain_of_a_loss_is_a_decrease_too(tmp_path: Path) -> None:
    strong = {**LEARNERS, "early": Learner(limit=0.1, damage=0.9)}
    trained(tmp_path, learners=strong, engine=Losses(strong))
    early = found_in(tmp_path).datasets["early"]
    assert early.naive > 0.05
    assert early.crossfitted == pytest.approx(early.naive, rel=0.3)
    assert early.low > 0


def test_mixed_metrics_count_as_the_mean_of_gains_does(tmp_path: Path) -> None:
    history = trained(tmp_path, engine=OtherMetrics(LEARNERS))
    assert history.mixed
    found = found_in(tmp_path)
    base = float(history.known(BASE)["early"].value)
    gains = {name: gain.naive for name, gain in found.datasets.items()}
    gains["early"] /= base
    assert found.mean.naive == pytest.approx(sum(gains.values()) / 3)
    for gain in found.datasets.values():  # the rows are in the unit of the score
        assert gain.crossfitted == pytest.approx(gain.naive, abs=0.05)
    assert "in mean gain" in headroom_words(history, found)


def by_hand(scores: dict[str, Scores]) -> History:
    """A finished run of `a` and `b` with the scores of the base model and two ticks."""
    rows = {"a": 8, "b": 8}
    peaks = {"smooth": 0, "min_delta": 0.0, "include_start": True}
    settings = {"evals_per_epoch": 1, "compute_budget": 2, "train_ticks": 2, "mean": "macro"}
    disk = Disk(1, 2, 100)
    return History(
        [
            RunEvent("sft", 20, 1000, rows, settings | {"peaks": peaks}, {}),
            RolloutEvent(0, BASE, rows, {}, 2, {"name": "shuffled"}, "fresh", True),
            ScoresEvent(BASE, "validation", Tokens(), scores["base"]),
            *(
                PointEvent(
                    checkpoint_id(0, tick), 1, (8.0, 8), Tokens(), disk, scores[f"r0-t{tick}"]
                )
                for tick in (1, 2)
            ),
            EndEvent("budget", checkpoint_id(0, 1)),
        ]
    )


def test_mixed_metrics_by_hand_in_a_folder_without_tokens() -> None:
    """The gains of the loss are over the base model's: 0.9 and 0.95 of it, so with the other's
    -0.2 the first tick is the peak of the mean. Over the first tick's loss the second would be."""
    curves = {"base": (80.0, 0.5), "r0-t1": (8.0, 0.5), "r0-t2": (4.0, 0.3)}
    history = by_hand(
        {place: {"a": nll(loss, 8), "b": value(own)} for place, (loss, own) in curves.items()}
    )
    verdicts = {}
    for place, (loss, own) in curves.items():
        verdicts[CheckpointId(place), "validation", "a"] = [loss / 4] * 4
        verdicts[CheckpointId(place), "validation", "b"] = [own] * 4
    found = headroom_of(history, verdicts, {})
    assert (found.mean_tick, found.ticks) == (1, {"a": 2, "b": 0})
    assert found.datasets["a"].naive == pytest.approx(0.5)
    assert found.datasets["a"].crossfitted == pytest.approx(0.5), (
        "rows are in the unit of the score"
    )
    assert found.datasets["b"].crossfitted == 0


def test_a_sub_dataset_that_is_not_scored_at_a_tick_is_named() -> None:
    both = {"a": value(0.5), "b": value(0.5)}
    history = by_hand({"base": both, "r0-t1": both, "r0-t2": {"a": value(0.5)}})
    with pytest.raises(UsageError, match="b is not scored at r0-t2"):
        headroom_of(history, {}, {})


def test_a_folder_of_an_earlier_version_has_no_tokens_and_is_read_all_the_same(
    tmp_path: Path,
) -> None:
    trained(tmp_path, engine=Losses(LEARNERS))
    new = found_in(tmp_path)
    path = tmp_path / "verdicts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert sum('"tokens"' in line for line in lines) == 3
    path.write_text("".join(line for line in lines if '"tokens"' not in line))
    old = found_in(tmp_path)
    assert old.mean.naive == new.mean.naive
    assert old.mean.crossfitted == pytest.approx(new.mean.crossfitted, abs=0.05)


def test_the_pooled_mean_weighs_by_rows() -> None:
    heights = {
        "few": Heights(np.array([[0.0], [1.0], [0.0]]) * np.ones(10), np.ones(10), 0.25),
        "many": Heights(np.array([[0.0], [0.0], [1.0]]) * np.ones(30), np.ones(30), 0.75),
    }
    assert crossfitted(heights)[None] == pytest.approx((0.25, 0.0))


def test_a_tick_without_a_step_has_the_rows_before_it(tmp_path: Path) -> None:
    learners = {name: Learner(rows=16, limit=0.5) for name in "ab"}
    history = trained(tmp_path, learners=learners, evals_per_epoch=8, train_batch_size=8)
    assert any(not point.steps for point in history.stages[0].points)
    places = {key[0] for key in verdicts_of(tmp_path)}
    assert len(places) < 1 + len(history.stages[0].points)
    assert found_in(tmp_path).rows == 400


def test_the_interval_covers_its_truth() -> None:
    for kind in ("flips", "walks"):
        share, truth, naive, crossed = NOISE["covered"](kind, 0.05, 30)
        assert share >= 0.9
        assert naive > truth + 0.4
        assert abs(crossed - truth) < 0.3


# The command.


def test_the_document_is_that_of_the_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run")
    assert main(["analyze", "headroom", str(tmp_path / "run"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = found_in(tmp_path / "run")
    assert list(document) == ["mean", "datasets"]
    assert document["mean"] == {
        "naive": found.mean.naive,
        "crossfitted": found.mean.crossfitted,
        "low": found.mean.low,
        "high": found.mean.high,
    }
    assert list(document["datasets"]) == list(LEARNERS)
    assert all(list(each) == list(document["mean"]) for each in document["datasets"].values())


def test_the_table_fits_a_terminal_and_says_it_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = {name * 12: learner for name, learner in LEARNERS.items()}
    trained(tmp_path / "run", learners=long)
    assert main(["analyze", "headroom", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    assert (
        "On these 600 validation rows, stopping each sub-dataset at its own peak promises +"
        in words
    )
    assert "; cross-fitted it is " in words
    assert "not every use of mSFT" in words
    assert [line.split()[0] for line in out.splitlines()[:5]][-1] == "mean"


def refusal(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    assert main(["analyze", "headroom", str(folder)]) == 2
    return capsys.readouterr().err


def test_a_run_with_several_rollouts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path / "run", "msft")
    message = refusal(capsys, tmp_path / "run")
    assert "of msft has" in message
    assert "such as those of sft" in message


def test_a_second_phase_alone_is_eligible_so_soft_sro_is_not_refused(tmp_path: Path) -> None:
    trained(tmp_path, "soft_sro")
    assert found_in(tmp_path).rows == 600


def test_what_is_not_finished_not_there_or_without_rows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is not a run folder" in refusal(capsys, tmp_path / "nothing")
    trained(tmp_path / "run")
    log = tmp_path / "run" / "run.jsonl"
    whole = log.read_text()
    log.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    assert "not finished" in refusal(capsys, tmp_path / "run")
    log.write_text(whole)
    (tmp_path / "run" / "verdicts.jsonl").unlink()
    assert "verdicts.jsonl has no four rows of early at base" in refusal(capsys, tmp_path / "run")


def test_it_needs_no_torch(tmp_path: Path) -> None:
    trained(tmp_path)
    code = (
        "import sys; from msft.cli import main; "
        f"main(['analyze', 'headroom', {str(tmp_path)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


# The report.


def test_an_sft_report_has_it_and_one_of_msft_has_not(tmp_path: Path) -> None:
    history = trained(tmp_path / "sft")
    page = write_report(tmp_path / "sft").read_text()
    assert '<section id="headroom">' in page
    assert headroom_words(history, found_in(tmp_path / "sft")).split(";")[0] in page
    trained(tmp_path / "msft", "msft")
    assert '<section id="headroom">' not in write_report(tmp_path / "msft").read_text()


def test_a_report_can_do_without_verdicts(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / "verdicts.jsonl").write_text('{"checkpoint": "base"}\n')
    assert '<section id="headroom">' not in write_report(tmp_path).read_text()
    with pytest.raises(UsageError):
        found_in(tmp_path)


def test_points_are_points(tmp_path: Path) -> None:
    history = trained(tmp_path)
    found = found_in(tmp_path)
    assert history.mean_unit == "accuracy"
    assert f"promises {100 * found.mean.naive:+.1f} points" in headroom_words(history, found)
    level = replace(found, mean=replace(found.mean, naive=0.0))
    assert headroom_words(history, level).endswith("stopping each at its peak promises nothing.")
