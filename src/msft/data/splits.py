"""Splits: which rows of each sub-dataset are trained, which select, and which are the test.

A sub-dataset is read (`sources.py`) and may become several (`partition.py`). Then rows are held out
of train where there are no validation rows, each split is cut to its `*_rows`, and exemplars for
few-shot prompts are set aside. Of what is left no row of a split may ask what a row of another
split asks, for then a score would say nothing of unseen rows. Between sub-datasets that is noted.

Whatever is drawn here (which rows are used, are held out, are exemplars, or get a wrong label) is a
pure function of the seed and the sub-dataset's name, and keeps the order of the file.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msft.benchmarks import PUBLIC
from msft.benchmarks.benchmark import Benchmark
from msft.benchmarks.grading import Grader
from msft.data.formats import TEXT
from msft.data.partition import POOLED, Piece, partition
from msft.data.sources import read_splits
from msft.errors import DataError
from msft.example import Example, Split
from msft.recipe.dataset import SPLITS, DatasetSpec
from msft.recipe.recipe import Recipe
from msft.search.curves import SELECTION, TEST
from msft.search.draws import picked, sampled
from msft.text import counted, listed, shown

HELD_OUT_ROWS = 500
"""Validation rows of a benchmark that has none, if the recipe does not say; at most a fifth."""


@dataclass(frozen=True, slots=True)
class LoadedDataset:
    """A sub-dataset's examples. `test` is empty where there is none; `notes` are for the user.

    exemplars: train rows that may stand before a scored row and are not trained.
    grader: finds the answer in what a model wrote; None: the whole text is the answer.
    group: of a benchmark, for tables.
    excluded: numbers of the train rows that are not trained, by `exclude_rows`.
    """

    spec: DatasetSpec
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    format: str
    notes: tuple[str, ...] = ()
    exemplars: tuple[Example, ...] = ()
    grader: Grader | None = None
    group: str = ""
    excluded: frozenset[int] = frozenset()

    @property
    def splits(self) -> dict[str, tuple[Example, ...]]:
        return {"train": self.train, SELECTION: self.validation, TEST: self.test}

    @property
    def used(self) -> dict[str, tuple[Example, ...]]:
        """The splits without the train rows that are not trained."""
        if not self.excluded:
            return self.splits
        rows = enumerate(self.train)
        train = tuple(row for number, row in rows if number not in self.excluded)
        return {**self.splits, "train": train}


def load_datasets(recipe: Recipe) -> list[LoadedDataset]:
    """Every sub-dataset of a recipe in its order; those with `split_by` are several."""
    loaded = [dataset for spec in recipe.datasets for dataset in _loaded(spec, recipe)]
    seen: set[str] = set()
    for dataset in loaded:
        name = dataset.spec.name
        if name.casefold() in seen:
            raise DataError(
                f"{name}: split_by made a sub-dataset of this name, and there is another one; "
                "rename one of them"
            )
        seen.add(name.casefold())
    metrics = sorted({dataset.spec.metric for dataset in loaded})
    if recipe.mean == "pooled" and len(metrics) > 1:
        raise DataError(
            f"mean is pooled, but the sub-datasets have the metrics {', '.join(metrics)}, whose "
            "counts cannot be added (plain text has nll); use mean: macro"
        )
    return loaded


def _loaded(spec: DatasetSpec, recipe: Recipe) -> list[LoadedDataset]:
    """A sub-dataset of the recipe, or with `split_by` those that it is divided into."""
    benchmark = PUBLIC.get(spec.benchmark or "")
    splits, official = read_splits(spec, recipe)
    if "train" not in splits and not spec.is_watched:
        raise DataError(
            f"{spec.name}: no train split; expected one among {', '.join(splits)}, or watch: true "
            "for a sub-dataset that is only scored"
        )
    said: tuple[str, ...] = ()
    if next(iter(splits.values())).format == TEXT:
        spec, said = _scored_by_loss(spec)
    shots = exemplars_of(recipe, spec)
    pieces: list[Piece] = [(spec, splits, ())] if spec.split_by is None else partition(spec, splits)
    if benchmark is not None:
        pieces = [(_holding_out(own, read), read, notes) for own, read, notes in pieces]
    groups = _groups(benchmark, pieces, alone=len(recipe.datasets) == 1)
    loaded: list[LoadedDataset] = []
    for (own, read, notes), group in zip(pieces, groups, strict=True):
        found = divided(own, read, recipe.seed, shots, official, recipe.selection_split)
        grader = benchmark.grader if benchmark else None
        loaded.append(
            replace(found, notes=(*said, *notes, *found.notes), grader=grader, group=group)
        )
    return loaded


def _scored_by_loss(spec: DatasetSpec) -> tuple[DatasetSpec, tuple[str, ...]]:
    """A sub-dataset of plain text, which has no answers that could be right."""
    if spec.metric not in ("accuracy", "nll"):
        raise DataError(
            f"{spec.name}: metric is {spec.metric}, but its rows are plain text without a prompt, "
            "so nothing is generated; use metric: nll, or rows of prompt and completion"
        )
    if spec.num_fewshot:
        raise DataError(
            f"{spec.name}: num_fewshot is {spec.num_fewshot}, but its rows are plain text; leave "
            "num_fewshot out"
        )
    note = "plain text: the loss is on all tokens, and the metric is nll"
    return replace(spec, metric="nll"), (note,)


def _groups(benchmark: Benchmark | None, pieces: Sequence[Piece], alone: bool) -> list[str]:
    """The group of each piece, for tables. The pieces of a benchmark that is alone in its recipe
    have its broad subjects as groups; beside other benchmarks, groups are of benchmarks."""
    usual = benchmark.group if benchmark else ""
    broad = benchmark.subject_groups if benchmark and alone else {}
    found = []
    for _, splits, _ in pieces:
        first = next(iter(splits.values()))
        mine = {broad.get(row.subject, "") for row in first.examples}
        found.append(mine.pop() if len(mine) == 1 else "")
    return [group or POOLED for group in found] if any(found) else [usual] * len(pieces)


def _holding_out(spec: DatasetSpec, splits: Mapping[str, Split]) -> DatasetSpec:
    """Benchmarks without validation rows hold some out from train."""
    if "validation" in splits or "train" not in splits or spec.validation_fraction is not None:
        return spec
    rows = spec.validation_rows or HELD_OUT_ROWS
    return replace(spec, validation_fraction=min(0.2, rows / len(splits["train"].examples)))


def exemplars_of(recipe: Recipe, spec: DatasetSpec) -> int:
    """Exemplars before each scored row of a sub-dataset; a loss is measured without any."""
    if spec.metric == "nll":
        return 0
    if spec.num_fewshot is not None:
        return spec.num_fewshot
    if spec.benchmark is None:
        return 0
    return 5 if recipe.num_fewshot is None else recipe.num_fewshot


def divided(
    spec: DatasetSpec,
    splits: dict[str, Split],
    seed: int,
    shots: int = 0,
    official: bool = False,
    selection: str = SELECTION,
) -> LoadedDataset:
    """The splits that were read, divided: validation rows held out of train, splits cut to their
    `*_rows`, `shots` exemplars set aside, overlap refused. Of a watched sub-dataset, train rows are
    only there for exemplars and held-out rows, and are gone afterwards.

    official: splits as the authors published them, whose overlap is not the user's to mend.
    selection: the split that selects; where it is test, no validation rows are held out.
    """
    if not splits:
        raise DataError(
            f"{spec.name}: no rows that are scored; expected {selection} rows (a watched "
            "sub-dataset is not trained, so its train rows are not read)"
        )
    given, form, notes = spec, next(iter(splits.values())).format, _skipped(splits)
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
    if selection not in rows and not spec.is_watched:
        raise DataError(
            f"{spec.name}: no validation rows; add a validation file, or e.g. "
            "validation_fraction: 0.1"
        )
    if spec.guard is not None and SELECTION not in rows:
        raise DataError(
            f"{spec.name}: guard, but no validation rows, and test rows choose nothing; add "
            "validation rows, or leave guard out"
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
    if spec.is_watched:
        rows["train"] = ()
    refuse_overlap({"train": rows["train"], "exemplars": exemplars, **rows}, spec.name)
    notes += [*repeat_notes(rows), *variation_notes(rows)]
    train = with_wrong_labels(rows["train"], spec, seed, notes)
    return LoadedDataset(
        given, train, rows["validation"], rows["test"], form, tuple(notes), exemplars
    )


def _skipped(splits: dict[str, Split]) -> list[str]:
    """Notes on rows that were skipped; DataError where the splits have different formats."""
    first, notes = next(iter(splits)), []
    form = splits[first].format
    for split, read in splits.items():
        if read.format != form:
            raise DataError(
                f"{read.examples[0].where}: {split} rows are {read.format}, but {first} rows are "
                f"{form}; bring them into one format"
            )
        if read.skipped:
            bad = counted(read.skipped, "bad row")
            notes.append(f"{split}: {bad} skipped (first: {read.first_skipped})")
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
    """Exemplars and the rest of train. Rows beyond `train_rows` are taken first; no two of the
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


