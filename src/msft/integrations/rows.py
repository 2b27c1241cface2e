"""Rows of a Trainer: prepared and collated by the trainer itself, sub-dataset by sub-dataset.

What a row's tokens are and which of them are trained is what the trainer's own collator says of
that row alone, so scores are taken on the very tokens that are trained.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msft.data.corpus import NO_ROWS, Corpus, SubDataset, weight_note
from msft.data.encoding import EncodedSplit
from msft.data.splits import (
    refuse_overlap,
    refuse_trained,
    repeat_notes,
    shared_between,
    variation_notes,
)
from msft.engine.kernels import NO_LABEL
from msft.errors import DataError, OptionError, RecipeError
from msft.example import Encoded, Example
from msft.recipe.dataset import DatasetSpec
from msft.search.curves import SELECTION, TEST
from msft.search.options import refuse_unknown
from msft.text import counted, shown

SPLITS = ("train", "validation", "test")
OWN_KEYS = ("metric", "keep", "weight", "max_new_tokens", "watch", "guard")
"""Keys of a sub-dataset in a recipe that may stand beside its splits."""


EXPECTED_ROWS = {
    "SFTTrainer": "expected prompt and completion, messages, or text",
    "Trainer": "expected tokenized rows: input_ids and labels",
}
"""The columns that the rows of each trainer have."""


@dataclass(frozen=True, slots=True)
class TrainerSplit:
    """The rows of a split.

    rows: what the trainer's collator takes, by number.
    encoded: their tokens, and which of them are trained.
    """

    rows: Any
    encoded: tuple[Encoded, ...]


TrainerRows = Mapping[str, Mapping[str, TrainerSplit]]
"""The splits of every sub-dataset, by their names."""


def named_splits(datasets: Any, metric: str, selection: str = SELECTION) -> list[dict[str, Any]]:
    """The sub-datasets as a recipe names them; RecipeError where they are no names with rows.

    selection: the split whose rows choose checkpoints.
    """
    if not isinstance(datasets, Mapping) or not datasets:
        raise RecipeError(
            f"datasets is {shown(datasets)}; expected names with their rows, such as "
            '{"mine": {"train": rows, "validation": rows}}'
        )
    specs = []
    for name, given in datasets.items():
        if not isinstance(given, Mapping):
            raise RecipeError(
                f"datasets[{name!r}] is {shown(given)}; expected its splits, such as "
                '{"train": rows, "validation": rows}'
            )
        try:
            refuse_unknown(given, (*SPLITS, *OWN_KEYS), f"key of datasets[{name!r}]:")
        except OptionError as error:
            raise RecipeError(str(error)) from error
        needed = (TEST if selection == TEST else SELECTION,)
        for split in (*(() if given.get("watch") else ("train",)), *needed):
            if given.get(split) is None:
                only = "" if split in needed else "; one that is only scored has watch=True"
                raise RecipeError(
                    f"datasets[{name!r}] has no {split} rows; a checkpoint is chosen on rows that "
                    f"were not trained: give both (Dataset.train_test_split makes two of one){only}"
                )
        for split in (split for split in SPLITS if given.get(split) is not None):
            if isinstance(given[split], str | Path) or not hasattr(given[split], "__len__"):
                raise RecipeError(
                    f"datasets[{name!r}], {split}: found {shown(given[split])}; expected a list of "
                    "dicts, or a datasets.Dataset that is not streamed (datasets.load_dataset "
                    "reads files)"
                )
        specs.append({"name": name, "metric": metric, **given})
    return specs


def prepared_rows(
    trainer: Any, specs: Sequence[DatasetSpec], quiet: bool, splits: Sequence[str] = SPLITS
) -> TrainerRows:
    """The rows of every sub-dataset as this trainer would train them; DataError where it would
    drop some, or where they have no answer to be scored by.

    quiet: without bars of `datasets`. splits: those that are read.
    """
    with _bars(shown=not quiet):
        return {
            spec.name: {
                split: _split(trainer, getattr(spec, split), spec, split)
                for split in splits
                if getattr(spec, split) is not None
            }
            for spec in specs
        }


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    import datasets  # type: ignore[import-untyped]

    hide = not shown and not datasets.utils.are_progress_bars_disabled()
    if hide:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            datasets.enable_progress_bars()


def corpus_of(
    rows: TrainerRows, specs: Sequence[DatasetSpec], tokenizer: Any, selection: str = SELECTION
) -> tuple[Corpus, list[int]]:
    """The corpus of a run, and the special tokens by which answers end.

    selection: the split whose rows choose checkpoints.
    """
    ends: set[int] = set()
    special = frozenset(tokenizer.all_special_ids)
    examples = {
        spec.name: {
            split: [
                _example(row, f"{spec.name}, {split}, row {number}", tokenizer)
                for number, row in enumerate(found.encoded, 1)
            ]
            for split, found in rows[spec.name].items()
        }
        for spec in specs
    }
    watched = {spec.name for spec in specs if spec.is_watched}
    refuse_trained(
        {name: splits for name, splits in examples.items() if name in watched},
        {name: splits for name, splits in examples.items() if name not in watched},
    )
    shared = shared_between(examples)
    datasets = {}
    for spec in specs:
        refuse_overlap(examples[spec.name], spec.name)
        encoded = {split: found.encoded for split, found in rows[spec.name].items()}
        splits = {
            split: EncodedSplit(tuple(examples[spec.name][split]), found, (), (*range(len(found)),))
            for split, found in encoded.items()
        }
        for row in encoded[selection]:
            marks = [token for token in row.tokens[len(row.prompt) :] if token in special]
            ends.update(marks[-1:])
        notes = [*repeat_notes(examples[spec.name]), *shared[spec.name]]
        if spec.name not in watched:
            notes += variation_notes(examples[spec.name])
            notes += weight_note(spec, len(encoded["train"]))
        datasets[spec.name] = SubDataset(
            spec,
            "trainer",
            splits.get("train", NO_ROWS),
            splits.get(SELECTION),
            splits.get(TEST),
            exemplars=(),
            grader=None,
            group="",
            notes=tuple(notes),
            watched=tuple(splits) if spec.name in watched else (),
        )
    apart = {name: each for name, each in datasets.items() if name in watched}
    trained = {name: each for name, each in datasets.items() if name not in watched}
    return Corpus(trained, selection=selection, watched=apart), sorted(ends)


def notes_of(trainer: Any, rows: TrainerRows, corpus: Corpus) -> Iterator[str]:
    """Notes on the rows, and on what the trainer made of them."""
    if trainer.eval_dataset is not None:
        yield (
            "the trainer's eval_dataset, eval_strategy and compute_metrics are not used: "
            f"sub-datasets are scored on their own {corpus.selection} rows, evals_per_epoch times "
            "an epoch"
        )
    most = getattr(trainer.args, "max_length", None)
    for name, dataset in corpus.scored.items():
        yield from (f"{name}: {note}" for note in dataset.notes)
        for split, found in rows[name].items():
            full = sum(1 for row in found.encoded if len(row.tokens) == most)
            if full:
                yield (
                    f"{name}: {split}: {full} of {counted(len(found.encoded), 'row')} with "
                    f"max_length ({most}) tokens; the trainer cut what was longer"
                )
        source: Any = dataset.spec.train
        if dataset.watched:
            continue
        if "completion" in source[0] and all(all(row.answer) for row in dataset.train.rows):
            yield (
                f"{name}: prompts are trained too; set completion_only_loss=True to train "
                "completions only (by itself SFTTrainer goes by its train_dataset)"
            )
    if corpus.note:
        yield corpus.note


def _split(trainer: Any, source: Any, spec: DatasetSpec, split: str) -> TrainerSplit:
    what = f"{spec.name}, {split}"
    if not len(source):
        raise DataError(f"{what}: no rows; expected at least one")
    rows = _prepared(trainer, source, what)
    encoded = [_encoded(trainer, row, f"{what}, row {place}") for place, row in enumerate(rows, 1)]
    silent = [number for number, row in enumerate(encoded, 1) if not row.answer_tokens]
    lost = len(source) - len(rows) + len(silent)
    if lost:
        kept = "dropped" if len(rows) < len(source) else "trained on nothing"
        raise DataError(
            f"{what}: {lost} of {counted(len(source), 'row')} would be {kept}, since no token of "
            f"the answer is left within max_length ({getattr(trainer.args, 'max_length', None)}); "
            "raise max_length, or take these rows out first"
        )
    if split != "train":
        encoded = [_without_ending(row) for row in encoded]
        whole = sum(1 for row in encoded if not row.prompt)
        if whole and spec.metric != "nll":
            raise DataError(
                f"{what}: {whole} of {counted(len(encoded), 'row')} with no prompt before the "
                "answer (every token is trained), so no answer can be generated; give rows of "
                "prompt and completion with completion_only_loss=True (by itself SFTTrainer goes "
                "by its train_dataset), conversations with assistant_only_loss=True, or ask for "
                'the loss of the answers with metric="nll"'
            )
    return TrainerSplit(rows, tuple(encoded))


def _prepared(trainer: Any, source: Any, what: str) -> Any:
    """Rows as the trainer's collator takes them, in the order given."""
    import datasets

    rows = source if isinstance(source, datasets.Dataset) else datasets.Dataset.from_list([*source])
    columns = ", ".join(rows.column_names)
    try:
        if hasattr(trainer, "_prepare_dataset") and not trainer._skip_prepare_dataset:
            args = copy.copy(trainer.args)
            args.shuffle_dataset = False
            given = (trainer.processing_class, args, False, trainer._formatting_func, what)
            rows = trainer._prepare_dataset(rows, *given)
        return trainer._remove_unused_columns(rows, description=what)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        kind = type(trainer).__name__
        raise DataError(
            f"{what}: {kind} cannot take these rows (columns {columns}): {type(error).__name__}: "
            f"{error}; {EXPECTED_ROWS.get(kind, EXPECTED_ROWS['Trainer'])}"
        ) from error


