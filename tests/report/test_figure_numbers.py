"""Numbers read back from what is drawn, against a fold of the log that knows nothing of msft."""

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Annotation
from scipy.stats import binomtest
from test_paper_figures import run_of, written

from mortal import quick_folder
from msft.report.branches import branches_of
from msft.report.compare.comparison import comparisons_of
from msft.report.compare.paper import Parts
from msft.report.compare.runs import compared_runs
from msft.report.compare.statistics import Intervals
from msft.report.figures.chart import (
    BEST,
    FAINT,
    GOLD,
    GREEN,
    INK,
    LEFT,
    OTHER,
    PINK,
    WENT_ON,
    WIDE,
    Panel,
    Series,
    add_axes,
    drawing,
    horizontal_dots,
    log_axis_if_far,
    new_figure,
)
from msft.report.figures.costs import losses_figure, thinned
from msft.report.figures.methods import (
    budget_figure,
    gains,
    gains_figure,
    parts_figure,
    score_figure,
    score_text,
    size_figure,
)
from msft.report.figures.peaks import divergence, mean_shifts
from msft.report.figures.search import curve
from msft.report.page import Section
from msft.report.sections import comparison_figures, run_figures
from msft.run.folder import step_losses_of
from msft.search.curves import Score, accuracy
from msft.testing import Learner, simulate

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

    def scores(self, checkpoint: str, split: str) -> dict[str, tuple[float, int]]:
        """Rows right and all rows of each sub-dataset."""
        scores: dict[str, tuple[float, int]] = {}
        for event in self.events:
            where = event.get("split", "validation")
            if event.get("checkpoint") == checkpoint and where == split and "scores" in event:
                for name, (right, rows) in event["scores"].items():
                    scores[name] = (right, rows)
        return scores

    def mean(self, split: str) -> float:
        """Of the best checkpoint, in per cent."""
        shares = [right / rows for right, rows in self.scores(self.best, split).values()]
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


def legend_of(figure: Figure) -> list[tuple[str, str]]:
    """Every text, and the colour of the box, line or dot before it."""
    axes = figure.axes[-1]
    keys = [(bar.get_x(), bar.get_y() + bar.get_height() / 2, colour) for colour, bar in bars(axes)]
    keys += [(*known(line)[0], str(line.get_color())) for line in axes.lines]
    found: list[tuple[str, str]] = []
    for text in axes.texts:
        right, height = text.get_position()
        before = [(x, colour) for x, y, colour in keys if y == height and x < right]
        found.append((text.get_text(), max(before)[1]))
    return found


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
    (most_held,) = lines(axes, FAINT)
    peaks = [point["disk"]["peak_copies"] for point in fold.trained()]
    assert peaks != copies
    begins = [number / fold.per_epoch for number in range(len(peaks) + 1)]
    assert known(held) == [*zip(begins, [*copies, copies[-1]], strict=True)]
    assert known(most_held) == [*zip(begins, [*peaks, peaks[-1]], strict=True)]
    (expected,), (most,) = lines(axes, GREEN), lines(axes, OTHER)
    assert (known(expected)[0][1], known(most)[0][1]) == (4.0, 4)  # N = 3: 8/2 and N + 1
    begun = np.cumsum([len(points) for _, points in fold.stages])[:-1] / fold.per_epoch
    assert len(begun) > 1
    assert marks(axes) == [pytest.approx(begun.tolist())]
    legend = [text.get_text() for text in drawn(searched, "disk").axes[-1].texts]
    assert f"mean {sum(copies) / len(copies):.2f}" in legend
    assert "paper's mean, (N + 5)/2 = 4" in legend
    assert "paper's most, N + 1 = 4" in legend
    assert "held (disk_policy: lean)" in legend


@pytest.mark.parametrize(
    ("losses", "scale"),
    [([1.0, 8.1], "log"), ([1.0, 8.0], "linear"), ([0.0, 9.0], "linear"), ([nan], "linear")],
)
def test_losses_that_are_far_apart_have_a_logarithmic_axis(losses: list[float], scale: str) -> None:
    axes = add_axes(new_figure(WIDE, 200), 40, 10, 10, 40)
    axes.plot(losses)
    log_axis_if_far(axes, [*losses, nan])
    assert axes.get_yscale() == scale


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
    (comparison,) = comparisons_of(compared_runs([run, run_of(folder / "sft", "sft")]))
    with drawing():
        both = losses_figure(comparison, WIDE)
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