# Overlap: rows that ask the same
#
# A benchmark's rows are compared by what they ask, letters and digits alone; others by their prompt
# and choices up to white space and case.

SHORT = 20
"""Questions of fewer letters and digits are not compared between sub-datasets, nor of fewer letters
up to their numbers."""
FORM = 20
"""Words that more trained rows share, up to numbers, are the form of a task and not a question."""
FEW = 0.01
"""The share of scored rows that may differ from trained rows in their numbers only, by chance."""

_FURNITURE = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")
SCORED = ("validation", "test")
_WHY = {
    "train": "so their scores would mean nothing",
    "exemplars": "so the prompt would hold the answer",
    "validation": "which chooses checkpoints, so the test would not be unseen",
}


SplitRows = Mapping[str, Sequence[Example]]
"""The rows of each split."""


MOST_ASKED = 1_000_000
_asked: dict[int, tuple[Example, str]] = {}
"""What rows ask by their `id`, with the rows, so that no other one can get the same `id`."""


def question_of(row: Example) -> str:
    """What a row asks; two rows that ask the same are duplicates."""
    known = _asked.get(id(row))
    if known is None:
        if len(_asked) == MOST_ASKED:
            _asked.clear()
        asked = _bare(row.asks) or row.asks or _folded(row)
        known = _asked[id(row)] = (row, asked)
    return known[1]


