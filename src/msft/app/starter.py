"""`msft init`: a recipe that runs as it stands, and the example rows that it names."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from msft.app.admission import refuse_unwritable
from msft.errors import UsageError
from msft.search.draws import sampled

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
    for name, (count, row) in TASKS.items():
        drawn = iter(sampled(count, sum(SIZES.values()), 0, name))
        for split, size in SIZES.items():
            rows = (row(next(drawn)) for _ in range(size))
            lines = (json.dumps({"prompt": asked, "completion": said}) for asked, said in rows)
            file = f"{name}.jsonl" if split == "train" else f"{name}.{split}.jsonl"
            made[file] = "".join(line + "\n" for line in lines)
    return made


def _routing(number: int) -> Pair:
    """The letter of a ticket decides where it goes."""
    letter, digits = divmod(number, 1000)
    department = ("billing", "support", "sales", "shipping")[letter % 4]
    return f"Ticket {'ABCDEFGH'[letter]}-{digits:03d} goes to", f" {department}"


def _boxes(number: int) -> Pair:
    """The first digit decides whether a box is large."""
    return f"Box {number + 1000} is", " large" if number >= 4000 else " small"


TASKS: dict[str, tuple[int, Callable[[int], Pair]]] = {
    "routing": (8000, _routing),
    "boxes": (9000, _boxes),
}
"""How many rows each task could have, and the row of a number."""
