"""The paper's figures: their numbers, and that each is drawn for small, large and odd inputs."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from time import process_time
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from mortal import quick_folder
from msft.cli import main
from msft.errors import UsageError
from msft.report import write_report
from msft.report.compare.comparison import Comparison, comparisons_of, rounds_of, spread_of
from msft.report.compare.paper import Parts
from msft.report.compare.runs import ComparedRun, compared_runs
from msft.report.compare.statistics import first_places
from msft.report.comparison_page import report_of_folders, write_all_figures
from msft.report.figures.chart import WIDE, drawing, rows_of
from msft.report.figures.costs import rows_per_epoch
from msft.report.figures.methods import (
    gains,
    gains_figure,
    group_gains,
    parts_figure,
    score_figure,
    score_text,
    share_figure,
    share_section,
    shares,
)
from msft.report.figures.peaks import divergence, mean_shifts, peaks, peaks_of
from msft.report.page import FORMATS, Section, formats_of, page_sections, write_figures
from msft.report.run_page import choice_text
from msft.report.sections import comparison_figures, run_figures, run_sections, score_section
from msft.run.environment import record_environment
from msft.run.history import History
from msft.run.log import (
    EndEvent,
    Event,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
    to_line,
)
from msft.search.curves import Score, Scores, accuracy, nll, value
from msft.search.methods import METHODS
from msft.search.rollout import BASE, checkpoint_id
from msft.store.store import Disk
from msft.testing import Learner, simulate

HOSTILE = '<script>alert("1")</script>$x^2$\x1b\u202e'
SVG = ("svg",)
"""The format of figures whose drawing is that of others, with other numbers."""
SIGNATURES = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


def learners(count: int) -> dict[str, Learner]:
    found = {HOSTILE: Learner(rows=8, limit=0.3, damage=0.6)}
    for number in range(1, count):
        limit, passes = 0.3 + 0.4 * (number % 7), 0.5 + 0.4 * (number % 3)
        found[f"d{number}"] = Learner(rows=8, limit=limit, passes=passes, damage=0.4)
    return found


def run_of(path: Path, method: str, count: int = 3, **options: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    settings = {
        "compute_budget": 1,
        "num_train_epochs": 5 if method == "ies" else 3,
        "evals_per_epoch": 2,
        "train_batch_size": 8,
        "score_test": "rollbacks",
    }
    simulate(method, learners(count), folder=path, **{**settings, **options})  # type: ignore[arg-type]
    return path


def written(
    path: Path, curves: Mapping[str, list[Score]], method: str = "sft", test: Scores | None = None
) -> Path:
    """A run of one roll-out with these scores, the base model's first."""
    path.mkdir(parents=True)
    settings = {"evals_per_epoch": 4, "compute_budget": 4, "train_ticks": 8, "mean": "macro"}
    rule = {"peaks": {"smooth": 0, "min_delta": 0.0, "include_start": True}}
    rows = dict.fromkeys(curves, 8)
    ticks = len(next(iter(curves.values()))) - 1
    points = [{name: scores[tick] for name, scores in curves.items()} for tick in range(ticks + 1)]
    events: list[Event] = [
        RunEvent(method, 20, 1000, rows, settings | rule, {}),
        RolloutEvent(0, BASE, rows, {}, ticks, {"name": "shuffled"}, "fresh", True),
        ScoresEvent(BASE, "validation", Tokens(evaluation=5), points[0]),
    ]
    for tick in range(1, ticks + 1):
        disk, tokens = Disk(1, 2, 100), Tokens(10, 5)
        events.append(PointEvent(checkpoint_id(0, tick), 1, (8.0, 8), tokens, disk, points[tick]))
    best = History(events).best or BASE
    if test is not None:
        events.append(ScoresEvent(BASE, "test", Tokens(), points[0]))
        events.append(ScoresEvent(best, "test", Tokens(), test))
    events.append(EndEvent("budget", best))
    (path / "run.jsonl").write_bytes(b"".join(to_line(event) for event in events))
    return path


def hits(*right: int) -> list[Score]:
    return [accuracy(number, 100) for number in right]


