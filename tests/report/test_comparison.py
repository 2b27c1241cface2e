"""`msft compare`: every cell of every table, text that stays text, and runs that stop and fail."""

import csv
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from io import StringIO
from pathlib import Path

import pytest

import msft
from msft.app.compare import planned
from msft.app.jobs import DeviceSlot, Job, carry_out
from msft.app.variants import options_of
from msft.cli import main
from msft.errors import Stopped, UsageError
from msft.process import IS_JOB
from msft.recipe.recipe import load_recipe
from msft.report.compare.comparison import (
    Comparison,
    comparison_of,
    comparison_of_each,
    comparisons_of,
    rounds_of,
    spread_of,
)
from msft.report.compare.runs import compared_runs, rows_apart
from msft.report.compare.statistics import paired_t
from msft.report.comparison_page import (
    headline,
    margin_of,
    page_tables,
    report_of,
    tables_of,
    text_of,
    write_files,
)
from msft.report.comparison_tables import (
    ablation_table,
    bootstrap_table,
    dataset_tables,
    disk_table,
    flops_table,
    honesty_table,
    main_tables,
    places_table,
    seed_table,
    spread_table,
)
from msft.report.figures.methods import budgets_of
from msft.report.sections import comparison_figures
from msft.report.tables import (
    Cell,
    Table,
    TableRow,
    cells_of,
    csv_text,
    latex,
    markdown,
    ranked,
    terminal,
)
from msft.run.environment import record_environment
from msft.run.folder import RunFolder
from msft.run.history import History, summary_of
from msft.run.log import (
    EndEvent,
    Event,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
    is_being_written,
    read_log,
    to_line,
)
from msft.run.rows import Verdict, Verdicts
from msft.search.curves import Score, Scores, accuracy, nll, value
from msft.search.methods import METHODS
from msft.search.rollout import BASE, CheckpointId
from msft.store.store import Disk

FIRST = CheckpointId("r0-t1")
NAMES = ("sciq", "arc", "gsm8k", "mine")
HELD = Disk(1, 2, 100)
GROUPS = {"sciq": "science", "arc": "science", "gsm8k": "math"}
RECIPE = """\
method: sft
datasets:
- {name: sciq, benchmark: sciq, split_by: null}
- {name: arc, benchmark: arc_easy, split_by: null}
- {name: gsm8k, benchmark: gsm8k, split_by: null}
- {name: mine, benchmark: null, split_by: null}
"""


def made(
    folder: Path,
    method: str,
    seed: int,
    validation: Scores,
    test: Scores | None = None,
    base: Scores | None = None,
    train_tokens: int = 10,
    ticks: int = 1,
    mean: str = "macro",
    recipe: str = RECIPE,
    verdicts: Mapping[str, Verdict] | None = None,
    disk: Disk = HELD,
    best: int = 1,
    test_base: Scores | None = None,
) -> Path:
    """A finished run of 1,000 parameters whose best checkpoint has these scores.

    best: its tick; those before it score as the base model. test_base: the base model's on test,
    where they are not those on validation.
    """
    base = base or {n: Score(s.metric, s.total * 0, s.count) for n, s in validation.items()}
    rows = dict.fromkeys(validation, 8)
    peaks = {"smooth": 0, "min_delta": 0.0, "include_start": True}
    settings = {"evals_per_epoch": 4, "compute_budget": ticks, "train_ticks": ticks, "mean": mean}
    events: list[Event] = [
        RunEvent(method, seed, 1000, rows, settings | {"peaks": peaks}, {}),
        RolloutEvent(0, BASE, rows, {}, ticks, {"name": "shuffled"}, "fresh", True),
        ScoresEvent(BASE, "validation", Tokens(evaluation=5), base),
    ]
    for tick in range(1, ticks + 1):
        checkpoint = CheckpointId(f"r0-t{tick}")
        tokens = Tokens(train_tokens, 5, 2 if method == "dynamix" else 0)
        scores = validation if tick >= best else base
        events.append(PointEvent(checkpoint, 1, (8.0, 8), tokens, disk, scores))
    result = CheckpointId(f"r0-t{best}")
    if test is not None:
        events.append(ScoresEvent(BASE, "test", Tokens(), test_base or base))
        events.append(ScoresEvent(result, "test", Tokens(), test))
    events.append(EndEvent("budget", result))
    place = folder / f"{method.replace(':', '.').replace('/', '')}-s{seed}"
    place.mkdir(parents=True)
    (place / "run.jsonl").write_bytes(b"".join(to_line(event) for event in events))
    (place / "recipe.yaml").write_text(recipe)
    if recipe.endswith(RECIPE):
        (place / "environment.json").write_text(json.dumps([{"groups": GROUPS}]))
    if verdicts is not None:
        Verdicts(place / "verdicts.jsonl").add(result, "test", verdicts)
    return place


def right(*counts: int, rows: int = 10, names: Sequence[str] = NAMES) -> Scores:
    return {name: accuracy(count, rows) for name, count in zip(names, counts, strict=True)}


def lined_up(folders: Sequence[Path]) -> Comparison:
    return comparison_of(compared_runs(folders))


def cells(table: Table | None) -> dict[str, list[str]]:
    """Every row as texts with their marks: *best*, _second_, and what stands small behind."""
    assert table is not None
    shown = {0: "{}", 1: "*{}*", 2: "_{}_"}
    return {
        row.name: [f"{shown[c.rank].format(c.text)} {c.more}".strip() for c in row.cells]
        for row in table.rows
    }


@pytest.fixture
def three(tmp_path: Path) -> Comparison:
    """SFT, SRO and mSFT on four sub-datasets of two groups and one without."""
    return lined_up(
        [
            made(tmp_path, "sft", 20, right(6, 8, 2, 5), right(5, 8, 2, 5), ticks=4),
            made(tmp_path, "sro", 20, right(6, 8, 4, 5), right(6, 8, 1, 5), train_tokens=20),
            made(tmp_path, "msft", 20, right(7, 9, 4, 6), right(7, 6, 4, 5), train_tokens=30),
        ]
    )


def test_the_main_table_has_groups_epochs_and_differences(three: Comparison) -> None:
    table = main_tables(three)[0]
    assert table.key == "main"
    assert table.head == ("method", "science", "math", "own data", "mean", "Ep.")
    assert cells(table) == {
        "Base": ["0.0", "0.0", "0.0", "0.0", "–"],
        "SFT": ["_65.0_", "_20.0_", "50.0", "_50.0_", "0.25"],
        "SRO SFT": ["*70.0* +5.0", "10.0 −10.0", "50.0 ±0.0", "_50.0_ ±0.0", "0.25"],
        "mSFT": ["_65.0_ ±0.0", "*40.0* +20.0", "50.0 ±0.0", "*55.0* +5.0", "0.25"],
    }
    other = main_tables(three)[1]
    assert other.key == "main-validation"
    assert cells(other)["mSFT"] == [
        "*80.0* +10.0",
        "*40.0* +20.0",
        "*60.0* +10.0",
        "*65.0* +12.5",
        "0.25",
    ]
    assert [table.key for table in tables_of(three)][:2] == ["main", "main-validation"]


def test_the_base_model_has_its_own_scores_on_each_split_and_group(tmp_path: Path) -> None:
    chosen, tested = right(6, 6, 6, 6), right(5, 5, 5, 5)
    base, test_base = right(1, 2, 3, 4), right(2, 3, 4, 5)
    folders = [
        made(tmp_path, method, 20, chosen, tested, base, test_base=test_base)
        for method in ("sft", "msft")
    ]
    test, validation = (cells(table) for table in main_tables(lined_up(folders)))
    assert test["Base"] == ["25.0", "40.0", "50.0", "35.0", "–"]
    assert validation["Base"] == ["15.0", "30.0", "40.0", "25.0", "–"]


