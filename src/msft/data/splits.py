"""Data: a sub-dataset's rows as examples, split, capped and checked for leaks.

Everything drawn here (which rows are used, which are held out, which are exemplars) is a pure
function of the seed and the sub-dataset's name, and keeps the order of the file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msft.data.formats import example_of
from msft.data.label_noise import with_wrong_labels
from msft.data.overlap import question_of, refuse_overlap, repeats, variations, without_overlap
from msft.data.sources import SPLITS, Files, own_sources, rows_of
from msft.errors import DataError
from msft.example import Example, Split
from msft.recipe.dataset import DatasetSpec, Rows
from msft.search.curves import SELECTION, TEST
from msft.search.draws import sampled
from msft.text import counted

Reading = Callable[[Any, str, str | None], tuple[Example, str]]
"""reading(row, where, format so far): the row as an example, and its format."""


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """A sub-dataset's examples. `test` is empty where there is none; `notes` are for the user.

    exemplars: train rows that may stand before a scored row and are not trained.
    """

    name: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    format: str
    notes: tuple[str, ...] = ()
    exemplars: tuple[Example, ...] = ()

    @property
    def splits(self) -> dict[str, tuple[Example, ...]]:
        return {"train": self.train, SELECTION: self.validation, TEST: self.test}


def load_split(
    source: Files | Rows,
    where: str,
    skip_bad_rows: bool = False,
    reading: Reading = example_of,
) -> Split:
    """The examples of files, or of rows in memory, which messages call `where`, with their format
    and the rows that were skipped. At least one row must be good."""
    skipped: list[DataError] = []

    def bad(error: DataError) -> None:
        if not skip_bad_rows:
            raise error
        skipped.append(error)

    examples: list[Example] = []
    form: str | None = None
    for place, row in rows_of(source, where, bad):
        try:
            example, form = reading(row, place, form)
        except DataError as error:
            bad(error)
        else:
            examples.append(example)
    if not examples or form is None:
        at = source if isinstance(source, Files) else where
        why = f": all {len(skipped)} are bad, the first is {skipped[0]}" if skipped else ""
        raise DataError(f"{at}: no rows; expected at least one{why}")
    return Split(tuple(examples), form, tuple(skipped))


def own_splits(
    spec: DatasetSpec,
    folder: Path | None,
    reading: Reading = example_of,
    splits: Sequence[str] = SPLITS,
) -> dict[str, Split]:
    """These splits of the user's own data; relative files are looked for in `folder`."""
    return {
        split: load_split(
            source, f"sub-dataset {spec.name!r}, {split}", spec.skip_bad_rows, reading
        )
        for split, source in own_sources(spec, folder or Path(), splits).items()
    }


def assembled(
    spec: DatasetSpec,
    splits: dict[str, Split],
    seed: int,
    shots: int = 0,
    official: bool = False,
    selection: str = SELECTION,
) -> LoadedDataset:
    """Hold out, set `shots` exemplars aside, cap and check the splits that were read.

    official: splits as the authors published them, whose overlap is not the user's to mend.
    selection: the split that selects; where it is test, no validation rows are held out.
    """
    form, notes = splits["train"].format, _skipped(splits)
    rows = {split: read.examples for split, read in splits.items()}
    if selection == TEST:
        if "test" not in rows:
            raise DataError(
                f"{spec.name}: no test rows, but selection_split is test, so checkpoints are "
                "chosen on test rows; add a test file, or leave selection_split out"
            )
        spec = replace(spec, validation=None, validation_fraction=None, validation_rows=None)
    elif spec.validation_fraction is not None:
        if "validation" in rows:
            raise DataError(
                f"{spec.name}: there are validation rows ({rows['validation'][0].where}) and a "
                "validation_fraction; remove validation_fraction"
            )
        rows |= _held_out(rows["train"], spec.validation_fraction, spec.name, seed)
    if selection not in rows:
        raise DataError(
            f"{spec.name}: no validation rows; add a validation file, or e.g. "
            "validation_fraction: 0.1"
        )
    rows = {split: rows.get(split, ()) for split in SPLITS}
    if official:
        rows = without_overlap(rows, notes)
    train, held = rows["train"], len(rows["validation"])
    for split in SPLITS:
        rows[split] = _capped(split, rows[split], spec, seed, notes)
    lost = held - len(rows["validation"])
    if lost and spec.validation_fraction is not None and spec.benchmark is None:
        verb = "is" if lost == 1 else "are"
        notes.append(
            f"validation: {counted(lost, 'held-out row')} beyond validation_rows "
            f"{spec.validation_rows} {verb} neither trained nor scored; lower validation_fraction"
        )
    exemplars, rows["train"] = _set_aside(train, rows["train"], shots, spec.name, seed)
    refuse_overlap({"train": rows["train"], "exemplars": exemplars, **rows}, spec.name)
    notes += [*repeats(rows), *variations(rows)]
    train = with_wrong_labels(rows["train"], spec, seed, notes)
    return LoadedDataset(
        spec.name, train, rows["validation"], rows["test"], form, tuple(notes), exemplars
    )


