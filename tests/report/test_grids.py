"""`msft analyze grid`: which runs have a panel, what each is called, and what is drawn."""

import json
import subprocess
import sys
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from test_paper_figures import assert_drawn, run_of

from mortal import quick_folder
from msft.cli import main
from msft.report.compare.runs import ComparedRun, compared_runs
from msft.report.figures.chart import BEST, WENT_ON
from msft.report.figures.costs import path_losses
from msft.report.figures.grids import GridKind, RunPanel, grid_section, panels_of
from msft.report.figures.peaks import peaks_of
from msft.run.history import disk_of

PLACES = ("a/sft-s20", "a/msft-s20", "a/msft+compute_budget=1-s20", "b/sft-s20", "b/msft-s20")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """SFT and mSFT on two models as `msft compare` leaves them, on one also with C = 1."""
    with quick_folder() as place:
        for number, name in enumerate(PLACES):
            method = "sft" if "sft-s20" in name and "msft" not in name else "msft"
            budget = 1 if "+" in name else 2
            run_of(place / name, method, 3, compute_budget=budget)
            model = {"a": "owner/small", "b": "large"}[name[0]]
            (place / name / "recipe.yaml").write_text(f"model_name_or_path: {model}\n")
            if not number:
                run_of(place / ".shared" / "hidden", "sft")
        yield place


def runs_of(folder: Path, *names: str) -> list[ComparedRun]:
    return compared_runs([folder / name for name in names])


def last_loss(run: ComparedRun) -> float:
    """Where its path ended, gaps left out."""
    return [loss for loss in path_losses(run.history)[0][1] if not isnan(loss)][-1]


def titles(panels: list[RunPanel]) -> list[str]:
    return [panel.title for panel in panels]


def test_titles_are_those_of_the_appendix_the_largest_budget_first(folder: Path) -> None:
    runs = runs_of(folder, *PLACES)
    for kind in ("loss", "disk"):
        assert titles(panels_of(kind, runs)) == [
            "owner/small, C = 2, N = 3",
            "large, C = 2, N = 3",
            "owner/small, C = 1, N = 3",
        ]
    assert titles(panels_of("peaks", runs)) == ["owner/small, N = 3", "large, N = 3"]


def test_a_loss_stands_beside_that_of_sft_on_the_same_model_and_rows(
    folder: Path, tmp_path: Path
) -> None:
    panels = panels_of("loss", runs_of(folder, *PLACES))
    assert [panel.sft and panel.sft.folder for panel in panels] == [
        folder / "a/sft-s20",
        folder / "b/sft-s20",
        folder / "a/sft-s20",
    ]
    alone = panels_of("loss", runs_of(folder, "a/msft-s20", "b/sft-s20"))
    assert [panel.sft for panel in alone] == [None]
    assert_drawn([grid_section("loss", alone)], folder)
    smaller = run_of(tmp_path / "sft", "sft", 2)
    (smaller / "recipe.yaml").write_text("model_name_or_path: owner/small\n")
    runs = [*runs_of(folder, "a/msft-s20"), *compared_runs([smaller])]
    assert [panel.sft for panel in panels_of("loss", runs)] == [None]
    assert titles(panels_of("peaks", runs)) == ["owner/small, N = 2"]


def test_a_loss_stands_beside_that_of_sft_with_the_same_seed(folder: Path, tmp_path: Path) -> None:
    other = run_of(tmp_path / "sft-s30", "sft", 3, seed=30)
    (other / "recipe.yaml").write_text("model_name_or_path: owner/small\n")
    searched = folder / "a/msft-s20"
    runs = compared_runs([other, searched, folder / "a/sft-s20"])
    (panel,) = panels_of("loss", runs)
    assert panel.sft is not None
    assert panel.sft.folder == folder / "a/sft-s20"
    (panel,) = panels_of("loss", compared_runs([other, searched]))
    assert panel.sft is not None
    assert panel.sft.folder == other, "a run with another seed is better than none"


def test_seeds_and_folders_tell_panels_apart(folder: Path, tmp_path: Path) -> None:
    other = run_of(tmp_path / "msft-s30", "msft", 3, compute_budget=2, seed=30)
    again = run_of(tmp_path / "msft-again", "msft", 3, compute_budget=2, seed=30)
    for place in (other, again):
        (place / "recipe.yaml").write_text("model_name_or_path: owner/small\n")
    runs = compared_runs([folder / "a/msft-s20", other])
    same = "owner/small, C = 2, N = 3"
    assert titles(panels_of("disk", runs)) == [f"{same}, seed 20", f"{same}, seed 30"]
    runs = compared_runs([other, again])
    assert titles(panels_of("disk", runs)) == [f"{same} (msft-s30)", f"{same} (msft-again)"]