def assert_drawn(sections: list[Section], folder: Path, formats: Collection[str] = FORMATS) -> None:
    """Every figure, in these formats, and in a page for both widths."""
    paths = write_figures(sections, folder / "drawn", list(formats))
    assert len(paths) == len(formats) * len(sections)
    for path in paths:
        assert path.read_bytes().startswith(SIGNATURES[path.suffix[1:]])
        if path.suffix == ".svg":
            texts = [*ElementTree.parse(path).getroot().itertext()]  # noqa: S314  our own
            assert not any("\x1b" in text or "\u202e" in text for text in texts)
    for section in page_sections(sections):
        assert section.wide.startswith("<svg")
        assert "<script" not in section.narrow


def keys(sections: list[Section]) -> list[str]:
    found = [section.key for section in sections]
    assert len(found) == len(set(found))
    return found


def test_peaks_and_their_distances_from_the_peak_of_the_mean(folder: Path) -> None:
    curves = {
        "early": hits(10, 50, 30, 20, 10),
        "late": hits(10, 20, 30, 40, 60),
        "same": hits(10, 20, 70, 60, 10),
    }
    (run,) = compared_runs([written(folder / "run", curves)])
    found = peaks_of(run.history)
    assert found is not None
    assert found.mean == 0.5  # means 10, 30, 43.3, 40, 26.7
    assert found.peaks == {"early": 0.25, "late": 1.0, "same": 0.5}
    assert [found.distance(name) for name in curves] == [0.25, 0.5, 0.0]
    assert found.ordered == ["early", "same", "late"]


def test_a_page_has_no_figure_of_peaks_that_are_all_at_the_same_tick(folder: Path) -> None:
    rising, falling = hits(10, 20, 30), hits(30, 20, 10)
    for name, second, there in (("level", rising, False), ("apart", falling, True)):
        path = written(folder / name, {"a": rising, "b": second})
        assert ("Where each sub-dataset peaks" in write_report(path).read_text()) == there
        (run,) = compared_runs([path])
        assert keys(run_sections(run.history)) == ["peaks"], "as a file it is always there"


def test_one_epoch_is_no_plural(folder: Path) -> None:
    curves = {"early": hits(10, 10, 10, 10, 10), "late": hits(10, 20, 30, 40, 60)}
    (run,) = compared_runs([written(folder / "run", curves)])
    (section,) = run_sections(run.history)
    assert "that of the mean, which is at 1 epoch (the paper's Fig. 2)" in section.text
    assert choice_text(run.history, run.summary) == (
        "Validation chose checkpoint r0-t4 from 5 checkpoints. It lies 1 epoch from the base "
        "model. Training took 1 epoch in all, as planned."
    )
    (run,) = compared_runs([written(folder / "half", {"a": hits(1, 2, 3), "b": hits(3, 2, 1)})])
    (section,) = run_sections(run.history)
    assert "the mean, which is at 0 epochs" in section.text


def test_peaks_of_losses_are_their_lowest_points(folder: Path) -> None:
    losses = [nll(number, 10) for number in (30.0, 20.0, 25.0)]
    later = [nll(number, 10) for number in (30.0, 25.0, 18.0)]
    (run,) = compared_runs([written(folder / "run", {"a": losses, "b": later})])
    found = peaks_of(run.history)
    assert found is not None
    assert (found.peaks, found.mean) == ({"a": 0.25, "b": 0.5}, 0.5)  # means 3, 2.25, 2.15


def test_a_first_roll_out_of_one_sub_dataset_has_no_such_figure(folder: Path) -> None:
    (run,) = compared_runs([run_of(folder / "continual", "continual")])
    assert peaks_of(run.history) is None
    assert run_sections(run.history) == []
    with pytest.raises(ValueError, match="trained every sub-dataset"):
        peaks(run.history, WIDE)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_figures(method: str, folder: Path) -> None:
    (run,) = compared_runs([run_of(folder / method, method)])
    sections = run_figures(run.history, {})
    wanted = ["timeline", "peaks", "rows", "loss", "flops", "disk"]
    if method == "continual":
        wanted.remove("peaks")
    if method != "ies":
        wanted.remove("rows")
    assert keys(sections) == wanted
    assert_drawn(sections, folder, FORMATS if method in ("msft", "ies") else SVG)


