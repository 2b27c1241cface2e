"""Small runs to damage: a recipe on the tiny model, and what such a run must leave behind."""

import hashlib
from pathlib import Path

from toys import RULES, write_data

from msft.run.folder import RunFolder
from msft.run.history import History
from msft.testing import promised_log, promised_summary

RECIPE = """\
model_name_or_path: {model}
method: {method}
learning_rate: 3e-3
train_batch_size: 16
compute_budget: 1
num_train_epochs: 1
evals_per_epoch: 2
seed: 1
datasets:
"""
DATASET = "  - {{name: {0}, train: {1}.train.jsonl, validation: {1}.valid.jsonl, metric: nll}}\n"


def write_recipe(folder: Path, method: str = "sft", model: str = "tiny") -> None:
    """`recipe.yaml` and its data, which it names by whole paths: a copy of it is the same."""
    write_data(folder, train=32, held_out=4)
    text = RECIPE.format(method=method, model=model)
    text += "".join(DATASET.format(name, folder / name) for name in RULES)
    (folder / "recipe.yaml").write_text(text)


def flip(path: Path, place: int = -1) -> None:
    """Change one bit of a file where it lies, so that every name it has shows the change."""
    with path.open("r+b") as file:
        content = bytearray(file.read())
        content[place] ^= 1
        file.seek(0)
        file.write(content)


def best_of(run: Path) -> str:
    """The best checkpoint so far."""
    return str(History(RunFolder(run).events()).best)


def weights_of(run: Path) -> Path:
    """The file of the best checkpoint's weights."""
    return run / "checkpoints" / f"{best_of(run)}.weights" / "model.safetensors"


def left_by(run: Path) -> dict[str, object]:
    """What a finished run leaves, for comparison with another one."""
    result = run / "best" / "model.safetensors"
    return {
        "log": promised_log(run / "run.jsonl"),
        "verdicts": (run / "verdicts.jsonl").read_bytes(),
        "summary": promised_summary(run / "summary.json"),
        "weights": hashlib.sha256(result.read_bytes()).hexdigest(),
    }