def _skipped(splits: dict[str, Split]) -> list[str]:
    """A note on the rows that were skipped; formats must agree."""
    form, notes = splits["train"].format, []
    for split, read in splits.items():
        if read.format != form:
            raise DataError(
                f"{read.examples[0].where}: {split} rows are {read.format}, but train rows are "
                f"{form}; bring them into one format"
            )
        if read.skipped:
            bad = counted(len(read.skipped), "bad row")
            notes.append(f"{split}: {bad} skipped (first: {read.skipped[0]})")
    return notes


def _held_out(
    rows: tuple[Example, ...], fraction: float, name: str, seed: int
) -> dict[str, tuple[Example, ...]]:
    """Train and validation; rows that ask the same go to the same side."""
    questions = list(dict.fromkeys(map(question_of, rows)))
    size = max(1, round(fraction * len(questions)))
    if size >= len(questions):
        raise DataError(
            f"{rows[0].where}: {name} has {counted(len(questions), 'different row')}, and "
            f"validation_fraction {fraction} would leave none to train; add rows, or lower "
            "validation_fraction"
        )
    drawn = sampled(len(questions), size, seed, "validation", name)
    held = {questions[number] for number in drawn}
    return {
        "train": tuple(row for row in rows if question_of(row) not in held),
        "validation": tuple(row for row in rows if question_of(row) in held),
    }


def _capped(
    split: str, rows: tuple[Example, ...], spec: DatasetSpec, seed: int, notes: list[str]
) -> tuple[Example, ...]:
    most: int | None = getattr(spec, f"{split}_rows")
    if most is None or len(rows) == most:
        return rows
    if len(rows) < most:
        found = counted(len(rows), "row")
        notes.append(f"{split}: {found}, fewer than {split}_rows {most}; all are used")
        return rows
    chosen = sampled(len(rows), most, seed, "rows", spec.name, split)
    return tuple(rows[number] for number in sorted(chosen))


def _set_aside(
    rows: tuple[Example, ...], train: tuple[Example, ...], shots: int, name: str, seed: int
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Exemplars and the rest of train. Rows beyond `train_rows` serve first; no two of the
    exemplars ask the same, and no trained row asks what one of them asks."""
    if not shots:
        return (), train
    if any(row.messages for row in rows):
        raise DataError(
            f"{name}: num_fewshot is {shots}, but its rows are conversations; few-shot prompts "
            "need rows of prompt and completion"
        )
    trained = {question_of(row) for row in train}
    spare = _different([row for row in rows if question_of(row) not in trained])
    own = _different(train)
    if len(spare) + len(own) <= shots:
        there = "there is" if len(own) == 1 else "there are"
        raise DataError(
            f"{name}: num_fewshot is {shots}, but {there} only {counted(len(own), 'train row')} "
            "to choose from, and some must be left to train; lower num_fewshot"
        )
    drawn = sampled(len(spare), min(shots, len(spare)), seed, "shots", name)
    more = sampled(len(own), shots - len(drawn), seed, "more shots", name)
    exemplars = (*(spare[number] for number in drawn), *(own[number] for number in more))
    asked = {question_of(row) for row in exemplars}
    return exemplars, tuple(row for row in train if question_of(row) not in asked)


def _different(rows: Sequence[Example]) -> list[Example]:
    return list({question_of(row): row for row in reversed(rows)}.values())[::-1]