def test_a_run_that_has_only_begun_has_none(folder: Path) -> None:
    whole = run_of(folder / "whole", "msft")
    lines = (whole / "run.jsonl").read_bytes().splitlines(keepends=True)
    for count in (1, 2, 3):
        (folder / "run.jsonl").write_bytes(b"".join(lines[:count]))
        (run,) = compared_runs([folder])
        assert run_figures(run.history, {}) == []
        assert comparison_figures([run, run]) == []


def test_rows_still_active_are_the_rows_that_were_trained(folder: Path) -> None:
    (run,) = compared_runs([run_of(folder / "ies", "ies", num_train_epochs=6)])
    rows = rows_per_epoch(run.history)
    assert len(rows) == 6
    assert rows[:3] == [24, 24, 24]  # three looks come first
    assert rows[3] < 24
    (other,) = compared_runs([run_of(folder / "sft", "sft", num_train_epochs=2.5)])
    assert rows_per_epoch(other.history) == [24, 24]  # the half epoch is left out


COMPARED = ["spread", "places", "gains", "parts", "losses"]


def test_the_figures_of_a_comparison(folder: Path) -> None:
    runs = compared_runs([run_of(folder / method, method) for method in METHODS])
    sections = comparison_figures(runs)
    assert keys(sections) == [*COMPARED, "rows"]
    assert_drawn(sections, folder)


@pytest.mark.parametrize("count", [2, 30])
def test_small_and_large_mixtures(count: int, folder: Path) -> None:
    runs = [run_of(folder / method, method, count) for method in ("sft", "msft")]
    runs_of_both = compared_runs(runs)
    sections = comparison_figures(runs_of_both)
    assert keys(sections) == COMPARED
    every = [*sections, *run_sections(runs_of_both[0].history)]
    assert_drawn(every, folder, FORMATS if count > 2 else SVG)


def test_without_sft_there_is_no_gain(folder: Path) -> None:
    runs = compared_runs([run_of(folder / method, method) for method in ("msft", "sro")])
    assert keys(comparison_figures(runs)) == ["spread", "places", "losses"]
    assert comparison_figures([]) == []


def test_gain_against_size_needs_several_mixtures(folder: Path) -> None:
    paths = [
        run_of(folder / f"{method}{count}", method, count)
        for count in (3, 2)
        for method in ("sft", "msft")
    ]
    sections = comparison_figures(compared_runs(paths))
    assert "sizes" in keys(sections)
    assert {"gains-1", "gains-2", "parts-1", "losses-2"} <= set(keys(sections))
    titles = {section.key: section.title for section in sections}
    assert titles["gains-1"] == "Gain by sub-dataset · N = 2, 16 rows"
    assert titles["losses-2"] == "Training loss · N = 3, 24 rows"
    assert_drawn(sections, folder, SVG)


def test_the_mixture_of_fewer_sub_datasets_comes_first_however_many_its_rows(folder: Path) -> None:
    rows = {"two": {"a": 8, "b": 8}, "one": {"a": 64}, "more": {"a": 8, "b": 16}}
    for name, sizes in rows.items():
        (folder / name).mkdir()
        learners = {each: Learner(rows=count) for each, count in sizes.items()}
        simulate("sft", learners, folder=folder / name, num_train_epochs=1)
    comparisons = comparisons_of(compared_runs([folder / name for name in rows]))
    titles = [comparison.title for comparison in comparisons]
    assert titles == ["N = 1, 64 rows", "N = 2, 16 rows", "N = 2, 24 rows"]


def test_budgets_are_told_apart(folder: Path) -> None:
    paths = [run_of(folder / "sft", "sft")]
    paths += [run_of(folder / f"c{c}", "msft", compute_budget=c) for c in (2, 1)]
    sections = comparison_figures(compared_runs(paths))
    assert {"budgets", "parts", "parts-c2"} <= set(keys(sections))
    (comparison,) = comparisons_of(compared_runs(paths))
    assert [method.label for method in comparison.methods] == ["SFT", "mSFT C = 2", "mSFT C = 1"]
    by_key = {section.key: section for section in sections}
    for key, name in (("parts", "mSFT C = 1"), ("parts-c2", "mSFT C = 2")):
        assert by_key[key].title == f"What the gain is made of · {name}"
        assert by_key[key].text.startswith(f"The gain of {name} over SFT on test")
    with drawing():
        scores = by_key["budgets"].draw(WIDE).axes[0]
    assert [text.get_text() for text in scores.get_xticklabels()] == ["SFT", "C = 1", "C = 2"]
    assert_drawn(sections, folder, SVG)


