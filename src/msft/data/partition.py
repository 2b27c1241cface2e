"""Partition: one dataset as one sub-dataset per value of a column (`split_by`)."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msft.errors import DataError
from msft.example import Example, Split
from msft.recipe.dataset import DatasetSpec

POOLED = "other"


Piece = tuple[DatasetSpec, dict[str, Split], tuple[str, ...]]
"""One sub-dataset of a partition: its spec, its rows, and what a user should be told."""


def partition(spec: DatasetSpec, splits: Mapping[str, Split]) -> list[Piece]:
    """One piece per value, the most frequent first; values with too few rows are pooled.

    A value stands alone if it has `split_min_rows` training rows and a row of every other split.
    """
    counts = {
        split: Counter(row.subject for row in read.examples) for split, read in splits.items()
    }
    alone = [
        value
        for value, count in sorted(counts["train"].items(), key=lambda item: (-item[1], item[0]))
        if value and count >= spec.split_min_rows and all(c[value] for c in counts.values())
    ]
    if not any(counts["train"]):
        raise DataError(
            f"{spec.name}: split_by {spec.split_by}, but no train row has a value there; leave "
            "split_by out"
        )
    if not alone:
        raise DataError(
            f"{spec.name}: split_by {spec.split_by} leaves one sub-dataset, since no value has "
            f"{spec.split_min_rows} train rows and a row of each other split (the most frequent: "
            f"{_listed(counts['train'].most_common(5))}); lower split_min_rows, or leave split_by "
            "out"
        )
    pooled = sorted({value for found in counts.values() for value in found} - set(alone))
    groups = [[value] for value in alone] + ([pooled] if pooled else [])
    names = _names(spec.name, alone + [POOLED] * bool(pooled))
    parts = _divided(splits, groups)
    pieces: list[Piece] = []
    for name, part in zip(names, parts, strict=True):
        caps = {split: getattr(spec, f"{split}_rows") for split in part}
        idle = [s for s, most in caps.items() if most and len(part[s].examples) <= most]
        no_caps: dict[str, Any] = {f"{split}_rows": None for split in idle}  # so without a note
        pieces.append((replace(spec, name=name, split_by=None, **no_caps), part, ()))
    if pooled:
        own, part, _ = pieces[-1]
        pieces[-1] = (own, part, (_pooled_note(spec, part, pooled, counts["train"]),))
    return pieces


def _divided(
    splits: Mapping[str, Split], groups: Sequence[Sequence[str]]
) -> list[dict[str, Split]]:
    """The splits of each group of values. Skipped rows have no value; the first group has them."""
    number_of = {value: number for number, group in enumerate(groups) for value in group}
    parts: list[dict[str, Split]] = [{} for _ in groups]
    for split, read in splits.items():
        rows: list[list[Example]] = [[] for _ in groups]
        for row in read.examples:
            rows[number_of[row.subject]].append(row)
        for number, (part, own) in enumerate(zip(parts, rows, strict=True)):
            skipped = 0 if number else read.skipped
            part[split] = replace(read, examples=tuple(own), skipped=skipped)
    return parts


def _pooled_note(
    spec: DatasetSpec, part: Mapping[str, Split], pooled: list[str], rows: Counter[str]
) -> str:
    """A note on the values that are pooled; DataError where they have no rows of some split."""
    empty = [split for split, read in part.items() if not read.examples]
    listed = _listed([(value, rows[value]) for value in pooled])
    if empty:
        raise DataError(
            f"{spec.name}: split_by {spec.split_by} leaves the values {listed} with fewer than "
            f"{spec.split_min_rows} train rows, and together they have no {empty[0]} rows; lower "
            "split_min_rows, or remove these rows"
        )
    count, verb = ("1 value", "is") if len(pooled) == 1 else (f"{len(pooled)} values", "are")
    return (
        f"{count} of {spec.split_by} with fewer than {spec.split_min_rows} train rows "
        f"or none in another split {verb} pooled: {listed}"
    )


def _listed(values: list[tuple[str, int]]) -> str:
    return ", ".join(f"{value or '(empty)'} {rows}" for value, rows in values)


def _names(prefix: str, values: list[str]) -> list[str]:
    """A name for each value: letters, digits, dots and dashes; a number where two are equal."""
    names: list[str] = []
    taken: set[str] = set()
    for value in values:
        plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode()
        short = re.sub(r"[^A-Za-z0-9.]+", "-", plain).strip("-.") or "value"
        name = f"{prefix}.{short}"[:90]
        number, unique = 1, name
        while unique.casefold() in taken:
            number += 1
            unique = f"{name}-{number}"
        names.append(unique)
        taken.add(unique.casefold())
    return names
