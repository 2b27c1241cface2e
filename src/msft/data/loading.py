"""Loading: the splits of a sub-dataset, whether its rows are the user's or a benchmark's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msft.benchmarks import MADE, PUBLIC
from msft.benchmarks.benchmark import Benchmark
from msft.benchmarks.grading import Grader
from msft.checks import shown
from msft.data.formats import example_of
from msft.data.partition import POOLED, Piece, partition, value_of
from msft.data.readers import refuse_unreadable
from msft.data.sources import SPLITS, Sources, folder_sources, hub_sources, is_folder, own_sources
from msft.data.splits import LoadedDataset, Reading, assembled, load_split, own_splits
from msft.errors import DataError
from msft.example import Example, Split
from msft.recipe.dataset_spec import DatasetSpec
from msft.recipe.recipe import Recipe

HELD_OUT_ROWS = 500
"""Validation rows of a benchmark that has none, if the recipe does not say; at most a fifth."""


@dataclass(frozen=True, slots=True)
class Found:
    """A sub-dataset's spec and rows, who grades what a model writes on them, and its group."""

    spec: DatasetSpec
    loaded: LoadedDataset
    grader: Grader | None = None
    group: str = ""


def load_datasets(recipe: Recipe) -> list[Found]:
    """Every sub-dataset of a recipe in its order; those with `split_by` are several."""
    found = [sub for spec in recipe.datasets for sub in _found(spec, recipe)]
    seen: dict[str, DatasetSpec] = {}
    for sub in found:
        if sub.spec.name.casefold() in seen:
            raise DataError(
                f"{sub.spec.name}: split_by made a sub-dataset of this name, and there is another "
                "one; rename one of them"
            )
        seen[sub.spec.name.casefold()] = sub.spec
    return found


def refuse_missing_files(recipe: Recipe) -> None:
    """DataError where a file or folder of rows is missing or is none; no row is read yet, and the
    hub is not asked."""
    for spec in recipe.datasets:
        benchmark = PUBLIC.get(spec.benchmark or "")
        if benchmark is not None:
            sources, _ = _benchmark_sources(spec, benchmark, recipe, hub=False)
        elif spec.benchmark in MADE:
            continue
        else:
            sources = own_sources(spec, recipe.folder or Path(), hub=False)
        for source in sources.values():
            if isinstance(source, str | Path):
                refuse_unreadable(Path(source))


def _found(spec: DatasetSpec, recipe: Recipe) -> list[Found]:
    benchmark = PUBLIC.get(spec.benchmark or "")
    official = False
    if spec.benchmark in MADE:
        if spec.split_by is not None:
            raise DataError(
                f"{spec.name}: split_by is {spec.split_by!r}, but the rows of {spec.benchmark} are "
                "made by code and have no columns; leave it out"
            )
        splits = MADE[spec.benchmark](recipe.seed)
    elif benchmark is None:
        splits = own_splits(spec, recipe.folder, _sorted_by(spec, example_of, {}))
    else:
        sources, official = _benchmark_sources(spec, benchmark, recipe)
        lenient = official or spec.skip_bad_rows  # the hub's rows are not the user's to mend
        splits = _benchmark_splits(spec, benchmark, recipe, sources, lenient)
    if "train" not in splits:
        raise DataError(f"{spec.name}: no train split; expected one among {', '.join(splits)}")
    pieces: list[Piece] = [(spec, splits, ())] if spec.split_by is None else partition(spec, splits)
    if benchmark is not None:
        pieces = [(_holding_out(own, read), read, notes) for own, read, notes in pieces]
    grader = benchmark.grader if benchmark else None
    groups = _groups(benchmark, pieces, alone=len(recipe.datasets) == 1)
    found: list[Found] = []
    for (spec, splits, notes), group in zip(pieces, groups, strict=True):
        loaded = assembled(spec, splits, recipe.seed, recipe.fewshot(spec), official)
        noted = replace(loaded, notes=(*notes, *loaded.notes))
        found.append(Found(spec, noted, grader, group))
    return found