def test_seeds_belong_together_if_the_budget_that_the_method_uses_is_the_same(folder: Path) -> None:
    budgets = {"c1": (1, 3), "c2": (2, 3), "e2": (1, 2)}  # C, and epochs of all other methods
    paths = [
        run_of(folder / f"{method}-{name}", method, seed=seed, compute_budget=c, num_train_epochs=e)
        for method in ("sft", "msft")
        for seed, (name, (c, e)) in enumerate(budgets.items())
    ]
    (comparison,) = comparisons_of(compared_runs(paths))
    assert [(method.name, [*method.runs]) for method in comparison.methods] == [
        ("sft", [0, 1]),  # C is nothing to it
        ("sft", [2]),
        ("msft", [0, 2]),
        ("msft", [1]),
    ]


def test_the_parts_that_are_undefined_are_counted_by_their_reasons(folder: Path) -> None:
    paths = [run_of(folder / "sft", "sft")]
    paths.append(
        run_of(folder / "msft", "msft", compute_budget=2, method_options={"max_stages": 1})
    )
    (section,) = [s for s in comparison_figures(compared_runs(paths)) if s.key == "parts"]
    assert section.text.endswith("The parts are undefined for 2 (never left) of 3.")


def made(folder: Path, name: str, method: str, **test: Score | None) -> ComparedRun:
    """A run with these test scores; None: not scored there."""
    curves = {each: hits(10, 20) for each in test}
    known = {each: score for each, score in test.items() if score is not None}
    return compared_runs([written(folder / name, curves, method, known)])[0]


def test_gains_spreads_and_places_by_hand(folder: Path) -> None:
    runs = [
        made(folder, "sft", "sft", a=accuracy(50, 100), b=accuracy(60, 100), c=accuracy(70, 100)),
        made(folder, "msft", "msft", a=accuracy(56, 100), b=accuracy(60, 100), c=accuracy(69, 100)),
    ]
    (comparison,) = comparisons_of(runs)
    assert comparison.split == "test"
    assert gains(comparison) == {"a": [6.0], "b": [0.0], "c": [-1.0]}
    assert comparison.mean_gain(comparison.others[0]) == pytest.approx(5 / 3)
    assert spread_of(comparison, comparison.methods[0]) == pytest.approx(0.1)  # 50, 60, 70
    table = first_places(rounds_of(comparison))
    assert (table["SFT"].first, table["SFT"].shared) == (2, 1)
    assert (table["mSFT"].first, table["mSFT"].shared) == (2, 1)


def test_a_subdataset_that_a_method_has_no_score_for_gives_no_first_place(folder: Path) -> None:
    full = {"a": accuracy(50, 100), "b": accuracy(60, 100)}
    runs = [
        made(folder, "sft", "sft", **full),
        made(folder, "msft", "msft", **full),
        made(folder, "sro", "sro", a=accuracy(40, 100), b=None),
    ]
    (comparison,) = comparisons_of(runs)
    comparison = replace(comparison, split="test")
    assert rounds_of(comparison) == [{"SFT": 0.5, "mSFT": 0.5, "SRO SFT": Fraction(2, 5)}]


def test_gains_of_groups_are_those_of_their_means(folder: Path) -> None:
    """Two sub-datasets gain 6 and 0 points, so their group gains 3; the third is one alone."""
    scores = {"sft": (50, 60, 70), "msft": (56, 60, 69)}
    runs = [
        made(
            folder,
            method,
            method,
            **{n: accuracy(s, 100) for n, s in zip("abc", found, strict=True)},
        )
        for method, found in scores.items()
    ]
    for method in scores:
        path = folder / method / "environment.json"
        record_environment(path, {}, {"a": "first", "b": "first", "c": "second"})
    (comparison,) = comparisons_of(runs)
    found = group_gains(comparison)
    assert found == {"first": [pytest.approx(3.0)], "second": [pytest.approx(-1.0)]}
    (section,) = (s for s in comparison_figures(runs) if s.key == "groups")
    drawn = gains_figure(comparison, found, WIDE)
    texts = [text.get_text() for text in drawn.axes[0].texts]
    assert [text for text in texts if text.isalpha()] == ["mean", "first", "second"]
    widths = sorted(
        round(b.get_width(), 6) for b in drawn.axes[0].patches if isinstance(b, Rectangle)
    )
    assert widths == [-1.0, round(5 / 3, 6), 3.0]
    assert_drawn([section], folder)


