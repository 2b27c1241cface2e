"""Metrics and methods of the user's own that do not work: said with their place."""

from pathlib import Path

import pytest
from program import run, toy_recipe

pytestmark = pytest.mark.usefixtures("no_reports")

MODULES = {
    "syntax": ("x = 1\ndef f(:\n", "syntax.py, line 2: "),
    "imports": ("import nothing_like_this\n", "No module named 'nothing_like_this'"),
    "raises": ("\nraise RuntimeError('boo')\n", "RuntimeError: boo (raises.py, line 2)"),
    "exits": ("import sys\nsys.exit(0)\n", "it calls sys.exit(0) when it is imported"),
    "number": ("f = 3\n", "f is int, not a function"),
    "empty": ("", "module 'empty' has no attribute 'f'"),
}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("what", ["metric", "method"])
def test_code_that_cannot_be_imported_is_refused_with_its_place(
    what: str, module: str, tmp_path: Path
) -> None:
    code, said = MODULES[module]
    (tmp_path / f"{module}.py").write_text(code)
    recipe = toy_recipe(tmp_path)
    if what == "metric":
        recipe.write_text(recipe.read_text().replace("accuracy", f"{module}:f"))
    more = ["--set", f"method={module}:f"] if what == "method" else []
    ended = run("train", recipe, "--out", "out", *more, cwd=tmp_path)
    assert ended.code == 2, ended.err
    assert f"{what} '{module}:f' cannot be imported: " in ended.err
    assert said in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["metric", "method"])
def test_sys_exit_in_a_call_is_an_error(what: str, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\ndef f(*given):\n    sys.exit(0)\n")
    recipe = toy_recipe(tmp_path)
    if what == "metric":
        recipe.write_text(recipe.read_text().replace("accuracy", "leaves:f"))
    more = ["--set", "method=leaves:f"] if what == "method" else []
    ended = run("train", recipe, "--out", "out", *more, cwd=tmp_path)
    assert ended.code == 1, ended.err
    assert "SystemExit(0)" in ended.err if what == "metric" else "sys.exit(0)" in ended.err