def _folded(row: Example) -> str:
    asked: Iterable[str] = [row.prompt, *row.choices]
    if row.messages:
        asked = [f"{turn.role}: {turn.text}" for turn in row.messages[:-1]]
    folded = "\x1f".join(" ".join(text.split()) for text in asked).casefold()
    return folded if folded.strip("\x1f") else " ".join(row.completion.split()).casefold()


def _bare(text: str) -> str:
    return _FURNITURE.sub("", text).casefold()


def forget_questions() -> None:
    """Free the cache of `question_of`, which is needed only while rows are compared."""
    _asked.clear()


def refuse_overlap(rows: SplitRows, name: str) -> None:
    """No row of a split may ask what a row of another one asks."""
    order = list(rows)
    for number, later in enumerate(order):
        for earlier in order[:number]:
            known = {question_of(row): row for row in reversed(rows[earlier])}
            same = [(row, known[a]) for row in rows[later] if (a := question_of(row)) in known]
            if same:
                raise DataError(
                    f"{same[0][0].where}: {len(same)} of {len(rows[later])} {later} rows of {name} "
                    f"are also in {earlier}, {_WHY[earlier]}: {_first_pairs(same)}; remove them "
                    "from one of the two"
                )


def _first_pairs(same: Sequence[tuple[Example, Example]]) -> str:
    """The places of the first rows that ask the same, and what they ask."""
    return "; ".join(
        f"{row.where} = {other.where} ({shown(question_of(row))})" for row, other in same[:3]
    )


