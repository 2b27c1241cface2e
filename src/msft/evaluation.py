"""Evaluation: sub-datasets × model → exact counts.

Three ways to score a row: generate greedily and compare with the reference (`accuracy`), pick the
choice with the highest likelihood (`accuracy` where rows have choices), or the loss of the
reference (`nll`). A metric of the user's own, `package.module:function`, is called as
`function(prompt, prediction, reference)` and gives a number or a truth value.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Literal, Protocol

from msft.data import Example
from msft.encoding import Encoded, EncodedSplit, Tokenizer, encoded_choices
from msft.recipe import RecipeError
from msft.scores import Score, accuracy, nll, value
from msft.worker import BadScore, Scored

ChoiceNorm = Literal["chars", "tokens", "none"]
OwnMetric = Callable[[str, str, str], float | bool]
SLACK = 8
"""Tokens that a generation may take beyond the longest reference, for other ways to write it."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens of each row, and how many tokens went through the model."""

    rows: list[list[int]]
    tokens: int


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Summed negative log-likelihood of each row's answer, and tokens through the model."""

    rows: list[float]
    tokens: int


class Predictor(Protocol):
    """What an evaluation needs of an engine; see `msft.engine.decoding.Decoder`."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: Callable[[int, Sequence[int]], bool],
    ) -> Generated: ...

    def likelihoods(self, rows: Sequence[Encoded]) -> Likelihoods: ...


@dataclass(frozen=True, slots=True)
class Task:
    """A sub-dataset as something to be scored.

    metric: `accuracy`, `nll` or a function of the user's own.
    shots: text of the few-shot exemplars that stands before every prompt.
    max_new_tokens: limit of a generation (None: the longest reference and a little more).
    """

    name: str
    metric: str
    splits: Mapping[str, EncodedSplit]
    shots: str = ""
    choice_norm: ChoiceNorm = "chars"
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """One row's question, what the model said, what was expected, and what it was worth."""

    prompt: str
    prediction: str
    reference: str
    worth: float | bool


@dataclass(frozen=True, slots=True)
class _Question:
    """A row to be answered by generation."""

    name: str
    example: Example
    prompt: Sequence[int]
    limit: int
    wanted: str


