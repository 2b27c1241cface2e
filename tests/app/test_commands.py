"""The commands, as a user types them: what they print, write and return."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from toys import RULES, read_lines, write_data, write_lines

from msft.cli import COMMANDS, EXAMPLES, build_parser, main

pytestmark = pytest.mark.usefixtures("no_reports")

RECIPE = """\
model_name_or_path: tiny
method: {method}
learning_rate: 3e-3
train_batch_size: 16
compute_budget: 1
num_train_epochs: 2
evals_per_epoch: 2
datasets:
"""
DATASET = (
    "  - {{name: {0}, train: {0}.train.jsonl, validation: {0}.valid.jsonl, test: {0}.test.jsonl}}\n"
)


@pytest.fixture
def recipe(tmp_path: Path, warm: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(method="sft") + "".join(DATASET.format(name) for name in RULES))
    return path


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "msft", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def ended(*arguments: str, **options: Any) -> int:
    with started(*arguments, **options) as run:
        run.communicate()
    return run.returncode


def test_help_answers_at_once_and_without_torch() -> None:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "msft", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    after = os.times()
    spent = after.children_user - before.children_user
    spent += after.children_system - before.children_system
    assert spent < 1.5, "0.3 s of processor time on an idle machine"
    assert "torch" not in done.stderr
    for command in ["demo", "init", "validate", "plan", "train", "eval", "report", "replay", "env"]:
        assert f"    {command} " in done.stdout


def test_the_example_in_the_help_of_a_command_is_a_command_line() -> None:
    parser = build_parser()
    assert {*EXAMPLES} == {*COMMANDS} - {"demo", "env", "analyze"}
    for name, line in EXAMPLES.items():
        first, *words = shlex.split(line.partition(" && ")[0])
        assert (first, words[0]) == ("msft", name)
        assert parser.parse_args(words).command == name


def test_train_prints_its_way_and_leaves_a_folder(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(recipe), "--out", "out"]) == 0
    first = capsys.readouterr().out
    assert "stage 0: 2 epochs from the base model on upper, first, vowel" in first
    assert "r0-t4" in first
    assert "mean" in first
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["status"] == "finished"
    assert main(["train", str(recipe), "--out", "out"]) == 0
    again = capsys.readouterr().out
    assert "finished already" in again
    assert "stage 0" not in again
    assert main(["report", "out"]) == 0
    assert main(["replay", "out", str(recipe), "--out", "again", "--quiet"]) == 0
    assert json.loads(Path("again/summary.json").read_text())["method"] == "replay"
    assert main(["eval", "out/best", str(recipe), "--out", "s.json", "--answers", "a.jsonl"]) == 0
    scores = json.loads(Path("s.json").read_text())
    assert scores["datasets"] == summary["best"]["test"]["datasets"]
    assert scores["mean"] == pytest.approx(summary["best"]["test"]["mean"])
    answers = read_lines(Path("a.jsonl"))
    assert len(answers) == 3 * 16
    assert set(answers[0]) == {"dataset", "row", "prompt", "prediction", "reference", "score"}
    assert [answer["row"] for answer in answers] == [*range(16)] * 3


def test_every_key_can_be_set_on_the_command_line(recipe: Path) -> None:
    options = ["--set", "num_train_epochs=1", "--set", "evals_per_epoch=1", "--set", "seed=7"]
    assert main(["train", str(recipe), "--out", "out", "--quiet", *options]) == 0
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["seed"], summary["epochs_trained"]) == (7, 1.0)
    assert "seed: 7" in Path("out/recipe.yaml").read_text()


def test_a_changed_recipe_or_changed_data_is_refused(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(recipe), "--out", "out", "--quiet"]) == 0
    log = Path("out/run.jsonl").read_bytes()
    assert main(["train", str(recipe), "--out", "out", "--set", "learning_rate=1e-4"]) == 2
    assert "learning_rate" in capsys.readouterr().err
    with Path("upper.train.jsonl").open("a") as file:
        file.write('{"prompt": "upper zzzz:", "completion": " ZZZZ"}\n')
    assert main(["train", str(recipe), "--out", "out", "--quiet"]) == 2
    assert "changed" in capsys.readouterr().err
    assert Path("out/run.jsonl").read_bytes() == log


def test_validate_and_plan_say_what_is_there(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(recipe), "--show", "1"]) == 0
    out = capsys.readouterr().out
    assert "one epoch: 144 rows" in out
    assert out.count("⟦") == 3
    with pytest.raises(SystemExit, match="2"):
        main(["validate", str(recipe), "--show", "-1"])
    assert "'-1'; expected a whole number, 0 or more" in capsys.readouterr().err
    assert main(["validate", str(recipe), "--set", "train_batch_size=144"]) == 0
    out = capsys.readouterr().out
    assert " tokens, 1 step\n" in out
    assert "\nnote: an epoch has 1 step but 2 evaluations; " in out
    assert main(["plan", str(recipe)]) == 0
    out = capsys.readouterr().out
    assert "→" in out
    for method in ("continual", "dynamix", "ies", "soft_sro", "msft"):
        assert method in out


def test_a_decay_that_does_not_fit_is_noted_before_and_in_training(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(recipe), "--set", "ema_decay=0.99"]
    assert main(["validate", *words, "--json"]) == 0
    (note,) = (n for n in json.loads(capsys.readouterr().out)["notes"] if "ema_decay" in n)
    assert note.startswith("ema_decay 0.99: half of the average is as old as 69 steps")
    epochs = ["--set", "method=sft", "--set", "num_train_epochs=1"]
    assert main(["train", *words, *epochs, "--out", "out"]) == 0
    assert f"note: {note}" in " ".join(capsys.readouterr().err.split())


NO_TORCH = """
import sys
from msft.cli import main

