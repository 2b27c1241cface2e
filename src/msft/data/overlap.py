"""Overlap: rows that ask the same, within a sub-dataset and between sub-datasets.

A benchmark's rows are compared by what they ask, letters and digits alone; others by their prompt
and choices up to white space and case.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msft.errors import DataError
from msft.example import Example
from msft.text import counted, shown

SHORT = 20
"""Questions of fewer letters and digits are not compared between sub-datasets, nor of fewer letters
up to their numbers."""
FORM = 20
"""Words that more trained rows share, up to numbers, are the form of a task and not a question."""
FEW = 0.01
"""The share of rows with other numbers that may be chance."""

_FURNITURE = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")

SCORED = ("validation", "test")
Rows = Mapping[str, Sequence[Example]]
"""The rows of each split."""


def question_of(row: Example) -> str:
    """What a row asks; two rows that ask the same are duplicates."""
    if row.asks:
        return _letters(row.asks)
    asked: Iterable[str] = [row.prompt, *row.choices]
    if row.messages:
        asked = [f"{turn.role}: {turn.text}" for turn in row.messages[:-1]]
    folded = "\x1f".join(" ".join(text.split()) for text in asked).casefold()
    return folded if folded.strip("\x1f") else " ".join(row.completion.split()).casefold()


@lru_cache(maxsize=1_000_000)
def _letters(text: str) -> str:
    return _bare(text) or text


def _bare(text: str) -> str:
    return _FURNITURE.sub("", text).casefold()


def forget_questions() -> None:
    """Give back the memory of what rows ask, which is needed while they are compared."""
    _letters.cache_clear()


def refuse_overlap(rows: Rows, name: str) -> None:
    """No row of a split may ask what a row of another one asks."""
    order = list(rows)
    for number, later in enumerate(order):
        for earlier in order[:number]:
            known = {question_of(row): row for row in reversed(rows[earlier])}
            same = [row for row in rows[later] if question_of(row) in known]
            if same:
                listed = "; ".join(
                    f"{row.where} = {known[question_of(row)].where} ({shown(question_of(row))})"
                    for row in same[:3]
                )
                raise DataError(
                    f"{same[0].where}: {len(same)} of {len(rows[later])} {later} rows of {name} "
                    f"are also in {earlier}, {_WHY[earlier]}: {listed}; remove them from one of "
                    "the two"
                )


def without_overlap(rows: Rows, notes: list[str]) -> dict[str, tuple[Example, ...]]:
    """Official splits that overlap: the test keeps its rows, and others lose them."""
    kept: dict[str, tuple[Example, ...]] = {}
    scored: set[str] = set()
    for split in reversed(list(rows)):
        kept[split] = tuple(row for row in rows[split] if question_of(row) not in scored)
        removed = len(rows[split]) - len(kept[split])
        if removed:
            verb = "is" if removed == 1 else "are"
            notes.append(
                f"{split}: {counted(removed, 'row')} of the official split {verb} left out, since "
                "a later split asks the same"
            )
        scored |= {question_of(row) for row in rows[split]}
    return {split: kept[split] for split in rows}


def repeats(rows: Rows) -> list[str]:
    """A note for each split with rows that repeat an earlier one of it."""
    counts = {s: len(found) - len(set(map(question_of, found))) for s, found in rows.items()}
    return [
        f"{s}: {counted(count, 'row')} {'repeats' if count == 1 else 'repeat'} an earlier one"
        for s, count in counts.items()
        if count
    ]


def variations(rows: Rows) -> list[str]:
    """A note for each scored split with rows that are trained ones with other numbers."""
    scored = {s: [_but_for_numbers(row) for row in rows[s]] for s in SCORED if s in rows}
    if not any(map(any, scored.values())):
        return []
    trained = Counter(map(_but_for_numbers, rows["train"]))
    notes = []
    for split, asked in scored.items():
        count = sum(bool(each) and 0 < trained[each] <= FORM for each in asked)
        if count > FEW * len(asked):
            verb = "asks" if count == 1 else "ask"
            notes.append(
                f"{split}: {count} of {counted(len(asked), 'row')} {verb} what trained rows ask "
                "with other numbers, so its scores say less of unseen rows"
            )
    return notes


def _but_for_numbers(row: Example) -> str:
    """What a row asks without its numbers; nothing if it has none, or is short."""
    asked = question_of(row)
    letters = _bare(_DIGITS.sub("", asked))
    return letters if _DIGITS.search(asked) and len(letters) >= SHORT else ""


def shared_between(datasets: Mapping[str, Rows]) -> dict[str, list[str]]:
    """Notes for each sub-dataset that is scored on what another one trains."""
    trained_by: dict[str, list[str]] = {}
    for name, splits in datasets.items():
        for asked in _long(splits.get("train", ())):
            trained_by.setdefault(asked, []).append(name)
    order = {name: number for number, name in enumerate(datasets)}
    notes: dict[str, list[str]] = {name: [] for name in datasets}
    for name, splits in datasets.items():
        for split in SCORED:
            asked_here = _long(splits.get(split, ()))
            shared = Counter(o for asked in asked_here for o in trained_by.get(asked, ()))
            for other in sorted(shared.keys() - {name}, key=order.__getitem__):
                verb = "asks" if shared[other] == 1 else "ask"
                notes[name].append(
                    f"{split}: {counted(shared[other], 'row')} {verb} what trained rows of "
                    f"{other} ask"
                )
    return notes


def _long(rows: Sequence[Example]) -> set[str]:
    return {asked for row in rows if len(asked := question_of(row)) >= SHORT}


_WHY = {
    "train": "so their scores would mean nothing",
    "exemplars": "so the prompt would hold the answer",
    "validation": "which chooses checkpoints, so the test would not be unseen",
}