def _groups(benchmark: Benchmark | None, pieces: Sequence[Piece], alone: bool) -> list[str]:
    """The group of each piece: of a benchmark's subjects the broad ones, if it is alone in its
    recipe, since beside others they would stand next to groups of benchmarks."""
    usual = benchmark.group if benchmark else ""
    broad = benchmark.subject_groups if benchmark and alone else {}
    found = []
    for _, splits, _ in pieces:
        mine = {broad.get(row.subject, "") for row in splits["train"].examples}
        found.append(mine.pop() if len(mine) == 1 else "")
    return [group or POOLED for group in found] if any(found) else [usual] * len(pieces)


def _sorted_by(spec: DatasetSpec, reading: Reading, broad: Mapping[str, str]) -> Reading:
    """The same reading with each row's `split_by` value kept.

    broad: the groups of a benchmark's subjects, for `split_by: group`.
    """
    column = spec.split_by
    if column is None:
        return reading

    def kept(row: Any, where: str, form: str | None) -> tuple[Example, str]:
        example, found = reading(row, where, form)
        own = {"subject": example.subject} if example.subject else {}
        own |= {"group": broad.get(example.subject, "")} if broad else {}
        value = value_of(row, column, own, where)
        return replace(example, subject=value), found

    return kept


def _benchmark_splits(
    spec: DatasetSpec, benchmark: Benchmark, recipe: Recipe, sources: Sources, lenient: bool
) -> dict[str, Split]:
    def reading(row: Any, where: str, form: str | None) -> tuple[Example, str]:
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: found {shown(row)}; expected an object with fields")
        example = benchmark.example(row, where, recipe.prompt_style)
        if spec.label_noise:
            others = benchmark.others(row, where, recipe.prompt_style)
            example = replace(example, others=others)
        return example, spec.benchmark or ""

    kept = _sorted_by(spec, reading, benchmark.subject_groups)
    return {
        split: load_split(source, f"{spec.name}, {split}", lenient, kept)
        for split, source in sources.items()
    }


def _benchmark_sources(
    spec: DatasetSpec, benchmark: Benchmark, recipe: Recipe, hub: bool = True
) -> tuple[Sources, bool]:
    """Where a benchmark's rows are, and whether those are its official splits on the hub.

    A `path` of its own comes first, then the recipe's data folder, then the hub.
    hub: without it, what is not here is left out.
    """
    if spec.path is not None:
        path = (recipe.folder or Path()) / Path(spec.path).expanduser()
        if is_folder(spec.path, path):
            return folder_sources(path), False
    elif recipe.data_dir is not None:
        return folder_sources(_inside(recipe.data_folder(), spec)), False
    if not hub:
        return {}, True
    named = dict(zip(SPLITS, benchmark.splits, strict=True))
    splits = {ours: theirs for ours, theirs in named.items() if theirs is not None}
    return hub_sources(spec.path or benchmark.hub, splits), True


def _inside(folder: Path, spec: DatasetSpec) -> Path:
    """The benchmark's folder in the data folder, named after it or after the sub-dataset."""
    for name in (spec.name, spec.benchmark or ""):
        if (folder / name).is_dir():
            return folder / name
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir())
    raise DataError(
        f"{folder}: no folder {spec.benchmark} in it (found {shown(inside)}); add one with "
        "train.jsonl, validation.jsonl and test.jsonl, or leave data_dir out to read the hub"
    )


def _holding_out(spec: DatasetSpec, splits: Mapping[str, Split]) -> DatasetSpec:
    """Benchmarks without validation rows hold some out from train."""
    if "validation" in splits or spec.validation_fraction is not None:
        return spec
    rows = spec.validation_rows or HELD_OUT_ROWS
    return replace(spec, validation_fraction=min(0.2, rows / len(splits["train"].examples)))