def test_of_a_long_line_every_few_points_are_drawn_and_the_last_one() -> None:
    places = [(float(number), 0.0) for number in range(1235)]
    shown = thinned(places)
    assert 400 < len(shown) <= 500
    assert {later[0] - before[0] for before, later in pairwise(shown)} == {3}
    assert shown[-1] == places[-1]
    assert [*thinned(places[:500])] == places[:500]


EARLY, USUAL = Learner(rows=8, limit=0.3, damage=0.6), Learner(rows=8)


def learned(path: Path, method: str, learners: Mapping[str, Learner]) -> Path:
    path.mkdir()
    simulate(
        method,
        learners,
        folder=path,
        compute_budget=2,
        num_train_epochs=3,
        evals_per_epoch=2,
        train_batch_size=8,
    )
    return path


@pytest.fixture
def wandered(folder: Path) -> Path:
    """mSFT with roll-backs, two of them to one place, and with roll-outs that just go on."""
    late = {
        "c": Learner(rows=8, limit=2, passes=1.3, damage=0.4),
        "d": Learner(rows=8, limit=4, passes=2, damage=0.4, ceiling=0.3),
    }
    path = learned(folder / "wandered", "msft", {"a": EARLY, "b": EARLY, **late})
    begun = [(asked["start"], len(asked["active"])) for asked, _ in Fold(path).stages]
    assert begun == [
        ("base", 4),
        ("r0-t2", 3),  # a left
        ("r0-t2", 2),  # b left at the same place
        ("r2-t4", 2),  # nobody left, so it goes on
        ("r3-t2", 1),  # c left
        ("r4-t4", 1),
    ]
    assert Fold(path).best == "r4-t1"  # the search goes on after it
    return path


def test_the_timeline_has_the_path_the_discarded_the_leavers_and_the_best(wandered: Path) -> None:
    axes = drawn(wandered, "timeline").axes[0]
    names = {text.get_text(): text.get_position()[1] for text in axes.texts}
    active = [4, 3, 2, 2, 1, 1]
    rows = [names[f"stage {stage} · {count} active"] for stage, count in enumerate(active)]
    thick = [line for line in axes.lines if line.get_linewidth() > 1.9 and len(known(line)) > 1]
    parts = {line.get_color(): known(line) for line in thick if line.get_linestyle() == "-"}
    wanted: dict[str, list[tuple[int, float, float]]] = {
        BEST: [(0, 0, 1), (2, 1, 3), (3, 3, 4), (4, 4, 4.5)],  # stage, from, to
        WENT_ON: [(4, 4.5, 6)],
        FAINT: [(0, 1, 2), (1, 1, 3), (3, 4, 5), (5, 6, 8)],
    }
    assert parts == {
        colour: [(x, rows[stage]) for stage, begin, end in those for x in (begin, end)]
        for colour, those in wanted.items()
    }
    (star,) = [line for line in axes.lines if line.get_marker() == "*"]
    assert known(star) == [(4.5, rows[4])]
    (left,) = [line for line in axes.lines if line.get_marker() == "o" and known(line)]
    assert known(left) == [(1, rows[0]), (1, rows[1]), (4, rows[3]), (6, rows[5])]
    assert [names[f"{name} left"] for name in "abcd"] == [rows[stage] for stage in (0, 1, 3, 5)]
    jumps = [text for text in axes.texts if isinstance(text, Annotation) and text.arrow_patch]
    assert [(text.get_position()[0], text.xy[0]) for text in jumps] == [(2, 1), (3, 1), (5, 4)]
    fold, peaks = Fold(wandered), list[tuple[float, float]]()
    for (asked, points), begin, row in zip(fold.stages, (0, 1, 1, 3, 4, 6), rows, strict=True):
        places = [asked["start"], *(point["checkpoint"] for point in points)]
        known_at = [fold.scores(place, "validation") for place in places]
        curves = [[scores[name][0] for scores in known_at] for name in asked["active"]]
        ticks = sorted({curve.index(max(curve)) for curve in curves})
        peaks += [(begin + tick / 2, row) for tick in ticks]
    (strokes,) = [line for line in axes.lines if line.get_marker() == "|"]
    assert known(strokes) == peaks
    assert len(peaks) > len(rows), "in some stage not all peak together"


