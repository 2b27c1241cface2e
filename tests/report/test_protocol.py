"""`report_split: selection`: every page, table and figure is of validation, and says so."""

import re
from pathlib import Path

import pytest
from test_analyses import Simulation, recipe_of
from test_paper_figures import hits, written

from msft.app.analyses import budgets, sizes
from msft.cli import main
from msft.report import write_comparison, write_report
from msft.report.card import card_of
from msft.report.compare.comparison import comparison_of_each, comparisons_of
from msft.report.compare.runs import compared_runs
from msft.report.sections import comparison_figures
from msft.run.folder import recipe_text
from msft.run.history import summary_of
from msft.search.curves import accuracy

SELECTION = "method: sft\nreport_split: selection\nmodel_name_or_path: tiny\n"


def pair(folder: Path, *recipes: str) -> list[Path]:
    """SFT is ahead on validation by 10 points, mSFT on test by 20."""
    paths = []
    scores = (("sft", 60, 40), ("msft", 50, 60))
    for (method, chosen, tested), recipe in zip(scores, recipes, strict=True):
        curves = {name: hits(10, chosen) for name in ("a", "b")}
        test = {name: accuracy(tested, 100) for name in curves}
        paths.append(written(folder / method, curves, method, test))
        if recipe:
            (paths[-1] / "recipe.yaml").write_text(recipe)
    return paths


def texts(path: Path) -> str:
    return " ".join(path.read_text().split())


def test_the_page_of_a_run_reports_what_its_recipe_says(tmp_path: Path) -> None:
    plain, selected = pair(tmp_path, "", SELECTION)
    page = texts(write_report(plain))
    assert "SFT reached a mean of 40.0 % on test over 2 sub-datasets" in page
    assert "(report_split: selection)" not in page
    page = texts(write_report(selected))
    assert (
        "mSFT reached a mean of 50.0 % on validation over 2 sub-datasets, +40.0 points "
        "against the base model; it has 60.0 % on test (+50.0 points)." in page
    )
    said = "The reported scores are from validation, as in the paper (report_split: selection)."
    assert f"{said} It also chose the checkpoint, so the scores flatter." in page
    assert page.count("reported scores are from validation") == 1


def test_the_model_card_says_it(tmp_path: Path) -> None:
    (plain, _) = pair(tmp_path, "", "")
    history = compared_runs([plain])[0].history
    said = "Validation reports, as in the paper (`report_split: selection`)."
    assert said in card_of(history, "tiny", report_split="selection")
    assert said not in card_of(history, "tiny")


def test_a_comparison_of_such_runs_is_of_validation(tmp_path: Path) -> None:
    paths = pair(tmp_path, SELECTION, SELECTION)
    page = texts(write_comparison(paths, tmp_path))
    assert "SFT has the best mean on validation, 60.0 %" in page
    assert "Results on validation (reported, and selected on)" in page
    assert "from validation too, as in the paper. They flatter" in page
    assert "Gain over SFT on validation" in page
    assert "Gain over SFT on test" not in page
    assert "accuracy, % (validation)" in page
    assert "accuracy, % (test)" not in page
    (comparison,) = comparisons_of(compared_runs(paths))
    assert comparison.mean_gain(comparison.others[0]) == pytest.approx(-10)
    assert texts(write_comparison(paths, tmp_path, report_split="test")).count("(test)") > 0


def test_recipes_that_differ_report_what_both_have_and_say_so(tmp_path: Path) -> None:
    runs = compared_runs(pair(tmp_path, "report_split: test\n", SELECTION))
    comparison = comparison_of_each(runs)
    assert comparison.split == "validation"
    assert comparison.warnings[0].startswith("Recipes differ in their report_split")
    assert comparison_of_each(runs, "test").split == "test"


def test_figures_as_files_are_of_the_same_split(tmp_path: Path) -> None:
    paths = pair(tmp_path, SELECTION, SELECTION)
    assert main(["report", *map(str, paths), "--figures", "svg"]) == 0
    for key in ("gains", "scores"):
        drawn = (tmp_path / "figures" / f"{key}.svg").read_text()
        assert "validation" in drawn
        assert "test" not in drawn
    assert "−10.0" in (tmp_path / "figures" / "gains.svg").read_text()


def test_recipes_are_read_as_far_as_they_can_be(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("a: 'x y'  # why\nb: 3\nc: [\nmore:\n  a: z\n")
    assert recipe_text(tmp_path, "a") == "x y"
    assert recipe_text(tmp_path, "b") is None
    assert recipe_text(tmp_path, "c") is None
    assert recipe_text(tmp_path, "d") is None
    assert recipe_text(tmp_path / "none", "a") is None


@pytest.mark.parametrize("split", ["test", "selection"])
def test_an_analysis_draws_the_split_of_its_table(split: str, tmp_path: Path) -> None:
    """On the simulated engine test lies below validation, so that they cannot be confused."""
    name = "validation" if split == "selection" else "test"
    other = "test" if split == "selection" else "validation"
    run = Simulation()
    recipe = recipe_of(report_split=split)
    found = budgets(recipe, tmp_path / "c", run, [1.0, 2.0])
    for entry, history in zip(found.content["msft"], run.histories[1:], strict=True):
        best = summary_of(history)["best"]
        assert entry["mean"] == best[name]["mean"] != best[other]["mean"]
        assert entry["split"] == name
    straight = summary_of(run.histories[0])["best"][name]["mean"]
    assert found.content["sft"]["mean"] == straight
    files = {path.name: path for path in found.write(tmp_path / "c")}
    drawn = files["budgets.svg"].read_text()
    assert f"accuracy, % ({name})" in drawn
    assert f">{100 * straight:.1f}<" in drawn
    assert f"({other})" not in drawn
    page = texts(files["report.html"])
    assert f"the best mean on {name}" in page
    assert f"Gain over SFT on {other}" not in page

    found = sizes(recipe, tmp_path / "n", Simulation(), [2, 4])
    drawn = {path.name: path for path in found.write(tmp_path / "n")}["sizes.svg"].read_text()
    shown = [float(text.replace("−", "-")) for text in re.findall(r">([+−][\d.]+)<", drawn)]
    gains = [100 * (each["msft"][name] - each["sft"][name]) for each in found.content["sizes"]]
    assert shown == pytest.approx(gains, abs=0.051)
    assert [100 * each["gain"] for each in found.content["sizes"]] == pytest.approx(gains)


def test_the_sections_of_a_comparison_name_their_split(tmp_path: Path) -> None:
    runs = compared_runs(pair(tmp_path, "", ""))
    for split, name, other in (("test", "test", "validation"), ("selection", "validation", "test")):
        said = [each.text for each in comparison_figures(runs, split)]  # type: ignore[arg-type]
        assert any(f"on {name}" in text or f"the {name} scores" in text for text in said)
        assert not any(f"on {other}" in text for text in said)