def without_overlap(rows: SplitRows, notes: list[str]) -> dict[str, tuple[Example, ...]]:
    """Official splits without overlap: a row that a later split has, too, is left out."""
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


def repeat_notes(rows: SplitRows) -> list[str]:
    """A note for each split with rows that repeat an earlier one of it."""
    counts = {s: len(found) - len(set(map(question_of, found))) for s, found in rows.items()}
    return [
        f"{s}: {counted(count, 'row')} {'repeats' if count == 1 else 'repeat'} an earlier one"
        for s, count in counts.items()
        if count
    ]


def variation_notes(rows: SplitRows) -> list[str]:
    """A note for each scored split with rows that differ from trained rows only in numbers."""
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
    """What a row asks without its numbers; empty if it has no number, or few letters."""
    asked = question_of(row)
    letters = _bare(_DIGITS.sub("", asked))
    return letters if _DIGITS.search(asked) and len(letters) >= SHORT else ""


def shared_between(datasets: Mapping[str, SplitRows]) -> dict[str, list[str]]:
    """Notes for each sub-dataset whose scored rows ask what another one trains."""
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


def refuse_trained(watched: Mapping[str, SplitRows], trained: Mapping[str, SplitRows]) -> None:
    """No row of a watched sub-dataset may ask what a trained row asks, however short it is: its
    score is to say what training does to what is not trained."""
    known: dict[str, tuple[str, Example]] = {}
    for name, splits in trained.items():
        for row in splits["train"]:
            known.setdefault(question_of(row), (name, row))
    for name, splits in watched.items():
        rows = [row for split in SCORED for row in splits.get(split, ())]
        same = [(row, *known[asked]) for row in rows if (asked := question_of(row)) in known]
        if same:
            others = list(dict.fromkeys(other for _, other, _ in same))
            places = _first_pairs([(row, there) for row, _, there in same])
            raise DataError(
                f"{same[0][0].where}: {name} is only watched, but {len(same)} of "
                f"{counted(len(rows), 'row')} of it {'is' if len(same) == 1 else 'are'} trained in "
                f"{listed(others)}, {_WHY['train']}: {places}; remove them from one of the two"
            )


def _long(rows: Sequence[Example]) -> set[str]:
    return {asked for row in rows if len(asked := question_of(row)) >= SHORT}


# Label noise: training rows with a wrong choice as their answer, for studies


def with_wrong_labels(
    rows: tuple[Example, ...], spec: DatasetSpec, seed: int, notes: list[str]
) -> tuple[Example, ...]:
    """The rows, exactly round(label_noise · rows) of them with a wrong choice as their answer."""
    if not spec.label_noise:
        return rows
    wrong = {number: _wrong(row, spec) for number, row in enumerate(rows)}
    count = round(spec.label_noise * len(rows))
    changed = list(rows)
    for number in sampled(len(rows), count, seed, "label noise", spec.name):
        choices = wrong[number]
        (pick,) = picked([1.0] * len(choices), 1, seed, "wrong choice", spec.name, number)
        answer = choices[pick]
        changed[number] = replace(
            rows[number],
            completion=answer.completion,
            answer=answer.answer,
            label=answer.label,
            others=(),
        )
    notes.append(
        f"label_noise {spec.label_noise:g}: {count:,} of {len(rows):,} train labels are made "
        "wrong, drawn by seed"
    )
    return tuple(changed)


def _wrong(row: Example, spec: DatasetSpec) -> list[Example]:
    """The row with each of its wrong choices; a choice that says the same as the right one is
    not wrong."""
    others = row.others or [
        replace(row, completion=choice, answer=number) for number, choice in enumerate(row.choices)
    ]
    wrong = [other for other in others if other.completion != row.completion]
    if not wrong:
        raise DataError(
            f"{row.where}: label_noise is {spec.label_noise:g} at {spec.name}, but this row has no "
            "wrong choice to take; leave label_noise out, or give rows of prompt, choices and "
            "answer"
        )
    return wrong