def test_the_band_of_a_curve_leaves_out_what_was_rolled_back(wandered: Path) -> None:
    (run,) = compared_runs([wandered])
    exclusion = next(each for each in run.history.exclusions if each.name == "c")
    branches, intervals = branches_of(run.history), Intervals(run.history, {})
    with drawing():
        axes = curve(run.history, branches, "c", exclusion, intervals).axes[0]
    (band,) = [each for each in axes.collections if isinstance(each, PolyCollection)]
    places = [np.asarray(path.vertices) for path in band.get_paths()]
    spans = [(each[:, 0].min(), each[:, 0].max()) for each in places]
    assert spans == [(0, 1), (1, 3), (3, 4), (4, 6)]
    right, rows = Fold(wandered).scores("base", "validation")["c"]
    wilson = binomtest(int(right), rows).proportion_ci(method="wilson")
    first = places[0][places[0][:, 0] == 0][:, 1]
    assert [first.min(), first.max()] == pytest.approx([100 * wilson.low, 100 * wilson.high])
    (best,) = [line for line in lines(axes, BEST) if known(line)[0][1] == 0]
    assert known(best) == [(4.5, 0), (4.5, 1)]  # from the bottom to the top
    (left,) = lines(axes, LEFT)
    right, rows = Fold(wandered).scores("r3-t2", "validation")["c"]
    assert known(left) == [pytest.approx((4, 100 * right / rows))]


def test_lines_of_the_loss_are_roll_backs_and_those_of_copies_are_new_roll_outs(
    wandered: Path,
) -> None:
    """As in the captions of the paper."""
    loss, active = drawn(wandered, "loss").axes[:2]
    assert marks(loss) == marks(active) == [[2, 4, 8]]  # two epochs each, discarded ones included
    assert marks(drawn(wandered, "disk").axes[0]) == [[2, 4, 6, 8, 10]]


def test_below_the_loss_stands_how_many_were_active_in_each_roll_out(wandered: Path) -> None:
    active = drawn(wandered, "loss").axes[1]
    steps: list[Any] = [
        patch.get_data() for patch in active.patches if isinstance(patch, StepPatch)
    ]
    wanted = ([4, 3, 2, 2, 1, 1], [0, 2, 4, 6, 8, 10, 12])
    assert [([*each.values], [*each.edges]) for each in steps] == [wanted, wanted]  # area and line
    assert [*active.get_yticks()] == [0, 4]


def losses_beside_sft(search: Path) -> Axes:
    sft = learned(search.parent / "sft", "sft", dict.fromkeys("abcd", USUAL))
    (comparison,) = comparisons_of(compared_runs([sft, search]))
    with drawing():
        return losses_figure(comparison, WIDE).axes[0]


def test_losses_of_several_runs_say_where_somebody_left_and_how_many_remained(
    wandered: Path,
) -> None:
    axes = losses_beside_sft(wandered)
    assert marks(axes) == [[1, 4]]  # on the path; at 3 and at 6 it just went on
    numbers = [(text.get_position()[0], text.get_text()) for text in axes.texts]
    assert numbers == [(0.5, "4"), (2.5, "2"), (6, "1")]
    stages = Fold(wandered).stages

    def losses(*parts: tuple[int, int, int, int]) -> list[tuple[float, float]]:
        """Of stages from a tick to another one, by where they begin on the path, in epochs."""
        return [
            (begin + tick / 2, total / rows)
            for stage, begin, first, last in parts
            for tick in range(first, last + 1)
            for total, rows in [stages[stage][1][tick - 1]["loss"]]
            if rows  # with one step an epoch, every other tick has none
        ]

    gone, _, kept = axes.lines[-3:]  # mSFT's: discarded, by steps, along the path
    assert (gone.get_color(), kept.get_color()) == (FAINT, BEST)
    path = losses((0, 0, 1, 2), (2, 1, 1, 4), (3, 3, 1, 2), (4, 4, 1, 4))
    assert known(kept) == [pytest.approx(place) for place in path]
    discarded = losses((0, 0, 3, 4), (1, 1, 1, 4), (3, 3, 3, 4), (5, 6, 1, 4))
    assert {*known(gone)} - {*known(kept)} == {*discarded}
    leaving = losses((0, 0, 2, 2), (3, 3, 2, 2))
    assert len(leaving) == 2
    assert {*leaving} <= {*known(gone)}, "what was rolled back begins where it left the path"