def test_without_sft_the_peaks_are_of_what_there_is(folder: Path, tmp_path: Path) -> None:
    continual = run_of(tmp_path / "continual", "continual")
    runs = compared_runs([folder / "a/msft-s20", continual])
    assert [panel.run.method for panel in panels_of("peaks", runs)] == ["msft"]


@pytest.mark.parametrize("kind", ["peaks", "loss", "disk"])
def test_every_grid_is_drawn_with_its_titles(kind: GridKind, folder: Path) -> None:
    panels = panels_of(kind, runs_of(folder, *PLACES))
    section = grid_section(kind, panels)
    assert_drawn([section], folder)
    root = ElementTree.parse(folder / "drawn" / f"{kind}-grid.svg").getroot()  # noqa: S314  our own
    texts = [*root.itertext()]
    for panel in panels:
        mean = f": mean {disk_of(panel.run.history)['mean_copies']:.2f}" if kind == "disk" else ""
        assert f"{panel.title}{mean}" in texts
    once = {"peaks": "peak, in epochs; number: distance", "loss": "training loss", "disk": "copies"}
    assert texts.count(once[kind]) == len(panels)


def test_a_panel_of_losses_draws_the_line_of_sft_and_that_of_msft(folder: Path) -> None:
    (panel,) = panels_of("loss", runs_of(folder, "a/sft-s20", "a/msft-s20"))
    assert panel.sft is not None
    drawn = [
        (np.asarray(line.get_ydata(), dtype=float).tolist(), line.get_color())
        for line in grid_section("loss", [panel]).draw(900).axes[0].lines
    ]
    for run, colour in ((panel.sft, WENT_ON), (panel.run, BEST)):
        ends = [[y for y in ys if not isnan(y)][-1:] for ys, each in drawn if each == colour]
        assert [last_loss(run)] in ends, run.method
    assert last_loss(panel.sft) != last_loss(panel.run)


def test_one_command_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("peaks", "loss", "disk"):
        out = folder / "grids"
        command = ["analyze", "grid", kind, str(folder / "a"), str(folder / "b"), "--out", str(out)]
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [Path(file).name for file in found["files"]] == [
            f"{kind}-grid.svg",
            f"{kind}-grid.png",
        ]
        assert all(Path(file).stat().st_size for file in found["files"])
        for panel in found["panels"]:
            (run,) = compared_runs([Path(panel["run"])])
            assert panel["model"] == run.model
            assert panel["sub_datasets"] == len(run.names)
            match kind:
                case "peaks":
                    peaks = peaks_of(run.history)
                    assert peaks is not None
                    assert (panel["peaks"], panel["peak_of_mean"]) == (peaks.peaks, peaks.mean)
                    assert panel["compute_budget"] is None
                case "loss":
                    (straight,) = compared_runs([Path(panel["sft"])])
                    assert panel["last"] == last_loss(run)
                    assert panel["sft_last"] == last_loss(straight)
                    assert panel["left"] == len(run.history.exclusions)
                case _:
                    assert panel["mean_copies"] == run.summary["disk"]["mean_copies"]
                    assert panel["paper_most"] == len(run.names) + 1
        assert main(command) == 0
        table = capsys.readouterr().out
        assert all(panel["title"] in table for panel in found["panels"])


def test_folders_are_searched_but_not_what_is_hidden(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["analyze", "grid", "peaks", "--out", str(tmp_path), "--json"]
    assert main([*command, str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [panel["run"] for panel in found["panels"]] == [
        str(folder / "a/sft-s20"),
        str(folder / "b/sft-s20"),
    ]


def test_what_has_no_panel_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert main(["analyze", "grid", "disk", str(folder / "a/sft-s20"), *out]) == 2
    assert "none of the 1 run is a finished one of msft" in capsys.readouterr().err
    assert main(["analyze", "grid", "disk", str(tmp_path), *out]) == 2
    assert "is not a run folder, and has none in it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    half = tmp_path / "half"
    half.mkdir()
    lines = (folder / "b/msft-s20/run.jsonl").read_bytes().splitlines(keepends=True)
    (half / "run.jsonl").write_bytes(b"".join(lines[:-1]))
    assert main(["analyze", "grid", "disk", str(folder / "a/msft-s20"), str(half), *out]) == 0
    said = capsys.readouterr().out
    assert "not finished, and so left out: half" in said
    assert said.count(" N = 3") == 1


def test_a_grid_needs_no_torch(folder: Path, tmp_path: Path) -> None:
    command = ["analyze", "grid", "loss", str(folder / "a"), "--out", str(tmp_path)]
    program = f"import sys, msft.cli; msft.cli.main({command!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
