"""Runs of several base models: blocks, their average, and differences within a model."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from test_comparison import RECIPE, made

from msft.report import write_comparison
from msft.report.compare.comparison import model_comparisons, over_in_words, titles_of
from msft.report.compare.runs import compared_runs
from msft.report.comparison_page import headline_of_models, report_of, text_of, write_files
from msft.report.comparison_tables import model_tables
from msft.report.tables import Table, terminal
from msft.run.log import RunEvent, read_log, to_line
from msft.search.curves import Number, Scores, accuracy

NAMES = ("sciq", "arc", "gsm8k", "mine")


def right(*counts: int) -> Scores:
    return {name: accuracy(count, 10) for name, count in zip(NAMES, counts, strict=True)}


def run(
    folder: Path,
    model: str,
    method: str,
    test: Sequence[int],
    seed: int = 20,
    train_tokens: int = 10,
    size: int = 1000,
    ticks: int = 1,
    base: Sequence[int] = (0, 0, 0, 0),
    best: int = 1,
    test_base: Sequence[int] | None = None,
) -> Path:
    """A finished run of a model with these rows right of ten on test; on validation one more.

    test_base: rows that the base model has right on test, where they are not those on validation.
    """
    chosen = right(*(count + 1 for count in test))
    recipe = f"model_name_or_path: {model}\n{RECIPE}"
    place = made(
        folder / model.replace("/", "--"),
        method,
        seed,
        chosen,
        right(*test),
        recipe=recipe,
        train_tokens=train_tokens,
        ticks=ticks,
        base=right(*base),
        best=best,
        test_base=None if test_base is None else right(*test_base),
    )
    events = read_log(place / "run.jsonl")
    first = events[0]
    assert isinstance(first, RunEvent)
    events[0] = RunEvent(
        first.method, first.seed, size, first.datasets, first.settings, first.fingerprint
    )
    (place / "run.jsonl").write_bytes(b"".join(to_line(event) for event in events))
    return place


def six(folder: Path) -> list[Path]:
    """SFT, SRO and mSFT on a small and on a large model."""
    small, large = (1, 1, 0, 2), (3, 5, 2, 2)
    return [
        run(folder, "owner/small", "sft", (4, 4, 2, 2), train_tokens=10, base=small),
        run(folder, "owner/small", "sro", (4, 4, 2, 4), train_tokens=20, base=small),
        run(folder, "owner/small", "msft", (6, 4, 2, 4), train_tokens=30, base=small),
        run(folder, "large", "sft", (8, 8, 6, 6), train_tokens=10, size=4000, base=large),
        run(folder, "large", "sro", (8, 6, 6, 6), train_tokens=40, size=4000, base=large),
        run(folder, "large", "msft", (8, 8, 8, 6), train_tokens=20, size=4000, base=large),
    ]


def rows(table: Table) -> dict[tuple[str, str], list[tuple[Number | None, Number | None, int]]]:
    """By block and name: value, difference and rank of each cell."""
    return {
        (row.block, row.name): [(cell.value, cell.difference, cell.rank) for cell in row.cells]
        for row in table.rows
    }


def by_key(tables: Sequence[Table]) -> dict[str, Table]:
    return {table.key: table for table in tables}


def test_results_have_a_block_of_each_model_and_their_average(tmp_path: Path) -> None:
    comparisons = model_comparisons(compared_runs(six(tmp_path)))
    assert titles_of(comparisons) == ["owner/small", "large"]
    tables = by_key(model_tables(comparisons))
    assert [*tables] == ["main", "main-validation", "ablation", "flops"]
    main = rows(tables["main"])
    assert list(dict.fromkeys(block for block, _ in main)) == ["owner/small", "large", "Average"]
    assert [name for block, name in main if block == "Average"] == [
        "Base",
        "SFT",
        "SRO SFT",
        "mSFT",
    ]
    mean = -2  # before Ep.
    assert main["owner/small", "mSFT"][mean] == (40, 10, 1)
    assert main["large", "mSFT"][mean] == (75, 5, 1)
    assert main["large", "SRO SFT"][mean] == (65, -5, 0)
    assert main["Average", "SFT"][mean] == (50, None, 2)
    assert main["Average", "SRO SFT"][mean] == (50, 0, 2)  # +5 and −5
    assert main["Average", "mSFT"][mean] == (57.5, 7.5, 1)
    science = 0
    assert main["Average", "mSFT"][science] == (65, 5, 1)  # (6 + 4 + 8 + 8) / 40, SFT 60
    assert main["Average", "Base"][science] == (25, None, 0)  # 10 and 40
    assert main["Average", "Base"][mean] == (20, None, 0)  # 10 and 30
    chosen = rows(tables["main-validation"])
    assert chosen["Average", "mSFT"][mean] == (67.5, 7.5, 1)
    ablation = rows(tables["ablation"])
    assert ablation["Average", "mSFT"][0] == (57.5, 7.5, 1)
    assert ablation["large", "SFT"][0] == (70, None, 2)
    assert "A block for each of 2 models" in tables["main"].note


def test_a_base_model_ahead_of_all_methods_has_no_rank_in_the_average(tmp_path: Path) -> None:
    paths = [
        run(tmp_path, model, method, counts, test_base=(9, 9, 9, 9))
        for model in ("owner/small", "large")
        for method, counts in (("sft", (4, 4, 4, 4)), ("msft", (6, 6, 6, 6)))
    ]
    comparisons = model_comparisons(compared_runs(paths))
    main = rows(by_key(model_tables(comparisons))["main"])
    average = {name: main["Average", name][-2] for name in ("Base", "SFT", "mSFT")}
    assert average == {"Base": (90, None, 0), "SFT": (40, None, 2), "mSFT": (60, 20, 1)}


def test_a_block_has_its_name_once_on_a_terminal(tmp_path: Path) -> None:
    comparisons = model_comparisons(compared_runs(six(tmp_path)))
    lines = terminal(by_key(model_tables(comparisons))["ablation"]).splitlines()
    names = [line.split("  ")[0] for line in lines[lines.index("owner/small") - 1 :]]
    methods = ["SFT", "SRO SFT", "mSFT"]
    expected = [
        *("", "owner/small", *methods),
        *("", "large", *methods),
        *("", "Average", *methods),
    ]
    assert names[: len(expected)] == expected


def test_flops_are_averaged_and_so_are_the_factors_of_each_model(tmp_path: Path) -> None:
    comparisons = model_comparisons(compared_runs(six(tmp_path)))
    flops = rows(by_key(model_tables(comparisons))["flops"])
    train = 0
    assert flops["owner/small", "mSFT"][train][0] == 6 * 1000 * 30
    assert flops["large", "mSFT"][train][0] == 6 * 4000 * 20
    assert flops["Average", "mSFT"][train][0] == (6 * 1000 * 30 + 6 * 4000 * 20) / 2
    total = {key: cells[3][0] for key, cells in flops.items()}
    factors = [
        (total[model, "mSFT"] or 0) / (total[model, "SFT"] or 1)
        for model in ("owner/small", "large")
    ]
    assert flops["Average", "mSFT"][-1][0] == pytest.approx(sum(factors) / 2)


def test_epochs_are_means_over_the_seeds_and_then_over_the_models(tmp_path: Path) -> None:
    ticks = {("a", 20): 1, ("a", 30): 3, ("b", 20): 4}
    paths = [
        run(tmp_path, model, method, (1, 1, 1, 1), seed, ticks=4, best=tick)
        for (model, seed), tick in ticks.items()
        for method in ("sft", "msft")
    ]
    main = rows(model_tables(model_comparisons(compared_runs(paths)))[0])
    epochs = [main[block, "mSFT"][-1][0] for block in ("a", "b", "Average")]
    assert epochs == [0.5, 1, 0.75]


def test_differences_are_to_sft_of_the_same_seed(tmp_path: Path) -> None:
    paths = [
        run(tmp_path, "a", "sft", (2, 2, 2, 2), 20),
        run(tmp_path, "a", "msft", (4, 4, 4, 4), 20),
        run(tmp_path, "a", "sft", (8, 8, 8, 8), 30),
        run(tmp_path, "a", "msft", (9, 9, 9, 9), 30),
        run(tmp_path, "b", "sft", (5, 5, 5, 5), 20),
        run(tmp_path, "b", "msft", (5, 5, 5, 5), 20),
        run(tmp_path, "b", "sft", (9, 9, 9, 9), 40),  # no mSFT has this seed
    ]
    comparisons = model_comparisons(compared_runs(paths))
    assert [comparison.seeds for comparison in comparisons] == [(20, 30), (20,)]
    main = rows(model_tables(comparisons)[0])
    assert main["a", "mSFT"][-2] == (65, 15, 1)
    assert main["b", "mSFT"][-2] == (50, 0, 0)
    assert main["Average", "mSFT"][-2] == (57.5, 7.5, 1)
    warned = report_of(comparisons).warnings
    assert any("missing: mSFT 40" in warning for warning in warned)


def test_a_method_that_a_model_lacks_has_no_average(tmp_path: Path) -> None:
    paths = six(tmp_path)
    comparisons = model_comparisons(compared_runs(paths[:5]))
    main = rows(model_tables(comparisons)[0])
    assert main["Average", "mSFT"][-2:] == [(None, None, 0), (None, None, 0)]
    assert "SFT and SRO SFT have the best mean" in headline_of_models(comparisons)


def test_budgets_of_one_model_are_named_on_all(tmp_path: Path) -> None:
    paths = [run(tmp_path, "a", m, (1, 1, 1, 1)) for m in ("sft", "msft")]
    paths += [run(tmp_path, "b", m, (1, 1, 1, 1)) for m in ("sft", "msft")]
    paths.append(run(tmp_path / "again", "b", "msft", (2, 2, 2, 2), ticks=2))
    comparisons = model_comparisons(compared_runs(paths))
    labels = [[method.label for method in comparison.methods] for comparison in comparisons]
    assert labels == [["SFT", "mSFT C = 0.25"], ["SFT", "mSFT C = 0.25", "mSFT C = 0.5"]]
    assert all(comparison.baseline is comparison.methods[0] for comparison in comparisons)


def test_the_budgets_of_table_7_have_rows_of_their_own(tmp_path: Path) -> None:
    """As `--methods 'sft,msft[compute_budget=1],msft'` leaves them; large models lack C = 1."""
    paths = [run(tmp_path, model, "sft", (1, 1, 1, 1)) for model in ("a", "b")]
    paths += [
        run(tmp_path, model, "msft", (1, 1, 1, 1), ticks=3, train_tokens=7) for model in ("a", "b")
    ]
    short = run(tmp_path / "short", "a", "msft", (2, 2, 2, 2), train_tokens=5)
    paths.append(short.rename(paths[2].with_name("msft+compute_budget=0.25-s20")))
    comparisons = model_comparisons(compared_runs(paths))
    labels = [[method.label for method in comparison.methods] for comparison in comparisons]
    assert labels == [["SFT", "mSFT C = 0.75", "mSFT C = 0.25"], ["SFT", "mSFT C = 0.75"]]
    flops = rows(by_key(model_tables(comparisons))["flops"])
    assert flops["a", "mSFT C = 0.25"][0][0] == 6 * 1000 * 5
    assert flops["Average", "mSFT C = 0.75"][0][0] == 6 * 1000 * 3 * 7
    assert flops["Average", "mSFT C = 0.25"][0][0] is None
    alone = model_comparisons(compared_runs([paths[0], paths[-1]]))
    assert [method.label for method in alone[0].methods] == ["SFT", "mSFT C = 0.25"]


def test_one_model_not_scored_on_test_puts_all_on_validation(tmp_path: Path) -> None:
    paths = six(tmp_path)
    log = paths[4] / "run.jsonl"
    kept = [line for line in log.read_text().splitlines() if '"split":"test"' not in line]
    log.write_text("\n".join(kept) + "\n")
    comparisons = model_comparisons(compared_runs(paths))
    assert {comparison.split for comparison in comparisons} == {"validation"}
    assert any("so validation is reported" in w for w in report_of(comparisons).warnings)


def test_every_format_and_the_page_of_report(tmp_path: Path) -> None:
    paths = six(tmp_path)
    report = report_of(model_comparisons(compared_runs(paths)))
    files = {path.suffix: path.read_text() for path in write_files(report, tmp_path)}
    cells = [*csv.DictReader(StringIO(files[".csv"]))]
    found = {
        (cell["block"], cell["row"]): float(cell["value"])
        for cell in cells
        if (cell["table"], cell["column"]) == ("main", "mean") and cell["row"] != "Base"
    }
    assert found["Average", "mSFT"] == 57.5
    assert found["large", "SRO SFT"] == 65
    assert r"\multicolumn{6}{c}{\textbf{Average}} \\" in files[".tex"]
    assert "| **owner/small** |" in files[".md"]
    text = text_of(report)
    assert text.index("\nowner/small\n") < text.index("\nlarge\n") < text.index("\nAverage\n")
    page = " ".join(write_comparison(paths, tmp_path).read_text().split())
    for html in (files[".html"], page):
        assert '<tr class="block"><th colspan="6">Average</th></tr>' in html
        assert "mSFT has the best mean on test averaged over 2 models, 57.5" in html
        assert "Against SFT on the same model: mSFT +7.5 points (" in html
        assert "Mean over 2 models." in html
        assert "mixtures" not in html
        assert "Seeds on" not in html
        assert "Every sub-dataset on test (reported) · large" in html
        assert "figure-gains-2" in html
        assert "figure-sizes" not in html


def test_what_several_comparisons_are_of_is_said_right(tmp_path: Path) -> None:
    from msft.report.compare.comparison import comparisons_of
    from msft.report.sections import comparison_figures

    paths = six(tmp_path)
    runs = compared_runs(paths)
    assert over_in_words(comparisons_of(runs)) == "2 models"
    assert "over 2 models" in next(
        each.text for each in comparison_figures(runs) if each.key == "places"
    )
    small = [
        made(tmp_path / "fewer", m, 20, {"sciq": accuracy(5, 10)}, {"sciq": accuracy(5, 10)})
        for m in ("sft", "msft")
    ]
    for place in small:
        (place / "recipe.yaml").write_text("model_name_or_path: large\n")
    runs = compared_runs([*paths, *small])
    assert over_in_words(comparisons_of(runs)) == "2 mixtures and 2 models"
    assert titles_of(comparisons_of(runs)) == [
        "N = 1, 8 rows, large",
        "N = 4, 32 rows, owner/small",
        "N = 4, 32 rows, large",
    ]
    (sizes,) = [each for each in comparison_figures(runs) if each.key == "sizes"]
    assert "for 2 mixtures of different size" in sizes.text


def test_paths_are_told_apart_by_their_ends(tmp_path: Path) -> None:
    paths = [run(tmp_path, "x", "sft", (1, 1, 1, 1))]
    for name in ("/data/one/best", "/data/two/best", "/models/m.gguf"):
        place = run(tmp_path / name.replace("/", "_"), "x", "sft", (1, 1, 1, 1))
        (place / "recipe.yaml").write_text(f"model_name_or_path: {name}\n")
        paths.append(place)
    comparisons = model_comparisons(compared_runs(paths))
    assert titles_of(comparisons) == ["x", "one/best", "two/best", "models/m.gguf"]