def test_a_roll_back_after_which_all_go_on_is_no_leaving(folder: Path) -> None:
    """The branch with everybody goes back to its fork, and nobody leaves there."""
    everybody = "msft.search.methods.branches:with_everybody"
    path = learned(folder / "all", everybody, {"a": EARLY, **dict.fromkeys("bcd", USUAL)})
    assert [asked["start"] for asked, _ in Fold(path).stages] == ["base", "r0-t2"]
    assert marks(drawn(path, "loss").axes[0]) == [[2]]
    axes = losses_beside_sft(path)
    assert (marks(axes), [*axes.texts]) == ([], [])


def test_rows_still_active_are_shares_of_the_first_epoch(folder: Path) -> None:
    run = run_of(folder / "ies", "ies", num_train_epochs=6)
    fold = Fold(run)
    rows = [point["loss"][1] for point in fold.trained()]
    epochs = [sum(pair) for pair in zip(rows[::2], rows[1::2], strict=True)]
    shares = [100 * count / epochs[0] for count in epochs]
    assert shares[-1] < shares[0]
    axes = drawn(run, "rows").axes[0]
    (line,) = axes.lines
    assert known(line) == [pytest.approx(place) for place in enumerate(shares, start=1)]
    assert [text.get_text() for text in axes.texts] == [f"{share:.0f}" for share in shares]


def test_losses_of_several_runs_are_means_too(searched: Path, folder: Path) -> None:
    (comparison,) = comparisons_of(compared_runs([run_of(folder / "sft", "sft"), searched]))
    with drawing():
        axes = losses_figure(comparison, WIDE).axes[0]
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
    (comparison,) = comparisons_of(runs)
    with drawing():
        figure = budget_figure(comparison, WIDE)
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
        assert above.texts[place].get_text() == f"{mean:.1f}"
    (line,) = [each for each in lines(above, BEST) if each.get_marker() == "None"]
    assert known(line) == dots[1:]
    (across,) = [each for each in above.lines if each.get_linestyle() == "--"]
    assert [y for _, y in known(across)] == [dots[0][1]] * 2, "SFT's score, from edge to edge"
    for axes in (above, below):
        assert [text.get_text() for text in axes.get_xticklabels()] == ["SFT", "C = 1", "C = 2"]


def scored(folder: Path, method: str, *right: int) -> Path:
    """A run whose best checkpoint has so many of 100 rows right on test."""
    names = "abcdef"[: len(right)]
    curves: dict[str, list[Score]] = {n: [accuracy(1, 100), accuracy(2, 100)] for n in names}
    test = {n: accuracy(count, 100) for n, count in zip(names, right, strict=True)}
    return written(folder, curves, method, test)


def intervals(axes: Axes, colour: str) -> list[tuple[float, float, float]]:
    """Where horizontal lines of a colour begin and end, and their heights."""
    return [
        (begin[0], end[0], begin[1])
        for each in axes.collections
        if isinstance(each, LineCollection) and to_hex(np.asarray(each.get_color())[0]) == colour
        for begin, end in np.asarray(each.get_segments()).tolist()
    ]


