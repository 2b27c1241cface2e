"""Sources: where the rows of a sub-dataset come from, and what they are as examples.

The rows of a split come from files (`readers.py`), from a folder with one file for each split, from
the hub, or from memory. The rows of a benchmark come from its folder or from the hub, or code makes
them. `read_splits` reads all splits of a sub-dataset; `formats.py` and the benchmarks make examples
of rows. Nothing is held out yet, and only bad rows are left out, where the recipe allows it.
"""

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from msft.benchmarks import MADE, PUBLIC
from msft.benchmarks.benchmark import Benchmark, Row, Style
from msft.data.formats import example_of
from msft.data.readers import (
    SUFFIXES,
    Bad,
    LongLine,
    RawRow,
    files_named,
    is_saved,
    read_rows,
    refuse_unreadable,
    split_file,
    suffix_of,
)
from msft.errors import DataError
from msft.example import Example, Split
from msft.files import expanded
from msft.recipe.dataset import SPLITS, WEIGHT, DatasetSpec, MemoryRows, names_files
from msft.recipe.recipe import Recipe
from msft.recipe.yaml import place_of
from msft.search.curves import SELECTION, TEST
from msft.text import shown

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?", re.ASCII)
HUB = "https://huggingface.co"
OFFLINE = "HF_HUB_OFFLINE"


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a split, in the order in which their rows are read."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths))


Sources = Mapping[str, Files | MemoryRows]
"""The files or the rows of each split that a sub-dataset has."""


Reading = Callable[[Any, str, str | None], tuple[Example, str]]
"""reading(row, where, format so far): the row as an example, and its format."""


def read_splits(spec: DatasetSpec, recipe: Recipe) -> tuple[dict[str, Split], bool]:
    """The splits of a sub-dataset as they are read, and whether they are a benchmark's official
    ones on the hub."""
    wanted = wanted_splits(recipe)
    if spec.benchmark in MADE:
        if spec.split_by is not None:
            raise DataError(
                f"{spec.name}: split_by is {spec.split_by!r}, but the rows of {spec.benchmark} are "
                "made by code and have no columns; leave it out"
            )
        made = MADE[spec.benchmark](recipe.seed)
        return {split: made[split] for split in wanted}, False
    sources, on_hub = sources_of(spec, recipe)
    official = on_hub and spec.benchmark is not None
    lenient = official or spec.skip_bad_rows  # the hub's rows are not the user's to mend
    called = f"sub-dataset {spec.name!r}" if spec.benchmark is None else spec.name
    found = dict[str, Split]()
    for split in wanted:
        watched_train = split == "train" and spec.is_watched and spec.benchmark is None
        if split in sources and not watched_train:  # a benchmark's exemplars are train rows
            reading = _reading(spec, recipe.prompt_style, with_weights=split == "train")
            found[split] = load_split(sources[split], f"{called}, {split}", lenient, reading)
    if spec.format == "chat":
        found = {s: replace(read, format=f"{read.format}, chat") for s, read in found.items()}
    return found, official


def wanted_splits(recipe: Recipe) -> tuple[str, ...]:
    """The splits that a recipe reads: no validation rows where test rows select."""
    on_test = recipe.selection_split == TEST
    return tuple(split for split in SPLITS if split != SELECTION or not on_test)


# Examples of rows


SHOWN_ROWS = 3
"""Bad rows that a message shows."""


def load_split(
    source: Files | MemoryRows,
    where: str,
    skip_bad_rows: bool = False,
    reading: Reading = example_of,
) -> Split:
    """The examples of files, or of rows in memory, which messages call `where`, with their format
    and the rows that were skipped. At least one row must be good.

    All bad rows are counted, also where they are refused.
    """
    count, first = 0, list[str]()

    def bad(error: DataError) -> None:
        nonlocal count
        count += 1
        if count <= SHOWN_ROWS:
            first.append(str(error))
        if isinstance(error, LongLine) and not skip_bad_rows:
            raise DataError(_bad_rows(first, count, len(examples)))

    examples: list[Example] = []
    form: str | None = None
    for place, row in rows_of(source, where, bad):
        try:
            example, form = reading(row, place, form)
        except DataError as error:
            bad(error)
        else:
            examples.append(example)
    if count and not skip_bad_rows:
        raise DataError(_bad_rows(first, count, len(examples)))
    if not examples or form is None:
        at = source if isinstance(source, Files) else where
        why = f": all {count:,} are bad, the first is {first[0]}" if count else ""
        raise DataError(f"{at}: no rows; expected at least one{why}")
    return Split(tuple(examples), form, count, first[0] if count else "")


