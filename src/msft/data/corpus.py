"""The corpus: every sub-dataset of a recipe, read, divided, encoded and checked; no weights needed.

`load_corpus` goes through the stages: all sub-datasets are read and divided (`splits.py`), compared
with each other, and encoded (`encoding.py`). Then the corpus says what a run needs of its data: the
tasks that are scored, the settings that rows decide, a fingerprint, and what a person should know.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from math import ceil, fsum, log
from typing import Any, Literal

from msft.benchmarks.grading import Grader
from msft.data.encoding import (
    EncodedSplit,
    Tokenizer,
    encoded_splits,
    encoded_texts,
    templated,
)
from msft.data.exclusions import marked, read_exclusions
from msft.data.formats import TEXT
from msft.data.splits import (
    LoadedDataset,
    forget_questions,
    load_datasets,
    refuse_trained,
    shared_between,
)
from msft.errors import DataError, RecipeError
from msft.example import Encoded, Example, Message
from msft.recipe.dataset import CHAT_KEYS, DatasetSpec
from msft.recipe.recipe import Recipe
from msft.recipe.templates import TEMPLATES, fitted, missing_end, with_system, with_variables
from msft.search.curves import SELECTION, TEST
from msft.search.feeds import Mixture, Part
from msft.search.methods import STOPPING_EARLY, PreparedMethod
from msft.search.options import ticks_of
from msft.search.rollout import Settings
from msft.text import SELECTED_ON_TEST, counted, listed, no_test_mean

NO_ROWS = EncodedSplit((), (), (), ())

ChoiceNorm = Literal["chars", "tokens", "none"]


@dataclass(frozen=True, slots=True)
class Task:
    """What an evaluation needs of a sub-dataset.

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
    """Rows, tokens and steps of an epoch; the mean tokens, where rows are drawn anew each epoch."""

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
    `validation` where test rows select. A watched one has no `train` rows.

    exemplars: what stands before every scored row; `shots` is their text.
    grader: finds the answer in what the model wrote; None: the whole text is the answer.
    group: of a benchmark, for tables.
    excluded: the train rows that `exclude_rows` names; `train` has the others.
    watched: of one that is only scored, the splits that its rows are of. Where there are only test
        rows, they stand in the place of those that select.
    part: its share of the epochs.
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
    watched: tuple[str, ...] = ()
    name: str = field(init=False)
    shots: str = field(init=False)
    part: Part = field(init=False)

    def __post_init__(self) -> None:
        spec, rows = self.spec, len(self.train.rows)
        part = Part(spec.name, 0, 0)
        if rows:
            part = Part.weighted(spec.name, rows, spec.weight, spec.keep)
        object.__setattr__(self, "name", spec.name)
        object.__setattr__(self, "shots", "".join(map(_exemplar, self.exemplars)))
        object.__setattr__(self, "part", part)

    def in_epoch(self, epoch: int) -> tuple[int, int]:
        """Rows of an epoch, and their tokens; where rows are drawn anew each epoch, their mean."""
        rows, held = self.part.rows_in(epoch) if epoch else self.part.rows, self.train.rows
        return rows, round(sum(len(row.tokens) for row in held) * rows / len(held))

    def rows_of(self, split: str) -> EncodedSplit:
        """The rows of a split, which must be there."""
        found = {"train": self.train, SELECTION: self.validation, TEST: self.test}[split]
        assert found is not None, f"{self.name} has {split} rows"
        return found

    @property
    def given(self) -> dict[str, EncodedSplit]:
        """The scored rows by the split that they are of."""
        rows = {SELECTION: self.validation, TEST: self.test}
        there = {split: found for split, found in rows.items() if found is not None}
        return dict(zip(self.watched or there, there.values(), strict=True))

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

    datasets: those that are trained.
    watched: those that are only scored.
    selection: the split whose rows choose checkpoints.
    remarks: what a person should know of the sub-datasets together.
    notes: all that a person should know before a run: of each sub-dataset, of the test rows, of
        the steps of an epoch.
    exclusions: a digest of the file that `exclude_rows` names; None without it.
    """

    datasets: Mapping[str, SubDataset]
    context: int | None = None
    selection: str = SELECTION
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    exclusions: str | None = None
    watched: Mapping[str, SubDataset] = field(default_factory=dict)

    @property
    def scored(self) -> dict[str, SubDataset]:
        """Those that are trained, and after them those that are watched."""
        return {**self.datasets, **self.watched}

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

    def tasks(self, recipe: Recipe, watched: bool = True) -> dict[str, Task]:
        """What is scored of each sub-dataset, and how.

        watched: those that are only watched too.
        """
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
                recipe.peak_rule.by == "probability" and not dataset.watched,
                recipe.evaluation_tokens == "every_row",
                recipe.validation_loss,
                self.context,
            )
            for name, dataset in (self.scored if watched else self.datasets).items()
        }

    def fingerprint(self, with_excluded: bool = False) -> str:
        """A hash of every token of every row, of what each row is judged by, and of the file that
        `exclude_rows` names.

        with_excluded: as if the recipe had no `exclude_rows`.
        """
        digest = hashlib.sha256()
        for name, dataset in self.scored.items():
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
    try:
        loaded, exclusions, excluding = load_datasets(recipe), None, ""
        if recipe.exclude_rows is not None:
            found = read_exclusions(recipe)
            loaded, exclusions, excluding = marked(loaded, found), found.digest, found.note
        used = {each.spec.name: each.used for each in loaded}
        watched = {each.spec.name for each in loaded if each.spec.is_watched}
        refuse_trained(
            {name: rows for name, rows in used.items() if name in watched},
            {name: rows for name, rows in used.items() if name not in watched},
        )
        shared = shared_between(used)
    finally:
        forget_questions()
    datasets: dict[str, SubDataset] = {}
    for each in loaded:
        name = each.spec.name
        asked = [key for key in CHAT_KEYS if getattr(each.spec, key) not in _USUAL]
        writing = _writing(each, asked[0], recipe, tokenizer) if asked else tokenizer
        encoded, too_long = encoded_splits(name, each.splits, recipe, writing)
        noted = [*_chat_notes(each, loaded, tokenizer), *shared[name], *too_long]
        noted += [DIVIDE] if too_long and each.format == TEXT else []
        datasets[name] = _sub_dataset(each, encoded, noted, recipe, tokenizer, context)
    remarks = (*_few_rows(datasets, recipe.selection_split), *_missing_ends(recipe, tokenizer))
    apart = {name: each for name, each in datasets.items() if name in watched}
    trained = {name: each for name, each in datasets.items() if name not in watched}
    corpus = Corpus(
        trained,
        context,
        recipe.selection_split,
        remarks,
        exclusions=exclusions,
        watched=apart,
    )
    notes = [f"{each.name}: {note}" for each in datasets.values() for note in each.notes]
    notes += corpus.remarks
    notes += [note for note in (excluding, corpus.note) if note]
    return replace(corpus, notes=(*notes, *corpus.epoch_notes(recipe)))


DIVIDE = "plain text is not cut: divide long texts into rows of at most max_length tokens"
FEWEST_ROWS = 30
"""Of a split that selects: the standard error of an accuracy of so many is nine points."""


def _few_rows(datasets: Mapping[str, SubDataset], split: str) -> list[str]:
    """A note on sub-datasets whose scores are decided by a few rows."""
    choosing = {name: each for name, each in datasets.items() if not each.spec.is_watched}
    found = {n: each.test if split == TEST else each.validation for n, each in choosing.items()}
    counts = {name: len(rows.rows) for name, rows in found.items() if rows is not None}
    few = {name: count for name, count in counts.items() if count < FEWEST_ROWS}
    if not few:
        return []
    listed = ", ".join(f"{name} {count}" for name, count in few.items())
    return [
        f"{split} has fewer than {FEWEST_ROWS} rows ({listed}): one row is up to "
        f"{1 / min(few.values()):.0%} of a score, so chance decides which checkpoint is best; hold "
        "out more rows"
    ]


# How conversations are written


_USUAL = (None, "auto", "chat")
"""Values of keys of conversations with which the tokenizer's template writes them as it is."""