def test_scores_have_wilsons_intervals_under_one_seed_and_the_ends_of_several(folder: Path) -> None:
    right = {"sft": (50, 70), "msft": (60, 99)}
    (one,) = comparisons_of(compared_runs([scored(folder / m, m, *r) for m, r in right.items()]))
    seeds = [run_of(folder / f"s{seed}", "sft", seed=seed) for seed in (20, 30)]
    (two,) = comparisons_of(compared_runs(seeds))
    with drawing():
        single, several = (score_figure(comparison, WIDE).axes[0] for comparison in (one, two))
    for colour, (method, counts) in zip((WENT_ON, BEST), right.items(), strict=True):
        (dots,) = lines(single, colour)
        assert [x for x, _ in known(dots)] == pytest.approx(counts), method
        found = [binomtest(count, 100).proportion_ci(method="wilson") for count in counts]
        wanted = [
            (100 * each.low, 100 * each.high, y)
            for each, (_, y) in zip(found, known(dots), strict=True)
        ]
        assert intervals(single, colour) == [pytest.approx(each) for each in wanted]
    assert "Wilson's 95 % intervals" in score_text(one)
    runs = [two.methods[0].runs[seed] for seed in (20, 30)]
    every = [
        [100 * float(run.history.known(run.best, two.split)[name].value) for run in runs]
        for name in two.names
    ]
    (dots,) = lines(several, WENT_ON)
    ends = [(min(b), max(b), y) for b, (_, y) in zip(every, known(dots), strict=True)]
    assert intervals(several, WENT_ON) == [pytest.approx(each) for each in ends]
    assert any(low < high for low, high, _ in ends)
    assert score_text(two).endswith("The lines go from the lowest seed to the highest.")


def test_of_very_many_each_interval_is_at_its_dot() -> None:
    names, values = [f"d{n}" for n in range(50)], [float(n) for n in range(50)]
    series = Series("one", BEST, values, [(value - 1, value + 1) for value in values])
    with drawing():
        axes = horizontal_dots(WIDE, [Panel(names, [series], "")]).axes[0]
    (dots,) = lines(axes, BEST)
    assert len(known(dots)) == 40
    assert intervals(axes, BEST) == [(x - 1, x + 1, y) for x, y in known(dots)]


def test_a_peak_before_the_mean_has_another_colour_than_one_after_it(folder: Path) -> None:
    curves: dict[str, list[Score]] = {
        name: [accuracy(right, 100) for right in rights]
        for name, rights in {
            "late": (10, 20, 30, 40, 60),
            "early": (10, 50, 30, 20, 10),
            "same": (10, 20, 70, 60, 10),
        }.items()
    }
    figure = drawn(written(folder / "run", curves), "peaks")
    shown, distances = figure.axes[:2]
    for axes in (shown, distances):
        (at_mean,) = [line for line in lines(axes, INK) if line.get_linestyle() == "--"]
        assert [x for x, _ in known(at_mean)] == [0.5, 0.5]
    tops = {LEFT: (0.25, 50), WENT_ON: (0.5, 70), BEST: (1, 60)}
    dots = [line for line in shown.lines if line.get_marker() == "o"]
    assert {line.get_color(): known(line)[0] for line in dots} == tops
    assert [(text.get_text(), text.xy) for text in shown.texts] == [  # type: ignore[attr-defined]
        ("1", tops[LEFT]),
        ("2", tops[WENT_ON]),
        ("3", tops[BEST]),
    ]
    (mean,) = [line for line in lines(shown, INK) if len(known(line)) == 5]
    means = [10, 30, 130 / 3, 40, 80 / 3]
    assert known(mean) == [pytest.approx((tick / 4, y)) for tick, y in enumerate(means)]
    assert [intervals(distances, colour) for colour in (LEFT, WENT_ON, BEST)] == [
        [(0.5, 0.25, 0)],
        [(0.5, 0.5, 1)],
        [(0.5, 1, 2)],
    ]
    texts = [(text.get_position()[1], text.get_text()) for text in distances.texts]
    assert texts[:3] == [(0, "1 early"), (1, "2 same"), (2, "3 late")]
    assert texts[3:] == [(0, "0.25"), (1, "0"), (2, "0.5")]
    assert legend_of(figure)[:3] == [
        ("peaks before the mean", LEFT),
        ("after it", BEST),
        ("with it", WENT_ON),
    ]


def test_the_earliest_shift_of_a_peak_stands_first_and_has_its_sign() -> None:
    with drawing():
        axes = divergence({"b": 0.0, "c": 1.25, "a": -2.5}, WIDE).axes[0]
        means = mean_shifts({"x": {"a": -2.5, "c": 1.5}, "y": {}}, WIDE).axes[0]
    assert by_row(axes) == {"a": {BEST: (0, -2.5)}, "b": {BEST: (0, 0)}, "c": {BEST: (0, 1.25)}}
    assert [text.get_text() for text in axes.texts[3:]] == ["−2.50", "0", "+1.25"]
    assert by_row(means) == {"x": {BEST: (0, 2)}, "y": {BEST: (0, 0)}}


