"""The corpus: every sub-dataset of a recipe, read, encoded and checked; no weights needed."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from msft.data import DataError, Example, LoadedDataset, assembled, load_dataset_spec
from msft.draws import sampled
from msft.encoding import EncodedSplit, Tokenizer, encoded_split
from msft.evaluation import Task
from msft.history import SELECTION, TEST
from msft.mixture import Mixture, Part
from msft.recipe import DatasetSpec, Recipe
from msft.tasks import BENCHMARKS


@dataclass(frozen=True, slots=True)
class SubDataset:
    """A sub-dataset as the model sees it. `test` is None where the recipe has no test rows."""

    spec: DatasetSpec
    format: str
    train: EncodedSplit
    validation: EncodedSplit
    test: EncodedSplit | None
    shots: str
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class Corpus:
    """All sub-datasets, in recipe order."""

    datasets: Mapping[str, SubDataset]

    @property
    def has_test(self) -> bool:
        """Whether every sub-dataset has test rows, so that a mean over all can be had."""
        return all(dataset.test is not None for dataset in self.datasets.values())

    def mixture(self, rehearsal_fraction: float) -> Mixture:
        parts = tuple(
            Part(name, len(d.train.rows), len(d.train.rows), keep=d.spec.keep)
            for name, d in self.datasets.items()
        )
        return Mixture(parts, rehearsal_fraction)

    def tasks(self, recipe: Recipe) -> dict[str, Task]:
        """What is scored, and how."""
        return {
            name: Task(
                name,
                dataset.spec.metric,
                _splits(dataset),
                dataset.shots,
                recipe.choice_norm,
                dataset.spec.max_new_tokens,
            )
            for name, dataset in self.datasets.items()
        }

    def fingerprint(self) -> str:
        """Changes when a token of a row does, or what the row is judged by."""
        digest = hashlib.sha256()
        for name, dataset in self.datasets.items():
            digest.update(repr((name, dataset.shots, dataset.spec.metric)).encode())
            for split in (dataset.train, dataset.validation, dataset.test):
                for example, row in zip(split.examples, split.rows, strict=True) if split else ():
                    judged = (example.completion, example.choices, example.answer)
                    digest.update(repr((row, judged)).encode())
        return digest.hexdigest()


def load_corpus(recipe: Recipe, tokenizer: Tokenizer) -> Corpus:
    """Read and encode everything; the first thing that is wrong is a DataError."""
    return Corpus({spec.name: _sub_dataset(spec, recipe, tokenizer) for spec in recipe.datasets})


def _sub_dataset(spec: DatasetSpec, recipe: Recipe, tokenizer: Tokenizer) -> SubDataset:
    if spec.benchmark is None:
        loaded = load_dataset_spec(spec, recipe.folder, recipe.seed)
    else:
        loaded = assembled(spec, BENCHMARKS[spec.benchmark](recipe.seed), recipe.seed)
    notes = list(loaded.notes)
    shots = _shots(loaded, spec, recipe)
    splits: dict[str, EncodedSplit | None] = {}
    for split, examples in (
        ("train", loaded.train),
        (SELECTION, loaded.validation),
        (TEST, loaded.test),
    ):
        encoded = encoded_split(examples, tokenizer, recipe.max_length) if examples else None
        if encoded and encoded.too_long:
            notes.append(
                f"{split}: {len(encoded.too_long)} of {len(examples)} rows are longer than "
                f"max_length {recipe.max_length} and are left out (first: {encoded.too_long[0]})"
            )
        if encoded and not encoded.rows:
            raise DataError(
                f"{spec.name}: every {split} row is longer than max_length "
                f"{recipe.max_length} tokens; raise max_length"
            )
        splits[split] = encoded
    train, validation = splits["train"], splits[SELECTION]
    if train is None or validation is None:
        empty = "train" if train is None else "validation"
        raise DataError(
            f"{spec.name}: no {empty} rows; mSFT decides from validation scores, so "
            "both are needed (for validation: a file, or validation_fraction: 0.1)"
        )
    return SubDataset(spec, loaded.format, train, validation, splits[TEST], shots, tuple(notes))


def _shots(loaded: LoadedDataset, spec: DatasetSpec, recipe: Recipe) -> str:
    """The few-shot exemplars that stand before every test prompt, chosen by seed from train."""
    asked = recipe.fewshot(spec)
    if not asked:
        return ""
    if any(example.messages for example in loaded.train):
        raise DataError(
            f"{spec.name}: num_fewshot is {asked}, but its rows are conversations; "
            "few-shot prompts need rows of prompt and completion"
        )
    if asked > len(loaded.train):
        raise DataError(
            f"{spec.name}: num_fewshot is {asked}, but there are only "
            f"{len(loaded.train)} train rows to choose from"
        )
    numbers = sampled(len(loaded.train), asked, recipe.seed, "shots", spec.name)
    return "".join(_exemplar(loaded.train[number]) for number in numbers)


def _exemplar(example: Example) -> str:
    return f"{example.prompt}{example.completion}\n\n"


def _splits(dataset: SubDataset) -> dict[str, EncodedSplit]:
    splits = {SELECTION: dataset.validation}
    return splits if dataset.test is None else splits | {TEST: dataset.test}
