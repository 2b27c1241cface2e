"""The corpus: every sub-dataset of a recipe, read, divided, encoded and checked; no weights needed.

`load_corpus` goes through the stages: all sub-datasets are read and divided (`splits.py`), compared
with each other, and encoded (`encoding.py`). Then the corpus says what a run needs of its data: the
tasks that are scored, the settings that rows decide, a fingerprint, and what a person should know.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, fsum, log
from typing import Any, Literal

from msft.benchmarks.grading import Grader
from msft.data.encoding import EncodedSplit, Tokenizer, encoded_splits, encoded_texts
from msft.data.exclusions import marked, read_exclusions
from msft.data.splits import LoadedDataset, forget_questions, load_datasets, shared_between
from msft.errors import DataError, RecipeError
from msft.example import Encoded, Example
from msft.recipe.dataset import DatasetSpec
from msft.recipe.recipe import Recipe
from msft.search.curves import SELECTION, TEST
from msft.search.feeds import Mixture, Part
from msft.search.methods import PreparedMethod
from msft.search.options import ticks_of
from msft.search.rollout import Settings
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
class EpochSize:
    """What an epoch has; where samples are drawn anew, its tokens on average."""

    rows: int
    tokens: int
    steps: int


def later_epochs(sizes: Mapping[int, EpochSize]) -> dict[str, Any]:
    """For programs, the sizes of later epochs, where they are others than that of the first."""
    later = {str(epoch): asdict(size) for epoch, size in sizes.items() if epoch}
    return {"later_epochs": later} if later else {}


@dataclass(frozen=True, slots=True)
class SubDataset:
    """A sub-dataset as the model sees it. `test` is None where the recipe has no test rows,
    `validation` where test rows select.

    exemplars: what stands before every scored row; `shots` is their text.
    grader: finds the answer in what the model wrote; None: the whole text is the answer.
    group: of a benchmark, for tables.
    excluded: the train rows that `exclude_rows` names; `train` has the others.
    part: its share of an epoch, with `epoch_rows` rows of `epoch_tokens` tokens; where a sample is
        drawn anew each epoch, these are the tokens on average. Of the first epoch, where a weight
        changes.
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
    excluded: EncodedSplit | None = None
    name: str = field(init=False)
    shots: str = field(init=False)
    part: Part = field(init=False)
    epoch_rows: int = field(init=False)
    epoch_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        spec, rows = self.spec, self.train.rows
        part = Part.weighted(spec.name, len(rows), spec.weight, spec.keep)
        tokens = sum(len(row.tokens) for row in rows)
        known = {
            "name": spec.name,
            "shots": "".join(map(_exemplar, self.exemplars)),
            "part": part,
            "epoch_rows": part.rows,
            "epoch_tokens": round(tokens * part.rows / len(rows)),
        }
        for key, value in known.items():
            object.__setattr__(self, key, value)

    def in_epoch(self, epoch: int) -> tuple[int, int]:
        """Rows of an epoch, and their tokens on average."""
        rows, held = self.part.rows_in(epoch) if epoch else self.part.rows, self.train.rows
        return rows, round(sum(len(row.tokens) for row in held) * rows / len(held))

    def rows_of(self, split: str) -> EncodedSplit:
        """The rows of a split, which must be there."""
        found = {"train": self.train, SELECTION: self.validation, TEST: self.test}[split]
        assert found is not None, f"{self.name} has {split} rows"
        return found

    def train_rows(self, with_excluded: bool) -> list[tuple[Example, Encoded]]:
        """The train rows in the order of their numbers."""
        parts = [self.train, self.excluded] if with_excluded and self.excluded else [self.train]
        rows = [row for p in parts for row in zip(p.numbers, p.examples, p.rows, strict=True)]
        return [(example, row) for _, example, row in sorted(rows, key=lambda each: each[0])]


def _exemplar(example: Example) -> str:
    return f"{example.prompt}{example.completion}\n\n"