def test_losses_against_sft_are_drawn_as_losses(folder: Path) -> None:
    small = [scored(folder / "n2" / m, m, *r) for m, r in (("sft", (50, 60)), ("msft", (46, 57)))]
    large = [
        scored(folder / "n3" / m, m, *r) for m, r in (("sft", (50, 60, 70)), ("msft", (56, 60, 67)))
    ]
    runs = compared_runs([*small, *large])
    comparisons = comparisons_of(runs)
    with drawing():
        sizes = size_figure(comparisons, WIDE).axes[0]
        gained = gains_figure(comparisons[1], gains(comparisons[1]), WIDE).axes[0]
    assert [bar.get_width() for _, bar in bars(sizes)] == pytest.approx([-3.5, 1.0])
    assert {colour for colour, _ in bars(sizes)} == {BEST}, "mSFT's colour, as in other figures"
    assert {"−3.5", "+1.0"} <= {text.get_text() for text in sizes.texts}
    assert [bar.get_width() for _, bar in bars(gained)] == pytest.approx([1, 6, 0, -3])
    assert {"+6.0", "−3.0", "±0.0"} <= {text.get_text() for text in gained.texts}


def by_row(axes: Axes) -> dict[str, dict[str, tuple[float, float]]]:
    """Of each row's name, the bars by their colours: where they begin, and how long they are."""
    names = [
        text
        for text in axes.texts
        if text.get_horizontalalignment() == "right" and text.get_position()[0] == 0
    ]
    rows = {round(text.get_position()[1]): text.get_text() for text in names}
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in rows.values()}
    for colour, bar in bars(axes):
        row = rows[round(bar.get_y() + bar.get_height() / 2)]
        found[row][colour] = (bar.get_x(), bar.get_width())
    return found


MIXTURES: dict[str, dict[str, tuple[int, ...]]] = {
    "n2": {"sft": (50, 70), "sro": (60, 50), "msft": (60, 60)},
    "n3": {"sft": (50, 60, 70), "sro": (50, 60, 60), "msft": (50, 70, 70)},
}


def of_mixtures(folder: Path, key: str) -> tuple[Section, Axes]:
    """A figure of three methods on two mixtures."""
    paths = [scored(folder / n / m, m, *r) for n, each in MIXTURES.items() for m, r in each.items()]
    (section,) = [each for each in comparison_figures(compared_runs(paths)) if each.key == key]
    with drawing():
        return section, section.draw(WIDE).axes[0]


def test_the_spread_over_sub_datasets_is_the_mean_of_the_mixtures(folder: Path) -> None:
    section, axes = of_mixtures(folder, "spread")
    assert "of the test scores over the sub-datasets" in section.text
    spreads = [
        sum(float(np.std(right[method], ddof=1)) for right in MIXTURES.values()) / 2
        for method in ("sft", "sro", "msft")
    ]
    found = by_row(axes)
    assert [*found] == ["SFT", "SRO SFT", "mSFT"]
    assert [bar[BEST][1] for bar in found.values()] == pytest.approx(spreads)
    texts = [text.get_text() for text in axes.texts]
    assert texts[3:] == [f"{spread:.1f}" for spread in spreads]


def test_who_shares_a_first_place_has_it_in_every_comparison(folder: Path) -> None:
    section, axes = of_mixtures(folder, "places")
    assert by_row(axes) == {  # alone, and behind them the shared ones
        "SFT": {BEST: (0, 1), FAINT: (1, 2)},
        "SRO SFT": {BEST: (0, 0), FAINT: (0, 2)},
        "mSFT": {BEST: (0, 1), FAINT: (1, 3)},
    }
    counts = [(text.get_position(), text.get_text()) for text in axes.texts[3:]]
    assert counts == [((3, 0), "3"), ((2, 1), "2"), ((4, 2), "4")]
    assert section.text.startswith("On test (the paper's Fig. 4, right).")
    assert "That makes 5 first places over 2 mixtures." in section.text