assert main(["validate", *sys.argv[1:]]) == 0
assert "transformers" in sys.modules
assert "torch" not in sys.modules, "torch was imported"
"""


def test_validate_needs_no_torch(two_kinds: Path) -> None:
    """It takes seconds to import. (Of models other than `tiny`, transformers imports it itself.)"""
    alone = "import sys, transformers; transformers.PreTrainedTokenizerFast; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True).stdout
    if "torch" in loaded.split():
        pytest.skip("this version of transformers imports torch with every tokenizer")
    command = [sys.executable, "-c", NO_TORCH, str(two_kinds), "--data", "data"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "one epoch: 70 rows" in done.stdout


def benchmark_rows(count: int, start: int = 0) -> str:
    """Every fourth answer is B, the others are A."""
    rows = (
        {"question": f"Which is {n}?", "context": None, "choices": ["ax", "bee"]}
        | {"answer": int(n % 4 == 0)}
        for n in range(start, start + count)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def two_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe with a benchmark in the folder `data` and a sub-dataset of the user's own."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    folder = tmp_path / "data" / "openbookqa"
    folder.mkdir(parents=True)
    for number, split in enumerate(("train", "validation", "test")):
        (folder / f"{split}.jsonl").write_text(benchmark_rows(24, 100 * number))
    path = tmp_path / "recipe.yaml"
    path.write_text(
        RECIPE.format(method="sft")
        + "  - {name: book, benchmark: openbookqa, num_fewshot: 2, test_rows: 10}\n"
        + DATASET.format("upper")
    )
    return path


def test_validate_shows_the_balance_of_labels(
    two_kinds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = ["--set", "datasets.book.num_fewshot=0"]
    assert main(["validate", str(two_kinds), "--data", "data", *off]) == 0
    _, book, _, _, head, tokens, upper, *_ = capsys.readouterr().out.splitlines()
    assert book.split() == ["book", "openbookqa", "accuracy", "24", "24", "10", "0"]
    assert head.endswith("labels in %")
    assert tokens.endswith(" A 75 B 25")
    assert upper.endswith(" free")
    assert main(["validate", str(two_kinds), "--data", "data"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split()[3:7] == ["22", "24", "10", "2"], "two rows are exemplars"
    assert "shots: exemplars that stand before every scored row" in out


def test_answers_that_begin_alike_are_not_one_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "valid"):
        towns = ("Rome", "Oslo", "Bern")
        rows = [{"prompt": f"{name} {t}", "completion": f"The capital is {t}."} for t in towns]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    spec = "{name: a, train: train.jsonl, validation: valid.jsonl}"
    (tmp_path / "r.yaml").write_text(f"model_name_or_path: tiny\ndatasets: [{spec}]\n")
    assert main(["validate", str(tmp_path / "r.yaml")]) == 0
    out = capsys.readouterr().out
    assert " 100" not in out
    assert " free\n" in out


def test_a_data_folder_that_is_not_there_is_exit_2(
    two_kinds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(two_kinds), "--data", "nowhere"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert main(["validate", str(two_kinds), "--data", "."]) == 2
    assert "no folder openbookqa in it (found ['data'])" in capsys.readouterr().err


@pytest.mark.parametrize("style", ["letters", "text"])
def test_eval_writes_intervals_and_every_answer(
    two_kinds: Path, style: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "tiny", str(two_kinds), "--data", "data", "--set", f"prompt_style={style}"]
    assert main([*command, "--out", "new/s.json", "--answers", "new/a.jsonl"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == [
        "sub-dataset",
        "book",
        "upper",
        "[science]",
        "mean",
    ]
    scores = json.loads(Path("new/s.json").read_text())
    assert (scores["model"], scores["split"]) == ("tiny", "test")
    assert scores["rows"] == {"book": 10, "upper": 16}
    assert scores["tokens"] > 0
    answers = read_lines(Path("new/a.jsonl"))
    for name, rows in scores["rows"].items():
        verdicts = [line["score"] for line in answers if line["dataset"] == name]
        assert len(verdicts) == rows
        assert scores["datasets"][name] == sum(verdicts) / rows
        low, high = scores["intervals"][name]
        assert 0 <= low <= scores["datasets"][name] <= high <= 1
        assert high - low > 0.1
    low, high = scores["mean_interval"]
    assert 0 <= low <= scores["mean"] < high <= 1
    book = [line for line in answers if line["dataset"] == "book"]
    assert all(line["prompt"].count("Q: Which is") == 3 for line in book)
    assert all(line["prompt"].endswith("\nA:") for line in book)
    if style == "text":
        assert all(len(line["likelihoods"]) == 2 for line in book)
        for line in book:
            pick = line["likelihoods"].index(max(line["likelihoods"]))
            assert line["prediction"] == [" ax", " bee"][pick]
            assert line["score"] is (line["prediction"] == line["reference"])
    else:
        assert {line["reference"] for line in book} == {" #### A", " #### B"}
        assert all("likelihoods" not in line for line in book)


def test_eval_can_be_quiet(two_kinds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "tiny", str(two_kinds), "--data", "data"]
    more = ["--set", "datasets.book.test_rows=30"]
    assert main([*command, *more]) == 0
    loud = capsys.readouterr()
    assert "note: book: test: 24 rows, fewer than test_rows 30; all are used" in loud.err
    assert main([*command, *more, "--quiet"]) == 0
    assert capsys.readouterr() == (loud.out, "")


def test_eval_says_who_is_not_in_the_mean(
    two_kinds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    less = ["--set", "datasets.upper.test=null"]
    assert main(["eval", "tiny", str(two_kinds), "--data", "data", *less, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [*json.loads(out)["datasets"]] == ["book"]
    assert "note: upper: it has no test rows, so it is not scored and not in the mean" in err


def test_init_writes_a_recipe_that_is_valid_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from msft.recipe.recipe import load_recipe

    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    recipe = load_recipe("recipe.yaml")
    assert (recipe.method, recipe.ema_decay) == ("sft", 0.97), "it suits the steps of its rows"
    assert main(["init"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "missing.yaml"], "missing.yaml"),
        (["train", "recipe.yaml", "--set", "metod=sft"], "method"),
        (["train", "recipe.yaml", "--set", "method=msftt"], "msft"),
        (["train", "recipe.yaml", "--set", "model_name_or_path=nowhere.gguf"], "nowhere.gguf"),
        (["train", "recipe.yaml", "--set", "datasets.upper.train=gone.jsonl"], "gone.jsonl"),
        (["train", "recipe.yaml", "--set", "max_length=3"], "max_length"),
        (["validate", "recipe.yaml", "--set", "peaks.smooth=-1"], "smooth"),
        (["eval", "tiny", "recipe.yaml", "--set", "datasets.upper.metric=no.mod:f"], "no.mod"),
        (["report", "nowhere"], "nowhere"),
        (["replay", "recipe.yaml", "recipe.yaml"], "expected the schedule.json of a finished run"),
        (
            ["replay", ".", "recipe.yaml"],
            ". is a folder without schedule.json; expected the folder",
        ),
        (["replay", "gone.json", "recipe.yaml"], "No such file or directory; expected the"),
    ],
)
def test_wrong_input_is_exit_2_and_one_message_and_nothing_is_written(
    recipe: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(recipe.parent.iterdir())
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err
    assert sorted(recipe.parent.iterdir()) == before


def test_no_command_at_all_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


def test_no_room_on_disk_is_exit_3_and_nothing_is_started(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 100, 0))
    assert main(["train", str(recipe), "--out", "out"]) == 3
    said = capsys.readouterr().err
    assert "out has 0.0 MB free, but this run can need 13.1 MB" in said
    assert not Path("out").exists()


def test_a_signal_stops_it_with_4_and_the_command_that_resumes(recipe: Path) -> None:
    command = ["train", str(recipe), "--out", "out", "--set", "num_train_epochs=1000"]
    run = started(*command, cwd=recipe.parent)
    assert run.stdout is not None
    for line in run.stdout:
        if "r0-t2" in line:
            break
    with started(*command, cwd=recipe.parent) as second:
        _, refused = second.communicate()
    assert second.returncode == 1
    holder = Path("out/run.lock").read_text().strip()
    assert f"in use by {holder}" in refused
    os.kill(int(holder.split()[1]), signal.SIGTERM)
    _, said = run.communicate()
    assert run.returncode == 4
    assert "SIGTERM" in said
    assert "msft train" in said
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["status"] == "stopped"


def test_a_refused_call_leaves_a_finished_run_as_it_was(recipe: Path) -> None:
    own = Path("own.py")
    own.write_text("def m(run):\n    run.rollout(run.base, run.mixture, 2)\n")
    command = ["train", str(recipe), "--out", "out", "--quiet", "--set", "method=own:m"]
    assert ended(*command, cwd=recipe.parent) == 0
    before = Path("out/summary.json").read_bytes()
    own.write_text("def m(run):\n    run.rollout(run.base, run.mixture, 1)\n")
    assert ended(*command, cwd=recipe.parent) == 2
    assert Path("out/summary.json").read_bytes() == before


def test_the_clock_of_steps_survives_a_kill(recipe: Path) -> None:
    Path("own.py").write_text(
        "import os\n\ndef m(run):\n    run.rollout(run.base, run.mixture, 2)\n"
        "    if os.path.exists('out/steps.jsonl'):  # no rehearsal\n        os._exit(9)\n"
        "    return 'budget'\n"
    )
    command = ["train", str(recipe), "--out", "out", "--quiet", "--set", "method=own:m"]
    assert ended(*command, cwd=recipe.parent) == 9
    steps = read_lines(Path("out/steps.jsonl"))
    assert {step["tick"] for step in steps} == {1, 2}


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "recipe.yaml", "--out", "upper.test.jsonl"],
        ["train", "recipe.yaml", "--out", "upper.test.jsonl/sub"],
        ["demo", "--out", "upper.test.jsonl"],
        ["plan", "recipe.yaml", "--no-calibration", "--out", "upper.test.jsonl"],
        ["init", "nowhere/recipe.yaml"],
        ["eval", "tiny", "recipe.yaml", "--out", "upper.test.jsonl/x.json"],
    ],
)
def test_a_bad_place_for_output_is_found_before_any_work(
    recipe: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(recipe.parent.iterdir())
    assert main(arguments) == 2
    assert "Errno" not in capsys.readouterr().err
    assert sorted(recipe.parent.iterdir()) == before


def test_the_recipe_in_a_run_folder_can_be_used_from_anywhere(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["train", str(recipe), "--out", "out", "--quiet"]) == 0
    (recipe.parent / "elsewhere").mkdir()
    monkeypatch.chdir(recipe.parent / "elsewhere")
    assert main(["validate", "../out/recipe.yaml"]) == 0


def test_files_of_somebody_else_are_not_overwritten(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = [Path("trl/checkpoints/checkpoint-500/model.safetensors"), Path("trl/best/notes.txt")]
    for path in mine:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    assert main(["train", str(recipe), "--out", "trl", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "has no run.jsonl" in said
    assert "best, checkpoints" in said
    before = recipe.read_text()
    assert main(["train", str(recipe), "--out", ".", "--quiet"]) == 2
    assert recipe.read_text() == before
    assert all(path.read_text() == "mine" for path in mine)


def test_a_folder_beside_checkpoints_is_not_ours_to_remove(recipe: Path) -> None:
    command = ["train", str(recipe), "--out", "out", "--quiet"]
    assert main(command) == 0
    mine = Path("out/checkpoints/checkpoint-500")
    mine.mkdir()
    lines = Path("out/run.jsonl").read_text().splitlines(keepends=True)
    Path("out/run.jsonl").write_text("".join(lines[:-2]))
    assert main(command) == 0
    assert mine.is_dir()


def test_debug_adds_a_traceback_and_changes_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["validate", str(tmp_path / "none.yaml")]
    codes, said = [], []
    for more in ([], ["--debug"]):
        codes.append(main([*command, *more]))
        said.append(capsys.readouterr().err)
    assert codes == [2, 2]
    assert said[1].startswith("Traceback")
    assert said[1].endswith(said[0])
