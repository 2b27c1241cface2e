"""A method of the user's own that does what no method may do: said before anything is trained."""

from pathlib import Path

import pytest
from toys import recipe_of, write_data

import msft
from msft.errors import WrongMethod

pytestmark = pytest.mark.usefixtures("no_reports")

METHOD = """
def wrong(run):
    rollout = run.rollout(run.base, run.mixture, 1)
    {then}
"""
WRONG = {
    "a result": ("return rollout.end", r"method {name} returned 'r0-t1'; expected nothing, or one"),
    "a misspelt end": ("return 'finished'", "method {name} returned 'finished'; expected nothing"),
    "a name that is not there": (
        "run.exclude(('vowels',), rollout.end, 1)",
        "method {name} excludes 'vowels', but there is no such sub-dataset; expected names of "
        "upper, first, vowel",
    ),
    "a name that is no list": (
        "run.exclude('upper', rollout.end, 1)",
        "method {name} excludes 'u', but there is no such sub-dataset",
    ),
    "only where all fall": (
        "return 'nowhere' if rollout.curve('upper')[-1] < rollout.curve('upper')[0] else None",
        "method {name} returned 'nowhere'",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_no_method_may_do_is_said_before_training(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then, said = WRONG[fault]
    module = f"own_{[*WRONG].index(fault)}"
    (tmp_path / f"{module}.py").write_text(METHOD.format(then=then))
    monkeypatch.syspath_prepend(tmp_path)
    write_data(tmp_path, train=16, held_out=4)
    recipe = recipe_of(tmp_path, method=f"{module}:wrong")
    with pytest.raises(WrongMethod, match=said.format(name=f"{module}:wrong")) as raised:
        msft.train(recipe, tmp_path / "run", quiet=True)
    assert raised.value.exit_code == 2
    assert not (tmp_path / "run").exists(), "nothing was started"


def test_a_method_that_stumbles_over_made_up_scores_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "assert run.seed and len(rollout.points) == 2 and max(rollout.curve('upper')) <= 1"
    (tmp_path / "own_right.py").write_text(METHOD.format(then=body))
    monkeypatch.syspath_prepend(tmp_path)
    write_data(tmp_path, train=16, held_out=4)
    result = msft.train(recipe_of(tmp_path, method="own_right:wrong"), tmp_path / "run", quiet=True)
    assert result.summary["ended_by"] == "budget"