def test_gains_fall_from_the_highest_of_msft_wherever_it_stands(folder: Path) -> None:
    right = {"sft": (50, 50, 50), "sro": (60, 50, 40), "msft": (45, 60, 54)}
    paths = [scored(folder / m, m, *r) for m, r in right.items()]
    (comparison,) = comparisons_of(compared_runs(paths))
    with drawing():
        figure = gains_figure(comparison, gains(comparison), WIDE)
    found = by_row(figure.axes[0])
    assert [*found] == ["mean", "b", "c", "a"]
    assert {name: {colour: bar[1] for colour, bar in found[name].items()} for name in found} == {
        "mean": {BEST: 0, LEFT: pytest.approx(3)},
        "b": {BEST: 0, LEFT: pytest.approx(10)},
        "c": {BEST: pytest.approx(-10), LEFT: pytest.approx(4)},
        "a": {BEST: pytest.approx(10), LEFT: pytest.approx(-5)},
    }
    assert legend_of(figure) == [("SRO SFT", BEST), ("mSFT", LEFT)]
    (alone,) = comparisons_of(compared_runs(paths[:2]))
    assert [*gains(alone)] == ["a", "b", "c"]  # of SRO, where there is no mSFT


def test_the_parts_fall_by_their_gains_and_the_unknown_are_last() -> None:
    shares = {"unknown": None, "low": Fraction(-1, 50), "high": Fraction(1, 50)}
    parts = {name: Parts(gain, gain and -gain, gain and 2 * gain) for name, gain in shares.items()}
    with drawing():
        axes = parts_figure(parts, "test", "accuracy", WIDE).axes[0]
    assert [*by_row(axes)] == ["mean", "high", "low", "unknown"]


@pytest.mark.parametrize(
    ("score_test", "reports", "split"),
    [
        ("rollbacks", None, "test"),
        ("best", None, "validation"),  # test does not have the scores where somebody left
        ("rollbacks", "selection", "validation"),
    ],
)
def test_parts_are_of_the_split_that_reports_if_it_has_every_score(
    score_test: str, reports: Any, split: str, folder: Path
) -> None:
    paths = [
        run_of(folder / m, m, compute_budget=2, score_test=score_test) for m in ("sft", "msft")
    ]
    figures = comparison_figures(compared_runs(paths), reports)
    (section,) = [each for each in figures if each.key == "parts"]
    assert f"The gain of mSFT over SFT on {split} in two parts" in section.text
    with drawing():
        axes = section.draw(WIDE).axes[0]
    assert axes.get_xlabel() == f"gain over SFT on {split}, points"
    sft, msft = (Fold(path) for path in paths)
    (mean,) = [
        x for line in axes.lines if line.get_marker() == "o" for x, y in known(line) if y == 0
    ]
    assert mean == pytest.approx(msft.mean(split) - sft.mean(split))


def test_the_gain_that_has_parts_is_the_one_on_test(folder: Path) -> None:
    """On validation all are equal here."""
    right = {"sft": (50, 60), "msft": (47, 66)}
    runs = compared_runs([scored(folder / m, m, *r) for m, r in right.items()])
    (section,) = [each for each in comparison_figures(runs) if each.key == "parts"]
    with drawing():
        axes = section.draw(WIDE).axes[0]
    found = by_row(axes)
    assert [*found] == ["mean", "b", "a"]
    dots = [x for line in axes.lines if line.get_marker() == "o" for x, _ in known(line)]
    assert dots == pytest.approx([1.5, 6, -3])
    assert [row[FAINT][1] for row in found.values()] == pytest.approx(dots)  # nobody left


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


def test_parts_of_one_sign_stand_one_behind_the_other() -> None:
    parts = {
        "up": Parts(Fraction(5, 100), Fraction(2, 100), Fraction(3, 100)),
        "stayed": Parts(Fraction(9, 100), rest=Fraction(9, 100), why="never left"),
    }
    with drawing():
        axes = parts_figure(parts, "test", "accuracy", WIDE).axes[0]
    mean = [bar for _, bar in bars(axes) if round(bar.get_y() + bar.get_height() / 2) == 0]
    places = [pytest.approx(place) for place in ((0, 1), (1, 1.5), (2.5, 4.5))]
    assert [(bar.get_x(), bar.get_width()) for bar in mean] == places
