"""Data: a sub-dataset's rows as examples, split, capped and checked for leaks.

Everything drawn here (which rows are used, which are held out) is a pure function of the seed and
the sub-dataset's name, and keeps the order of the file.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msft.draws import sampled
from msft.formats import DataError, Example, Message, example_of, format_of
from msft.readers import SUFFIXES, Bad, Row, needed, read_rows, split_file
from msft.subdataset import DatasetSpec, Source, shown

__all__ = [
    "DataError",
    "Example",
    "LoadedDataset",
    "Message",
    "assembled",
    "format_of",
    "load_dataset_spec",
    "load_split",
    "read_examples",
]

SPLITS = ("train", "validation", "test")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(:[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """A sub-dataset's examples. `test` is empty where there is none; `notes` are for the user."""

    name: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    format: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """The examples of one source, their format, and the bad rows that were skipped."""

    examples: tuple[Example, ...]
    format: str
    skipped: tuple[DataError, ...] = ()


def read_examples(source: Source | Path, where: str, skip_bad_rows: bool = False) -> list[Example]:
    """The examples of a file, or of rows in memory, which messages call `where`."""
    return list(load_split(source, where, skip_bad_rows).examples)


def load_split(source: Source | Path, where: str, skip_bad_rows: bool = False) -> Split:
    """The same with format and skipped rows. At least one row must be good."""
    skipped: list[DataError] = []

    def bad(error: DataError) -> None:
        if not skip_bad_rows:
            raise error
        skipped.append(error)

    examples: list[Example] = []
    form: str | None = None
    for place, row in _rows(source, where, bad):
        try:
            example, form = example_of(row, place, form)
        except DataError as error:
            bad(error)
        else:
            examples.append(example)
    if not examples or form is None:
        at = source if isinstance(source, str | Path) else where
        why = f": all {len(skipped)} are bad, the first is {skipped[0]}" if skipped else ""
        raise DataError(f"{at}: no rows; expected at least one{why}")
    return Split(tuple(examples), form, tuple(skipped))


def load_dataset_spec(spec: DatasetSpec, folder: Path | None, seed: int) -> LoadedDataset:
    """Everything of a sub-dataset; relative files are looked for in `folder`."""
    if spec.benchmark is not None:
        raise DataError(f"{spec.name}: the benchmark {spec.benchmark!r} has a reader of its own")
    splits: dict[str, Split] = {}
    for split, source in _sources(spec, folder or Path()).items():
        where = f"sub-dataset {spec.name!r}, {split}"
        splits[split] = load_split(source, where, spec.skip_bad_rows)
    return assembled(spec, splits, seed)


def assembled(spec: DatasetSpec, splits: dict[str, Split], seed: int) -> LoadedDataset:
    """Hold out, cap and check the splits that were read."""
    if "train" not in splits:
        raise DataError(f"{spec.name}: no train split; expected one among {', '.join(splits)}")
    form = splits["train"].format
    notes: list[str] = []
    for split, read in splits.items():
        if read.format != form:
            raise DataError(
                f"{read.examples[0].where}: {split} rows are {read.format}, but train rows are "
                f"{form}; bring them into one format"
            )
        if read.skipped:
            notes.append(
                f"{split}: {len(read.skipped)} bad rows skipped (first: {read.skipped[0]})"
            )
    rows = {split: read.examples for split, read in splits.items()}
    if spec.validation_fraction is not None:
        if "validation" in rows:
            raise DataError(
                f"{spec.name}: there are validation rows ({rows['validation'][0].where}) and a "
                "validation_fraction; remove validation_fraction"
            )
        rows |= _held_out(rows["train"], spec.validation_fraction, spec.name, seed)
    if "validation" not in rows:
        raise DataError(
            f"{spec.name}: no validation rows; add a validation file, or e.g. "
            "validation_fraction: 0.1"
        )
    for split in SPLITS:
        rows[split] = _capped(split, rows.get(split, ()), spec, seed, notes)
    _refuse_overlap(rows, spec.name)
    notes += _repeated(rows)
    return LoadedDataset(
        spec.name, rows["train"], rows["validation"], rows["test"], form, tuple(notes)
    )


def _rows(source: Source | Path, where: str, bad: Bad) -> Iterator[Row]:
    if isinstance(source, str | Path):
        return read_rows(Path(source), bad)
    return ((f"{where}, row {number}", row) for number, row in enumerate(source, 1))


def _sources(spec: DatasetSpec, folder: Path) -> dict[str, Source | Path]:
    found: dict[str, Source | Path] = {} if spec.path is None else _splits_at(spec, folder)
    for split in SPLITS:
        source = getattr(spec, split)
        if source is not None:
            found[split] = folder / Path(source).expanduser() if isinstance(source, str) else source
    return found


