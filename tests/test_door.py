"""The door: what `import msft` gives, and how a command ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import msft
from msft.app import commands
from msft.cli import COMMANDS, main
from msft.errors import DONE, FAILED, NO_ROOM, WRONG


def test_the_door_lists_what_it_gives_and_loads_no_torch() -> None:
    code = "import sys, msft; print(*dir(msft)); msft.Recipe; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    names = [name for name in done.stdout.split() if not name.startswith("_")]
    assert names == [
        *("Recipe", "Result", "audit", "compare", "evaluate", "load_recipe", "merge", "plan"),
        *("train", "validate", "write_report"),
    ]


def test_no_module_hides_a_public_name(warm: str, tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, msft
for found in pkgutil.walk_packages(msft.__path__, "msft."):
    if "triton" not in found.name and "kernel" not in found.name and "short_rows" not in found.name:
        importlib.import_module(found.name)
print(*(name for name in msft.__all__ if callable(getattr(msft, name))))
"""
    (tmp_path / "names.py").write_text(code)
    done = subprocess.run([warm, str(tmp_path / "names.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} == {*msft.__all__} - {"__version__"}


def test_what_it_does_not_have_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'msft' has no attribute 'trian'"):
        _ = msft.trian


def test_a_recipe_from_python_takes_dicts() -> None:
    rows = [{"prompt": "1 + 1 =", "completion": " 2"}]
    recipe = msft.Recipe(
        model_name_or_path="tiny",
        datasets=[{"name": "a", "train": rows, "validation_fraction": 0.5}],
    )
    assert [spec.name for spec in recipe.datasets] == ["a"]
    with pytest.raises(TypeError, match="datasets"):
        msft.Recipe(model_name_or_path="tiny")  # type: ignore[call-arg]


def test_every_command_has_a_function() -> None:
    others = {"eval": "evaluate"}
    assert all(callable(getattr(commands, others.get(name, name))) for name in COMMANDS)


OWN = """
from msft.errors import LogError, NoRoom

class UsageError(Exception):
    pass

class Method:
    def __call__(self, run):
        pass

    @property
    def __signature__(self):
        raise {error}

f = Method()
"""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("UsageError('of another tool')", FAILED, "msft: of another tool\n(a traceback comes with"),
        ("NotImplementedError", FAILED, "msft: NotImplementedError\n(a traceback comes with"),
        ("NoRoom('too large')", NO_ROOM, "msft: too large\n"),
        ("LogError('torn')", FAILED, "msft: torn\n"),
        ("BrokenPipeError", DONE, ""),
    ],
)
def test_the_exit_code_is_the_errors_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: str,
    code: int,
    said: str,
) -> None:
    """Raised where a method of the user's own is looked at, by which the recipe is not told."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    Path("own.py").write_text(OWN.format(error=error))
    Path("recipe.yaml").write_text(
        "model_name_or_path: tiny\nmethod: own:f\ndatasets: [{name: a, train: t, validation: v}]\n"
    )
    assert main(["validate", "recipe.yaml"]) == code
    printed = capsys.readouterr().err
    assert said in printed
    assert ("--debug" in printed) == ("traceback" in said)


LATE = """
import atexit, os, sys
import msft.__main__ as program

class Held:
    def __del__(self, abort=os.abort):
        abort()

held = Held()
atexit.register(lambda: print("left", end=""))
program.carry_out = lambda: 3
sys.exit(program.main())
"""


def test_one_of_several_processes_ends_before_what_it_holds_can_abort_it() -> None:
    """Something is held until Python takes itself down, as gloo's threads are by a mesh of FSDP2;
    what has asked to be told of the end is told."""
    launched = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost"}
    for more, code in ((launched, 3), ({}, -signal.SIGABRT)):
        done = subprocess.run(
            [sys.executable, "-c", LATE],
            env={**os.environ, **more},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (code, "left"), done.stderr


@pytest.mark.parametrize("error", ["ImportError('absent')", "RuntimeError('absent')"])
def test_a_method_that_cannot_be_imported_is_a_wrong_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("unowned.py").write_text(f"raise {error}\n")
    Path("recipe.yaml").write_text(
        "model_name_or_path: tiny\nmethod: unowned:f\n"
        "datasets: [{name: a, train: t, validation: v}]\n"
    )
    assert main(["validate", "recipe.yaml"]) == WRONG
    printed = capsys.readouterr().err
    assert "recipe.yaml, line 2: method 'unowned:f' cannot be imported: " in printed
    assert "absent (unowned.py, line 1)" in printed
