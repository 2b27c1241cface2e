"""Runs with `ema_decay`: killed and resumed, what the log records, and what stays as it was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toys import recipe_of, write_data

import msft
from msft.errors import RecipeError
from msft.report import write_report
from msft.run.folder import RunFolder
from msft.run.log import to_json
from msft.training import training_keys

pytestmark = pytest.mark.usefixtures("no_reports")

HERE = Path(__file__).parent
ROLLING = {"learning_rate": 2e-2, "ema_decay": 0.8, "compute_budget": 2}
"""Under mSFT sub-datasets leave at ticks in the middle of roll-outs."""


RUNS: list[dict[str, Any]] = [
    {"method": "sft", "ema_decay": 0.9, "engine": "simple", "num_train_epochs": 1},
    {"method": "msft", **ROLLING, "method_options": {"max_stages": 3}},
    {
        "method": "msft",
        **ROLLING,
        "method_options": {"on_rollback": "restore", "max_stages": 3},
    },
]


@pytest.mark.usefixtures("warm")
def test_killed_at_any_moment_a_run_resumes_to_the_same_log_and_weights(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "kill_and_resume.py"), str(tmp_path)]
    small = {"rows": 24, "train_batch_size": 8}  # as many steps as with twice the rows
    command += [json.dumps({**keys, **small}) for keys in RUNS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    restored = tmp_path / str(len(RUNS) - 1) / "alone" / "run.jsonl"
    events = map(json.loads, restored.read_text().splitlines())
    back = [e["checkpoint"] for e in events if e["event"] == "decision" and e["what"] == "exclude"]
    assert any(not checkpoint.endswith("t4") for checkpoint in back), "no roll-back within"


def test_a_tiny_decay_scores_as_none_and_only_a_decay_is_recorded(tmp_path: Path) -> None:
    write_data(tmp_path)
    events, recipes = [], []
    for decay in (None, 1e-9):
        recipes.append(recipe_of(tmp_path, method="sft", ema_decay=decay, num_train_epochs=1))
        out = tmp_path / str(decay)
        msft.train(recipes[-1], out)
        events.append([to_json(event) for event in RunFolder(out).events()])
    plain, averaged = events
    assert "ema_decay" not in plain[0]["settings"]
    assert averaged[0]["settings"] == {**plain[0]["settings"], "ema_decay": 1e-9}
    assert plain[0]["fingerprint"]["training"] != averaged[0]["fingerprint"]["training"]
    for one, other in zip(plain[1:], averaged[1:], strict=True):
        assert {**one, "disk": None} == {**other, "disk": None}
    page = write_report(tmp_path / "1e-09").read_text()
    assert "\nema_decay: 1.0e-09\n" in page  # in the recipe
    assert "<td>ema_decay</td>" not in page
    assert [key for key, _ in training_keys(recipes[0])] == [
        *("learning_rate", "lr_scheduler_type", "train_batch_size", "weight_decay"),
        *("max_grad_norm", "warmup_steps", "bf16", "optim"),
    ], "as it was before the key, so that older folders go on"
    assert training_keys(recipes[1])[-1] == ("ema_decay", 1e-9)
    with pytest.raises(RecipeError, match=r"ema_decay was None, now it is 1e-09"):
        msft.train(recipes[1], tmp_path / "None")
