"""A recipe in a folder, as a user has it."""

from pathlib import Path

import pytest
from toys import RULES, write_data


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, train=24, held_out=8)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model_name_or_path: tiny\nmethod: msft\nlearning_rate: 3e-3\ntrain_batch_size: 16\n"
        "compute_budget: 2\nnum_train_epochs: 2\nevals_per_epoch: 2\ndatasets:\n"
        + "".join(
            f"  - {{name: {n}, train: {n}.train.jsonl, validation: {n}.valid.jsonl}}\n"
            for n in RULES
        )
    )
    return path
