"""Keys of TRL, Axolotl, LLaMA-Factory and their relatives, and what to write here instead.

The table is `foreign_keys.txt`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files

from msft.errors import OptionError
from msft.search.options import unknown

ALIASES: dict[str, str | None] = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "num_epochs": "num_train_epochs",
    "micro_batch_size": None,
    "gradient_accumulation_steps": None,
}
"""Keys that are read as ours, with a note; None: not needed here."""

NOT_THERE = "not there;"
"""How the answer begins where msft lacks what a key asks for."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What to do about a key of another tool.

    ours: the key that it corresponds to, if there is one.
    renamed: ours takes the same values.
    """

    answer: str
    ours: str = ""
    renamed: bool = False


def _tables() -> dict[str, dict[str, Foreign]]:
    """The tables of `foreign_keys.txt` by level, each by key."""
    tables = dict[str, dict[str, Foreign]]()
    level = heading = ""
    for line in files("msft.recipe").joinpath("foreign_keys.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            level = line.strip("[]")
        elif line.startswith("    "):
            tables.setdefault(level, {}).update(dict.fromkeys(line.split(), _foreign(heading)))
        elif line.startswith("  "):
            heading = f"{heading} {line.strip()}"
        elif line and not line.startswith("#"):
            heading = line
    return tables


def _foreign(heading: str) -> Foreign:
    if heading.startswith("= "):
        ours, _, _ = heading.removeprefix("= ").partition(":")
        return Foreign(f"write {heading.removeprefix('= ')}", ours, renamed=True)
    answer, _, ours = heading.partition(" -> ")
    return Foreign(answer, ours)


FOREIGN, FOREIGN_OF_DATASETS = (_tables()[level] for level in ("recipe", "sub-dataset"))
"""Of a recipe, and of a sub-dataset."""


def unknown_key(
    name: str,
    known: Sequence[str],
    foreign: Mapping[str, Foreign],
    elsewhere: Collection[str],
    inside: bool,
) -> OptionError:
    """What to write instead of a key that is not known, where it belongs, or the nearest known key.

    elsewhere: keys of the other level.
    inside: this is a key of a sub-dataset.
    """
    what = "key of a sub-dataset:" if inside else "key"
    if name in elsewhere and name not in foreign:
        where = "of the recipe; write it" if inside else "of each sub-dataset; write it under"
        more = " outside of datasets" if inside else " datasets"
        return OptionError(f"unknown {what} {name!r}; it is a key {where}{more}", name)
    found = foreign.get(name) or (FOREIGN.get(name) if inside else None)
    if found:
        return OptionError(f"unknown {what} {name!r}; {found.answer}", name)
    return unknown(name, known, what)


def meant_key(name: str, foreign: Mapping[str, Foreign], needed: Collection[str]) -> str:
    """The needed key that an unknown one probably stands for; empty if none."""
    near = [foreign[name].ours] if name in foreign else get_close_matches(str(name), needed, n=1)
    return near[0] if near and near[0] in needed else ""