@dataclass(frozen=True, slots=True)
class Corpus:
    """All sub-datasets, in recipe order, and how many tokens the model has places for.

    selection: the split whose rows choose checkpoints.
    notes: all that a person should know before a run: of each sub-dataset, of the test rows, of
        the steps of an epoch.
    exclusions: a digest of the file that `exclude_rows` names; None without it.
    """

    datasets: Mapping[str, SubDataset]
    context: int | None = None
    selection: str = SELECTION
    notes: tuple[str, ...] = ()
    exclusions: str | None = None

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

    def epochs(self, recipe: Recipe) -> dict[int, EpochSize]:
        """Rows, tokens and steps of the first epoch, and of each from which on they change."""
        batch, datasets = recipe.train_batch_size, self.datasets.values()
        sizes: dict[int, EpochSize] = {}
        for epoch in sorted({0, *(first for each in datasets for first, _ in each.part.later)}):
            rows, tokens = map(sum, zip(*(each.in_epoch(epoch) for each in datasets), strict=True))
            sizes[epoch] = EpochSize(rows, tokens, ceil(rows / batch))
        return sizes

    def epoch_notes(self, recipe: Recipe) -> list[str]:
        """Notes on settings that do not fit an epoch; where weights change, not the mean epoch, or
        not the shortest."""
        sizes, epochs = self.epochs(recipe), recipe.num_train_epochs
        steps = sizes[0].steps
        if len(sizes) > 1:
            steps = round(self.mixture(0.0).steps(epochs, recipe.train_batch_size) / epochs)
        return epoch_notes(recipe, max(1, steps), min(size.steps for size in sizes.values()))

    def tasks(self, recipe: Recipe) -> dict[str, Task]:
        """What is scored of each sub-dataset, and how."""
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

    def fingerprint(self, with_excluded: bool = False) -> str:
        """A hash of every token of every row, of what each row is judged by, and of the file that
        `exclude_rows` names.

        with_excluded: as if the recipe had no `exclude_rows`.
        """
        digest = hashlib.sha256()
        for name, dataset in self.datasets.items():
            digest.update(repr((name, dataset.shots, dataset.spec.metric)).encode())
            scored = [s for s in (dataset.validation, dataset.test) if s is not None]
            rows = [row for s in scored for row in zip(s.examples, s.rows, strict=True)]
            for example, row in (*dataset.train_rows(with_excluded), *rows):
                judged = (example.completion, example.choices, example.answer)
                digest.update(repr((row, judged)).encode())
                if row.weight != 1 or row.prompt_weight:  # which a repr does not show
                    digest.update(repr((row.weight, row.prompt_weight)).encode())
        if self.exclusions is not None and not with_excluded:
            digest.update(self.exclusions.encode())
        return digest.hexdigest()


# Loading


def load_corpus(recipe: Recipe, tokenizer: Tokenizer, context: int | None = None) -> Corpus:
    """Read, divide and encode everything; the first thing that is wrong is a DataError.

    context: how many tokens the model has places for; None: not known.
    """
    if context is not None and recipe.max_length > context:
        raise RecipeError(
            f"max_length is {recipe.max_length} tokens, but the model has places for {context}; "
            f"set max_length to {context} or less",
            ("max_length",),
        )
    loaded, exclusions = load_datasets(recipe), None
    if recipe.exclude_rows is not None:
        found = read_exclusions(recipe)
        loaded, exclusions = marked(loaded, found), found.digest
    shared = shared_between({each.spec.name: each.used for each in loaded})
    forget_questions()
    datasets: dict[str, SubDataset] = {}
    for each in loaded:
        name = each.spec.name
        encoded, too_long = encoded_splits(name, each.splits, recipe, tokenizer)
        noted = [*shared[name], *too_long]
        datasets[name] = _sub_dataset(each, encoded, noted, recipe, tokenizer, context)
    corpus = Corpus(datasets, context, recipe.selection_split, exclusions=exclusions)
    notes = [f"{each.name}: {note}" for each in datasets.values() for note in each.notes]
    notes += [corpus.note] if corpus.note else []
    return replace(corpus, notes=(*notes, *corpus.epoch_notes(recipe)))


