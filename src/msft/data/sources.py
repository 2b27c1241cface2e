"""Sources: where a sub-dataset's rows come from, a file, a folder, the hub, or memory."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msft.data.data_files import SUFFIXES, files_named, kind_of, split_file
from msft.data.hub import ask_only_where_it_is
from msft.data.readers import Bad, Row, needed, read_rows
from msft.errors import DataError
from msft.files import expanded
from msft.recipe.dataset import DatasetSpec, Rows, names_files
from msft.recipe.recipe import Recipe
from msft.search.curves import SELECTION, TEST
from msft.text import shown

SPLITS = ("train", "validation", "test")
SAME = {split: split for split in SPLITS}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a split, in the order in which their rows are read."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths))


Sources = Mapping[str, Files | Rows]
"""Of each split there is, its files or its rows."""


def rows_of(source: Files | Rows, where: str, bad: Bad) -> Iterator[Row]:
    """Every row with its place; rows in memory are placed by `where` and their number."""
    if isinstance(source, Files):
        return (row for path in source.paths for row in read_rows(path, bad))
    return ((f"{where}, row {number}", row) for number, row in enumerate(source, 1))


def splits_read(recipe: Recipe) -> tuple[str, ...]:
    """The splits that a recipe reads: no validation rows where test rows select."""
    on_test = recipe.selection_split == TEST
    return tuple(split for split in SPLITS if split != SELECTION or not on_test)


def own_sources(
    spec: DatasetSpec, folder: Path, splits: Sequence[str] = SPLITS, hub: bool = True
) -> Sources:
    """The splits of the user's own data; relative files are looked for in `folder`.

    splits: those that are read.
    hub: without it, what is not here is left out.
    """
    found = {s: source for s, source in path_sources(spec, folder, hub).items() if s in splits}
    for split in splits:
        source = getattr(spec, split)
        if source is not None:
            found[split] = files_of(source, folder) if names_files(source) else source
    return found


def path_sources(spec: DatasetSpec, folder: Path, hub: bool) -> Sources:
    """The splits that the key `path` names."""
    if spec.path is None:
        return {}
    path = folder / expanded(spec.path)
    if is_folder(spec.path, path):
        return folder_sources(path)
    return hub_sources(spec.path) if hub else {}


def files_of(written: str | Sequence[str], folder: Path) -> Files:
    """The files that a split names, patterns resolved; each once, where it is named first."""
    names = [written] if isinstance(written, str) else written
    return Files(tuple(dict.fromkeys(path for name in names for path in files_named(name, folder))))


def is_folder(written: str, path: Path) -> bool:
    """Whether this is a folder of files; if not, it could be a name on the hub."""
    if path.is_dir():
        return True
    if path.exists():
        raise DataError(
            f"{path}: path is a file; expected a folder or a hub name: give it as train"
        )
    if not _HUB_NAME.fullmatch(written) or kind_of(path):
        raise DataError(
            f"{path}: there is no such folder; expected a folder with train, validation and test "
            "files, or a hub name such as owner/name"
        )
    return False


def folder_sources(path: Path) -> Sources:
    """The splits of a folder with train, validation and test files."""
    files = {split: Files((file,)) for split in SPLITS if (file := split_file(path, split))}
    if "train" not in files:
        names = shown(sorted(entry.name for entry in path.iterdir())[:10])
        raise DataError(
            f"{path}: no train file in this folder (found {names}); expected train.jsonl "
            f"(or {', '.join(SUFFIXES[1:])}), and likewise validation and test"
        )
    return files


def hub_sources(path: str, splits: Mapping[str, str] = SAME) -> Sources:
    """The splits of a dataset on the hub; `splits` says how the hub calls each of ours."""
    name, _, configuration = path.partition(":")
    ask_only_where_it_is()
    datasets = needed("datasets", path)
    try:
        loaded = _loaded(datasets, name, configuration or None)
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


def _loaded(datasets: Any, name: str, configuration: str | None) -> Any:
    """A dataset of the hub. Where it is a script, which is not run any more, the tables that the
    hub has made of it."""
    try:
        return datasets.load_dataset(name, configuration)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        return datasets.load_dataset(name, configuration, revision="refs/convert/parquet")