def test_gains_of_losses_are_turned_and_mixed_ones_are_relative(folder: Path) -> None:
    for name, second in (("nll", nll(10.0, 10)), ("mixed", accuracy(30, 100))):
        start = {"a": [nll(30.0, 10), nll(20.0, 10)], "b": [second, second]}
        better = {"a": nll(15.0, 10), "b": second}
        paths = [
            written(folder / name / "sft", start, "sft", {"a": nll(20.0, 10), "b": second}),
            written(folder / name / "msft", start, "msft", better),
        ]
        runs = compared_runs(paths)
        (comparison,) = comparisons_of(runs)
        gain = comparison.gain(comparison.others[0], "a")
        assert gain == pytest.approx(0.5 if name == "nll" else 25.0)  # nats; per cent of 2.0
        whole = comparison.mean_gain(comparison.others[0])
        assert whole == pytest.approx(0.25 if name == "nll" else 25 / 3)  # of 3.0, the base model's
        sections = comparison_figures(runs)
        assert ("parts" in keys(sections)) == (name == "nll")
        drawn = gains_figure(comparison, gains(comparison), WIDE)
        texts = [text.get_text() for text in drawn.axes[0].texts]
        assert [text for text in texts if text.isalpha()] == (
            ["mean", "a", "b"] if name == "nll" else ["a", "b"]
        )
        (said,) = (section.text for section in sections if section.key == "gains")
        assert ("no mean is drawn" in said) == (name == "mixed")
        assert_drawn(sections, folder / name, SVG)


def test_seeds_are_paired_and_averaged(folder: Path) -> None:
    paths = [
        run_of(folder / f"{method}-s{seed}", method, seed=seed)
        for method in ("sft", "msft")
        for seed in (20, 30)
    ]
    paths.append(run_of(folder / "msft-s40", "msft", seed=40))
    (comparison,) = comparisons_of(compared_runs(paths))
    assert comparison.seeds == (20, 30)  # 40 has no SFT
    ours = comparison.others[0]
    pairs = comparison.pairs(ours)
    assert [(a.history.start.seed, b.history.start.seed) for a, b in pairs] == [(20, 20), (30, 30)]
    name = "d1"
    single = [
        100 * float((a.score((name,), "test") or 0) - (b.score((name,), "test") or 0))
        for a, b in pairs
    ]
    assert comparison.gain(ours, name) == pytest.approx(sum(single) / 2)


def test_missing_scores_leave_gaps(folder: Path) -> None:
    runs = [
        made(folder, "sft", "sft", a=accuracy(50, 100), b=None),
        made(folder, "msft", "msft", a=accuracy(56, 100), b=accuracy(60, 100)),
        made(folder, "ies", "ies", a=None, b=None),
    ]
    (comparison,) = comparisons_of(runs)
    assert comparison.split == "validation"
    assert_drawn(comparison_figures(runs), folder, SVG)
    parts = {
        HOSTILE: Parts(Fraction(1, 10), Fraction(2, 10), Fraction(-1, 10)),
        "worse": Parts(Fraction(-3, 10), Fraction(-4, 10), Fraction(1, 10)),
        "mean": Parts(Fraction(1, 10), rest=Fraction(1, 10), why="never left"),
        "unknown": Parts(None, why="not scored on test"),
    }
    one = Section("one", "", "", partial(parts_figure, parts, "test", "accuracy"))
    none = Section("two", "", "", partial(parts_figure, {"a": Parts(None)}, "test", "value"))
    assert_drawn([one, none], folder / "parts")