def _encoded(trainer: Any, row: Mapping[str, Any], where: str) -> Encoded:
    """A row's tokens without padding, and which of them are trained."""
    try:
        batch = trainer.data_collator([dict(row)])
        ids, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DataError(
            f"{where}: the collator of this {type(trainer).__name__} gives no input_ids with "
            f"labels ({type(error).__name__}: {error}); expected rows of a causal language model, "
            "with labels or with a collator that makes them"
        ) from error
    real = batch["attention_mask"][0].tolist() if "attention_mask" in batch else [1] * len(ids)
    if len(real) != len(ids) or len(labels) != len(ids):
        raise DataError(
            f"{where}: {len(ids)} input_ids, but {len(labels)} labels; expected one for each token"
        )
    kept = [
        (token, label) for token, label, is_real in zip(ids, labels, real, strict=True) if is_real
    ]
    if any(label not in (NO_LABEL, token) for token, label in kept):
        raise DataError(
            f"{where}: a label is neither its token nor -100; expected the labels of a causal "
            "language model, which are the tokens themselves"
        )
    return Encoded(tuple(token for token, _ in kept), tuple(label != NO_LABEL for _, label in kept))


def _without_ending(row: Encoded) -> Encoded:
    """The row up to its last answer; no answer depends on the template's text behind it."""
    end = len(row.tokens)
    while not row.answer[end - 1]:
        end -= 1
    return Encoded(row.tokens[:end], row.answer[:end])


def _example(row: Encoded, where: str, tokenizer: Any) -> Example:
    row = _without_ending(row)
    prompt, answer = row.prompt, row.tokens[len(row.prompt) :]
    asked, said = (tokenizer.decode(part, skip_special_tokens=True) for part in (prompt, answer))
    return Example(asked, said, where=where)
