"""Numbers read back from what is drawn, against a fold of the log that knows nothing of msft."""

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from test_paper_figures import run_of, written

from mortal import quick_folder
from msft.report.compare.compared_run import compared_runs
from msft.report.compare.contest import contests_of
from msft.report.compare.decomposition import Parts
from msft.report.figures.chart import WIDE, drawing
from msft.report.figures.colours import (
    BEST,
    FAINT,
    GOLD,
    GREEN,
    LEFT,
    OTHER,
    PINK,
    WENT_ON,
)
from msft.report.figures.epochs import losses_figure
from msft.report.figures.methods import budget_figure, size_figure
from msft.report.figures.scores import gains_figure, parts_figure
from msft.report.sections import comparison_figures, run_figures
from msft.run.folder import step_losses_of
from msft.search.scores import Score, accuracy

Event = dict[str, Any]


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


class Fold:
    """The events of a log, as the documentation of the log says they mean."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "run.jsonl").read_text().splitlines()
        self.events: list[Event] = [json.loads(line) for line in lines]
        self.start = self.events[0]
        self.per_epoch: int = self.start["settings"]["evals_per_epoch"]
        self.stages: list[tuple[Event, list[Event]]] = []
        for event in self.events:
            if event["event"] == "rollout":
                self.stages.append((event, []))
            if event["event"] == "point":
                self.stages[-1][1].append(event)
        self.best: str = self.events[-1]["best"]

    def path(self, checkpoint: str) -> list[tuple[int, int]]:
        """Roll-outs and ticks from the base model."""
        legs: list[tuple[int, int]] = []
        while checkpoint != "base":
            rollout, tick = (int(part[1:]) for part in checkpoint.split("-"))
            legs.insert(0, (rollout, tick))
            checkpoint = self.stages[rollout][0]["start"]
        return legs

    def trained(self, checkpoint: str | None = None) -> list[Event]:
        """All points, or those on the way to a checkpoint."""
        if checkpoint is None:
            return [point for _, points in self.stages for point in points]
        legs = self.path(checkpoint)
        return [point for rollout, ticks in legs for point in self.stages[rollout][1][:ticks]]

    def flops(self) -> dict[str, float]:
        """Kept, discarded, evaluation."""
        size: int = self.start["num_parameters"]
        tokens = [event["tokens"] for event in self.events if "tokens" in event]
        kept = sum(point["tokens"]["train"] for point in self.trained(self.best))
        every = sum(each["train"] for each in tokens)
        looked = sum(each["evaluation"] for each in tokens)
        return {
            "kept": 6 * size * kept,
            "discarded": 6 * size * (every - kept),
            "evaluation": 2 * size * looked,
        }

    def mean(self, split: str) -> float:
        """Of the best checkpoint, in per cent."""
        scores: dict[str, tuple[float, float]] = {}
        for event in self.events:
            where = event.get("split", "validation")
            if event.get("checkpoint") == self.best and where == split and "scores" in event:
                for name, (right, rows) in event["scores"].items():
                    scores[name] = (right, rows)
        shares = [right / rows for right, rows in scores.values()]
        return 100 * sum(shares) / len(shares)


def drawn(folder: Path, key: str) -> Figure:
    (run,) = compared_runs([folder])
    sections = run_figures(run.history, step_losses_of(folder))
    (section,) = [each for each in sections if each.key == key]
    with drawing():
        return section.draw(WIDE)


def lines(axes: Axes, colour: str, width: float | None = None) -> list[Line2D]:
    return [
        line
        for line in axes.lines
        if line.get_color() == colour and (width is None or line.get_linewidth() == width)
    ]


def known(line: Line2D) -> list[tuple[float, float]]:
    """The places of a line without its gaps."""
    places = np.asarray(line.get_xydata()).tolist()
    return [(x, y) for x, y in places if not isnan(y)]


def bars(axes: Axes) -> list[tuple[str, Rectangle]]:
    """By colour, as they were drawn."""
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(to_hex(bar.get_facecolor()), bar) for bar in found]


def marks(axes: Axes) -> list[list[float]]:
    """Where vertical lines stand, by group."""
    groups = [each for each in axes.collections if isinstance(each, LineCollection)]
    return [[float(segment[0][0]) for segment in each.get_segments()] for each in groups]


@pytest.fixture
def searched(folder: Path) -> Path:
    """mSFT on three sub-datasets, with roll-backs."""
    return run_of(folder / "msft", "msft", compute_budget=2)


def test_the_bar_of_flops(searched: Path) -> None:
    flops = Fold(searched).flops()
    total = sum(flops.values())
    assert 0 < flops["discarded"] < flops["kept"] + flops["discarded"]
    found = {colour: bar.get_width() for colour, bar in bars(drawn(searched, "flops").axes[0])}
    assert found == {
        BEST: pytest.approx(flops["kept"] / total),
        FAINT: pytest.approx(flops["discarded"] / total),
        WENT_ON: pytest.approx(flops["evaluation"] / total),
    }


def test_copies_on_disk_with_their_mean_the_bounds_and_the_roll_outs(searched: Path) -> None:
    fold = Fold(searched)
    copies = [point["disk"]["copies"] for point in fold.trained()]
    axes = drawn(searched, "disk").axes[0]
    (mean,) = lines(axes, BEST)
    assert known(mean)[0][1] == pytest.approx(sum(copies) / len(copies))
    (held,) = lines(axes, "#5c6570")
    assert [y for _, y in known(held)] == [*copies, copies[-1]]
    (expected,), (most,) = lines(axes, GREEN), lines(axes, OTHER)
    assert (known(expected)[0][1], known(most)[0][1]) == (4.0, 4)  # N = 3: 8/2 and N + 1
    begun = np.cumsum([len(points) for _, points in fold.stages])[:-1] / fold.per_epoch
    assert len(begun) > 1
    assert marks(axes) == [pytest.approx(begun.tolist())]
    legend = [text.get_text() for text in drawn(searched, "disk").axes[-1].texts]
    assert f"mean {sum(copies) / len(copies):.2f}" in legend
    assert "paper's mean, (N + 5)/2 = 4" in legend
    assert "paper's most, N + 1 = 4" in legend


def test_with_few_evaluations_a_stage_the_mean_bound_is_the_papers_sum(folder: Path) -> None:
    run = run_of(folder / "msft", "msft", count=6, compute_budget=1)  # E = 2 of N = 6
    axes = drawn(run, "disk").axes[0]
    (expected,), (most,) = lines(axes, GREEN), lines(axes, OTHER)
    assert known(expected)[0][1] == pytest.approx((5 * 4 + 3) / 6)
    assert known(most)[0][1] == 7
    straight = drawn(run_of(folder / "sft", "sft"), "disk").axes[0]
    assert lines(straight, GREEN) == lines(straight, OTHER) == []


def test_the_loss_is_the_mean_of_each_ticks_rows(searched: Path) -> None:
    fold = Fold(searched)
    axes = drawn(searched, "loss").axes[0]
    every = [line for colour in (FAINT, WENT_ON, BEST) for line in lines(axes, colour)]
    found = {(round(x, 6), round(y, 6)) for line in every for x, y in known(line)}
    assert found == {
        (round(number / fold.per_epoch, 6), round(point["loss"][0] / point["loss"][1], 6))
        for number, point in enumerate(fold.trained(), start=1)
        if point["loss"][1]
    }
    assert all(not known(line) for line in lines(axes, GOLD))  # nobody recorded the steps


def write_steps(folder: Path, again: tuple[int, int]) -> dict[tuple[int, int], list[float]]:
    """Steps for every tick of a log; again: one that was killed and trained anew."""
    losses: dict[tuple[int, int], list[float]] = {}
    text: list[str] = []
    number = 0
    for rollout, (_, points) in enumerate(Fold(folder).stages):
        for tick, point in enumerate(points, start=1):
            place = {"rollout": rollout, "tick": tick}
            if (rollout, tick) == again:
                text.append(json.dumps({**place, "loss": 99.0, "rows": 8}))
            for _ in range(point["steps"]):
                number += 1
                loss = (number * 37 % 101) / 10
                losses.setdefault((rollout, tick), []).append(loss)
                text.append(json.dumps({**place, "loss": loss, "rows": 8}))
    (folder / "steps.jsonl").write_text("\n".join(text) + "\n")
    return losses


def moving(losses: Sequence[float]) -> list[float]:
    """Of ten each, as a spreadsheet would do it."""
    return [sum(losses[end - 10 : end]) / 10 for end in range(10, len(losses) + 1)]


def test_the_moving_average_over_ten_steps_follows_the_path(folder: Path) -> None:
    run = run_of(folder / "msft", "msft", compute_budget=2, train_batch_size=2)
    losses = write_steps(run, again=(0, 2))
    fold = Fold(run)
    first = [loss for tick in range(1, 5) for loss in losses[0, tick]]
    axes = drawn(run, "loss").axes[0]
    by_rollout = lines(axes, GOLD)
    assert len(by_rollout) == len(fold.stages) > 2
    assert [y for _, y in known(by_rollout[0])] == pytest.approx(moving(first))
    assert known(by_rollout[0])[-1][0] == pytest.approx(4 / fold.per_epoch)
    for number, (asked, points) in enumerate(fold.stages[1:], start=1):
        before = [
            loss
            for rollout, ticks in fold.path(asked["start"])
            for tick in range(1, ticks + 1)
            for loss in losses[rollout, tick]
        ]
        own = [
            loss for tick in range(1, len(points) + 1) for loss in losses.get((number, tick), [])
        ]
        wanted = moving([*before, *own])[max(0, len(before) - 9) :]
        assert [y for _, y in known(by_rollout[number])] == pytest.approx(wanted)
    # the figure of several runs has the path that was taken, and nothing of what was discarded
    (contest,) = contests_of(compared_runs([run, run_of(folder / "sft", "sft")]))
    with drawing():
        both = losses_figure(contest, WIDE)
    (thin,) = [line for line in both.axes[0].lines if line.get_linewidth() == 0.8 and known(line)]
    decisions = [event for event in fold.events if event["event"] == "decision"]
    end = decisions[-1]["checkpoint"]
    taken = [
        loss
        for rollout, ticks in fold.path(end)
        for tick in range(1, ticks + 1)
        for loss in losses[rollout, tick]
    ]
    assert [y for _, y in known(thin)] == pytest.approx(moving(taken))
    legend = [text.get_text() for text in both.axes[-1].texts]
    assert "thin: moving average over 10 steps" in legend


def test_losses_of_several_runs_are_means_too(searched: Path, folder: Path) -> None:
    (contest,) = contests_of(compared_runs([run_of(folder / "sft", "sft"), searched]))
    with drawing():
        axes = losses_figure(contest, WIDE).axes[0]
    fold = Fold(folder / "sft")
    wanted = [point["loss"][0] / point["loss"][1] for point in fold.trained()]
    kept = [line for line in axes.lines if line.get_linewidth() == 1.8]
    assert [y for _, y in known(kept[0])] == pytest.approx(wanted)


def test_flops_and_scores_by_budget_are_means_over_seeds(folder: Path) -> None:
    paths = {
        (name, seed): run_of(folder / f"{name}-s{seed}", method, seed=seed, compute_budget=budget)
        for name, method, budget in (("sft", "sft", 1), ("c1", "msft", 1), ("c2", "msft", 2))
        for seed in (20, 30)
    }
    runs = compared_runs([*paths.values()])
    (contest,) = contests_of(runs)
    with drawing():
        figure = budget_figure(contest, WIDE)
    above, below = figure.axes[:2]
    for place, name in enumerate(("sft", "c1", "c2")):
        folds = [Fold(paths[name, seed]) for seed in (20, 30)]
        heights = {
            colour: bar.get_height()
            for colour, bar in bars(below)
            if round(bar.get_x() + 0.31) == place
        }
        flops = [fold.flops() for fold in folds]
        assert heights == {
            colour: pytest.approx(sum(each[part] for each in flops) / 2)
            for colour, part in ((BEST, "kept"), (FAINT, "discarded"), (WENT_ON, "evaluation"))
        }
        dots = [known(line)[0] for line in above.lines if line.get_marker() == "o"]
        mean = sum(fold.mean("test") for fold in folds) / 2
        assert dots[place] == pytest.approx((place, mean))
        assert mean != pytest.approx(sum(fold.mean("validation") for fold in folds) / 2)


def scored(folder: Path, method: str, *right: int) -> Path:
    """A run whose best checkpoint has so many of 100 rows right on test."""
    names = "abcdef"[: len(right)]
    curves: dict[str, list[Score]] = {n: [accuracy(1, 100), accuracy(2, 100)] for n in names}
    test = {n: accuracy(count, 100) for n, count in zip(names, right, strict=True)}
    return written(folder, curves, method, test)


def test_losses_against_sft_are_drawn_as_losses(folder: Path) -> None:
    small = [scored(folder / "n2" / m, m, *r) for m, r in (("sft", (50, 60)), ("msft", (46, 57)))]
    large = [
        scored(folder / "n3" / m, m, *r) for m, r in (("sft", (50, 60, 70)), ("msft", (56, 60, 67)))
    ]
    runs = compared_runs([*small, *large])
    contests = contests_of(runs)
    with drawing():
        sizes = size_figure(contests, WIDE).axes[0]
        gained = gains_figure(contests[1], WIDE).axes[0]
    assert [bar.get_width() for _, bar in bars(sizes)] == pytest.approx([-3.5, 1.0])
    assert {"−3.5", "+1.0"} <= {text.get_text() for text in sizes.texts}
    assert [bar.get_width() for _, bar in bars(gained)] == pytest.approx([1, 6, 0, -3])
    assert {"+6.0", "−3.0", "±0.0"} <= {text.get_text() for text in gained.texts}


def test_the_parts_of_every_gain_add_up_and_no_loss_is_green(folder: Path) -> None:
    paths = [run_of(folder / m, m, count=5, compute_budget=2) for m in ("sft", "msft")]
    (section,) = [s for s in comparison_figures(compared_runs(paths)) if s.key == "parts"]
    with drawing():
        axes = section.draw(WIDE).axes[0]
    by_row: dict[float, float] = {}
    for colour, bar in bars(axes):
        wanted = {GREEN: 1, PINK: -1, LEFT: -1, BEST: 1}.get(colour)
        assert wanted is None or bar.get_width() * wanted > 0
        row = round(bar.get_y() + bar.get_height() / 2)
        by_row[row] = by_row.get(row, 0.0) + bar.get_width()
    dots = {round(y): x for line in axes.lines if line.get_marker() == "o" for x, y in known(line)}
    assert len(dots) == 6
    assert {row: by_row.get(row, 0.0) for row in dots} == pytest.approx(dots)
    folds = [Fold(path) for path in paths]
    mean = folds[1].mean("test") - folds[0].mean("test")
    assert dots[0] == pytest.approx(mean)  # the mean is of all, as in the tables


def test_each_part_has_the_colour_of_its_sign_and_the_undefined_is_grey() -> None:
    parts = {
        "up": Parts(Fraction(5, 100), Fraction(2, 100), Fraction(3, 100)),
        "down": Parts(Fraction(-8, 100), Fraction(-6, 100), Fraction(-2, 100)),
        "stayed": Parts(Fraction(9, 100), rest=Fraction(9, 100), why="never left"),
    }
    with drawing():
        figure = parts_figure(parts, "test", "accuracy", WIDE)
    axes = figure.axes[0]
    drawn_at: dict[int, dict[str, float]] = {}
    for colour, bar in bars(axes):
        row = round(bar.get_y() + bar.get_height() / 2)
        drawn_at.setdefault(row, {})[colour] = bar.get_width()
    third = pytest.approx  # the mean is of all three
    assert drawn_at == {
        0: {PINK: third(-4 / 3), BEST: third(1 / 3), FAINT: third(3)},
        1: {FAINT: third(9)},
        2: {GREEN: third(2), BEST: third(3)},
        3: {PINK: third(-6), LEFT: third(-2)},
    }
    texts = [text.get_text() for text in axes.texts]
    assert "+9.0  undefined: never left" in texts
    assert "+2.0  of it undefined: +3.0" in texts
    assert "−8.0" in texts