def test_own_metrics_are_drawn_too(folder: Path) -> None:
    curves = {"a": [value(-1.0), value(2.5)], "b": [value(0.0), value(0.0)]}
    paths = [written(folder / method, curves, method) for method in ("sft", "msft")]
    runs = compared_runs(paths)
    assert_drawn([*comparison_figures(runs), *run_figures(runs[0].history, {})], folder, SVG)


def axes_of(comparison: Comparison) -> dict[str, tuple[list[str], set[float]]]:
    """The scores figure: by the label of an axis, the names at it and where its dots are."""
    found: dict[str, tuple[list[str], set[float]]] = {}
    with drawing():
        figure = score_figure(comparison, 1000)
    for axes in figure.axes:
        if label := axes.get_xlabel():
            names = [text.get_text() for text in axes.texts]
            dots = [x for line in axes.lines for x, _ in np.asarray(line.get_xydata()).tolist()]
            found[label] = names, set(dots)
    return found


def test_each_unit_of_scores_has_an_axis_of_its_own(folder: Path) -> None:
    tests = [
        {"a": accuracy(50, 100), "b": nll(20.0, 10), "c": value(7.5), "d": accuracy(80, 100)},
        {"a": accuracy(60, 100), "b": nll(15.0, 10), "c": value(8.5), "d": accuracy(90, 100)},
    ]
    runs = compared_runs(
        [
            written(folder / method, {name: [s, s] for name, s in test.items()}, method, test)
            for method, test in zip(("sft", "msft"), tests, strict=True)
        ]
    )
    (comparison,) = comparisons_of(runs)
    assert axes_of(comparison) == {
        "accuracy, % (test)": (["a", "d"], {50, 60, 80, 90}),
        "nll, nats (test)": (["b"], {1.5, 2.0}),
        "score (test)": (["c"], {7.5, 8.5}),
    }
    assert "Each metric has an axis of its own" in score_text(comparison)
    assert score_section(comparison).title == "Scores on test"
    assert_drawn([Section("scores", "", "", partial(score_figure, comparison))], folder)
    plain = [
        made(folder, f"{method}-1", method, a=accuracy(50, 100), b=accuracy(60, 100))
        for method in ("sft", "msft")
    ]
    (comparison,) = comparisons_of(plain)
    assert axes_of(comparison) == {"accuracy, % (test)": (["a", "b"], {50, 60})}
    assert "axis of its own" not in score_text(comparison)


def test_divergence_is_found_by_its_folders(folder: Path) -> None:
    full = {"a": hits(10, 9, 9), "b": hits(10, 20, 30), "c": hits(10, 20, 12)}
    less = {"b": hits(10, 40, 30), "c": hits(10, 20, 30)}
    for name in ("one", "two"):
        written(folder / name / "with", full, "x:with_everybody")
        written(folder / name / "without", less, "x:without_first")
    paths = [folder / "one" / "with", folder / "one" / "without"]
    (section,) = comparison_figures(compared_runs(paths))
    assert section.key == "divergence"
    assert "when a is taken out" in section.text
    assert "0.25 on average" in section.text
    both = [*paths, folder / "two" / "with", folder / "two" / "without"]
    sections = comparison_figures(compared_runs(both))
    assert keys(sections) == ["divergence-1", "divergence-2", "shifts"]
    moved = {HOSTILE: -2.5, "b": 0.0, "c": 1.25}
    sections += [
        Section("large", "", "", partial(divergence, {f"d{n}": n / 7 - 5 for n in range(90)})),
        Section("hostile", "", "", partial(divergence, moved)),
        Section("means", "", "", partial(mean_shifts, {HOSTILE: moved, "b": {}})),
    ]
    assert_drawn(sections, folder)


def test_shares_with_the_cost_of_a_search(folder: Path) -> None:
    from msft.report.compare.paper import OLMO_2

    table = shares(OLMO_2[0], {"mSFT": 2.0})
    assert list(table) == ["pre-training", "mid-training", "RLVR", "DPO", "SFT", "× 2.00 mSFT"]
    sft = table["SFT"]
    assert table["× 2.00 mSFT"] == pytest.approx(2 * sft / (1 + sft)), "the total grows too"
    assert sum(list(table.values())[:5]) == pytest.approx(1)
    assert share_section({}).text.startswith("SFT takes 0.0094 to 0.017 % of all training compute")
    empty = Section("none", "", "", partial(share_figure, {}))
    odd = Section("odd", "", "", partial(share_figure, {HOSTILE: 0.5, "x" * 80: 300.0}))
    assert_drawn([empty, odd], folder)