def _sub_dataset(
    loaded: LoadedDataset,
    encoded: Mapping[str, EncodedSplit],
    noted: list[str],
    recipe: Recipe,
    tokenizer: Tokenizer,
    context: int | None,
) -> SubDataset:
    """A sub-dataset whose encoded rows can be trained and scored as the recipe says; DataError
    where they cannot.

    noted: what there is to say of its rows beside `loaded.notes`.
    """
    spec, notes = loaded.spec, []
    if spec.columns is not None and [*spec.columns] != ["weight"]:  # they decide what is read
        read = ", ".join(f"{ours} from {column}" for ours, column in spec.columns.items())
        notes.append(f"columns: {read}; other columns are not read")
    notes += [*loaded.notes, *noted]
    train, validation, test = map(encoded.get, ("train", SELECTION, TEST))
    selecting = encoded.get(recipe.selection_split)
    if train is None or selecting is None:
        empty = "train" if train is None else recipe.selection_split
        raise DataError(
            f"{spec.name}: no {empty} rows; mSFT decides from {recipe.selection_split} scores, so "
            "both are needed (for validation: a file, or validation_fraction: 0.1)"
        )
    excluded = None
    if loaded.excluded:
        train, excluded = train.divided(loaded.excluded)
        if not train.rows:
            raise DataError(
                f"{spec.name}: every train row that exclude_rows leaves is longer than max_length "
                f"{recipe.max_length} tokens; raise max_length, or leave fewer rows out"
            )
    if recipe.peak_rule.by == "probability" and not selecting.examples[0].choices:
        raise DataError(
            f"{selecting.examples[0].where}: peaks.by is probability, but the rows of {spec.name} "
            "have no choices; use peaks.by: score, or rows with choices (of benchmarks: "
            "prompt_style: text)"
        )
    notes += weight_note(spec, len(train.rows))
    if spec.columns is not None and "weight" in spec.columns:
        notes.append(_row_weights_note(spec, train))
    scored = [rows for rows in (validation, test) if rows is not None]
    exemplars = _fitting(loaded.exemplars, scored, spec, tokenizer, context, notes)
    for split, rows in ((SELECTION, validation), (TEST, test)):
        if rows and not exemplars and generates(spec.metric, rows):
            _refuse_no_prompt(split, rows)
            notes += limit_note(split, rows.rows, spec.max_new_tokens, context)
    return SubDataset(
        spec,
        loaded.format,
        train,
        validation,
        test,
        exemplars,
        loaded.grader,
        loaded.group,
        tuple(notes),
        excluded,
    )


def _refuse_no_prompt(split: str, encoded: EncodedSplit) -> None:
    """DataError for rows without a prompt, from which nothing can be generated."""
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


def weight_note(spec: DatasetSpec, size: int) -> list[str]:
    """A note on how many of its rows a weight gives to an epoch."""
    if spec.weight == 1:
        return []
    part = Part.weighted(spec.name, size, spec.weight)

    def given(rows: int) -> str:
        copies, rest = divmod(rows, size)
        often = {1: "once", 2: "twice"}.get(copies, f"{copies:,} times")
        parts = [f"every train row {often}"] if copies else []
        parts += [f"{rest:,} of {counted(size, 'train row')} drawn anew"] if rest else []
        return " and ".join(parts) or "no row"

    if not isinstance(spec.weight, Mapping):
        return [f"weight {spec.weight:g}: in each epoch {given(part.rows)}"]
    courses = [f"from epoch {epoch} on {given(part.rows_in(epoch))}" for epoch in spec.weight]
    return [f"weight by epoch (the first is 0): {', '.join(courses)}"]