def _has_turns(loaded: LoadedDataset) -> bool:
    """Whether its rows are conversations."""
    return any(rows[0].messages for rows in loaded.splits.values() if rows)


def _writing(loaded: LoadedDataset, asked: str, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the chat template of a sub-dataset, its system prompt and its values of
    the template's variables in it.

    asked: the first key that asks for it.
    """
    spec = loaded.spec
    if not _has_turns(loaded):
        raise DataError(
            f"{spec.name}: {asked} is given, but its rows are {loaded.format}, which go through "
            f"no chat template; add format: chat, or leave {asked} out"
        )
    template = recipe.template_named(spec.chat_template, spec.name)
    template = tokenizer.chat_template if template is None else fitted(template, tokenizer)
    if isinstance(template, dict):  # some tokenizers have several by name
        template = template.get("default")
    if not template:
        return tokenizer  # which is refused with the first row
    variables = spec.chat_template_kwargs or {}
    for name in variables:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise DataError(
                f"{spec.name}: chat_template_kwargs has {name}, which the chat template does not "
                "ask for; leave it out, or take a template that knows it"
            )
    plain, writing = copy(tokenizer), copy(tokenizer)
    plain.chat_template = with_variables(template, variables)
    writing.chat_template = plain.chat_template
    if spec.system_prompt is not None:
        writing.chat_template = with_system(plain.chat_template, spec.system_prompt)
        turns = (Message("user", "x"),)
        if len({templated(t, turns, True, spec.name) for t in (plain, writing)}) == 1:
            raise DataError(
                f"{spec.name}: the chat template does not write a system prompt; leave "
                "system_prompt out, or take another chat_template"
            )
    return writing


def _chat_notes(
    loaded: LoadedDataset, every: Sequence[LoadedDataset], tokenizer: Tokenizer
) -> list[str]:
    """A note on rows of plain text beside conversations."""
    others = [each.spec.name for each in every if _has_turns(each)]
    plain = loaded.format in ("prompt+completion", "alpaca")
    if not (others and plain and tokenizer.chat_template):
        return []
    return [
        "its rows are trained as plain text, beside conversations under the chat template "
        f"({listed(others)}); format: chat puts them under the template, too"
    ]


def _missing_ends(recipe: Recipe, tokenizer: Tokenizer) -> list[str]:
    """A note on each template of ours whose turns end with a token that the tokenizer lacks."""
    every = (recipe.chat_template, *(spec.chat_template for spec in recipe.datasets))
    notes = []
    for name in [name for name in dict.fromkeys(every) if name in TEMPLATES]:
        end = missing_end(TEMPLATES[str(name)], tokenizer)
        if end:
            notes.append(
                f"chat_template {name}: the tokenizer has no token {end}, so its end-of-text token "
                "ends a turn"
            )
    return notes


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
    watched: tuple[str, ...] = ()
    if spec.is_watched:
        train = NO_ROWS
        watched = tuple(split for split in (SELECTION, TEST) if split in encoded)
        if selecting is None and recipe.selection_split == SELECTION:  # test rows, then
            validation, test, selecting = test, None, test
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
    by_probability = recipe.peak_rule.by == "probability" and not watched
    if by_probability and not selecting.examples[0].choices:
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
        watched,
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
    """The settings of a run, as far as recipe and data decide them. An audit scores no watched
    sub-datasets, and has no guards."""
    guards = {n: d.spec.guard.max_drop for n, d in corpus.scored.items() if d.spec.guard}
    watched = {name: dataset.watched for name, dataset in corpus.watched.items()}
    stops_early = method.name in STOPPING_EARLY
    apart = not method.finds and any(TEST in splits[1:] for splits in watched.values())
    return Settings(
        mixture=corpus.mixture(method.mixture_options.rehearsal_fraction),
        compute_budget=ticks_of(recipe.compute_budget, recipe.evals_per_epoch, "compute_budget"),
        train_ticks=ticks_of(recipe.num_train_epochs, recipe.evals_per_epoch, "num_train_epochs"),
        evals_per_epoch=recipe.evals_per_epoch,
        seed=recipe.seed,
        peaks=recipe.peak_rule,
        mean=recipe.mean,
        selection_split=recipe.selection_split,
        score_test=recipe.score_test if corpus.tested or apart else "none",
        tested=None if corpus.has_test else corpus.tested or (() if apart else None),
        watched={} if method.finds else watched,
        guards={} if method.finds else guards,
        early_stopping_patience=recipe.early_stopping_patience if stops_early else None,
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
