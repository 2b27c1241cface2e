"""Loading: the splits of a sub-dataset, whether its rows are the user's or a benchmark's."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msft.benchmarks import MADE, PUBLIC
from msft.benchmarks.benchmark import Benchmark
from msft.benchmarks.grading import Grader
from msft.data.data_files import refuse_unreadable
from msft.data.formats import example_of
from msft.data.partition import POOLED, Piece, partition, value_of
from msft.data.sources import (
    SPLITS,
    Files,
    Sources,
    files_of,
    folder_sources,
    hub_sources,
    is_folder,
    own_sources,
    path_sources,
    splits_read,
)
from msft.data.splits import LoadedDataset, Reading, assembled, load_split, own_splits
from msft.errors import DataError
from msft.example import Example, Split
from msft.files import expanded
from msft.recipe.dataset import DatasetSpec, Rows, names_files
from msft.recipe.recipe import Recipe
from msft.recipe.yaml import place_of
from msft.text import shown

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
    """DataError where files or folders of rows are missing or are none: all of them, each with the
    sub-dataset and the line of the recipe. No row is read yet, and the hub is not asked."""
    wrong: list[str] = []

    @contextmanager
    def noted(number: int, key: str) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            at = place_of(("datasets", number, key), "", recipe.places)
            wrong.append(f"{at}sub-dataset {recipe.datasets[number].name!r}, {key}: {error}")

    folder, splits = recipe.folder or Path(), splits_read(recipe)
    for number, spec in enumerate(recipe.datasets):
        with noted(number, "benchmark" if spec.path is None else "path"):
            benchmark = PUBLIC.get(spec.benchmark or "")
            sources = (
                path_sources(spec, folder, hub=False)
                if benchmark is None
                else _benchmark_sources(spec, benchmark, recipe, hub=False)[0]
            )
            for source in (source for split, source in sources.items() if split in splits):
                _refuse_unreadable(source)
        for split in splits:
            written = getattr(spec, split)
            if names_files(written):
                with noted(number, split):
                    _refuse_unreadable(files_of(written, folder))
    if len(wrong) == 1:
        raise DataError(wrong[0])
    if wrong:
        raise DataError("\n  ".join([f"{len(wrong)} sources of rows cannot be read:", *wrong]))


def _refuse_unreadable(source: Files | Rows) -> None:
    for path in source.paths if isinstance(source, Files) else ():
        refuse_unreadable(path)


def may_have(recipe: Recipe, split: str) -> bool:
    """Whether any sub-dataset can have rows of this split, as far as its keys and folders say."""
    folder, splits = recipe.folder or Path(), splits_read(recipe)
    if split not in splits:
        return False
    return any(
        spec.benchmark is not None
        or (spec.path is not None and not is_folder(spec.path, folder / Path(spec.path)))
        or split in own_sources(spec, folder, splits, hub=False)
        or (split == "validation" and spec.validation_fraction is not None)
        for spec in recipe.datasets
    )


def _found(spec: DatasetSpec, recipe: Recipe) -> list[Found]:
    benchmark = PUBLIC.get(spec.benchmark or "")
    official, wanted = False, splits_read(recipe)
    if spec.benchmark in MADE:
        if spec.split_by is not None:
            raise DataError(
                f"{spec.name}: split_by is {spec.split_by!r}, but the rows of {spec.benchmark} are "
                "made by code and have no columns; leave it out"
            )
        made = MADE[spec.benchmark](recipe.seed)
        splits = {split: made[split] for split in wanted}
    elif benchmark is None:
        splits = own_splits(spec, recipe.folder, _sorted_by(spec, renaming(spec), {}), wanted)
    else:
        found_sources, official = _benchmark_sources(spec, benchmark, recipe)
        sources = {split: found_sources[split] for split in wanted if split in found_sources}
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
        how = (recipe.seed, recipe.fewshot(spec), official, recipe.selection_split)
        loaded = assembled(spec, splits, *how)
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


def renaming(spec: DatasetSpec) -> Reading:
    """Rows with the fields that `columns` names, and no others, read as usual."""
    columns = spec.columns
    if columns is None:
        return example_of

    def read(row: Any, where: str, form: str | None) -> tuple[Example, str]:
        if not isinstance(row, Mapping):
            return example_of(row, where, form)
        missing = [column for column in columns.values() if column not in row]
        if missing:
            raise DataError(
                f"{where}: columns names {missing[0]!r}, which this row does not have (found "
                f"{shown(sorted(map(str, row)))}); mend columns or the row"
            )
        return example_of({field: row[column] for field, column in columns.items()}, where, form)

    return read


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
        path = (recipe.folder or Path()) / expanded(spec.path)
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