def _bad_rows(first: Sequence[str], count: int, good: int) -> str:
    """What is said of the bad rows of a split, with the first of them."""
    if not good:
        more = f" (and so in all {count:,} rows: none can be read)" if count > 1 else ""
        return f"{first[0]}{more}"
    skip = "skip_bad_rows: true at the sub-dataset skips and counts such rows"
    if count == 1:
        return f"{first[0]}; or {skip}"
    rest = [f"… and {count - len(first):,} more"] if count > len(first) else []
    head = f"{count:,} of {count + good:,} rows are bad; mend them ({skip}):"
    return "\n  ".join([head, *first, *rest])


def rows_of(source: Files | MemoryRows, where: str, bad: Bad) -> Iterator[RawRow]:
    """Every row with its place; rows in memory are placed by `where` and their number."""
    if isinstance(source, Files):
        return (row for path in source.paths for row in read_rows(path, bad))
    return ((f"{where}, row {number}", row) for number, row in enumerate(source, 1))


def _reading(spec: DatasetSpec, style: Style, with_weights: bool) -> Reading:
    """How a row of a sub-dataset becomes an example: as its benchmark asks it in this style, or by
    its format, of the columns that `columns` names.

    with_weights: the example has the row's weight, where `columns` names one.
    """
    benchmark = PUBLIC.get(spec.benchmark or "")
    columns = {ours: column for ours, column in (spec.columns or {}).items() if ours != WEIGHT}
    weight = (spec.columns or {}).get(WEIGHT) if with_weights else None

    def read(row: Any, where: str, form: str | None) -> tuple[Example, str]:
        if benchmark is not None:
            example, found = _asked(spec, benchmark, row, where, style), str(spec.benchmark)
        else:
            fields = _fields(row, columns, where) if columns and isinstance(row, Mapping) else row
            example, found = example_of(fields, where, form, spec.format == "chat")
        if spec.split_by is not None:
            groups = benchmark.subject_groups if benchmark else {}
            subject = _subject_of(row, spec.split_by, example.subject, groups, where)
            example = replace(example, subject=subject)
        if weight is not None:
            example = replace(example, weight=_weight_in(row, weight, where))
        return example, found

    return read


def _asked(spec: DatasetSpec, benchmark: Benchmark, row: Any, where: str, style: Style) -> Example:
    """A row of a benchmark; where labels are to be made wrong, with its wrong choices."""
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: found {shown(row)}; expected an object with fields")
    example = benchmark.example(row, where, style)
    if not spec.label_noise:
        return example
    return replace(example, others=benchmark.others(row, where, style))


def _fields(row: Row, columns: Mapping[str, str], where: str) -> Row:
    """Our fields of a row, each from its column."""
    missing = [column for column in columns.values() if column not in row]
    if missing:
        raise DataError(
            f"{where}: columns names {missing[0]!r}, which this row does not have (found "
            f"{shown(sorted(map(str, row)))}); mend columns or the row"
        )
    return {field: row[column] for field, column in columns.items()}


def _weight_in(row: Row, column: str, where: str) -> float:
    """A row's weight, also as the text that a table has of it."""
    if column not in row:
        raise DataError(
            f"{where}: columns names {column!r} as the weight, which this row does not have "
            f"(found {shown(sorted(map(str, row)))}); add it, or mend columns"
        )
    given = row[column]
    try:
        weight = -1.0 if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        weight = -1.0
    if not 0 <= weight < inf:
        found = "null" if given is None else shown(given)
        raise DataError(f"{where}: {column} is {found}; expected a weight: a number of 0 or more")
    return weight