def test_epochs_and_scores_are_means_over_the_seeds_that_all_have(tmp_path: Path) -> None:
    scores = right(5, 5, 5, 5)
    best = {("sft", 20): 1, ("sft", 30): 2, ("sft", 40): 4, ("msft", 20): 4, ("msft", 30): 2}
    folders = [
        made(tmp_path, method, seed, scores, scores, ticks=4, best=tick)
        for (method, seed), tick in best.items()
    ]
    comparison = lined_up(folders)
    table = main_tables(comparison)[0]
    assert {name: row[-1] for name, row in cells(table).items()} == {
        "Base": "–",
        "SFT": "0.38",  # 1 and 2 ticks of a fourth of an epoch
        "mSFT": "0.75",
    }
    assert ", mean over seeds 20 and 30; " in table.caption


def test_the_pooled_mean_is_called_so_and_is_of_all_rows(tmp_path: Path) -> None:
    folders = [
        made(tmp_path, method, 20, {"a": accuracy(9, 10), "b": accuracy(few, 90)}, mean="pooled")
        for method, few in (("sft", 0), ("msft", 11))
    ]
    (table,) = main_tables(lined_up(folders))
    assert table.head == ("method", "pooled", "Ep.")
    assert cells(table)["mSFT"] == ["*20.0* +11.0", "0.25"]


def test_every_sub_dataset_has_its_row(three: Comparison) -> None:
    assert cells(dataset_tables(three)[0]) == {
        "sciq": ["50.0", "_60.0_ +10.0", "*70.0* +20.0"],
        "arc": ["*80.0*", "*80.0* ±0.0", "_60.0_ −20.0"],
        "gsm8k": ["_20.0_", "10.0 −10.0", "*40.0* +20.0"],
        "mine": ["50.0", "50.0 ±0.0", "50.0 ±0.0"],
        "mean": ["_50.0_", "_50.0_ ±0.0", "*55.0* +5.0"],
    }
    assert dataset_tables(three)[0].rows[-1].apart


def test_the_ablation_is_of_msft_and_those_that_search_once(
    three: Comparison, tmp_path: Path
) -> None:
    for comparison in (three, comparison_of(three.runs[::-1])):
        found = cells(ablation_table(comparison))
        assert found == {
            "SFT": ["_50.0_", "0.25"],
            "SRO SFT": ["_50.0_ ±0.0", "0.25"],
            "mSFT": ["*55.0* +5.0", "0.25"],
        }
        assert [*found] == ["SFT", "SRO SFT", "mSFT"]  # in the paper's order
    folders = [made(tmp_path / "two", method, 20, right(1, 2, 3, 4)) for method in ("sft", "msft")]
    assert ablation_table(lined_up(folders)) is None


def test_flops_add_up(tmp_path: Path) -> None:
    folders = [
        made(tmp_path, "sft", 20, right(1, 2, 3, 4), ticks=2),
        made(tmp_path, "dynamix", 20, right(1, 2, 3, 4), train_tokens=40),
    ]
    table = flops_table(lined_up(folders))
    assert table.head[1:] == (
        "train",
        "evaluation",
        "look-ahead",
        "total",
        "kept",
        "discarded",
        "× SFT",
    )
    numbers = {row.name: [cell.value for cell in row.cells] for row in table.rows}
    assert numbers["SFT"] == [120e3, 30e3, 0, 150e3, 60e3, 60e3, 1]  # 6·1000·20, 2·1000·15
    assert numbers["DynamixSFT"] == [240e3, 20e3, 16e3, 276e3, 256e3, 0, 1.84]
    assert cells(table)["DynamixSFT"][:4] == ["240 k", "20.0 k", "16.0 k", "276 k"]


def test_copies_on_disk_are_compared_by_their_means(tmp_path: Path) -> None:
    """Means over seeds 20 and 30; the bounds are the paper's for four sub-datasets."""
    held = {
        ("sft", 20): Disk(1, 3),
        ("sft", 30): Disk(3, 5),
        ("msft", 20): Disk(3, 5),
        ("msft", 30): Disk(4, 7),
    }
    folders = {
        key: made(tmp_path, *key, right(1, 2, 3, 4), ticks=4, disk=disk)
        for key, disk in held.items()
    }
    table = disk_table(lined_up([*folders.values()]))
    assert table.head == ("method", "policy", "mean", "most", "× SFT", "(N + 5)/2", "N + 1")
    assert cells(table) == {
        "SFT": ["lean", "2.00", "4", "1.00", "–", "–"],
        "mSFT": ["lean", "3.50", "6", "1.75", "4.5", "5"],
    }
    assert [cell.value for cell in table.rows[1].cells[1:]] == [3.5, 6, 1.75, 4.5, 5]
    without = made(tmp_path / "memory", "sft", 20, right(1, 2, 3, 4), disk=Disk())
    table = disk_table(lined_up([without, folders["msft", 20]]))
    assert cells(table)["mSFT"][1:4] == ["3.00", "5", "–"]


