"""Without `engine/accel/` the engine works, and on a CPU no number changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import write_data

from rooms import files, imports_of

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
SEAM = "engine/kernels.py"


FOLDERS = [str(each) for each in (HERE, HERE.parent, TESTS / "app")]
"""Folders of tests that a process of its own must know."""


def run(folder: Path, code: str, *arguments: str) -> str:
    """What Python prints that carries out this code."""
    script = folder / "without_accel.py"
    script.write_text(f"import sys\nsys.path[:0] = {FOLDERS}\n{code}\n")
    done = subprocess.run(
        [sys.executable, str(script), *arguments], cwd=TESTS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_only_the_seam_imports_it() -> None:
    room = "msft.engine.accel"
    outside = [name for name in files() if not name.startswith("engine/accel/")]
    imports = [each for name in outside for each in imports_of(name)]
    known = [each for each in imports if f"{each.module}.".startswith(f"{room}.")]
    assert {each.file for each in known} == {SEAM}
    assert all(each.lazy for each in known), "within functions that have another way"


@pytest.mark.usefixtures("warm", "no_reports")
def test_losses_texts_and_a_whole_run_are_the_same_bytes(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {}
    for name, block in (("with", ""), ("without", "import no_accel\n")):
        folder = tmp_path / name
        folder.mkdir()
        write_data(folder)
        code = f"{block}import few_steps\nfew_steps.main(sys.argv[1])"
        numbers[name] = json.loads(run(folder, code, str(folder)))
    assert numbers["with"].pop("varlen") == ""
    assert numbers["without"].pop("varlen") == "msft.engine.accel is not there"
    assert numbers["with"] == numbers["without"]
    assert numbers["with"]["paths"] == {
        "attention": "sdpa",
        "steps": "eager",
        "layers": "plain",
        "optimizer": "torch",
        "decoding": "plain",
        "reason": "no CUDA device",
    }
    for file in ("run.jsonl", "verdicts.jsonl", "best/model.safetensors"):
        ours, theirs = (tmp_path / name / "run" / file for name in numbers)
        assert ours.read_bytes() == theirs.read_bytes(), file


@pytest.mark.usefixtures("warm")
def test_the_tests_of_the_engine_pass(tmp_path: Path) -> None:
    parts = [str(TESTS / "engine" / name) for name in ("test_packing.py", "train/test_engine.py")]
    others = ("qwen", "olmo", "mistral", "gemma", "mixtral", "gpt2")  # Llama says as much
    options = ["-q", "-p", "no_accel", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are imported already
    chosen = " and ".join(f"not {name}" for name in others)
    code = "import pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    run(tmp_path, code, *options, "-k", chosen, *parts)