def _subject_of(row: Row, column: str, subject: str, groups: Mapping[str, str], where: str) -> str:
    """A row's value of `split_by`. A benchmark's own `subject` and `group` need no column.

    subject: what the benchmark says of the row; empty: nothing.
    groups: the group of each of a benchmark's subjects; a subject without one is pooled.
    """
    if column in row:
        found = row[column]
        if found is None or isinstance(found, str | int | bool):
            return "" if found is None else str(found).strip()
        raise DataError(
            f"{where}: {column} is {shown(found)}; split_by needs text or a whole number"
        )
    if column == "subject" and subject:
        return subject
    if column == "group" and groups:
        return groups.get(subject, "")
    raise DataError(
        f"{where}: split_by is {column!r}, which is no column here (found "
        f"{shown(sorted(map(str, row)))})"
    )


# Files, folders and the hub


def sources_of(spec: DatasetSpec, recipe: Recipe, hub: bool = True) -> tuple[Sources, bool]:
    """The splits that a recipe reads of a sub-dataset, and whether `path_sources` are on the hub.

    hub: False: leave out what is on the hub.
    """
    named, on_hub = path_sources(spec, recipe, hub)
    found = dict[str, Files | MemoryRows]()
    for split in wanted_splits(recipe):
        source = getattr(spec, split)
        if source is not None:
            found[split] = files_of(source, recipe) if names_files(source) else source
        elif split in named:
            found[split] = named[split]
    return found, on_hub


def path_sources(spec: DatasetSpec, recipe: Recipe, hub: bool = True) -> tuple[Sources, bool]:
    """The splits of the folder or the hub's dataset that `path` or `benchmark` names, and whether
    they are on the hub. Of a benchmark without `path`, the recipe's data folder comes first.

    hub: False: leave out what is on the hub.
    """
    benchmark = PUBLIC.get(spec.benchmark or "")
    folder = None
    if spec.path is not None:
        path = (recipe.folder or Path()) / expanded(spec.path)
        folder = path if is_folder(spec.path, path) else None
    elif benchmark is None:
        return {}, False
    elif recipe.data_dir is not None:
        folder = _inside(recipe.data_folder(), spec)
    if folder is not None:
        return folder_sources(folder, spec.is_watched), False
    if not hub:
        return {}, True
    splits = {split: split for split in SPLITS}
    if benchmark is not None:
        named = zip(SPLITS, benchmark.splits, strict=True)
        splits = {ours: theirs for ours, theirs in named if theirs is not None}
    return hub_sources(spec.path or (benchmark.hub if benchmark else ""), splits), True


def files_of(written: str | Sequence[str], recipe: Recipe) -> Files:
    """The files that a split names, patterns resolved; each once, where it is named first."""
    names, folder = [written] if isinstance(written, str) else written, recipe.folder or Path()
    return Files(tuple(dict.fromkeys(path for name in names for path in files_named(name, folder))))


def is_folder(written: str, path: Path) -> bool:
    """Whether this is a folder of files; if not, it could be a name on the hub."""
    if path.is_dir():
        return True
    if path.exists():
        raise DataError(
            f"{path}: path is a file; expected a folder or a hub name: give it as train"
        )
    if not _HUB_NAME.fullmatch(written) or suffix_of(path):
        raise DataError(
            f"{path}: there is no such folder; expected a folder with train, validation and test "
            "files, or a hub name such as owner/name"
        )
    return False


def folder_sources(path: Path, watched: bool = False) -> Sources:
    """The splits of a folder with train, validation and test files, or of save_to_disk.

    watched: it needs no train file.
    """
    if is_saved(path):
        return {"train": Files((path,))}
    files = {split: Files((file,)) for split in SPLITS if (file := split_file(path, split))}
    if "train" not in files and not (watched and files):
        names = shown(sorted(entry.name for entry in path.iterdir())[:10])
        raise DataError(
            f"{path}: no train file in this folder (found {names}); expected train.jsonl "
            f"(or {', '.join(SUFFIXES[1:])}), and likewise validation and test; one that is only "
            "scored has watch: true"
        )
    return files


