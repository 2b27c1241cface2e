"""`msft init`: a recipe that runs as it stands, and the example rows that it names."""

import json
from collections.abc import Callable
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from random import Random

from msft.app.admission import refuse_unwritable
from msft.errors import UsageError

ROWS = "example-rows"
"""The folder of the example rows, beside the recipe. The template names its files."""
SIZES = {"train": 300, "test": 100}

Pair = tuple[str, str]
"""A prompt and its completion."""


def write_starter(path: Path) -> str:
    """Write the recipe and its rows, and return what to do next. Nothing is overwritten."""
    if path.exists():
        raise UsageError(f"{path} exists already; give another name, or remove it first")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it first")
    refuse_unwritable(path.parent)
    folder = path.parent / ROWS
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} exists already and is not a folder; rename it first")
    rows = {folder / name: text for name, text in example_files().items()}
    for file, text in rows.items():
        if file.exists() and (not file.is_file() or file.read_bytes() != text.encode()):
            raise UsageError(
                f"{file} exists already and is not the example that msft writes; rename it, or "
                "write the recipe into another folder"
            )
    folder.mkdir(exist_ok=True)
    for file, text in rows.items():
        file.write_text(text)
    path.write_bytes(files("msft.recipe").joinpath("template.yaml").read_bytes())
    return (
        f"wrote {path}, and example rows to {folder}\n"
        f"try it:     msft train {path} --out example\n"
        'your data:  change the three lines marked "yours", then\n'
        f"            msft validate {path} --show 2"
    )


def example_files() -> dict[str, str]:
    """The files of the folder by name: two small tasks, as JSON lines of prompt and completion."""
    made = {}
    for name, draw in (("routing", _routing), ("parity", _parity)):
        pairs = iter(_distinct(draw, name))
        for split, size in SIZES.items():
            lines = [
                json.dumps({"prompt": prompt, "completion": completion})
                for prompt, completion in (next(pairs) for _ in range(size))
            ]
            made[f"{name}.jsonl" if split == "train" else f"{name}.{split}.jsonl"] = (
                "\n".join(lines) + "\n"
            )
    return made


def _distinct(draw: Callable[[Random], Pair], name: str) -> list[Pair]:
    """As many pairs as all splits need, no prompt twice, always the same ones."""
    random = Random(name)
    pairs: dict[str, str] = {}
    while len(pairs) < sum(SIZES.values()):
        prompt, completion = draw(random)
        pairs[prompt] = completion
    return list(pairs.items())


def _routing(random: Random) -> Pair:
    """The letter of a ticket decides where it goes."""
    departments = dict(zip("ABCDEFGH", cycle(["billing", "support", "sales", "shipping"])))
    letter = random.choice("ABCDEFGH")
    return f"Ticket {letter}-{random.randrange(1000):03d} goes to", f" {departments[letter]}"


def _parity(random: Random) -> Pair:
    """The last digit decides whether a number is even."""
    number = random.randrange(1000, 10000)
    return f"The number {number} is", " odd" if number % 2 else " even"
