"""What pages tell people to type: commands are read by the parser, recipes load, programs compile,
and the two walk-throughs and the script for spot machines run as they stand, but shorter."""

import ast
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys import read_lines, recipe_of, write_data

from msft.cli import COMMANDS, build_parser, main
from msft.data.exclusions import row_sha256
from msft.example import Example
from msft.recipe.dataset import DatasetSpec
from msft.recipe.recipe import load_recipe, recipe_keys
from msft.search.methods import METHODS
from test_docs import FOR_PROGRAMS, PAGES
from test_paper_page import unlike

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(msft [^`]+)`")
BREAKS = {"&&", "|", ">", "<", ";", "&", "||"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROSE = [page for page in PAGES if page != FOR_PROGRAMS]


def by_path(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    found = FENCED.findall(page.read_text())
    return [textwrap.dedent(text) for language, text in found if language in languages]


def lines_of(page: Path) -> Iterator[str]:
    """Lines of shell on a page, each whole."""
    for block in blocks(page, "", "sh", "bash"):
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()


def parts_of(line: str) -> Iterator[list[str]]:
    """The commands of a line, word by word."""
    try:
        words = shlex.split(line.removeprefix("$ "), comments=True)
    except ValueError:  # a line of output, with a quote
        return
    part: list[str] = []
    for word in [*words, "&&"]:
        if word in BREAKS:
            yield part
            part = []
        else:
            part.append(word)


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words after `msft` of each command in a block."""
    for part in (part for line in lines_of(page) for part in parts_of(line)):
        if part[:1] == ["msft"] and len(part) > 1:
            yield part[1:]
        for start in range(len(part) - 2):
            if part[start : start + 2] == ["-m", "msft"]:
                yield part[start + 2 :]


def walked(page: Path) -> list[str]:
    """The commands of a page's blocks as they are typed."""
    found = (line for line in lines_of(page) if line.startswith("msft "))
    return [line.split("  #")[0].strip() for line in found]


def test_pages_have_commands() -> None:
    """So that the tests below do not pass for want of anything to test."""
    assert sum(1 for page in PROSE for _ in commands_of(page)) > 60
    assert sum(len(blocks(page, "yaml")) for page in PROSE) > 8
    assert sum(len(blocks(page, "python", "py")) for page in PROSE) > 15


@pytest.mark.parametrize("page", PROSE, ids=by_path)
def test_every_command_is_one(page: Path) -> None:
    parser = build_parser()
    for words in commands_of(page):
        options = parser.parse_args(words)
        for pair in getattr(options, "overrides", None) or ():
            key = str(pair).partition("=")[0].split(".")[0]
            assert key in recipe_keys(), words
        for name in re.findall(r"(?:^|,)([\w]+)", re.sub(r"\[[^]]*\]", "", said(options))):
            assert name in METHODS, words


def said(options: Any) -> str:
    """The methods that a command names."""
    names = getattr(options, "methods", None) or ""
    return names if isinstance(names, str) else ",".join(names)


@pytest.mark.parametrize("page", PROSE, ids=by_path)
def test_every_command_in_a_sentence_has_its_name_and_flags(page: Path) -> None:
    (commands,) = (each for each in build_parser()._actions if each.dest == "command")
    for text in INLINE.findall(FENCED.sub("", page.read_text())):
        name, *words = text.split()[1:]
        if name.isupper() or name == "…" or name.startswith("-"):
            continue
        assert name in COMMANDS, text
        parser: Any = commands.choices[name]  # type: ignore[index]
        known = {flag for each in parser._actions for flag in each.option_strings}
        for nested in (each.choices for each in parser._actions if isinstance(each.choices, dict)):
            known |= {f for p in nested.values() for a in p._actions for f in a.option_strings}
        flags = [word.strip("[]").split("=")[0] for word in words if word.startswith(("--", "[--"))]
        assert [flag for flag in flags if flag not in known] == [], text


@pytest.mark.parametrize("page", PROSE, ids=by_path)
def test_every_target_of_make_is_one(page: Path) -> None:
    named = [part[1] for line in lines_of(page) for part in parts_of(line) if part[:1] == ["make"]]
    assert [target for target in named if target not in TARGETS and "/" not in target] == []


@pytest.mark.parametrize("page", PROSE, ids=by_path)
def test_every_recipe_on_a_page_loads(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "yaml")):
        given = yaml.safe_load(block)
        rows = [{"name": "a", "train": "a.jsonl", "validation_fraction": 0.1}]
        whole = {"model_name_or_path": "tiny", "datasets": rows, **given}
        for spec in whole["datasets"]:  # as much of a sub-dataset as the page shows
            if not {"validation", "validation_fraction", "benchmark", "path"} & spec.keys():
                spec["validation_fraction"] = 0.1
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(whole))
        load_recipe(tmp_path / f"{number}.yaml")


@pytest.mark.parametrize("page", PROSE, ids=by_path)
def test_every_program_on_a_page_compiles(page: Path) -> None:
    for block in blocks(page, "python", "py"):
        ast.parse(block)


def test_the_page_for_programs_has_every_key_and_who_speaks_json() -> None:
    page = FOR_PROGRAMS.read_text()
    _, recipe, rest = re.split(r"## Keys of a (?:recipe|sub-dataset).*\n", page)
    assert sorted(recipe.split()) == sorted(recipe_keys())
    assert sorted(rest.split("##")[0].split()) == sorted(f.name for f in fields(DatasetSpec))
    (commands,) = (each for each in build_parser()._actions if each.dest == "command")
    choices: dict[str, Any] = dict(commands.choices or {})
    speak = {name for name, each in choices.items() if "--json" in each.format_help()}
    (line,) = (line for line in page.split("\n\n") if "take --json" in line)
    assert set(re.findall(r"\w+", line.split(" take --json")[0])) - {"and"} == speak | {"analyze"}


def test_the_hash_of_a_row_is_that_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs" / "exclude-rows.md"
    first, second = blocks(page, "python")
    exec(first, {})  # noqa: S102
    (line,) = blocks(page, "json")
    assert capsys.readouterr().out.strip() == json.loads(line)["sha256"]
    exec(second, {})  # noqa: S102
    assert re.fullmatch(r"[0-9a-f]{64}\n", capsys.readouterr().out)


SHORTER = {
    "plan": ["--no-calibration"],
    "train": ["--quiet", "--set", "num_train_epochs=1"],
    "audit": ["--quiet", "--set", "num_train_epochs=1", "--rounds", "1"],
    "chat": ["--max-new-tokens", "4", "--prompt", "Who?"],
}


def run(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a command prints; trainings are shorter than the page's."""
    name, *words = shlex.split(line)[1:]
    capsys.readouterr()
    assert main([name, *SHORTER.get(name, []), *words]) == 0, line
    return [each for each in capsys.readouterr().out.splitlines() if each.strip()]


def shown_after(page: Path, command: str) -> list[str]:
    """The block of output that follows the block of a command."""
    found = blocks(page, "")
    place = next(n for n, block in enumerate(found) if block.startswith(command))
    return [line for line in found[place + 1].splitlines() if line.strip()]


def test_the_tutorial_can_be_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "tutorial.md"
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(page, "python")
    exec(program, {})  # noqa: S102
    run("msft init", capsys)
    edited = yaml.safe_load(blocks(page, "yaml")[0])
    recipe = yaml.safe_load(Path("recipe.yaml").read_text()) | edited
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    commands = walked(page)
    skipped = ("init", "compare")  # comparisons have tests of their own
    asked = [each for each in commands if each.split()[1] not in skipped]
    asked = [each for each in asked if "example" not in each and "search" not in each]
    assert [each.split()[1] for each in asked] == [
        *("validate", "plan", "train", "chat", "eval", "audit"),
    ]
    for command in asked:
        printed = run(command, capsys)
        if command.startswith("msft validate"):
            assert unlike(shown_after(page, command), printed) is None
        if command.startswith("msft plan"):
            assert any(line.startswith("→ sft") for line in printed)
    assert Path("audit/clean.yaml").exists()


def test_the_walk_with_a_chat_model_can_be_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "chat.md"
    monkeypatch.chdir(tmp_path)
    exec(blocks(page, "python")[0], {})  # noqa: S102
    Path("chat.yaml").write_text(blocks(page, "yaml")[0])
    for command in walked(page):
        printed = run(command, capsys)
        if command.startswith("msft validate"):
            assert unlike(shown_after(page, command), printed) is None
        if command.startswith("msft chat"):
            assert any(line.startswith("result") for line in printed)


WALKED = ("docs/chat.md", "docs/paper.md")
"""All of their commands run in tests of their own."""
NEEDS_MORE = ("Qwen/", "smollm2-135m", "--devices 0")
"""In commands that need a model of the hub, or GPUs."""


def test_every_other_command_of_a_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder with a small recipe, a config of Axolotl, a file of suspects and a few runs."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, train=16, held_out=8)
    (row, *_) = read_lines(tmp_path / "upper.train.jsonl")
    suspect = {"dataset": "upper", "sha256": row_sha256(Example(**row))}
    Path("suspects.jsonl").write_text(json.dumps(suspect))
    axolotl = {"base_model": "tiny", "datasets": [{"path": "upper.train.jsonl", "type": "alpaca"}]}
    Path("axolotl.yml").write_text(yaml.safe_dump({**axolotl, "micro_batch_size": 4}))
    recipe = recipe_of(tmp_path, method="sft", num_train_epochs=1, evals_per_epoch=6).to_yaml()
    Path("RECIPE").write_text(recipe)
    Path("recipe.yaml").write_text(recipe)
    run("msft train recipe.yaml --out run --set seed=20", capsys)
    for copy in ("RUN", "A", "B", "C", "DIR/sft-s20", "runs/sft-s20"):
        shutil.copytree("run", copy)
    run("msft train recipe.yaml --out runs/example --set use_peft=true", capsys)
    lines = {
        shlex.join(words)
        for page in PROSE
        if by_path(page) not in WALKED
        for words in commands_of(page)
    }
    tried = sorted(line for line in lines if not any(each in line for each in NEEDS_MORE))
    for line in tried:
        if out := re.search(r"^train .*--out (\S+)", line):  # another recipe may have been there
            shutil.rmtree(out[1], ignore_errors=True)
        if line.startswith("init"):
            Path("recipe.yaml").unlink()
        run(f"msft {untrained(line)}", capsys)
        Path("recipe.yaml").write_text(recipe)
    assert len(lines) - len(tried) == 3
    assert len(tried) > 25


def untrained(line: str) -> str:
    """A comparison without its trainings, which have tests of their own."""
    if not line.startswith("compare") or "--list" in line or "--no-run" in line:
        return line
    return line + (" --no-run" if "--figures" in line else " --list")


SPOT = ROOT / "examples" / "skypilot.yaml"

RSYNC = f"""#!{sys.executable}
import shutil, sys
from pathlib import Path
*flags, source, target = sys.argv[1:]
source, target = Path(source), Path(target)
if "--delete" in flags:
    for each in sorted(target.rglob("*"), reverse=True):
        if not (source / each.relative_to(target)).exists():
            each.rmdir() if each.is_dir() else each.unlink()
for each in source.rglob("*"):
    into = target / each.relative_to(source)
    into.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not each.is_dir():
            shutil.copy2(each, into)
    except FileNotFoundError:  # it left while we looked
        pass
"""


def test_a_spot_machine_that_is_taken_away_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    """The script of examples/skypilot.yaml: killed after a copy of the run folder was made, and
    started again in an empty folder, it leaves the bytes of a run that nobody killed."""
    project, programs = tmp_path / "project", tmp_path / "bin"
    programs.mkdir()
    project.mkdir()
    for name, text in {
        "msft": f'#!/bin/sh\nexec {sys.executable} -m msft "$@"\n',
        "rsync": RSYNC,
    }.items():
        if name == "msft" or shutil.which(name) is None:
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
    rows = [{"prompt": f"{n} is", "completion": " odd" if n % 2 else " even"} for n in range(96)]
    (project / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (project / "recipe.yaml").write_text(
        "model_name_or_path: tiny\nmethod: sft\nlearning_rate: 3e-3\ntrain_batch_size: 8\n"
        "num_train_epochs: 6\nevals_per_epoch: 1\n"
        "datasets: [{name: a, train: rows.jsonl, validation_fraction: 0.25}]\n"
    )
    script = yaml.safe_load(SPOT.read_text())["run"].replace("/project", str(project))
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "EVERY": "0.1",
        "OMP_NUM_THREADS": "1",
    }

    def started(folder: Path) -> "subprocess.Popen[bytes]":
        folder.mkdir()
        command = ["bash", "-c", script]
        return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)

    first = started(tmp_path / "first")
    copied = project / "run" / "run.jsonl"
    deadline = time.monotonic() + 120
    while not (copied.exists() and '"point"' in copied.read_text()):
        assert first.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert '"event":"end"' not in copied.read_text()
    second = started(tmp_path / "second")
    assert second.wait(timeout=180) == 0
    assert ended(second.pid), "the copies end with the run"
    with_nobody = tmp_path / "alone"
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(project / "recipe.yaml"), "--out", str(with_nobody), "--quiet"]) == 0
    weights = [
        hashlib.sha256((folder / "best" / "model.safetensors").read_bytes()).hexdigest()
        for folder in (with_nobody, project / "run")
    ]
    assert weights[0] == weights[1]
    assert decided(with_nobody) == decided(project / "run")
    (project / "recipe.yaml").write_text("method: sfft\n")
    assert started(tmp_path / "third").wait(timeout=180) == 2, "a failure is no success"


def ended(session: int) -> bool:
    """Whether all processes of a session end soon."""
    for _ in range(200):
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    os.killpg(session, signal.SIGKILL)
    return False


def decided(folder: Path) -> list[dict[str, Any]]:
    """The log without what follows the memory that was free."""
    lines = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("disk", "crc")} for line in lines]


def test_the_task_for_dstack_trains_a_recipe_on_its_volume() -> None:
    task = yaml.safe_load((ROOT / "examples" / "spot.dstack.yml").read_text())
    (command,) = (each for each in task["commands"] if each.startswith("msft "))
    options = build_parser().parse_args(shlex.split(command)[1:])
    (volume,) = task["volumes"]
    assert (options.command, Path(options.out).parent) == ("train", Path(volume["path"]))
    assert "interruption" in task["retry"]["on_events"]


def test_the_notebook_has_its_outputs() -> None:
    cells = json.loads((ROOT / "examples" / "first_run.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] and cell["execution_count"] for cell in code)
    assert "msft.Result" in json.dumps(code)