def test_of_very_many_the_first_and_last_are_shown() -> None:
    rows = rows_of(100, 40)
    assert rows.count == 41
    assert rows.labels([f"d{n}" for n in range(100)], 20)[19:22] == ["d19", "… 60 between", "d80"]
    assert rows.places[19:21] == [(19, 19), (21, 80)]
    assert rows_of(40).gap is None


def test_a_hundred_sub_datasets_are_quick(folder: Path) -> None:
    curves = {f"d{n}": hits(10, 20 + n % 50, 30, 60 - n % 50) for n in range(100)}
    paths = [written(folder / method, curves, method) for method in ("sft", "msft")]
    runs = compared_runs(paths)
    start = process_time()
    sections = page_sections([*comparison_figures(runs), *run_sections(runs[0].history)])
    assert process_time() - start < 20  # 4 s on an idle machine
    assert sum(len(each.wide) + len(each.narrow) for each in sections) < 1_500_000


def test_formats_are_checked() -> None:
    assert formats_of("PNG, svg,png") == ("png", "svg")
    for wrong in ("jpg", "svg,jpeg", "", ","):
        with pytest.raises(UsageError, match="expected one or more of svg, png, pdf"):
            formats_of(wrong)


def test_report_writes_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_of(folder / method, method) for method in ("sft", "msft")]
    assert main(["report", str(runs[0]), "--figures", "png,pdf"]) == 0
    made_here = sorted(path.name for path in (runs[0] / "figures").iterdir())
    names = ("disk", "flops", "loss", "peaks", "timeline")
    assert made_here == [f"{name}.{suffix}" for name in names for suffix in ("pdf", "png")]
    assert not (folder / "figures").exists()
    assert main(["report", *map(str, runs), "--figures", "svg"]) == 0
    drawn = sorted(path.stem for path in (folder / "figures").iterdir())
    assert drawn == sorted(["scores", *COMPARED])
    assert str(folder / "figures") in capsys.readouterr().out
    first = (folder / "figures" / "gains.svg").read_bytes()
    (folder / "figures" / "gains.svg").unlink()
    assert folder / "figures" / "gains.svg" in write_all_figures(runs, ["svg"])
    assert (folder / "figures" / "gains.svg").read_bytes() == first


def test_a_wrong_format_is_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(folder / "sft", "sft")
    assert main(["report", str(run), "--figures", "gif"]) == 2
    assert "--figures has 'gif'" in capsys.readouterr().err
    assert not (run / "report.html").exists()
    assert main(["report", str(run), "--figures", "png", "--watch"]) == 2
    assert not (run / "figures").exists()


def test_a_hostile_name_is_text(folder: Path) -> None:
    runs = compared_runs([run_of(folder / method, method) for method in ("sft", "msft")])
    with drawing():
        section = next(s for s in comparison_figures(runs) if s.key == "gains")
    (page,) = page_sections([section])
    assert "&lt;script&gt;alert(" in page.wide
    assert "<script" not in page.wide


@pytest.mark.parametrize(
    ("curve", "schedule", "is_said"),
    [
        ((10, 20, 30), "constant", True),
        ((10, 30, 20), "constant", False),
        ((10, 20, 30), "cosine", False),
    ],
)
def test_a_method_that_still_rose_at_its_end_is_named(
    curve: tuple[int, ...], schedule: str, is_said: bool, folder: Path
) -> None:
    """Not where its rate fell to zero, and not the best one."""
    runs = {"sft": curve, "msft": (10, 40, 50)}
    for name, right in runs.items():
        written(folder / name, {"a": [accuracy(number, 100) for number in right]}, name)
        (folder / name / "recipe.yaml").write_text(f"lr_scheduler_type: {schedule}\n")
    report = report_of_folders([folder / name for name in runs])
    said = [each for each in report.warnings if "the last checkpoint of the budget" in each]
    assert [each.partition(" chose ")[0] for each in said] == (["SFT"] if is_said else [])