def hub_sources(path: str, splits: Mapping[str, str]) -> Sources:
    """The splits of a dataset on the hub; `splits` says how the hub calls each of ours."""
    name, _, configuration = path.partition(":")
    stay_offline_without_hub()
    try:
        loaded = _from_hub(name, configuration or None)
        return {ours: loaded[theirs] for ours, theirs in splits.items() if theirs in loaded}
    except Exception as error:
        said = shown(str(error).split("\n")[0])
        raise DataError(
            f"{path}: there is no such folder, and the hub gave no dataset of this name "
            f"({type(error).__name__}: {said}); check the name (a configuration is chosen as "
            "owner/name:configuration); without a network, download it elsewhere (hf download "
            f"--repo-type dataset {name} --local-dir DIR) and give a folder with train.jsonl or "
            "train.parquet as path; benchmarks can also be read from a "
            "folder with --data DIR"
        ) from error


def _from_hub(name: str, configuration: str | None) -> Any:
    """A dataset of the hub. Scripts are not run any more: of a dataset that is one, the tables
    that the hub has made of it."""
    import datasets  # type: ignore[import-untyped]

    try:
        return datasets.load_dataset(name, configuration)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        return datasets.load_dataset(name, configuration, revision="refs/convert/parquet")


def stay_offline_without_hub() -> None:
    """Where the hub's address is not known, tell the hub's libraries to use their cache only, as
    HF_HUB_OFFLINE=1 does: they would repeat their requests for most of a minute."""
    if OFFLINE in os.environ or getproxies() or _hub_is_known():
        return
    os.environ[OFFLINE] = "1"
    for name in ("huggingface_hub.constants", "datasets.config"):  # where they have read it already
        if name in sys.modules:
            setattr(sys.modules[name], OFFLINE, True)


def _hub_is_known() -> bool:
    host = urlsplit(os.environ.get("HF_ENDPOINT") or HUB).hostname
    for _ in range(2):
        try:
            return bool(socket.getaddrinfo(host, None))
        except socket.gaierror:
            continue
    return False


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


# What is missing, before any row is read


def refuse_missing_files(recipe: Recipe) -> None:
    """DataError where files or folders of rows are missing, or hold no rows: a list of them all,
    each with its sub-dataset and the line of the recipe. No row is read, no hub is asked."""
    wrong: list[str] = []

    @contextmanager
    def noted(number: int, key: str) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            at = place_of(("datasets", number, key), "", recipe.places)
            wrong.append(f"{at}sub-dataset {recipe.datasets[number].name!r}, {key}: {error}")

    for number, spec in enumerate(recipe.datasets):
        with noted(number, "benchmark" if spec.path is None else "path"):
            named, _ = path_sources(spec, recipe, hub=False)
            for split in wanted_splits(recipe):
                _refuse_unreadable(named.get(split))
        for split in wanted_splits(recipe):
            written = getattr(spec, split)
            if written is not None and names_files(written):
                with noted(number, split):
                    _refuse_unreadable(files_of(written, recipe))
    if len(wrong) == 1:
        raise DataError(wrong[0])
    if wrong:
        raise DataError("\n  ".join([f"{len(wrong)} sources of rows cannot be read:", *wrong]))


def _refuse_unreadable(source: Files | MemoryRows | None) -> None:
    for path in source.paths if isinstance(source, Files) else ():
        refuse_unreadable(path)


def may_have(recipe: Recipe, split: str) -> bool:
    """Whether any sub-dataset can have rows of this split, as far as its keys and folders say."""

    def has(spec: DatasetSpec) -> bool:
        if spec.benchmark is not None or (split == SELECTION and spec.validation_fraction):
            return True
        found, on_hub = sources_of(spec, recipe, hub=False)
        return on_hub or split in found

    return split in wanted_splits(recipe) and any(map(has, recipe.datasets))
