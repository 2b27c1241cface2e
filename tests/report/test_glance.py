"""A report tells the truth at a glance: certainty in words, the curve that decided, the top."""

import json
import re
from collections.abc import Iterator
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from matplotlib.lines import Line2D

from mortal import Case, quick_folder
from msft.report import write_comparison, write_report
from msft.report.branches import branches_of, deciding_curve
from msft.report.compare.statistics import Intervals
from msft.report.figures.peaks import peaks
from msft.report.figures.search import curve
from msft.report.findings import StageTest, certainty
from msft.report.page import RunOnDisk, facts_of
from msft.report.run_page import decision_table
from msft.run.environment import BEGAN, record_environment
from msft.run.history import History, summary_of
from msft.search.falls import Fall
from msft.testing import Learner, simulate

WAVY = {
    "a": Learner(rows=16, limit=0.3, damage=0.6),
    "b": Learner(rows=16, passes=2.0),
    "c": Learner(rows=8, passes=0.5, limit=0.3, damage=1.5),
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


@pytest.fixture(scope="module")
def smoothed(folder: Path) -> History:
    place = folder / "msft"
    place.mkdir()
    return simulate(
        "msft",
        WAVY,
        compute_budget=2,
        train_batch_size=8,
        peaks={"smooth": 2, "include_start": False},
        score_test="best",
        folder=place,
    )


def test_a_p_of_one_does_not_read_as_certain() -> None:
    risen = Fall((1, 1), -0.01, 0.02, 1.0, False, "above")
    fallen = Fall((1, 1), 0.2, 0.02, 0.0001, True, "above")
    test = StageTest({"a": risen, "b": fallen})
    assert certainty(test, "a", "accuracy", False) == (
        "not sure, may be chance",
        "+1.0 points (−2.9 to +4.9), p\u00a0=\u00a01.00",
    )
    assert certainty(test, "b", "accuracy", False) == (
        "sure",
        "−20.0 points (−23.9 to −16.1), p\u00a0<\u00a00.001",
    )
    assert certainty(test, "b", "nll", True) == (
        "sure, nothing learned yet",
        "+0.200 nats (+0.161 to +0.239), p\u00a0<\u00a00.001",
    )


def test_the_curve_that_decided_is_the_smoothed_one(smoothed: History) -> None:
    raw = [float(value) for value in smoothed.curve(0, "a")]
    found = deciding_curve(smoothed, 0, "a")
    windows = [raw[max(0, tick - 2) : tick + 3] for tick in range(len(raw))]
    assert found == pytest.approx([sum(window) / len(window) for window in windows])
    assert found != pytest.approx(raw)


def test_nobody_who_left_rose_from_its_peak_to_the_last_tick(smoothed: History) -> None:
    branches = branches_of(smoothed)
    table = decision_table(smoothed, branches, Intervals(smoothed, {}), {})
    assert table.head[:6] == (
        *("left", "stage", "active"),
        *("peak, epoch", "score at the peak", "change to the last tick"),
    )
    rows = [row for row in table.rows if row.name != "none"]
    assert rows
    for row in rows:
        stage, _, _, score, change = row.cells[:5]
        assert not change.text.startswith("+")
        branch = branches[int(stage.text)]
        decided = deciding_curve(smoothed, branch.number, row.name)[branch.peaks[row.name]]
        assert decided is not None
        assert score.text == f"{100 * float(decided):.1f}"
        at = branch.checkpoints[branch.peaks[row.name]]
        assert score.more.startswith(f"{100 * float(smoothed.known(at)[row.name].value):.1f}")
    assert any(not row.cells[3].more.startswith(row.cells[3].text) for row in rows)


def test_markers_sit_on_the_line_and_raw_scores_are_small_points(smoothed: History) -> None:
    branches = branches_of(smoothed)
    exclusion = smoothed.exclusions[0]
    figure = curve(smoothed, branches, exclusion.name, exclusion, Intervals(smoothed, {}))
    lines = figure.axes[0].get_lines()
    drawn = {place for line in lines if line.get_linestyle() != "None" for place in places_of(line)}
    dots = {line.get_markersize(): places_of(line) for line in lines if line.get_marker() == "o"}
    assert {*dots} == {2.6, 4.5, 7.5}  # raw scores, peaks, where it left
    assert {*dots[4.5], *dots[7.5]} <= drawn
    name = exclusion.name
    tops = [(b.number, b.peaks[name]) for b in branches if name in b.peaks]
    heights = [deciding_curve(smoothed, number, name)[tick] for number, tick in tops]
    assert [y for _, y in dots[4.5]] == pytest.approx([100 * float(h or 0) for h in heights])
    raw = [100 * float(value) for value in smoothed.curve(0, exclusion.name)]
    assert [y for _, y in dots[2.6]][: len(raw)] == pytest.approx(raw)
    left = deciding_curve(smoothed, exclusion.stage, exclusion.name)[exclusion.tick]
    assert left is not None
    assert [y for _, y in dots[7.5]] == pytest.approx([100 * float(left)])
    means = [line for line in peaks(smoothed, 900).axes[0].get_lines() if line.get_linewidth() > 2]
    average = [float(smoothed.mean(place)) for place in branches[0].checkpoints]
    assert places_of(means[0])[3][1] == pytest.approx(100 * sum(average[1:6]) / 5)


def places_of(line: Line2D) -> list[tuple[float, float]]:
    """The points of a line, gaps left out."""
    xs, ys = (np.asarray(data, dtype=float) for data in line.get_data())
    return [(round(x, 6), round(y, 6)) for x, y in zip(xs, ys, strict=True) if not isnan(y)]


def test_the_top_has_model_data_rate_batch_date_duration_and_cost(folder: Path) -> None:
    place = folder / "top"
    history = Case("sft").run(place)
    (place / "recipe.yaml").write_text(
        "model_name_or_path: /home/me/models/own\nlearning_rate: 1.0e-05\n"
        "lr_scheduler_type: cosine\nema_decay: 0.99\ntrain_batch_size: 64\n"
    )
    (place / "steps.jsonl").write_text(
        "".join(json.dumps({"seconds": s}) + "\n" for s in (10.0, 100.0, 3.0, 23.0))
    )
    record_environment(place / "environment.json", {"device": "cpu, threads: 2"}, {})
    (item,) = json.loads((place / "environment.json").read_text())
    began = item[BEGAN]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", began)
    run = RunOnDisk(place, history, summary_of(history))
    found = {name: (value, more) for name, value, more in facts_of([run])}
    share = run.summary["flops"]["evaluation"] / run.summary["flops"]["total"]
    assert found == {
        "model": ("own", "1.00 k parameters"),
        "data": ("40 rows", "in 3 sub-datasets"),
        "learning rate": ("1e-05", "cosine, ema_decay 0.99"),
        "batch": ("64", "rows a step"),
        "date": (began[:10], f"begun at {began[11:]} UTC"),
        "duration": ("2 min", "to the last step, on cpu"),
        "cost": found["cost"],
    }
    assert found["cost"][1] == f"FLOPs, {share:.0%} of them evaluation"
    two = {name: (value, more) for name, value, more in facts_of([run, run])}
    assert two["duration"] == ("4 min", "to the last step, on cpu, 2 runs together")
    page = write_report(place).read_text()
    assert all(f"<dt>{name}</dt><dd>" in page for name in found)
    assert "<details><summary>recipe.yaml</summary>" in page
    (place / "recipe.yaml").write_text("seed: 20\n")
    assert "<td>seed</td>" not in write_report(place).read_text()


def test_samples_and_the_glossary_stand_on_both_pages(folder: Path, smoothed: History) -> None:
    place = folder / "msft"
    other = folder / "sft"
    other.mkdir(exist_ok=True)
    simulate("sft", WAVY, num_train_epochs=2, train_batch_size=8, folder=other)
    page = " ".join(write_report(place).read_text().split())
    best = smoothed.best
    lines = [json.loads(line) for line in (place / "samples.jsonl").read_text().splitlines()]
    assert {line["checkpoint"] for line in lines} == {"base", best}
    for line in lines:
        who = "base model" if line["checkpoint"] == "base" else f"best, {best}"
        assert f"<dt>{who}</dt><dd>{line['answer']} <small" in page
    compared = " ".join(write_comparison([other, place], folder).read_text().split())
    for line in lines:
        who = "base model" if line["checkpoint"] == "base" else "mSFT"
        assert f"<dt>{who}</dt><dd>{line['answer']} <small" in compared
    assert compared.count("<dt>SFT</dt>") == 3
    for html in (page, compared):
        glossary = html.split('<section id="glossary">')[1].split("</section>")[0]
        words = re.findall("<dt>([^<]+)</dt>", glossary)
        assert words == ["Sub-dataset", "Tick", "Roll-out", "Peak", "Roll-back", "p"]
    (place / "samples.jsonl").unlink()
    assert 'id="samples"' not in write_report(place).read_text()