def _splits_at(spec: DatasetSpec, folder: Path) -> dict[str, Source | Path]:
    """The splits of a folder of files, or of a dataset on the hub."""
    assert spec.path is not None
    path = folder / Path(spec.path).expanduser()
    if path.is_dir():
        files = {split: file for split in SPLITS if (file := split_file(path, split))}
        if "train" not in files:
            names = shown(sorted(entry.name for entry in path.iterdir())[:10])
            raise DataError(
                f"{path}: no train file in this folder (found {names}); expected train.jsonl "
                f"(or {', '.join(SUFFIXES[1:])}), and likewise validation and test"
            )
        return dict(files)
    if path.exists():
        raise DataError(
            f"{path}: path is a file; expected a folder or a hub name: give it as train"
        )
    if not _HUB_NAME.fullmatch(spec.path) or path.suffix.lower() in SUFFIXES:
        raise DataError(
            f"{path}: there is no such folder; expected a folder with train, validation and test "
            "files, or a hub name such as owner/name"
        )
    return _hub_splits(spec.path)


def _hub_splits(path: str) -> dict[str, Source | Path]:
    name, _, configuration = path.partition(":")
    datasets = needed("datasets", path)
    try:
        loaded = datasets.load_dataset(name, configuration or None)
        return {split: loaded[split] for split in SPLITS if split in loaded}
    except Exception as error:
        said = shown(str(error).split("\n")[0])
        raise DataError(
            f"{path}: there is no such folder, and the hub gave no dataset of this name "
            f"({type(error).__name__}: {said}); check the name (a configuration is chosen as "
            "owner/name:configuration); without a network, download it elsewhere (hf download "
            f"--repo-type dataset {name} --local-dir DIR) and give a folder with train.jsonl or "
            "train.parquet as path"
        ) from error


def _held_out(
    rows: tuple[Example, ...], fraction: float, name: str, seed: int
) -> dict[str, tuple[Example, ...]]:
    """Train and validation; rows that ask the same go to the same side."""
    questions = list(dict.fromkeys(map(_question, rows)))
    size = max(1, round(fraction * len(questions)))
    if size >= len(questions):
        raise DataError(
            f"{rows[0].where}: {name} has {len(questions)} different rows, and "
            f"validation_fraction {fraction} of them would leave none to train; add rows, or "
            "lower validation_fraction"
        )
    drawn = sampled(len(questions), size, seed, "validation", name)
    held = {questions[number] for number in drawn}
    return {
        "train": tuple(row for row in rows if _question(row) not in held),
        "validation": tuple(row for row in rows if _question(row) in held),
    }


def _capped(
    split: str, rows: tuple[Example, ...], spec: DatasetSpec, seed: int, notes: list[str]
) -> tuple[Example, ...]:
    most: int | None = getattr(spec, f"{split}_rows")
    if most is None or len(rows) == most:
        return rows
    if len(rows) < most:
        notes.append(f"{split}: {len(rows)} rows, fewer than {split}_rows {most}; all are used")
        return rows
    chosen = sampled(len(rows), most, seed, "rows", spec.name, split)
    return tuple(rows[number] for number in sorted(chosen))


def _question(row: Example) -> str:
    """What a row asks, up to white space and case; two rows that ask the same are duplicates."""
    asked: Iterable[str] = [row.prompt, *row.choices]
    if row.messages:
        asked = [f"{turn.role}: {turn.content}" for turn in row.messages[:-1]]
    folded = "\x1f".join(" ".join(text.split()) for text in asked).casefold()
    return folded if folded.strip("\x1f") else " ".join(row.completion.split()).casefold()


def _refuse_overlap(rows: dict[str, tuple[Example, ...]], name: str) -> None:
    trained = {_question(row): row for row in reversed(rows["train"])}
    for split in ("validation", "test"):
        leaked = [row for row in rows[split] if _question(row) in trained]
        if leaked:
            listed = "; ".join(
                f"{row.where} = {trained[_question(row)].where} ({shown(_question(row))})"
                for row in leaked[:3]
            )
            raise DataError(
                f"{leaked[0].where}: {len(leaked)} of {len(rows[split])} {split} rows of {name} "
                f"are also in train, so their scores would mean nothing: {listed}; remove them "
                "from one of the two"
            )


def _repeated(rows: dict[str, tuple[Example, ...]]) -> list[str]:
    notes = []
    for split in SPLITS:
        repeats = len(rows[split]) - len(set(map(_question, rows[split])))
        if repeats:
            notes.append(f"{split}: {repeats} rows repeat an earlier one")
    both = set(map(_question, rows["validation"])) & set(map(_question, rows["test"]))
    if both:
        notes.append(f"test: {len(both)} rows are also in validation, which chooses checkpoints")
    return notes