def _row_weights_note(spec: DatasetSpec, train: EncodedSplit) -> str:
    """A note on the weights of rows; DataError where all are 0."""
    weights = [row.weight for row in train.rows]
    column = (spec.columns or {})["weight"]
    if not any(weights):
        raise DataError(
            f"{spec.name}: every train row has the weight 0 ({column}), so nothing is learned; "
            "give some rows a weight above 0"
        )
    mean, silent = fsum(weights) / len(weights), weights.count(0)
    more = f"; {counted(silent, 'row')} with the weight 0" if silent else ""
    return (
        f"the loss of each train row is scaled by {column}: {min(weights):g} to {max(weights):g}, "
        f"mean {mean:.3g}{more}"
    )


# Limits of generations, within the places that a model has

SLACK = 8
"""Tokens that a generation may take beyond the longest reference, for other ways to write it."""


def limits_of(
    rows: Sequence[Encoded],
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | None,
    context: int | None,
) -> list[int]:
    """The most new tokens of each row; at least one, even where the prompt leaves no place.

    prompts: as the model reads them, exemplars included.
    max_new_tokens: None: as many as the longest reference has, and SLACK more.
    context: how many tokens the model has places for; None: not known.
    """
    most = max_new_tokens or max(len(row.tokens) - len(row.prompt) for row in rows) + SLACK
    if context is None:
        return [most] * len(prompts)
    return [max(1, min(most, context - len(prompt))) for prompt in prompts]


def limit_note(
    split: str, rows: Sequence[Encoded], max_new_tokens: int | None, context: int | None
) -> list[str]:
    """A note on rows without exemplars whose answers the model's places cut short."""
    prompts = [row.prompt for row in rows]
    whole, left = (limits_of(rows, prompts, max_new_tokens, most) for most in (None, context))
    cut = [few for few, most in zip(left, whole, strict=True) if few < most]
    if not cut:
        return []
    return [
        f"{split}: {len(cut)} of {counted(len(rows), 'row')} can be answered with fewer than "
        f"{counted(whole[0], 'token')} (at least {min(cut)}), since the model has places for "
        f"{context:,}"
    ]


# Settings of a run, and what of them does not fit its data


def settings_for(recipe: Recipe, corpus: Corpus, method: PreparedMethod) -> Settings:
    """The settings of a run, as far as recipe and data decide them."""
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


USUAL_MEMORY = (0.1, 1.0)
"""Epochs in which a moving average may forget half of its content without a note."""
ADVISED_MEMORY = 1 / 3


def epoch_notes(recipe: Recipe, steps: int, fewest: int | None = None) -> list[str]:
    """Notes on settings that do not fit an epoch of so many steps; fewest: of the shortest."""
    notes = _memory_note(recipe.ema_decay, steps) if recipe.ema_decay is not None else []
    fewest = steps if fewest is None else fewest
    if fewest < recipe.evals_per_epoch:
        notes.append(
            f"an epoch has {counted(fewest, 'step')} but {recipe.evals_per_epoch} evaluations; "
            "some ticks will have no step and repeat the scores before them"
        )
    return notes


def _memory_note(decay: float, steps: int) -> list[str]:
    """A note on a moving average that remembers far more or far less than a third of an epoch."""
    memory = log(0.5) / log(decay)
    shortest, longest = USUAL_MEMORY
    if shortest <= memory / steps <= longest:
        return []
    effect = "lags behind training" if memory > steps else "hardly averages anything"
    share = min(0.5, log(2) / (ADVISED_MEMORY * steps))
    advised = 1 - float(f"{share:.1g}")
    return [
        f"ema_decay {decay:g}: half of the average is as old as {counted(round(memory), 'step')}, "
        f"and an epoch has {steps:,}, so it {effect}; a third of an epoch is usual, which is "
        f"ema_decay: {advised:.6g} here"
    ]