def hundred(total: int) -> Scores:
    """Ten sub-datasets of 200 rows with so many of the 2,000 right."""
    return {f"d{i}": accuracy(total // 10 + (i < total % 10), 200) for i in range(10)}


def test_the_seed_table_is_the_papers(tmp_path: Path) -> None:
    scores = {"sft": (1465, 1461, 1453), "msft": (1485, 1481, 1465)}
    folders = [
        made(tmp_path, method, seed, hundred(total), hundred(total))
        for method, totals in scores.items()
        for seed, total in zip((20, 30, 40), totals, strict=True)
    ]
    comparison = lined_up(folders)
    table = seed_table(comparison)
    assert table is not None
    assert table.head == ("method", "seed 20", "seed 30", "seed 40", "mean", "sd", "p", "in words")
    assert cells(table) == {
        "SFT": ["73.25", "73.05", "72.65", "_72.98_", "0.31", "–", "–"],
        "mSFT": ["74.25", "74.05", "73.25", "*73.85* +0.87", "0.53", "0.023", "sure"],
    }
    assert headline(comparison).replace("\u00a0", " ") == (
        "mSFT has the best mean on test, 73.8 %, +0.9 points (95 % interval +0.3 to +1.4, "
        "p = 0.023) against SFT, the second best. 2 methods, 3 seeds."
    )
    assert cells(main_tables(comparison)[0])["mSFT"] == ["*73.8* +0.9", "0.25"]
    assert "mean over seeds 20, 30 and 40" in main_tables(comparison)[0].caption


def test_seeds_that_are_missing_are_left_out_of_means_and_said(tmp_path: Path) -> None:
    folders = [
        made(tmp_path, "sft", 20, right(1, 1, 1, 1), right(1, 1, 1, 1)),
        made(tmp_path, "sft", 30, right(9, 9, 9, 9), right(9, 9, 9, 9)),
        made(tmp_path, "msft", 20, right(2, 2, 2, 2), right(2, 2, 2, 2)),
    ]
    comparison = comparison_of(compared_runs(folders), missing=["msft-s30"])
    assert comparison.seeds == (20,)
    assert cells(main_tables(comparison)[0])["SFT"][-2] == "_10.0_"
    assert cells(seed_table(comparison))["SFT"] == ["10.00", "90.00", "_10.00_", "–", "–", "–"]
    assert cells(seed_table(comparison))["mSFT"] == ["20.00", "–", "*20.00* +10.00", "–", "–", "–"]
    assert "msft-s30" in comparison.warnings[0]
    assert "mSFT 30" in comparison.warnings[1]
    apart = [folders[1], folders[2]]
    assert "No seed was finished by every method" in lined_up(apart).warnings[0]


def test_a_difference_and_its_interval_are_of_the_same_seeds(tmp_path: Path) -> None:
    """No seed is common to all three. mSFT and SFT share seed 20, where they are equal."""
    marks = {("sft", 20): "1100", ("sft", 30): "0000", ("msft", 20): "1100", ("sro", 30): "0000"}
    folders = [
        made(tmp_path, method, seed, scores, scores, verdicts={"a": verdict})
        for (method, seed), verdict in marks.items()
        for scores in [{"a": accuracy(verdict.count("1"), 4)}]
    ]
    comparison = lined_up(folders)
    assert comparison.seeds == (20, 30)
    by_label = {method.label: method for method in comparison.methods}
    margin = margin_of(comparison, by_label["mSFT"], comparison.baseline)
    assert margin is not None
    assert (margin.difference, margin.interval) == (0, (0.0, 0.0))
    said = headline(comparison)
    assert "±0.0 points on seed 20, which both have, against SFT, the second best" in said
    assert "Against SFT (25.0\u00a0%): SRO SFT ±0.0 points on seed 30, which both have" in said


def test_a_run_that_goes_on_is_named_and_left_out(tmp_path: Path) -> None:
    done = made(tmp_path, "sft", 20, right(1, 1, 1, 1))
    going = made(tmp_path, "msft", 20, right(2, 2, 2, 2))
    lines = (going / "run.jsonl").read_bytes().splitlines(keepends=True)
    (going / "run.jsonl").write_bytes(b"".join(lines[:-1]))
    comparison = lined_up([done, going])
    assert [method.name for method in comparison.methods] == ["sft"]
    assert comparison.warnings == ("Not finished, and so not in the tables: msft-s20.",)
    with pytest.raises(UsageError, match="no run has finished"):
        lined_up([going])


def test_spread_and_first_places_with_ties(three: Comparison, tmp_path: Path) -> None:
    assert cells(spread_table(three)) == {
        "SFT": ["24.5"],  # of 50 80 20 50
        "SRO SFT": ["29.4"],  # of 60 80 10 50
        "mSFT": ["12.9"],  # of 70 60 40 50
    }
    assert cells(places_table(three)) == {
        "SFT": ["_2_", "2"],
        "SRO SFT": ["_2_", "2"],
        "mSFT": ["*3*", "1"],
    }
    written = csv_text([places] if (places := places_table(three)) else []).splitlines()
    assert written[-2:] == ["places,mSFT,first places,3,,1", "places,mSFT,of these shared,1,,"]
    alone = lined_up([made(tmp_path / "one", "sft", 20, right(1, 2, 3, 4))])
    assert places_table(alone) is None


def caption(table: Table | None) -> str:
    assert table is not None
    return table.note


def test_the_caption_of_first_places_says_what_is_counted(
    three: Comparison, tmp_path: Path
) -> None:
    said = caption(places_table(three))
    assert said.startswith(
        "A method has a first place on a sub-dataset where no other one scores better. That makes "
        "4 first places, one for each of 4 sub-datasets. Where several are equally good"
    )
    by_run = comparison_of_each(three.runs)
    assert caption(places_table(by_run)).startswith("A run has a first place on a sub-dataset")
    folders = {
        (method, seed): made(tmp_path / "two", method, seed, right(1, 2, 3, 4))
        for method in ("sft", "msft")
        for seed in (20, 30)
    }
    several = lined_up([*folders.values()])
    said = caption(places_table(several))
    counted = "8 first places, one for each of 4 sub-datasets under each of 2 seeds."
    assert counted in said
    (section,) = [each for each in comparison_figures(several.runs) if each.key == "places"]
    assert counted in section.text
    apart = lined_up([folders["sft", 20], folders["msft", 30]])
    said = caption(places_table(apart))
    assert "means over a method's own seeds. That makes 4 first places, one for each of 4" in said
    lacking = right(1, 2, 3, names=NAMES[:3])
    scored = [made(tmp_path / "all", "sft", 20, right(1, 2, 3, 4), right(1, 2, 3, 4))]
    scored.append(made(tmp_path / "some", "msft", 20, right(1, 2, 3, 4), lacking))
    comparison = replace(lined_up(scored), split="test")
    said = caption(places_table(comparison))
    assert (
        "3 first places, one for each of 4 sub-datasets, except where a score is missing." in said
    )


def test_a_method_that_is_equal_everywhere_has_a_spread_of_nothing(tmp_path: Path) -> None:
    folders = [
        made(tmp_path, "sft", 20, right(5, 5, 5, 5)),
        made(tmp_path, "msft", 20, right(5, 6, 5, 6)),
    ]
    assert cells(spread_table(lined_up(folders))) == {
        "SFT": ["0.0"],
        "mSFT": ["5.8"],
    }


def test_seeds_are_rounds_of_their_own_in_tables_and_figures(tmp_path: Path) -> None:
    scores = {"sft": {20: (9, 1, 1, 1), 30: (1, 1, 1, 1)}, "msft": {20: (2,) * 4, 30: (2,) * 4}}
    folders = [
        made(tmp_path, method, seed, right(*counts))
        for method, by_seed in scores.items()
        for seed, counts in by_seed.items()
    ]
    comparison = lined_up(folders)
    assert cells(places_table(comparison)) == {"SFT": ["_1_", "0"], "mSFT": ["*7*", "0"]}
    (other,) = comparisons_of(compared_runs(folders))
    assert [len(rounds_of(each)) for each in (comparison, other)] == [8, 8]
    assert spread_of(other, other.methods[0]) == pytest.approx(0.2)  # of 40 and 0


def test_the_same_run_twice_is_two_methods(tmp_path: Path) -> None:
    folders = [made(tmp_path / each, "sft", 20, right(1, 2, 3, 4)) for each in "ab"]
    comparison = lined_up(folders)
    assert [method.label for method in comparison.methods] == ["a/SFT-s20", "b/SFT-s20"]


def test_figures_are_of_the_split_that_reports(three: Comparison, tmp_path: Path) -> None:
    figures = comparison_figures(three.runs, "selection")
    assert any("on validation" in each.text for each in figures)
    assert not any("on test" in each.text for each in figures)
    comparison = comparison_of(three.runs, "selection")
    page = write_files(report_of([comparison]), tmp_path)[0].read_text()
    assert "Gain over SFT on validation" in page


def test_the_honesty_table(three: Comparison, tmp_path: Path) -> None:
    table = honesty_table(three)
    assert table is not None
    assert table.head[1:] == ("validation", "test", "validation − test", "chosen from", "epochs")
    assert cells(table) == {
        "SFT": ["52.5", "_50.0_", "+2.5", "5 points", "1"],
        "SRO SFT": ["_57.5_", "_50.0_", "+7.5", "2 points", "0.25"],
        "mSFT": ["*65.0*", "*55.0*", "+10.0", "2 points", "0.25"],
    }
    untested = lined_up([made(tmp_path / "one", "sft", 20, right(1, 2, 3, 4))])
    assert untested.split == "validation"
    table = honesty_table(untested)
    assert table is not None
    assert table.head == ("method", "validation", "chosen from", "epochs")


def test_the_papers_protocol_reports_on_what_selected(three: Comparison) -> None:
    runs = [run for method in three.methods for run in method.runs.values()]
    comparison = comparison_of(runs, "selection")
    assert comparison.split == "validation"
    assert cells(main_tables(comparison)[0])["mSFT"][-2] == "*65.0* +12.5"
    assert "They flatter, and the more so" in " ".join(text_of(report_of([comparison])).split())


def test_a_base_model_that_nobody_beats_is_said(tmp_path: Path) -> None:
    test, base = right(1, 1, 1, 1), right(1, 1, 1, 2)
    beaten = lined_up([made(tmp_path, "sft", 20, right(3, 3, 3, 3), test, base=base)])
    assert "No method is better than the base model on test." in text_of(report_of([beaten]))
    ahead = lined_up([made(tmp_path / "2", "sft", 20, right(3, 3, 3, 3), right(2, 2, 2, 2), base)])
    assert "No method is better" not in text_of(report_of([ahead]))


def test_lower_is_better_for_a_loss(tmp_path: Path) -> None:
    def losses(*totals: float) -> Scores:
        return {name: nll(total, 10) for name, total in zip("abc", totals, strict=True)}

    base, sft, msft = losses(30, 30, 30), losses(20, 10, 12), losses(15, 11, 10)
    comparison = lined_up(
        [
            made(tmp_path, "sft", 20, sft, sft, base=base),
            made(tmp_path, "msft", 20, msft, msft, base=base),
        ]
    )
    assert cells(main_tables(comparison)[0]) == {
        "Base": ["3.000", "–"],
        "SFT": ["_1.400_", "0.25"],
        "mSFT": ["*1.200* −0.200", "0.25"],
    }
    assert cells(places_table(comparison)) == {"SFT": ["_1_", "0"], "mSFT": ["*2*", "0"]}
    assert comparison.mean_gain(comparison.others[0]) == pytest.approx(0.2)  # nats saved


@pytest.mark.parametrize("mean", ["macro", "pooled"])
def test_the_bootstrap_is_about_the_difference_of_the_means(mean: str, tmp_path: Path) -> None:
    rows = {"sft": ("1100110000", "1111"), "msft": ("1110110001", "1001")}
    folders = [
        made(
            tmp_path,
            method,
            20,
            {name: accuracy(v.count("1"), len(v)) for name, v in zip("ab", pair, strict=True)},
            {name: accuracy(v.count("1"), len(v)) for name, v in zip("ab", pair, strict=True)},
            mean=mean,
            verdicts=dict(zip("ab", pair, strict=True)),
        )
        for method, pair in rows.items()
    ]
    comparison = lined_up(folders)
    sft, msft = (method.runs[20] for method in comparison.methods)
    apart = rows_apart(msft, sft, "test")
    assert apart is not None
    found = apart.drawn
    gap = Fraction(2, 10) - Fraction(2, 4) if mean == "macro" else Fraction(0)
    gap = gap / 2 if mean == "macro" else gap
    assert found.difference == pytest.approx(float(gap))
    assert found.low < found.difference < found.high
    table = bootstrap_table(comparison)
    assert table is not None
    assert table.title == "Rows of test drawn again"
    assert cells(table)["mSFT"][0] == ("−15.0" if mean == "macro" else "±0.0")
    (folders[0] / "verdicts.jsonl").unlink()
    assert bootstrap_table(lined_up(folders)) is None


def test_the_bootstrap_of_losses_and_of_mixed_metrics(tmp_path: Path) -> None:
    losses = {"sft": [4.0, 6.0], "msft": [3.0, 5.5]}
    marks = {"sft": "1010", "msft": "1011"}
    folders = []
    for method in losses:
        scores = {
            "loss": nll(sum(losses[method]), 10),
            "marks": accuracy(marks[method].count("1"), 4),
        }
        base = {"loss": nll(20.0, 10), "marks": accuracy(1, 4)}
        rows: dict[str, Verdict] = {"loss": losses[method], "marks": marks[method]}
        folders.append(made(tmp_path, method, 20, scores, scores, base=base, verdicts=rows))
    comparison = lined_up(folders)
    sft, msft = (method.runs[20] for method in comparison.methods)
    apart = rows_apart(msft, sft, "test")
    assert apart is not None
    found = apart.drawn
    gap = (msft.score(comparison.names, "test") or 0) - (sft.score(comparison.names, "test") or 0)
    assert found.difference == pytest.approx(float(gap))
    assert found.difference == pytest.approx((0.15 / 2.0 + 0.25) / 2)
    assert found.below == 0
    assert spread_table(comparison) is None
    for each in dataset_tables(comparison):
        assert each.head[:2] == ("sub-dataset", "metric")
        assert [row.cells[0].text for row in each.rows] == ["nll", "accuracy", "–"]
    (table,) = main_tables(comparison)
    assert table.head[-2] == "mean gain"
    for said in (terminal(table), markdown(table), latex(table)):
        assert "behind a score: the difference to SFT" in " ".join(said.split())


def test_rows_are_sure_only_if_the_interval_leaves_out_0_too(tmp_path: Path) -> None:
    """Nine rows are better and one is worse, but that one is half of a small sub-dataset."""
    verdicts = {"sft": ("0" * 20, "11"), "msft": ("1" * 9 + "0" * 11, "01")}
    folders = []
    for method, (large, small) in verdicts.items():
        rows: dict[str, Verdict] = {"large": large, "small": small}
        scores = {name: accuracy(each.count("1"), len(each)) for name, each in rows.items()}
        folders.append(made(tmp_path, method, 20, scores, scores, verdicts=rows))
    table = bootstrap_table(lined_up(folders))
    assert table is not None
    difference, low, high, _, better, worse, p, words = table.rows[0].cells
    assert difference.value == pytest.approx(100 * (0.45 - 0.5) / 2)
    assert (low.value or 0) < 0 < (high.value or 0)
    assert (better.value, worse.value) == (9, 1)
    assert p.value == pytest.approx(22 / 1024)
    assert words.text == "may be chance"


def test_rows_of_other_data_are_not_held_against_each_other(tmp_path: Path) -> None:
    scores, rows = {"a": accuracy(2, 4)}, {"a": "1010"}
    one, two = (made(tmp_path, m, 20, scores, scores, verdicts=rows) for m in ("sft", "msft"))
    assert bootstrap_table(lined_up([one, two])) is not None
    log = (two / "run.jsonl").read_text()
    (two / "run.jsonl").write_text(log.replace('"fingerprint":{}', '"fingerprint":{"data":"x"}'))
    assert bootstrap_table(lined_up([one, two])) is None


def test_flops_are_of_the_seeds_that_all_methods_have(tmp_path: Path) -> None:
    counts = right(1, 2, 3, 4)
    folders = [
        made(tmp_path, method, seed, counts, train_tokens=tokens)
        for method, seed, tokens in (("sft", 20, 10), ("sft", 30, 30), ("msft", 20, 20))
    ]
    comparison = lined_up(folders)
    flops = [comparison.flops(method, "train") for method in comparison.methods]
    assert flops == [6 * 1000 * 10, 6 * 1000 * 20]


def test_each_of_three_sub_datasets_has_a_third_of_the_difference(tmp_path: Path) -> None:
    folders = []
    for method, last in (("sft", "1000"), ("msft", "1100")):
        rows: dict[str, Verdict] = {"a": "1010", "b": "0011", "c": last}
        scores = {name: accuracy(each.count("1"), 4) for name, each in rows.items()}
        folders.append(made(tmp_path, method, 20, scores, scores, verdicts=rows))
    table = bootstrap_table(lined_up(folders))
    assert table is not None
    assert table.rows[0].cells[0].value == pytest.approx(100 * 0.25 / 3)


def test_p_is_over_all_seeds_that_both_have(tmp_path: Path) -> None:
    """A third method lacks one of them, so that means are over two."""
    counts = {"sft": (1, 2, 3), "msft": (2, 5, 5), "ies": (3, 3)}
    folders = [
        made(tmp_path, method, seed, right(*[count] * 4))
        for method, each in counts.items()
        for seed, count in zip((20, 30, 40), each, strict=False)
    ]
    table = seed_table(lined_up(folders))
    assert table is not None
    row = next(row for row in table.rows if row.name == "mSFT")
    cells = dict(zip(table.head[1:], row.cells, strict=True))
    assert (cells["mean"].value, cells["mean"].difference) == (35, 20)
    found = paired_t([2, 5, 5], [1, 2, 3])
    assert found is not None
    assert cells["p"].value == pytest.approx(found[1])


def test_a_program_reads_0_as_a_number_and_a_word_as_a_text() -> None:
    cells = (Cell("±0.0", value=0), Cell("1.5", value=Fraction(3, 2)), Cell("sure"), Cell("–"))
    table = Table("key", "", "", ("method", "a", "b", "c", "d"), (TableRow("SFT", cells),))
    values = [cell["value"] for cell in cells_of([table])]
    assert values == [0, 1.5, "sure", None]
    assert [type(value) for value in values[:2]] == [int, float]


def test_a_gain_is_over_the_sft_run_of_the_same_seed(tmp_path: Path) -> None:
    """Of a loss among other metrics: the share by which the loss fell, a half and a quarter."""
    losses = {("sft", 20): 4.0, ("sft", 30): 2.0, ("msft", 20): 2.0, ("msft", 30): 1.5}
    folders = []
    for (method, seed), loss in losses.items():
        scores = {"loss": nll(loss, 10), "marks": accuracy(1, 2)}
        base = {"loss": nll(8.0, 10), "marks": accuracy(0, 2)}
        folders.append(made(tmp_path, method, seed, scores, scores, base=base))
    comparison = lined_up(folders)
    (msft,) = comparison.others
    assert [(run.seed, sft.seed) for run, sft in comparison.pairs(msft)] == [(20, 20), (30, 30)]
    assert comparison.gain(msft, "loss") == pytest.approx(100 * (1 / 2 + 1 / 4) / 2)


@pytest.mark.parametrize(("kind", "gain"), [("means", 0.25), ("mixed", 0.25), ("sums", 0.125)])
def test_the_bootstrap_pools_what_has_counts_to_pool_and_nothing_else(
    kind: str, gain: float, tmp_path: Path
) -> None:
    """Older logs have means of own metrics, without rows."""
    mixed = kind == "mixed"
    marks = {"sft": {"a": [1.0, 2.0], "b": [3.0] * 6}, "msft": {"a": [2.0, 2.0], "b": [3.0] * 6}}
    bits = {"sft": "10", "msft": "11"}
    folders = []
    for method, rows in marks.items():
        scores: dict[str, Score] = {name: value(sum(r) / len(r)) for name, r in rows.items()}
        if kind == "sums":
            scores = {name: value(sum(r), len(r)) for name, r in rows.items()}
        verdicts: dict[str, Verdict] = {**rows}
        if mixed:
            scores["a"], verdicts["a"] = accuracy(bits[method].count("1"), 2), bits[method]
        base = {"a": accuracy(0, 2) if mixed else value(0.0), "b": value(0.0)}
        made_of = {"base": base, "mean": "pooled", "verdicts": verdicts}
        folders.append(made(tmp_path, method, 20, scores, scores, **made_of))  # type: ignore[arg-type]
    comparison = lined_up(folders)
    sft, msft = (method.runs[20] for method in comparison.methods)
    apart = rows_apart(msft, sft, "test")
    assert apart is not None
    assert apart.drawn.difference == pytest.approx(gain)
    gap = (msft.score(comparison.names, "test") or 0) - (sft.score(comparison.names, "test") or 0)
    assert gap == pytest.approx(gain)


def test_rows_that_begin_with_a_sign_stay_rows() -> None:
    names = ("*starred", "[a]", "`x`", " =1+1", "＝1", "-1", "plain")
    rows = tuple(TableRow(name, (Cell("1.0"),)) for name in names)
    table = Table("k", "T", "", ("method", "a"), rows)
    assert r"{*}starred & 1.0 \\" in latex(table)
    assert r"{[}a{]} & 1.0 \\" in latex(table)
    assert r"\textasciigrave{}x" in latex(table)
    found = [line[1] for line in csv.reader(StringIO(csv_text([table])))][1:]
    assert found == ["*starred", "[a]", "`x`", "' =1+1", "'＝1", "'-1", "plain"]


def test_groups_are_those_that_the_run_recorded(tmp_path: Path) -> None:
    folder = made(tmp_path, "sft", 20, right(1, 2, 3, 4))
    record_environment(folder / "environment.json", {"msft": "0.1"}, {"arc": "x", "mine": "y"})
    comparison = lined_up([folder])
    assert comparison.groups == {"own data": ("sciq", "gsm8k"), "x": ("arc",), "y": ("mine",)}
    assert [table.head for table in main_tables(comparison)] == [
        ("method", "own data", "x", "y", "mean", "Ep.")
    ]
    assert comparison_of(compared_runs([folder])).groups == comparison.groups
    record_environment(folder / "environment.json", {"msft": "0.1"}, {})
    assert lined_up([folder]).groups == {}, "there are none, and it says so"
    (folder / "environment.json").unlink()
    assert comparison_of(compared_runs([folder])).groups == {}


def moved(folder: Path, name: str, training: str) -> Path:
    """A run under the name of a variant, trained with settings of its own."""
    there = folder.rename(folder.with_name(name))
    log = (there / "run.jsonl").read_text()
    prints = f'"fingerprint":{{"data":"d","training":"{training}"}}'
    (there / "run.jsonl").write_text(log.replace('"fingerprint":{}', prints))
    return there


def test_variants_are_methods_with_names_of_their_own(tmp_path: Path) -> None:
    names = {"a": "sft+lr_scheduler_type=cosine", "b": "sft", "c": "soup+of=%5Bspan%2Call%5D"}
    folders = [
        moved(
            made(
                tmp_path / letter,
                name.split("+")[0],
                seed,
                right(1, 2, 3, 4),
                right(1, 2, 3, 4),
                verdicts=dict.fromkeys(NAMES, "1100000000"),
            ),
            f"{name}-s{seed}",
            training=name if letter == "a" else "plain",
        )
        for letter, name in names.items()
        for seed in (1, 2)
    ]
    comparison = lined_up(folders)
    labels = ["SFT[lr_scheduler_type=cosine]", "SFT", "Soup[of=[span,all]]"]
    assert [method.label for method in comparison.methods] == labels
    assert [[*method.runs] for method in comparison.methods] == [[1, 2]] * 3
    assert comparison.baseline.label == "SFT"
    assert comparison.warnings == ()  # the rows are the same, whatever was trained
    rows = bootstrap_table(comparison)
    assert rows is not None
    assert [row.name for row in rows.rows] == [
        "SFT[lr_scheduler_type=cosine], seed 1",
        "SFT[lr_scheduler_type=cosine], seed 2",
        "Soup[of=[span,all]], seed 1",
        "Soup[of=[span,all]], seed 2",
    ]
    shown = text_of(report_of([comparison]))
    assert "SFT[lr_scheduler_type=cosine] " in shown
    assert r"SFT\[lr\_scheduler\_type=cosine\]" in markdown(flops_table(comparison))


def test_a_variant_is_no_seed_of_its_method_when_a_run_is_missing(tmp_path: Path) -> None:
    """A setting that no line of the log has must not bring two runs together."""
    plain = moved(made(tmp_path, "sft", 1, right(1, 2, 3, 4)), "sft-s1", "plain")
    other = moved(made(tmp_path, "sft", 2, right(1, 2, 3, 4)), "sft+num_fewshot=0-s2", "plain")
    third = moved(made(tmp_path, "sft", 3, right(1, 2, 3, 4)), "sft-s3", "other")
    comparison = lined_up([plain, other, third])
    assert [[*method.runs] for method in comparison.methods] == [[1], [2], [3]]


def test_the_figure_of_budgets_is_of_msft_that_differs_in_nothing_else(tmp_path: Path) -> None:
    folders = [
        moved(made(tmp_path / name, "msft", 1, right(1, 2, 3, 4), ticks=ticks), name, "plain")
        for name, ticks in (
            ("msft-s1", 1),
            ("msft+compute_budget=0.5-s1", 2),
            ("msft+exclude.confidence=0.9-s1", 1),
        )
    ]
    assert [method.budget for method in budgets_of(lined_up(folders))] == [0.25, 0.5]


def test_unlike_runs_are_refused_or_said(tmp_path: Path) -> None:
    one = made(tmp_path, "sft", 20, right(1, 2, 3, 4))
    two = made(tmp_path, "msft", 20, right(1, 2, names=("a", "b")))
    with pytest.raises(UsageError, match="sft-s20 and msft-s20 have different sub-datasets"):
        lined_up([one, two])
    other = made(tmp_path, "ies", 20, right(1, 2, 3, 4))
    log = (other / "run.jsonl").read_text()
    (other / "run.jsonl").write_text(log.replace('"fingerprint":{}', '"fingerprint":{"data":"x"}'))
    assert "fingerprints differ" in lined_up([one, other]).warnings[0]


def test_runs_without_some_rows_have_the_same_data_and_are_named(tmp_path: Path) -> None:
    whole = made(tmp_path, "sft", 20, right(1, 2, 3, 4))
    fewer = made(tmp_path, "ies", 20, right(1, 2, 3, 4))
    prints = {whole: {"data": "x"}, fewer: {"data": "y", "data without exclude_rows": "x"}}
    for folder, digests in prints.items():
        log = (folder / "run.jsonl").read_text()
        told = f'"fingerprint":{json.dumps(digests, separators=(",", ":"))}'
        (folder / "run.jsonl").write_text(log.replace('"fingerprint":{}', told))
    said = "ies-s20 left training rows out (exclude_rows), and others did not."
    warnings = lined_up([whole, fewer]).warnings
    assert said in warnings
    assert not [each for each in warnings if "fingerprints differ" in each]
    named = fewer.rename(tmp_path / "ies+exclude_rows=a%2Fout.jsonl-s20")
    assert said not in lined_up([whole, named]).warnings


def test_runs_with_other_code_of_a_metric_are_said_and_older_logs_are_not(tmp_path: Path) -> None:
    folders = [made(tmp_path, method, 20, right(1, 2, 3, 4)) for method in ("sft", "msft", "ies")]
    for folder, digest in zip(folders, ("x", "y"), strict=False):
        log = (folder / "run.jsonl").read_text()
        prints = f'"fingerprint":{{"metric m:f":"{digest}"}}'
        (folder / "run.jsonl").write_text(log.replace('"fingerprint":{}', prints))
    said = "The code of metric m:f changed between sft-s20 and msft-s20."
    assert [w for w in lined_up(folders).warnings if "metric" in w] == [said]
    assert not [w for w in lined_up(folders[1:]).warnings if "metric" in w or "differ" in w]


def test_ranks() -> None:
    assert ranked([3, 1, None, 3, 2]) == [1, 0, 0, 1, 2]
    assert ranked([2, 2]) == [0, 0]
    assert ranked([None, 2]) == [0, 0]


def test_the_name_of_an_adapter_beside_full_fine_tuning_is_not_cut() -> None:
    name = "SFT[learning_rate=1e-4,use_peft=true]"
    table = Table("x", "X", "", ("method", name), (TableRow(name, (Cell("1"),)),))
    assert terminal(table, 80).count(name) == 2


def test_a_table_too_wide_for_the_terminal_goes_on_below() -> None:
    heads = tuple(f"column {number}" for number in range(9))
    row = TableRow("name", tuple(Cell(f"{number}.0", more="+1.0") for number in range(9)))
    text = terminal(Table("k", "Title", "", ("row", *heads), (row,)), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("name") == 2
    assert [text.count(head) for head in heads] == [1] * 9


HOSTILE = '<script>alert("1")</script>|$x^2$ \\input{/etc/passwd} a_b*c & 5% # ~ [x](javascript:1)'
FORMULA = '=HYPERLINK("http://evil","x")'


def test_hostile_names_are_text_in_all_five_formats(tmp_path: Path) -> None:
    names = (HOSTILE, "\x1b[31m\u202eevil\n| x |", "b")
    folders = [
        made(tmp_path, method, 20, right(1, 2, 3, names=names), right(3, 2, 1, names=names))
        for method in ("sft", FORMULA, "<img src=x onerror=alert(1)>")
    ]
    comparison = lined_up(folders)
    paths = {
        path.suffix: path.read_text() for path in write_files(report_of([comparison]), tmp_path)
    }

    page = paths[".html"]
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)

    for line in paths[".md"].splitlines():
        assert not re.search(r"<(?!/?(ins|sub)>)", line)
        assert not re.search(r"(?<!\\)\$|(?<!\\)`", line)
    rows = [line for line in paths[".md"].splitlines() if line.startswith("|")]
    head = next(row for row in rows if row.startswith("| sub-dataset"))
    body = next(row for row in rows if "script" in row and "input" in row)
    assert len(re.findall(r"(?<!\\)\|", head)) == len(re.findall(r"(?<!\\)\|", body)) == 5

    tex = paths[".tex"]
    assert r"\textbackslash{}input\{/etc/passwd\}" in tex
    assert r"\input{" not in tex.replace(r"\textbackslash{}", "")
    ours = (
        r"\\(begin|end|caption|label|text\w+|underline|centering|small|toprule|midrule|bottomrule)"
    )
    lines = [line for line in tex.splitlines() if not line.startswith("%")]
    bare = re.sub(r"\\[{}$&#%_]|\$(-|\\pm|\\times|\\Delta)\$", "", "\n".join(lines))
    assert not re.search(r"[$#%_^~]", bare.replace("~", " "))
    assert not re.search(r"\\[a-z]", re.sub(ours + r"|\\ldots|\\\\", "", bare))
    assert bare.count("{") == bare.count("}")

    found = list(csv.reader(StringIO(paths[".csv"])))
    assert all(len(line) == 6 for line in found)
    assert {line[1] for line in found if line[0] == "datasets"} >= {HOSTILE, "mean"}
    assert not any(cell.startswith(("=", "@", "+")) for line in found for cell in line[:3])
    assert f"'{FORMULA}" in {line[1] for line in found}

    text = text_of(report_of([comparison]))
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert max(map(len, text.splitlines())) <= 80


def test_a_cell_in_every_format() -> None:
    row = TableRow(
        "m_1", (Cell("63.2", 1, "+0.7", 63.25, 0.75), Cell("60.0", 2), Cell("–")), apart=True
    )
    table = Table("k", "T", "N", ("method", "a", "b", "c"), (row,))
    assert "| m\\_1 | **63.2** <sub>+0.7</sub> | <ins>60.0</ins> | – |" in markdown(table)
    assert r"m\_1 & \textbf{63.2}\textsubscript{+0.7} & \underline{60.0} & {--} \\" in latex(table)
    assert latex(table).count(r"\midrule") == 2
    assert csv_text([table]).splitlines()[1:] == [
        "k,m_1,a,63.25,0.75,1",
        "k,m_1,b,60.0,,2",
        "k,m_1,c,,,",
    ]
    assert "m_1     63.2* +0.7  60.0°  –" in terminal(table)


def test_the_page_marks_and_is_self_contained(three: Comparison, tmp_path: Path) -> None:
    page = write_files(report_of([three]), tmp_path)[0].read_text()
    assert '<b>55.0</b> <small class="quiet">+5.0</small>' in page
    assert '<td class="n plain"><u>50.0</u></td>' in page
    assert "<script" not in page
    assert not re.search(r"""(src|href)="(?!\./|#)""", page)
    elsewhere = ("honesty", "ablation", "places")  # joined to the results, in them, and drawn
    keys = [table.key for table in tables_of(three) if table.key not in elsewhere]
    found = re.findall('id="table-([^"]+)"', page)
    assert sorted(found) == sorted(keys)
    assert found[:3] == ["main", "datasets", "flops"], "all else is folded"
    opened, folded = page.split('id="table-flops"')
    assert "<details>" not in opened
    assert folded.count("<details><summary><h2>") > len(keys) - 3
    assert page.count('class="scroll"') == len(keys)
    shown = page_tables([three], tables_of(three), comparison_figures(three.runs))
    assert not any(row.name == "mean" for table in shown for row in table.rows)
    results = shown[0]
    assert results.head[4:] == ("mean", "Ep.", "validation − test", "chosen from", "epochs")
    assert cells(results)["mSFT"][3:] == ["*55.0* +5.0", "0.25", "+10.0", "2 points", "0.25"]
    assert cells(results)["Base"][-3:] == ["–", "–", "–"]


def test_the_headline_is_symmetric_and_says_what_may_be_chance(tmp_path: Path) -> None:
    """SFT is ahead by one row of twenty: it is compared with the second best and with the third,
    each with interval and p."""
    marks = {
        "sft": {"a": "1111100000", "b": "1111111000"},
        "msft": {"a": "1111000000", "b": "1111111000"},
        "sro": {"a": "0000000000", "b": "1000000000"},
    }
    folders = [
        made(tmp_path, method, 20, scores, scores, verdicts=verdicts)
        for method, verdicts in marks.items()
        for scores in [{n: accuracy(v.count("1"), 10) for n, v in verdicts.items()}]
    ]
    comparison = lined_up(folders)
    said = headline(comparison).replace("\u00a0", " ")
    drawn = cells(bootstrap_table(comparison))
    assert drawn["mSFT"][5:] == ["1", "1.000", "may be chance"]
    assert drawn["SRO SFT"][5:] == ["11", "< 0.001", "sure"]
    flipped = str.maketrans("+−", "−+")
    lowest, highest = (each.translate(flipped) for each in drawn["mSFT"][2:0:-1])
    assert said == (
        f"SFT has the best mean on test, 60.0 %, +5.0 points (95 % interval {lowest} to {highest}, "
        "p = 1.00: the difference may be chance) against mSFT, the second best. Against SFT "
        f"(60.0 %): SRO SFT −55.0 points (95 % interval {drawn['SRO SFT'][1]} to "
        f"{drawn['SRO SFT'][2]}, p < 0.001). 3 methods, 1 seed."
    )
    for folder in folders:
        (folder / "verdicts.jsonl").unlink()
    assert "+5.0 points (not tested: the difference may be chance) against mSFT" in headline(
        lined_up(folders)
    )


def test_the_margin_of_a_loss_is_turned_as_it_is_read(tmp_path: Path) -> None:
    """mSFT is better: its loss is lower, so difference and interval are below 0."""
    rows = {"sft": [4.0] * 12, "msft": [3.0] * 6 + [3.5] * 6}
    folders = [
        made(tmp_path, method, 20, scores, scores, base={"a": nll(60, 12)}, verdicts={"a": losses})
        for method, losses in rows.items()
        for scores in [{"a": nll(sum(losses), 12)}]
    ]
    comparison = lined_up(folders)
    margin = margin_of(comparison, comparison.others[0], comparison.baseline)
    assert margin is not None
    assert margin.difference == pytest.approx(-0.75)
    assert margin.interval is not None
    low, high = margin.interval
    assert -1.0 <= low < -0.75 < high <= -0.5
    assert margin.sure
    assert cells(bootstrap_table(comparison))["mSFT"][4:6] == ["12", "0"]  # rows better and worse


LONG_RECIPE = """\
model_name_or_path: tiny
method: msft
seed: 1
learning_rate: 1e-3
train_batch_size: 16
compute_budget: 1
num_train_epochs: 2
evals_per_epoch: 2
num_fewshot: 0
method_options: {patience: 2, max_stages: 3, rehearsal_fraction: 0.25}
datasets:
  - {name: teams, benchmark: demo_teams, train_rows: 32, validation_rows: 8, test_rows: 8}
  - {name: gates, benchmark: demo_gates, train_rows: 32, validation_rows: 8, test_rows: 8}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(LONG_RECIPE)
    return path


def test_other_methods_have_the_options_that_mean_the_same_for_them(recipe: Path) -> None:
    loaded = load_recipe(recipe)
    assert options_of("msft", loaded) == loaded.method_options
    assert options_of("continual", loaded) == {"patience": 2, "rehearsal_fraction": 0.25}
    assert options_of("sro", loaded) == {"rehearsal_fraction": 0.25}
    assert options_of("sft", loaded) == {}
    runs = planned(recipe, ["learning_rate=1e-4"], ["sro", "msft"], [5, 6], Path("out"))
    assert [run.name for run in runs] == ["sro-s5", "sro-s6", "msft-s5", "msft-s6"]
    assert runs[1].recipe.method_options == {"rehearsal_fraction": 0.25}
    assert (runs[1].recipe.seed, runs[1].recipe.learning_rate) == (6, 1e-4)
    assert runs[2].recipe.method_options == loaded.method_options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--methods", "sft,mstf"], "did you mean 'msft'"),
        (["--methods", "sft,,msft"], "expected names between commas"),
        (["--methods", "sft,sft"], "sft twice"),
        (["--seeds", "20,x"], "whole numbers"),
        (["--seeds", "20,020"], "20 twice"),
        (["--seeds", ""], "between commas"),
        (["--set", "method_options.patiense=2"], "patience"),
        (["--devices", "x,0"], "--devices has 'x'; expected numbers of CUDA devices such as 0,1"),
        (["--devices", "cpu,,cpu"], "between commas, such as 0,1,2 or cpu,cpu"),
        (["--devices", "cpu,99"], "--devices has 99, which this process does not see"),
        (["--devices", "cpu", "--no-run"], "--no-run starts nothing, so --devices has no effect"),
        (["--devices", "cpu", "--list"], "--list starts nothing, so --devices has no effect"),
        (["--figures", "svg", "--list"], "--list starts nothing, so --figures has no effect"),
        (["--no-run"], "none of the runs"),
        (["--no-run", "--methods", "ies"], "none of the runs"),
    ],
)
def test_wrong_input_is_refused_before_anything_starts(
    arguments: list[str], said: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(recipe), "--out", "out", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out").exists()


def test_a_tracker_that_is_not_installed_is_found_before_anything_starts(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["compare", str(recipe), "--out", "out", "--set", "report_to=trackio"]) == 2
    assert "trackio" in capsys.readouterr().err
    assert not Path("out").exists()


def test_without_lists_everything_that_is_there_is_compared(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method, seed in (("msft", 3), ("sft", 3), ("sft", 20)):
        made(Path("out"), method, seed, right(1, 2, 3, 4), right(1, 2, 3, 4))
    for empty in ("ies-s3", "sro-sx", "figures"):
        Path("out", empty).mkdir()
    Path("out/ies-s3/run.jsonl").write_bytes(b"")
    assert main(["compare", str(recipe), "--no-run", "--out", "out"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^method +seed 3 +seed 20 +mean", shown, re.MULTILINE)
    assert "out/compare.tex" in shown
    assert main(["compare", str(recipe), "--no-run", "--seeds", "3", "--out", "out"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "seed 20" not in shown
    *others, last = [f"{name}-s3" for name in METHODS if name not in ("sft", "msft")]
    assert f"not in the tables: {', '.join(others)} and {last}" in shown


def torn(log: Path) -> None:
    """A line in the middle is no event any more."""
    first, _, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, b'{"event":"rollout","rol\n', *rest]))


def beheaded(log: Path) -> None:
    """Every line is an event, but the first one is gone."""
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]))


def gutted(log: Path) -> None:
    """A point without the roll-out that it belongs to."""
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(line for line in lines if b'"rollout"' not in line))


def no_file(log: Path) -> None:
    log.unlink()
    log.mkdir()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (torn, "line 2: not JSON as msft writes it"),
        (beheaded, "line 1: the event 'rollout' stands before the start of the run"),
        (gutted, "line 3: r0-t1 is not the next tick"),
        (no_file, "run.jsonl is a folder; expected a file"),
    ],
)
@pytest.mark.parametrize("named", [[], ["--methods", "sft,msft", "--seeds", "3,20"]])
def test_a_log_that_cannot_be_read_is_named_and_the_others_are_compared(
    broken: Callable[[Path], None],
    why: str,
    named: list[str],
    recipe: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for method in ("sft", "msft"):
        for seed in (3, 20):
            made(Path("out"), method, seed, right(1, 2, 3, 4), right(1, 2, 3, 4))
    broken(Path("out/msft-s20/run.jsonl"))
    command = ["compare", str(recipe), "--no-run", "--out", "out", *named]
    assert main(command) == 1
    found = capsys.readouterr()
    assert "msft: 1 run cannot be read:\n  msft-s20: " in found.err
    assert re.search(why, found.err)
    assert "traceback" not in found.err
    shown = " ".join(found.out.split())
    assert "Not readable, and so not in the tables: msft-s20 (" in shown
    assert re.search(why, shown)
    assert "Not finished" not in shown
    rows = list(csv.DictReader(StringIO(Path("out/compare.csv").read_text())))
    seeds = {(r["row"], r["column"]): r["value"] for r in rows if r["table"] == "seeds"}
    assert seeds["SFT", "seed 20"] == seeds["mSFT", "seed 3"] == "25.0"
    assert seeds["mSFT", "seed 20"] == ""
    assert "msft-s20 (" in Path("out/compare.html").read_text()
    for method, seed in (("sft", 3), ("sft", 20), ("msft", 3)):
        Path(f"out/{method}-s{seed}/run.jsonl").write_text("{}\n{}\n")
    Path("out/compare.csv").unlink()
    assert main(command) == 1
    assert "4 runs cannot be read" in capsys.readouterr().err
    assert not Path("out/compare.csv").exists()


def job(name: str, code: str, folder: Path) -> Job:
    return Job(name, (sys.executable, "-c", code), folder / f"{name}.log")


def test_one_job_per_device_at_a_time_and_a_failure_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    """Each job notes its device and who else was on it while it ran."""
    code = """if True:
        import os, pathlib, sys, time
        device = os.environ["CUDA_VISIBLE_DEVICES"]
        lock = pathlib.Path({folder!r}, f"device{{device}}")
        lock.mkdir()
        pathlib.Path({folder!r}, {name!r}).write_text(device)
        time.sleep(0.2)
        lock.rmdir()
        print("says", {name!r})
        sys.exit({exit})
    """
    exits = {"a": 0, "b": 3, "c": 0, "d": 0, "e": -9}
    jobs = [
        job(name, code.format(folder=str(tmp_path), name=name, exit=max(0, status)), tmp_path)
        for name, status in exits.items()
    ]
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    jobs[-1] = job("e", killed, tmp_path)
    said: list[str] = []
    failed = carry_out(
        jobs, [DeviceSlot("device 0", "4"), DeviceSlot("device 1", "7")], said.append
    )
    assert failed == {"b": 3, "e": -9}
    assert {(tmp_path / name).read_text() for name in "abcd"} == {"4", "7"}
    assert (tmp_path / "a.log").read_text() == "says a\n"
    on_device = r"on device [01] after 0\.\d s"
    assert any(re.match(rf"b: failed {on_device}, exit code 3\n  says b", line) for line in said)
    assert any(re.match(rf"e: failed {on_device}, killed by signal 9", line) for line in said)
    assert said[0] == f"a: started on device 0, 4 waiting; output in {tmp_path / 'a.log'}"
    assert sum("started on device" in line for line in said) == 5


@pytest.mark.parametrize(("number", "slots", "most"), [(3, 2, 2), (2, 8, 2), (3, 1, 1)])
def test_a_job_knows_how_many_there_are_at_a_time(
    tmp_path: Path, number: int, slots: int, most: int
) -> None:
    command = (sys.executable, "-c", f"from msft import process; assert process.jobs() == {most}")
    jobs = [Job(str(job), command, tmp_path / f"{job}.log") for job in range(number)]
    said = list[str]()
    assert carry_out(jobs, [DeviceSlot("CPU", "")] * slots, said.append, quiet=True) == {}, said


def test_a_signal_reaches_every_job_once_and_is_waited_for(tmp_path: Path) -> None:
    code = """if True:
        import pathlib, signal, sys, time
        def stop(*_):
            with open({stopped!r}, "a") as file: file.write("x")
            time.sleep(0.5)
            sys.exit(4)
        signal.signal(signal.SIGTERM, stop)
        pathlib.Path({up!r}).touch()
        time.sleep(60)
    """
    jobs = [
        job(
            name,
            code.format(stopped=str(tmp_path / f"{name}.stopped"), up=str(tmp_path / f"{name}.up")),
            tmp_path,
        )
        for name in "ab"
    ]

    def say(text: str) -> None:
        if "b: started" not in text:
            return
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (tmp_path / "a.up").exists():
            time.sleep(0.05)
        raise Stopped("SIGTERM")

    begun = time.monotonic()
    with pytest.raises(Stopped):
        carry_out(jobs, [DeviceSlot("CPU", ""), DeviceSlot("CPU", "")], say)
    assert time.monotonic() - begun < 40
    assert (tmp_path / "a.stopped").read_text() == "x"
    assert not (tmp_path / "b.up").exists()


def test_only_a_run_that_is_nobodys_job_says_how_to_go_on(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    method = "from msft.errors import Stopped\n\n\ndef stops(run):\n    raise Stopped('SIGTERM')\n"
    Path("stopping.py").write_text(method)
    command = ["train", str(recipe), "--out", "out", "--set", "method=stopping:stops"]
    command += ["--set", "method_options={}"]
    assert main(command) == 4
    assert "To go on:\n  msft train" in capsys.readouterr().err
    code = "import os, sys; sys.exit(0 if os.environ[sys.argv[1]] else 1)"
    told = Job("told", (sys.executable, "-c", code, IS_JOB), recipe.with_name("told.log"))
    assert carry_out([told], [DeviceSlot()], lambda text: None, quiet=True) == {}
    monkeypatch.setenv(IS_JOB, "1")
    assert main(command) == 4
    assert "To go on" not in capsys.readouterr().err


def asked(*arguments: str) -> list[str]:
    command = ["compare", "recipe.yaml", "--out", "out", "--methods", "sft,msft"]
    return [*command, "--set", "num_train_epochs=6", *arguments]


def test_json_has_every_run_and_every_cell_and_nothing_else_is_printed(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("sft", "msft"):
        made(Path("out"), method, 3, right(1, 2, 3, 4), right(1, 2, 3, 4))
    assert main(["compare", str(recipe), "--no-run", "--out", "out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    runs = {run["name"]: run for run in found["runs"]}
    assert sorted(runs) == ["msft-s3", "sft-s3"]
    summary = summary_of(History(read_log(Path("out/msft-s3/run.jsonl"))))
    assert (runs["msft-s3"]["best"], runs["msft-s3"]["seed"]) == (summary["best"], 3)
    lines = [*csv.DictReader(StringIO(Path("out/compare.csv").read_text()))]
    assert len(found["cells"]) == len(lines)
    for cell, line in zip(found["cells"], lines, strict=True):
        assert (cell["table"], cell["row"]) == (line["table"], line["row"].lstrip("'"))
        if isinstance(cell["value"], float):
            assert cell["value"] == float(line["value"])
    assert {Path(path).name for path in found["files"]} == {
        *("compare.html", "compare.md", "compare.tex", "compare.csv")
    }
    python = msft.compare(recipe, "out", run=False, shown=False)
    assert json.loads(json.dumps(python)) == found
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("warm")
def test_stop_resume_skip_fail_and_tables_end_to_end(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    log, other = (Path(f"out/{method}-s1/run.jsonl") for method in ("sft", "msft"))
    with subprocess.Popen(
        [sys.executable, "-m", "msft", *asked("--devices", "cpu,cpu")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    ) as started:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and started.poll() is None:
            begun = [path.exists() and b'"point"' in path.read_bytes() for path in (log, other)]
            if all(begun):
                started.send_signal(signal.SIGTERM)
                break
            time.sleep(0.02)
        _, errors = started.communicate()
    assert started.returncode == 4
    assert "stopped by SIGTERM; nothing is lost. To go on:\n  msft compare recipe.yaml" in errors
    assert errors.count("To go on") == 1  # and not the run's own, which would go on alone
    assert "sft-s1: started on CPU, 1 waiting; output in out/sft-s1.log\n" in errors
    assert "stopping sft-s1, msft-s1 where it is safe" in errors
    points = log.read_bytes()
    assert not any(RunFolder(path.parent).is_finished() for path in (log, other))
    assert not any(is_being_written(path) for path in (log, other))

    Path("broken.py").write_text("def method(run):\n    raise RuntimeError('by design')\n")
    methods = ["--methods", "broken:method,sft,msft", "--quiet", "--devices", "cpu,cpu"]
    capsys.readouterr()
    assert main(asked(*methods)) == 1
    found = capsys.readouterr()
    assert "1 of 3 runs failed:\n  broken.method-s1: exit code 1, see out/broken" in found.err
    assert "by design" in Path("out/broken.method-s1.log").read_text()
    assert log.read_bytes().startswith(points)
    runs = {m: History(read_log(Path(f"out/{m}-s1/run.jsonl"))) for m in ("sft", "msft")}
    told = " ".join(found.out.split())
    for history in runs.values():
        assert history.ended is not None
        assert f"{float(100 * history.mean(history.ended.best, 'test')):.1f}" in told
    assert "Not finished, and so not in the tables: broken.method-s1" in told
    summary = json.loads(Path("out/msft-s1/summary.json").read_text())
    rows = list(csv.DictReader(StringIO(Path("out/compare.csv").read_text())))
    total = [
        r["value"]
        for r in rows
        if (r["table"], r["row"], r["column"]) == ("flops", "mSFT", "total")
    ]
    assert [float(text) for text in total] == [summary["flops"]["total"]]

    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("run.jsonl")}
    assert main(asked()) == 0
    found = capsys.readouterr()
    assert "sft-s1: finished already\nmsft-s1: finished already\n" in found.err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert main(asked("--set", "learning_rate=0.01")) == 2
    assert "learning_rate was 0.001, now it is 0.01" in capsys.readouterr().err
