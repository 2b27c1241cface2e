"""Run `msft init --from` over every config of Axolotl, LLaMA-Factory or TRL in folders.

python bench/import_public.py OUT FOLDER...

Each FOLDER is a checkout of a repository. The recipes and what was said about each config are
written to OUT, and the counts of docs/results/cpu.md are printed for each folder.
"""

import contextlib
import io
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msft.cli import main

_MODEL = {"base_model", "model_name_or_path", "model", "rlhf_type"}
_TRAINED = {"dataset", "datasets", "dataset_name", "dataset_mixture", "train_dataset", "stage"}
_TRAINED |= {"pretraining_dataset", "eval_dataset", "learning_rate", "finetuning_type", "template"}
_REFUSED = {
    "for images": "images",
    "asks for": "another trainer",
    "pairs of answers": "another trainer",
    "ms-swift": "another tool",
    "trains nothing": "trains nothing",
}


def configs(folder: Path) -> Iterator[Path]:
    """Files with the keys of a model and of a training; those of other formats are left out."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".yml", ".yaml", ".json") and file.stat().st_size < 200_000:
            keys = {*re.findall(r'^[ {]*"?(\w+)"?:', file.read_text(errors="replace"), re.M)}
            if keys & _MODEL and keys & _TRAINED and "/." not in str(file):
                yield file


def outcome(file: Path, recipe: Path) -> tuple[str, str]:
    """What became of a config, and what was said."""
    recipe.unlink(missing_ok=True)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(["init", "--from", str(file), str(recipe)])
    except BaseException:
        return "traceback", traceback.format_exc()
    text = said.getvalue()
    if code:
        words = " ".join(text.split())
        return next((kind for part, kind in _REFUSED.items() if part in words), "not read"), text
    if "theirs counts packed sequences" in " ".join(text.split()):
        return "told: packed batch", text
    return "told" if "# Not as in their run" in recipe.read_text() else "carried over", text


if __name__ == "__main__":
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for folder in [Path(each).resolve() for each in sys.argv[2:]]:
        os.chdir(folder)
        counts: Counter[str] = Counter()
        for file in configs(Path()):
            name = f"{folder.name}__{str(file).replace('/', '__')}"
            kind, text = outcome(file, out / f"{name}.recipe.yaml")
            (out / f"{name}.said").write_text(f"{kind}\n{text}")
            counts[kind] += 1
        print(folder.name, sum(counts.values()), dict(counts), sep=" | ", flush=True)
