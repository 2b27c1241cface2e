"""Every command at 80 columns, with long names: no line is wider, except a path alone on one."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from toys import rows, write_lines

from msft.app.analyses import Analysis
from msft.app.terminal.screen import ProgressLine
from msft.app.terminal.validate import balance
from msft.cli import ANALYSES, COMMANDS, main
from msft.testing.simulated import Learner, simulate
from msft.text import columns_of

pytestmark = pytest.mark.usefixtures("no_reports")

LONG = "a-sub-dataset-whose-name-has-some-sixty-characters-in-it"
NAMES = {f"{LONG}-one": "upper", f"{LONG}-two": "first", "short": "vowel"}
"""Sub-datasets, and which toy each is."""
FOLDER = "a-folder-with-a-long-name-so-that-all-paths-are-long/and-another-folder-in-it"
OUT, COMPARED = f"{FOLDER}/out", f"{FOLDER}/compared"

DONE = {
    "validate": ["validate", "recipe.yaml", "--show", "1"],
    "plan": ["plan", "recipe.yaml", "--no-calibration", "--out", OUT],
    "train": ["train", "recipe.yaml", "--out", OUT],
    "train again": ["train", "recipe.yaml", "--out", OUT],
    "eval": ["eval", f"{OUT}/best", "recipe.yaml"],
    "replay": ["replay", f"{OUT}/schedule.json", "recipe.yaml", "--out", f"{FOLDER}/again"],
    "report": ["report", OUT, "--watch"],
    "headroom": ["analyze", "headroom", f"{COMPARED}/sft-s20"],
    "compute": ["analyze", "compute", "--out", f"{FOLDER}/compute"],
    "compare": ["compare", "recipe.yaml", "--no-run", "--out", COMPARED],
    "chat": ["chat", OUT, "--prompt", "short abcd:", "--max-new-tokens", "20"],
    "init": ["init", f"{FOLDER}/recipe.yaml"],
    "env": ["env"],
}
WRONG = {
    "no recipe": ["train", f"{FOLDER}/gone.yaml"],
    "unknown key": ["train", "recipe.yaml", "--set", "metod=sft"],
    "unknown method": ["train", "recipe.yaml", "--set", "method=msftt"],
    "no data": ["validate", "recipe.yaml", "--set", f"datasets.short.train={FOLDER}/gone.jsonl"],
    "changed": ["train", "recipe.yaml", "--out", OUT, "--set", "learning_rate=1e-4"],
    "no model": ["eval", f"{FOLDER}/nowhere", "recipe.yaml"],
    "nothing to merge": ["merge", OUT, "--out", f"{FOLDER}/merged"],
    "nobody to ask": ["chat", f"{FOLDER}/nowhere", "--prompt", "a"],
    "no run": ["report", f"{FOLDER}/nowhere"],
    "wrong sizes": ["analyze", "size", "recipe.yaml", "--sizes", "9"],
    "wrong budgets": ["analyze", "budget", "recipe.yaml", "--budgets", "0.3"],
    "unknown command": ["trian"],
    "unknown option": ["train", "recipe.yaml", "--an-option-that-there-is-not", "x" * 60],
}
HELP = {
    **{f"{name} --help": [name, "--help"] for name in COMMANDS},
    **{f"analyze {name} --help": ["analyze", name, "--help"] for name in ANALYSES},
    "--help": ["--help"],
}


def write_recipe(folder: Path) -> None:
    lines = ["model_name_or_path: tiny", "method: msft", "learning_rate: 3e-3", "seed: 1"]
    lines += ["train_batch_size: 16", "compute_budget: 1", "num_train_epochs: 1"]
    lines += ["evals_per_epoch: 2", "method_options: {max_stages: 2}", "datasets:"]
    for name, toy in NAMES.items():
        every = rows(toy, 16)
        every[0]["prompt"] = "a prompt of many words, " * 8 + every[0]["prompt"]
        for split, part in (("train", every[:8]), ("valid", every[8:12]), ("test", every[12:])):
            write_lines(folder / f"{name}.{split}.jsonl", part)
        metric = "nll" if name == "short" else "accuracy"
        lines.append(f"  - {{name: {name}, train: {name}.train.jsonl, metric: {metric},")
        lines.append(f"     validation: {name}.valid.jsonl, test: {name}.test.jsonl}}")
    (folder / "recipe.yaml").write_text("\n".join(lines) + "\n")
    (folder / FOLDER).mkdir(parents=True)
    for method in ("sft", "msft"):
        run = folder / COMPARED / f"{method}-s20"
        run.mkdir(parents=True)
        learners = {name: Learner(limit=0.5, rows=16) for name in NAMES}
        simulate(method, learners, folder=run, num_train_epochs=2, score_test="best")


def called(arguments: list[str]) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, said.getvalue()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, str]]]:
    """What every command printed, in order, in one folder."""
    folder = tmp_path_factory.mktemp("screen")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "80")
        write_recipe(folder)
        yield {name: called(each) for name, each in (DONE | WRONG | HELP).items()}


def too_wide(text: str, width: int = 80) -> list[str]:
    """Lines that do not fit, and are more than a path."""
    return [line for line in text.splitlines() if columns_of(line) > width and " " in line.strip()]


@pytest.mark.parametrize("name", [*DONE, *WRONG, *HELP])
def test_no_line_is_wider_than_the_screen(name: str, printed: dict[str, tuple[int, str]]) -> None:
    code, said = printed[name]
    assert code == (2 if name in WRONG else 0), said
    assert said
    assert too_wide(said) == []


def test_every_command_is_tried() -> None:
    tried = {arguments[0] for arguments in DONE.values()}
    elsewhere = {
        "audit": "tests/app/test_audit_command.py",
        "demo": "tests/app/test_demo.py",
        "merge": "tests/app/test_adapter_runs.py",
    }
    assert {*COMMANDS} - tried == {*elsewhere}


def test_the_table_of_an_analysis_that_trains_fits_too() -> None:
    first, *_ = NAMES
    table: list[tuple[str, ...]] = [("sub-dataset", f"without {first}", "change")]
    table += [(name, "0.5", "+0.25") for name in NAMES]
    said = Analysis("divergence", {}, table, [], [], "test").text(80)
    assert too_wide(said) == []
    assert said.count("+0.25") == len(NAMES)


def test_sentences_for_programs_are_not_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    _, said = called(["train", f"{FOLDER}/gone.yaml"])
    assert len(said.splitlines()) == 1
    assert len(said) > 81


def test_json_is_the_same_on_a_narrow_screen(printed: dict[str, tuple[int, str]]) -> None:
    for columns in ("80", "40"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", columns)
            code, said = called(["validate", "recipe.yaml", "--json", "--show", "1"])
        assert code == 0
        assert list(json.loads(said)["datasets"]) == list(NAMES)


def test_the_result_has_the_metrics_where_they_differ(
    printed: dict[str, tuple[int, str]],
) -> None:
    said = printed["train"][1]
    result = said[said.index("sub-dataset ") :].splitlines()
    assert result[0].split() == ["sub-dataset", "validation", "test", "metric"]
    assert [line.split()[-1] for line in result[1:4]] == ["accuracy", "accuracy", "nll"]
    assert result[4].startswith("mean gain over base ")
    assert "of nll, lower is better" in said


def test_a_path_of_the_result_can_be_copied(printed: dict[str, tuple[int, str]]) -> None:
    assert f"\nmodel\n{OUT}/best\nreport\n{OUT}/report.html\n" in printed["train"][1]


def test_rows_are_shown_whole(printed: dict[str, tuple[int, str]]) -> None:
    """What of a line does not fit is marked, and nothing of it is missing."""
    said = printed["validate"][1]
    first, *rest = said[said.index("  a prompt of many words") :].splitlines()
    whole = first + "".join(line.removeprefix("… ") for line in rest[:2])
    assert whole.startswith("  " + "a prompt of many words, " * 8 + "upper ")
    assert [line[:2] for line in rest[:2]] == ["… ", "… "]


def test_long_labels_are_cut_until_a_table_has_room() -> None:
    kinds = ["abbreviation", "description", "entity", "human", "location", "number"]
    assert balance(kinds[2:4] * 3) == "entity 50 human 50"
    assert balance(kinds) == "abbr 17 desc 17 enti 17 huma 17 loca 17 numb 17"
    assert balance([str(number) for number in range(9)]) == "free"


# The first word.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "gone.yaml"], "msft train: reading recipe and data; "),
        (["validate", "gone.yaml"], "msft validate: reading recipe and data"),
        (["report", "gone"], "msft report: reading the logs"),
        (["train", "gone.yaml", "--quiet"], "msft: "),
        (["train", "gone.yaml", "--json"], "msft: "),
    ],
)
def test_on_a_terminal_the_first_word_comes_before_anything_is_read(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(arguments) == 2
    assert stream.getvalue().startswith(said)


@pytest.mark.parametrize(
    ("terminal", "more", "is_shown"),
    [(True, [], True), (True, ["--json"], False), (False, [], False)],
)
def test_encoding_many_rows_has_a_line_of_its_own(
    terminal: bool,
    more: list[str],
    is_shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_recipe(tmp_path)
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("msft.app.terminal.screen.BETWEEN", 0.0)
    monkeypatch.setattr("msft.data.encoding.PART_ROWS", 2)
    assert main(["validate", str(tmp_path / "recipe.yaml"), *more]) == 0
    lines = [each.rstrip() for each in stream.getvalue().split("\r")]
    assert ("encoding short, train: 2 of 8 rows" in lines) == is_shown
    assert all(len(line) < 80 for line in lines[1:])
    if is_shown:
        *_, cleared, rest = stream.getvalue().split("\r")
        assert not cleared.strip(), "nothing of it stays"
        assert not rest


def test_a_progress_line_is_written_over_a_few_times_a_second() -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    line("")
    assert stream.getvalue() == "", "there is nothing to clear"
    for text in ("first and long", "at once", ""):
        line(text)
    line("next")
    assert stream.getvalue() == f"\rfirst and long\r{' ' * 14}\r\rnext"


def test_a_program_that_reads_stderr_finds_the_error_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "gone.yaml"]) == 2
    assert capsys.readouterr().err.startswith("msft: ")