class Evaluator:
    """Scores what the engine holds: `evaluator(names, split)`."""

    def __init__(
        self, tasks: Mapping[str, Task], predictor: Predictor, tokenizer: Tokenizer
    ) -> None:
        self._tasks = tasks
        self._predictor = predictor
        self._tokenizer = tokenizer
        self._asked: dict[tuple[str, str], list[_Question]] = {}
        self._own = {n: own_metric(t.metric) for n, t in tasks.items() if ":" in t.metric}

    def __call__(self, names: Sequence[str], split: str) -> Scored:
        scores: dict[str, Score] = {}
        verdicts: dict[str, str | list[float]] = {}
        tokens = 0
        generating = [name for name in names if self._way(name, split) == "generate"]
        if generating:
            answers, tokens = self._generated(generating, split, early=True)
            for name, answered in answers.items():
                scores[name], verdicts[name] = self._judged(answered)
        for name in names:
            if name not in scores:
                way = self._chosen if self._way(name, split) == "choose" else self._measured
                scores[name], verdicts[name], took = way(name, split)
                tokens += took
        return Scored({name: scores[name] for name in names}, tokens, verdicts)

    def answers(self, name: str, split: str) -> list[Answered]:
        """Every row with the model's whole answer, for people to read."""
        task, rows = self._tasks[name], self._tasks[name].splits[split]
        match self._way(name, split):
            case "generate":
                return self._generated([name], split, early=False)[0][name]
            case "choose":
                picks = self._picks(task, rows)[0]
                return [
                    Answered(e.prompt, e.choices[pick], e.completion, pick == e.answer)
                    for e, pick in zip(rows.examples, picks, strict=True)
                ]
            case "measure":
                losses = self._predictor.likelihoods(rows.rows).rows
                return [
                    Answered(prompt_of(e), "", e.completion, loss)
                    for e, loss in zip(rows.examples, losses, strict=True)
                ]

    def _way(self, name: str, split: str) -> Literal["generate", "choose", "measure"]:
        task = self._tasks[name]
        if task.metric == "nll":
            return "measure"
        choices = task.metric == "accuracy" and task.splits[split].examples[0].choices
        return "choose" if choices else "generate"

    def _generated(
        self, names: Sequence[str], split: str, early: bool
    ) -> tuple[dict[str, list[Answered]], int]:
        """All rows of several sub-datasets in one batch; `early`: verdicts are all that counts."""
        rows = [row for name in names for row in self._questions(name, split)]

        def leaves(number: int, tokens: Sequence[int]) -> bool:
            if not early or rows[number].name in self._own:
                return False
            said = normal(self._text(tokens).rstrip("\ufffd"))
            return not rows[number].wanted.startswith(said)

        prompts, limits = [row.prompt for row in rows], [row.limit for row in rows]
        generated = self._predictor.generate(prompts, limits, leaves)
        answers: dict[str, list[Answered]] = {name: [] for name in names}
        for row, tokens in zip(rows, generated.rows, strict=True):
            name, example, said = row.name, row.example, self._text(tokens)
            worth = self._worth(name, prompt_of(example), said, example.completion)
            answers[name].append(Answered(prompt_of(example), said, example.completion, worth))
        return answers, generated.tokens

    def _worth(self, name: str, prompt: str, said: str, reference: str) -> float | bool:
        if name in self._own:
            return _judged_by(self._own[name], name, prompt, said, reference)
        return normal(said) == normal(reference)

    def _judged(self, answered: list[Answered]) -> tuple[Score, str | list[float]]:
        worth = [answer.worth for answer in answered]
        if all(isinstance(number, bool) for number in worth):
            return accuracy(int(sum(worth)), len(worth)), _marks(bool(mark) for mark in worth)
        return value(fsum(worth) / len(worth)), [float(number) for number in worth]

    def _chosen(self, name: str, split: str) -> tuple[Score, str | list[float], int]:
        task = self._tasks[name]
        rows = task.splits[split]
        picks, tokens = self._picks(task, rows)
        right = [p == e.answer for p, e in zip(picks, rows.examples, strict=True)]
        return accuracy(sum(right), len(right)), _marks(right), tokens

    def _picks(self, task: Task, rows: EncodedSplit) -> tuple[list[int], int]:
        """The likeliest choice of each row; the first of equal ones."""
        options = [encoded_choices(e, self._tokenizer, task.shots) for e in rows.examples]
        measured = self._predictor.likelihoods([row for group in options for row in group])
        losses = iter(measured.rows)
        picks = []
        for example, group in zip(rows.examples, options, strict=True):
            costs = [
                next(losses) / _length(choice, row, task.choice_norm)
                for choice, row in zip(example.choices, group, strict=True)
            ]
            picks.append(costs.index(min(costs)))
        return picks, measured.tokens

    def _measured(self, name: str, split: str) -> tuple[Score, str | list[float], int]:
        rows = self._tasks[name].splits[split].rows
        measured = self._predictor.likelihoods(rows)
        count = sum(row.answer_tokens for row in rows)
        return nll(fsum(measured.rows), count), measured.rows, measured.tokens

    def _questions(self, name: str, split: str) -> list["_Question"]:
        """What is asked, worked out once for all evaluations of a run."""
        if (name, split) not in self._asked:
            task, rows = self._tasks[name], self._tasks[name].splits[split]
            longest = max(len(row.tokens) - len(row.prompt) for row in rows.rows)
            limit = task.max_new_tokens or longest + SLACK
            self._asked[name, split] = [
                _Question(name, e, self._prompt(task.shots, e, row), limit, normal(e.completion))
                for e, row in zip(rows.examples, rows.rows, strict=True)
            ]
        return self._asked[name, split]

    def _prompt(self, shots: str, example: Example, row: Encoded) -> Sequence[int]:
        if not shots:
            return row.prompt
        return self._tokenizer.encode(shots + example.prompt, add_special_tokens=True)

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


def _judged_by(metric: OwnMetric, name: str, prompt: str, said: str, reference: str) -> float:
    """A user's metric, whose mistakes are reported with the row they were made on."""
    try:
        worth = metric(prompt, said, reference)
    except Exception as error:
        raise BadScore(f"{name}: its metric failed on the prompt {prompt!r}: {error!r}") from error
    if not isinstance(worth, int | float) or not isfinite(worth):
        raise BadScore(
            f"{name}: its metric gave {worth!r} for the prompt {prompt!r}; expected a finite "
            "number (higher is better), or true or false"
        )
    return worth


def own_metric(path: str) -> OwnMetric:
    """The user's function behind `package.module:function`."""
    module, _, name = path.partition(":")
    try:
        function: OwnMetric = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"metric {path!r} cannot be imported: {error}") from error
    return function


def normal(text: str) -> str:
    """Answers are compared after trimming and case folding."""
    return text.strip().casefold()


def prompt_of(example: Example) -> str:
    """The prompt as text; of a conversation, its turns before the answer."""
    if example.messages:
        return "\n".join(f"{turn.role}: {turn.content}" for turn in example.messages[:-1])
    return example.prompt


def _marks(right: Iterable[bool]) -> str:
    return "".join("1" if mark else "0" for mark in right)


def _length(choice: str, row: Encoded, norm: ChoiceNorm) -> float:
    return {"chars": len(choice), "tokens": row.answer_tokens, "none": 1}[norm] or 1
