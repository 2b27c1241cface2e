"""Partition: one dataset as one sub-dataset per value of a column (`split_by`)."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msft.errors import DataError
from msft.example import Example, Split
from msft.recipe.dataset import SPLITS, DatasetSpec

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
    names = _names(spec.name, alone + [POOLED] * bool(pooled))
    by_value = {split: _by_value(read) for split, read in splits.items()}
    pieces = [
        _piece(spec, splits, name, {split: found[value] for split, found in by_value.items()})
        for name, value in zip(names, alone, strict=False)
    ]
    if pooled:
        pieces.append(_rest(spec, splits, names[-1], pooled, counts["train"]))
    return pieces[:1] + [_without_skipped(piece) for piece in pieces[1:]]


def _without_skipped(piece: Piece) -> Piece:
    """The piece without skipped rows: these have no value, so only the first piece has them."""
    spec, splits, notes = piece
    return spec, {split: replace(read, skipped=0) for split, read in splits.items()}, notes


def _rest(
    spec: DatasetSpec, splits: Mapping[str, Split], name: str, pooled: list[str], rows: Counter[str]
) -> Piece:
    values = {*pooled}
    rest = {
        s: [row for row in read.examples if row.subject in values] for s, read in splits.items()
    }
    own, chosen, _ = _piece(spec, splits, name, rest)
    empty = [split for split, read in chosen.items() if not read.examples]
    listed = _listed([(value, rows[value]) for value in pooled])
    if empty:
        raise DataError(
            f"{spec.name}: split_by {spec.split_by} leaves the values {listed} with fewer than "
            f"{spec.split_min_rows} train rows, and together they have no {empty[0]} rows; lower "
            "split_min_rows, or remove these rows"
        )
    count, verb = ("1 value", "is") if len(pooled) == 1 else (f"{len(pooled)} values", "are")
    note = (
        f"{count} of {spec.split_by} with fewer than {spec.split_min_rows} train rows "
        f"or none in another split {verb} pooled: {listed}"
    )
    return own, chosen, (note,)


def _by_value(read: Split) -> dict[str, list[Example]]:
    found: dict[str, list[Example]] = {}
    for row in read.examples:
        found.setdefault(row.subject, []).append(row)
    return found


def _piece(
    spec: DatasetSpec,
    splits: Mapping[str, Split],
    name: str,
    rows: Mapping[str, Sequence[Example]],
) -> Piece:
    chosen = {
        split: replace(splits[split], examples=tuple(rows[split]))
        for split in SPLITS
        if split in splits
    }
    caps: dict[str, Any] = {
        f"{split}_rows": _cap(spec, split, read) for split, read in chosen.items()
    }
    return replace(spec, name=name, split_by=None, **caps), chosen, ()


def _cap(spec: DatasetSpec, split: str, read: Split) -> int | None:
    """The cap on a piece's rows; None where the piece has fewer, which needs no note."""
    most: int | None = getattr(spec, f"{split}_rows")
    return None if most is None or len(read.examples) <= most else most


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
