"""The corpus: every sub-dataset of a recipe, read, encoded and checked; no weights needed."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msft.benchmarks.grading import Grader
from msft.data.encoding import EncodedSplit, Tokenizer, encoded_split, encoded_texts, on_every_token
from msft.data.generation_limits import SLACK, limit_note
from msft.data.loading import Found, load_datasets
from msft.data.notes import source_notes, weight_note
from msft.data.overlap import forget_questions, shared_between
from msft.errors import DataError, RecipeError
from msft.example import Example
from msft.recipe.dataset import DatasetSpec
from msft.recipe.recipe import Recipe
from msft.search.methods import PreparedMethod
from msft.search.mixture import Mixture, Part
from msft.search.options import ticks_of
from msft.search.rollout import Settings
from msft.search.scores import SELECTION, TEST
from msft.text import SELECTED_ON_TEST, counted, no_test_mean

ChoiceNorm = Literal["chars", "tokens", "none"]


@dataclass(frozen=True, slots=True)
class Task:
    """A sub-dataset as something to be scored.

    metric: `accuracy`, `nll` or a function of the user's own.
    shots: text of the few-shot exemplars that stands before every prompt.
    max_new_tokens: limit of a generation (None: the longest reference and a little more).
    grader: finds the answer in what the model wrote; None: all of it is the answer.
    soft: the probability of the right choice is wanted too.
    counts_rows: an evaluation counts the tokens of every row, not those that were computed.
    loss: the loss of the references is wanted too, on validation.
    context: how many tokens the model has places for; None: not known.
    """

    name: str
    metric: str
    splits: Mapping[str, EncodedSplit]
    shots: str = ""
    choice_norm: ChoiceNorm = "chars"
    max_new_tokens: int | None = None
    grader: Grader | None = None
    soft: bool = False
    counts_rows: bool = False
    loss: bool = False
    context: int | None = None


@dataclass(frozen=True, slots=True)
class SubDataset:
    """A sub-dataset as the model sees it. `test` is None where the recipe has no test rows,
    `validation` where test rows select.

    exemplars: what stands before every scored row.
    grader: finds the answer in what the model wrote; None: the whole text is the answer.
    group: of a benchmark, for tables.
    """

    spec: DatasetSpec
    format: str
    train: EncodedSplit
    validation: EncodedSplit | None
    test: EncodedSplit | None
    exemplars: tuple[Example, ...]
    grader: Grader | None
    group: str
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.spec.name

    def rows_of(self, split: str) -> EncodedSplit:
        """Its rows of a split that it has."""
        found = {"train": self.train, SELECTION: self.validation, TEST: self.test}[split]
        assert found is not None, f"{self.name} has {split} rows"
        return found

    @property
    def part(self) -> Part:
        """Its share of an epoch."""
        return Part.weighted(self.name, len(self.train.rows), self.spec.weight, self.spec.keep)

    @property
    def epoch_rows(self) -> int:
        """Rows that an epoch of the whole mixture takes from it."""
        return self.part.rows

    @property
    def epoch_tokens(self) -> int:
        """Their tokens; where a sample is drawn anew each epoch, so many on average."""
        tokens = sum(len(row.tokens) for row in self.train.rows)
        return round(tokens * self.epoch_rows / len(self.train.rows))

    @property
    def shots(self) -> str:
        return "".join(map(_exemplar, self.exemplars))


@dataclass(frozen=True, slots=True)
class Corpus:
    """All sub-datasets, in recipe order, and how many tokens the model has places for.

    selection: the split whose rows choose checkpoints.
    """

    datasets: Mapping[str, SubDataset]
    context: int | None = None
    selection: str = SELECTION

    @property
    def has_test(self) -> bool:
        """Whether every sub-dataset has test rows, so that a mean over all can be had."""
        return all(dataset.test is not None for dataset in self.datasets.values())

    @property
    def note(self) -> str | None:
        """What a person should know of the test rows; None where there is nothing to say."""
        if self.selection == TEST:
            return f"selection_split is test. {SELECTED_ON_TEST}"
        if self.has_test:
            return None
        if not self.tested:
            return "no sub-dataset has test rows, so nothing is scored on test"
        without = [name for name in self.datasets if name not in self.tested]
        return no_test_mean(without)

    @property
    def tested(self) -> tuple[str, ...]:
        """The sub-datasets that have test rows."""
        return tuple(name for name, each in self.datasets.items() if each.test is not None)

    def mixture(self, rehearsal_fraction: float) -> Mixture:
        return Mixture(tuple(d.part for d in self.datasets.values()), rehearsal_fraction)

    def tasks(self, recipe: Recipe) -> dict[str, Task]:
        """What is scored, and how."""
        return {
            name: Task(
                name,
                dataset.spec.metric,
                {
                    split: rows
                    for split, rows in ((SELECTION, dataset.validation), (TEST, dataset.test))
                    if rows is not None
                },
                dataset.shots,
                recipe.choice_norm,
                dataset.spec.max_new_tokens,
                dataset.grader,
                recipe.peak_rule.by == "probability",
                recipe.evaluation_tokens == "every_row",
                recipe.validation_loss,
                self.context,
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


def load_corpus(recipe: Recipe, tokenizer: Tokenizer, context: int | None = None) -> Corpus:
    """Read and encode everything; the first thing that is wrong is a DataError.

    context: how many tokens the model has places for; None: not known.
    """
    if context is not None and recipe.max_length > context:
        raise RecipeError(
            f"max_length is {recipe.max_length} tokens, but the model has places for {context}; "
            f"set max_length to {context} or less",
            ("max_length",),
        )
    found = load_datasets(recipe)
    shared = shared_between({f.spec.name: f.loaded.splits for f in found})
    forget_questions()
    return Corpus(
        {
            f.spec.name: _sub_dataset(f, recipe, tokenizer, context, shared[f.spec.name])
            for f in found
        },
        context,
        recipe.selection_split,
    )


def _sub_dataset(
    found: Found, recipe: Recipe, tokenizer: Tokenizer, context: int | None, shared: list[str]
) -> SubDataset:
    spec, loaded = found.spec, found.loaded
    notes = [*source_notes(spec), *loaded.notes, *shared]
    splits: dict[str, EncodedSplit | None] = {}
    for split, examples in loaded.splits.items():
        most, every = recipe.max_length, split != "train"
        encoded = encoded_split(examples, tokenizer, most, every) if examples else None
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
        if encoded and split == "train" and not recipe.completion_only_loss:
            encoded = on_every_token(encoded)
        splits[split] = encoded
    train, validation, test = splits["train"], splits[SELECTION], splits[TEST]
    selecting = splits[recipe.selection_split]
    if train is None or selecting is None:
        empty = "train" if train is None else recipe.selection_split
        raise DataError(
            f"{spec.name}: no {empty} rows; mSFT decides from {recipe.selection_split} scores, so "
            "both are needed (for validation: a file, or validation_fraction: 0.1)"
        )
    if recipe.peak_rule.by == "probability" and not selecting.examples[0].choices:
        raise DataError(
            f"{selecting.examples[0].where}: peaks.by is probability, but the rows of {spec.name} "
            "have no choices; use peaks.by: score, or rows with choices (of benchmarks: "
            "prompt_style: text)"
        )
    notes += weight_note(Part.weighted(spec.name, len(train.rows), spec.weight), spec.weight)
    scored = [rows for rows in (validation, test) if rows is not None]
    exemplars = _fitting(loaded.exemplars, scored, spec, tokenizer, context, notes)
    for split, encoded in ((SELECTION, validation), (TEST, test)):
        if encoded and not exemplars and generates(spec.metric, encoded):
            _refuse_no_prompt(split, encoded)
            notes += limit_note(split, encoded.rows, spec.max_new_tokens, context)
    return SubDataset(
        spec,
        loaded.format,
        train,
        validation,
        test,
        exemplars,
        found.grader,
        found.group,
        tuple(notes),
    )


def _refuse_no_prompt(split: str, encoded: EncodedSplit) -> None:
    """DataError for rows that leave a generation nothing to start from."""
    pairs = zip(encoded.examples, encoded.rows, strict=True)
    silent = [example.where for example, row in pairs if not row.prompt]
    if silent:
        raise DataError(
            f"{silent[0]}: {len(silent)} of {counted(len(encoded.rows), 'row')} of {split} with no "
            "prompt before the answer, so no answer can be generated; give every row a prompt, or "
            "ask for the loss of the answers with metric: nll"
        )


def generates(metric: str, split: EncodedSplit) -> bool:
    """Whether rows are scored by what the model writes, not by likelihoods."""
    return metric != "nll" and not (metric == "accuracy" and split.examples[0].choices)


def _fitting(
    exemplars: tuple[Example, ...],
    scored: list[EncodedSplit],
    spec: DatasetSpec,
    tokenizer: Tokenizer,
    context: int | None,
    notes: list[str],
) -> tuple[Example, ...]:
    """As many of the exemplars as the model has places for before its longest scored row."""
    if not exemplars or context is None:
        return exemplars
    lengths = list(map(len, encoded_texts([_exemplar(e) for e in exemplars], tokenizer, True)))
    rows = [row for split in scored for row in split.rows]
    choices = [choice for split in scored for e in split.examples for choice in e.choices]
    answers = [len(row.tokens) - len(row.prompt) for row in rows]
    answers += map(len, encoded_texts(choices, tokenizer, special=False))
    answer = max(answers) + SLACK
    longest = max(len(row.prompt) for row in rows) + (spec.max_new_tokens or answer)
    fit = len(exemplars)
    while fit and sum(lengths[:fit]) + longest > context:
        fit -= 1
    if fit < len(exemplars):
        notes.append(
            f"{fit} instead of {len(exemplars)} exemplars, which would take {sum(lengths):,} "
            f"tokens before up to {longest:,} of a scored row; the model has places for "
            f"{context:,}"
        )
    return exemplars[:fit]


def _exemplar(example: Example) -> str:
    return f"{example.prompt}{example.completion}\n\n"


def settings_for(recipe: Recipe, corpus: Corpus, method: PreparedMethod) -> Settings:
    """The settings of a run, as far as recipe and data say."""
    return Settings(
        mixture=corpus.mixture(method.mixture_options.rehearsal_fraction),
        compute_budget=ticks_of(recipe.compute_budget, recipe.evals_per_epoch, "compute_budget"),
        train_ticks=ticks_of(recipe.num_train_epochs, recipe.evals_per_epoch, "num_train_epochs"),
        evals_per_epoch=recipe.evals_per_epoch,
        seed=recipe.seed,
        peaks=recipe.peak_rule,
        mean=recipe.mean,
        selection_split=recipe.selection_split,
        score_test=recipe.score_test if corpus.tested else "none",
        tested=None if corpus.has_test else corpus.tested or None,
        optim=recipe.optim,
        ema_decay=recipe.ema_decay,
        evaluation_tokens=recipe.evaluation_tokens,
        disk_policy=recipe.disk_policy,
    )
