"""Evaluation: what a model answers on the rows of each sub-dataset, and what the answers score.

A row is scored in one of three ways.

- *generate* (`accuracy`, or a function of `metrics.py` or of the user's own): the model writes on
  from the prompt, the likeliest token each time. The answer is right if it equals the reference
  after trimming and case folding. A benchmark with a grader compares the answers that the grader
  finds in both texts. A function says what a text is worth.
- *choose* (`accuracy` of rows with choices): the choice with the highest likelihood by its length
  (`choice_norm`) is the answer.
- *measure* (`nll`): the score is the loss of the reference.

All rows that are generated go through the model in one batch, and so do all rows whose likelihoods
are asked for, whatever their sub-dataset. What is asked is encoded once for all evaluations of a
run. A row leaves its batch early where nothing that the model may still write changes what the row
is worth (`Endings`). Scores are counts, so they are exact.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from math import exp, fsum
from typing import Any, Literal, TypeVar

from msft.benchmarks.grading import MARK, QUESTION, Grader
from msft.data.corpus import ChoiceNorm, Task, generates, limits_of
from msft.data.encoding import (
    EncodedSplit,
    Tokenizer,
    after,
    encoded_choices,
    encoded_prompts,
)
from msft.example import Encoded, Example
from msft.recipe.dataset import FUNCTION, metric_parts
from msft.run.engine import Likelihoods, Predictor
from msft.run.rows import Judged, Sample, Scored
from msft.scoring.metrics import RIGHT_OR_WRONG, built_in, judged_by, own_metric, read_by
from msft.search.curves import SELECTION, Score
from msft.search.judging import JudgedRows, Kind

Made = TypeVar("Made")

LONGEST_PROMPT = 1200
LONGEST_ANSWER = 600
"""Characters of a sample that are kept; the middle of a longer text is cut out."""
MOST_WRITTEN = 200
"""Tokens of an answer that is written only to be read beside the reference."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One row's question, what the model said, what was expected, and what it was worth.

    extracted: the answer that the grader found.
    likelihoods: of each choice, as compared.
    probability: that the right choice is taken, where rows have choices.
    doubt: how much likelier the likeliest choice is than the right one, as a logarithm.
    tokens: what the model wrote.
    weight: answer tokens, where the worth is their summed loss.
    """

    prompt: str
    prediction: str
    reference: str
    worth: float | bool
    extracted: str | None = None
    likelihoods: tuple[float, ...] = ()
    weight: int = 1
    probability: float | None = None
    doubt: float = 0.0
    tokens: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of each sub-dataset, and how many tokens went through the model.

    losses: of the references, where they are asked for.
    """

    rows: Mapping[str, list[Answered]]
    tokens: int
    losses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Question:
    """A row to be answered by generation."""

    task: Task
    example: Example
    prompt: Sequence[int]
    limit: int
    reference: Sequence[int]


class Evaluator:
    """Scores the model that the engine holds: `evaluator(names, split)`.

    Prompts, choices and limits are encoded once for all evaluations of a run.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        predictor: Predictor,
        tokenizer: Tokenizer,
        samples: int = 0,
        selection: str = SELECTION,
    ) -> None:
        """samples: rows of each sub-dataset that are kept to look at, of the split that selects."""
        self._tasks = tasks
        self._selection = selection
        self._most_samples = samples
        self._predictor = predictor
        self._tokenizer = tokenizer
        self._text = texts_of(tokenizer)
        self._endings = Endings(self._text, len(tokenizer))
        self._known: dict[tuple[Any, ...], Any] = {}
        self._own = {
            n: own_metric(t.metric) if FUNCTION.fullmatch(t.metric) else built_in(t.metric)
            for n, t in tasks.items()
            if t.metric not in ("accuracy", "nll")
        }

    def __call__(self, names: Sequence[str], split: str) -> Scored:
        answers = self.answered(names, split, early=True)
        scored = self.scored(answers)
        if split != self._selection or not self._most_samples:
            return scored
        most = self._most_samples
        return replace(
            scored, samples={n: sampled(self._tasks[n], answers.rows[n], most) for n in names}
        )

    def answered(self, names: Sequence[str], split: str, early: bool = False) -> Answers:
        """Every row with the model's answer; `early`: a row may stop once its worth is known."""
        answers: dict[str, list[Answered]] = {}
        losses, tokens = self._losses(names, split)
        generating = tuple(name for name in names if self._scored_by(name, split) == "generate")
        weighing = tuple(name for name in names if name not in generating)
        weighed = self._begin_weighing(weighing, split) if weighing else None
        if generating:
            answers, took = self._generated(generating, split, early)
            tokens += took
        if weighed is not None:
            likely, took = self._weighed(weighing, split, weighed())
            answers, tokens = {**answers, **likely}, tokens + took
        return Answers({name: answers[name] for name in names}, tokens, losses)

    def _losses(self, names: Sequence[str], split: str) -> tuple[dict[str, float], int]:
        """Losses of the references, but for sub-datasets whose score is this loss."""
        asked = [n for n in names if self._tasks[n].loss and self._scored_by(n, split) != "measure"]
        if split != SELECTION or not asked:
            return {}, 0
        return reference_losses(self._tasks, asked, split, self._predictor)

    def written(self, rows: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
        """What the model writes to these rows of the split that selects, only to be read: of
        sub-datasets whose score is a loss. The prompts are those of the loss, without exemplars."""
        prompts: list[Sequence[int]] = []
        limits: list[int] = []
        groups: list[int] = []
        for group, (name, numbers) in enumerate(rows.items()):
            task = self._tasks[name]
            asked = task.splits[self._selection].only(numbers).rows
            own = [row.prompt for row in asked]
            most = limits_of(asked, own, task.max_new_tokens, task.context)
            prompts += own
            limits += [min(limit, MOST_WRITTEN) for limit in most]
            groups += [group] * len(own)
        said = self._predictor.generate(prompts, limits, lambda row, tokens, known: None, groups)
        texts = iter([without_middle(self._text(tokens), LONGEST_ANSWER) for tokens in said.rows])
        return {name: [next(texts) for _ in numbers] for name, numbers in rows.items()}

    def scored(self, answers: Answers) -> Scored:
        """Scores and verdicts. Where a metric of the user's own gives a number for any row, the
        scores of all sub-datasets with this metric are sums of numbers."""
        numeric = {
            self._tasks[name].metric
            for name, rows in answers.rows.items()
            if not all(isinstance(row.worth, bool) for row in rows)
        }
        scores: dict[str, Score] = {}
        verdicts: dict[str, str | list[float]] = {}
        row_tokens: dict[str, list[int]] = {}
        for name, rows in answers.rows.items():
            task, worth = self._tasks[name], [row.worth for row in rows]
            if task.metric == "nll":
                row_tokens[name] = [row.weight for row in rows]
                scores[name] = Score("nll", fsum(worth), sum(row_tokens[name]))
            elif task.metric in numeric:
                scores[name] = Score("value", fsum(worth), len(worth))
            else:
                scores[name] = Score("accuracy", int(sum(worth)), len(worth))
                if task.soft:
                    likely = fsum(row.probability or 0.0 for row in rows) / len(rows)
                    scores[name] = replace(scores[name], probability=likely)
            if scores[name].metric == "accuracy":
                verdicts[name] = "".join("1" if right else "0" for right in worth)
            else:
                verdicts[name] = [float(number) for number in worth]
        return Scored(scores, answers.tokens, verdicts, row_tokens, losses=answers.losses)

    def doubts(self, answers: Answers, split: str) -> tuple[dict[str, list[float]], int]:
        """How much the model speaks against the reference of each row, and tokens that it took.

        Choices: how much likelier the likeliest choice is than the reference; a generated answer
        that is right or wrong: how much likelier than the reference it is, 0 where it is right;
        both as logarithms. Else: the loss of a token of the reference.
        """
        asked: list[Encoded] = []
        groups: list[int] = []
        for group, name in enumerate(answers.rows):
            ways = self._weighed_for_doubt(name, split, answers.rows[name])
            asked += ways
            groups += [group] * len(ways)
        found = self._predictor.measure(asked, groups)() if asked else Likelihoods([], 0)
        losses = iter(found.rows)
        doubts: dict[str, list[float]] = {}
        for name, rows in answers.rows.items():
            kind = kind_of(self._tasks[name])
            if kind == "choices":
                doubts[name] = [row.doubt for row in rows]
            elif kind == "nll":
                doubts[name] = [row.worth / row.weight for row in rows]
            elif kind == "generated":
                doubts[name] = [0.0 if row.worth else next(losses) - next(losses) for row in rows]
            else:
                lengths = [len(each.reference) for each in self._questions(name, split)]
                doubts[name] = [next(losses) / length for length in lengths]
        return doubts, found.tokens

    def _weighed_for_doubt(self, name: str, split: str, rows: Sequence[Answered]) -> list[Encoded]:
        """The texts whose losses say how much the model doubts a reference: of a generated answer
        that is wrong the reference and then the answer, of other metrics the reference."""
        kind = kind_of(self._tasks[name])
        if kind in ("choices", "nll"):
            return []
        texts: list[Encoded] = []
        for question, row in zip(self._questions(name, split), rows, strict=True):
            if kind == "value" or not row.worth:
                texts.append(after(question.prompt, question.reference))
            if kind == "generated" and not row.worth:
                texts.append(after(question.prompt, row.tokens))
        return texts

    def _scored_by(self, name: str, split: str) -> Literal["generate", "choose", "measure"]:
        """In which of the three ways a sub-dataset is scored."""
        task = self._tasks[name]
        if generates(task.metric, task.splits[split]):
            return "generate"
        return "measure" if task.metric == "nll" else "choose"

    def _generated(
        self, names: tuple[str, ...], split: str, early: bool
    ) -> tuple[dict[str, list[Answered]], int]:
        """Written answers of all rows of several sub-datasets, in one batch."""

        def ask() -> tuple[list[_Question], list[Sequence[int]], list[int], list[int]]:
            rows = [row for name in names for row in self._questions(name, split)]
            groups = [names.index(row.task.name) for row in rows]
            return rows, [row.prompt for row in rows], [row.limit for row in rows], groups

        rows, prompts, limits, groups = self._once(("ask", names, split), ask)

        def leaves(number: int, tokens: Sequence[int], known: int) -> int | None:
            """After how many tokens nothing that a row may still say changes its worth."""
            row, task = rows[number], rows[number].task
            if task.name in self._own or (task.grader is None and not early):
                return None
            if task.grader is not None:
                return self._endings.graded(task.grader, tokens, known)
            return self._endings.wrong(row.example.completion, row.reference, tokens, known)

        generated = self._predictor.generate(prompts, limits, leaves, groups)
        answers: dict[str, list[Answered]] = {name: [] for name in names}
        for row, tokens in zip(rows, generated.rows, strict=True):
            answer = self._judged(row, self._text(tokens))
            answers[row.task.name].append(replace(answer, tokens=tokens))
        if any(self._tasks[name].counts_rows for name in names):
            said = sum(max(0, len(tokens) - 1) for tokens in generated.rows)  # the last is not read
            return answers, sum(map(len, prompts)) + said
        return answers, generated.tokens

    def _judged(self, row: _Question, said: str) -> Answered:
        task, example = row.task, row.example
        prompt, reference = task.shots + prompt_of(example), example.completion
        if task.name in self._own:
            worth = judged_by(self._own[task.name], task.name, prompt_of(example), said, reference)
            return Answered(prompt, said, reference, worth)
        if task.grader is None:
            return Answered(prompt, said, reference, normal(said) == normal(reference))
        extracted = task.grader.extracted(said)
        right = extracted is not None and extracted == task.grader.extracted(reference)
        return Answered(prompt, said, reference, right, extracted)

    def _begin_weighing(self, names: tuple[str, ...], split: str) -> Callable[[], Likelihoods]:
        """Begin to measure the likelihoods of several sub-datasets, all in one batch."""

        def weigh() -> tuple[list[Encoded], list[int]]:
            rows = [self._rows(name, split) for name in names]
            groups = [group for group, some in enumerate(rows) for _ in some]
            return [row for some in rows for row in some], groups

        return self._predictor.measure(*self._once(("weigh", names, split), weigh))

    def _weighed(
        self, names: tuple[str, ...], split: str, found: Likelihoods
    ) -> tuple[dict[str, list[Answered]], int]:
        losses = iter(found.rows)
        ways = {"choose": self._chosen, "measure": self._measured}
        answers = {n: ways[self._scored_by(n, split)](n, split, losses) for n in names}
        if any(self._tasks[name].counts_rows for name in names):
            rows = [row for name in names for row in self._rows(name, split)]
            return answers, sum(len(row.tokens) for row in rows)
        return answers, found.tokens

    def _rows(self, name: str, split: str) -> Sequence[Encoded]:
        """The rows whose likelihoods are asked for: of a row with choices, one for each."""
        if self._scored_by(name, split) == "measure":
            return self._tasks[name].splits[split].rows
        return [row for _, options in self._options(name, split) for row in options]

    def _options(self, name: str, split: str) -> list[tuple[tuple[float, ...], list[Encoded]]]:
        """The choices of each row, and by what their likelihoods are divided."""

        def encode() -> list[tuple[tuple[float, ...], list[Encoded]]]:
            task, examples = self._tasks[name], self._tasks[name].splits[split].examples
            return [
                (tuple(map(length_of, e.choices, group, repeat(task.choice_norm))), group)
                for e, group in zip(
                    examples, encoded_choices(examples, self._tokenizer, task.shots), strict=True
                )
            ]

        return self._once(("encode", name, split), encode)

    def _chosen(self, name: str, split: str, losses: Iterator[float]) -> list[Answered]:
        """The likeliest choice of each row; the first of equal ones."""
        task, answers = self._tasks[name], []
        options = self._options(name, split)
        for example, (lengths, _) in zip(task.splits[split].examples, options, strict=True):
            likelihoods = tuple(-next(losses) / length for length in lengths)
            pick = likelihoods.index(max(likelihoods))
            prompt, said = task.shots + example.prompt, example.choices[pick]
            right = pick == example.answer
            answer = Answered(prompt, said, example.completion, right, likelihoods=likelihoods)
            if example.answer is not None:
                lead = max(likelihoods) - likelihoods[example.answer]
                answer = replace(answer, doubt=lead * fsum(lengths) / len(lengths))
            if task.soft and example.answer is not None:
                likely = probability_of(example.answer, likelihoods, lengths)
                answer = replace(answer, probability=likely)
            answers.append(answer)
        return answers

    def _measured(self, name: str, split: str, losses: Iterator[float]) -> list[Answered]:
        found = self._tasks[name].splits[split]
        return [
            Answered(prompt_of(e), "", e.completion, next(losses), weight=row.answer_tokens)
            for e, row in zip(found.examples, found.rows, strict=True)
        ]

    def _questions(self, name: str, split: str) -> list[_Question]:
        def encode() -> list[_Question]:
            task, found = self._tasks[name], self._tasks[name].splits[split]
            prompts: Sequence[Sequence[int]] = [row.prompt for row in found.rows]
            if task.shots:
                prompts = encoded_prompts(found.examples, self._tokenizer, task.shots)
            limits = limits_of(found.rows, prompts, task.max_new_tokens, task.context)
            return [
                _Question(task, example, prompt, limit, list(row.tokens[len(row.prompt) :]))
                for example, row, prompt, limit in zip(
                    found.examples, found.rows, prompts, limits, strict=True
                )
            ]

        return self._once(("question", name, split), encode)

    def _once(self, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """A value that is the same in every evaluation, made once."""
        if key not in self._known:
            self._known[key] = make()
        made: Made = self._known[key]
        return made


def reference_losses(
    tasks: Mapping[str, Task], names: Sequence[str], split: str, predictor: Predictor
) -> tuple[dict[str, float], int]:
    """Mean loss of an answer token of each sub-dataset, as training has it: without exemplars.
    Also the tokens that went through the model."""
    parts = [tasks[name].splits[split].rows for name in names]
    groups = [group for group, part in enumerate(parts) for _ in part]
    found = predictor.measure([row for part in parts for row in part], groups)()
    losses = iter(found.rows)
    means = {
        name: fsum(next(losses) for _ in part) / sum(row.answer_tokens for row in part)
        for name, part in zip(names, parts, strict=True)
    }
    return means, found.tokens


def prompt_of(example: Example) -> str:
    """The prompt as text; of a conversation, its turns before the answer, unless it was made of a
    prompt."""
    if example.messages and not example.prompt:
        return "\n".join(f"{turn.role}: {turn.text}" for turn in example.messages[:-1])
    return example.prompt


def normal(text: str) -> str:
    """A text as answers are compared: trimmed and case folded."""
    return text.strip().casefold()


def length_of(choice: str, row: Encoded, norm: ChoiceNorm) -> float:
    """By what a likelihood is divided. The blank before a choice does not count, as in the
    harness."""
    return {"chars": len(choice.strip()), "tokens": row.answer_tokens, "none": 1}[norm] or 1


def probability_of(choice: int, likelihoods: Sequence[float], lengths: Sequence[float]) -> float:
    """The probability of a choice: a softmax over likelihoods by length, times the mean length, so
    that they are on the scale of whole choices."""
    scale = fsum(lengths) / len(lengths)
    highest = max(likelihoods)
    shares = [exp(scale * (likelihood - highest)) for likelihood in likelihoods]
    return shares[choice] / fsum(shares)


# Judging: what a model says of rows that it has not seen

JUDGED = "judged"
"""The split of the training rows that a judge is asked about."""


def judged(
    tasks: Mapping[str, Task],
    train: Mapping[str, EncodedSplit],
    rows: Mapping[str, Sequence[int]],
    predictor: Predictor,
    tokenizer: Tokenizer,
) -> Judged:
    """What the model says of these training rows and of all validation rows of every sub-dataset.

    tasks: of the sub-datasets, with their validation rows.
    train: the training rows that `rows` has the numbers of; a sub-dataset may have none.
    """
    asked = {name: replace(task, loss=False) for name, task in tasks.items()}
    for name, numbers in rows.items():
        splits = {**asked[name].splits, JUDGED: train[name].only(numbers)}
        asked[name] = replace(asked[name], splits=splits)
    evaluator = Evaluator(asked, predictor, tokenizer)
    of_train = evaluator.answered([name for name in tasks if name in rows], JUDGED)
    of_validation = evaluator.answered([*tasks], SELECTION)
    doubts, tokens = evaluator.doubts(of_train, JUDGED)
    found: dict[str, JudgedRows] = {}
    answers: dict[str, list[str | None]] = {}
    for name, task in asked.items():
        answered, seen = of_train.rows.get(name, []), of_validation.rows[name]
        kind, examples = kind_of(task), train[name].examples if name in train else ()
        loss, chosen = kind == "nll", kind == "choices"
        given = {normal(example.completion) for example in examples}
        found[name] = JudgedRows(
            kind,
            numbers=[*rows.get(name, ())],
            train=[float(row.worth) for row in answered],
            validation=[float(row.worth) for row in seen],
            doubts=doubts.get(name, []),
            train_weights=[row.weight for row in answered] if loss else (),
            validation_weights=[row.weight for row in seen] if loss else (),
            train_choices=[len(row.likelihoods) for row in answered] if chosen else (),
            validation_choices=[len(row.likelihoods) for row in seen] if chosen else (),
            chance=_chance(seen, task) if kind == "generated" else 0.0,
            one_answer=len(given) == 1,
        )
        answers[name] = [
            None if loss else without_middle(row.prediction, LONGEST_ANSWER) for row in answered
        ]
    return Judged(found, answers, of_train.tokens + of_validation.tokens + tokens)


def kind_of(task: Task) -> Kind:
    """How the rows of a sub-dataset are judged."""
    if task.metric == "nll":
        return "nll"
    if metric_parts(task.metric)[0] in RIGHT_OR_WRONG:
        return "generated"
    if task.metric != "accuracy":
        return "value"
    return "generated" if generates(task.metric, task.splits[SELECTION]) else "choices"


def _chance(rows: Sequence[Answered], task: Task) -> float:
    """How likely an answer equals a wrong one, drawn from what other rows were given that differs
    from the row's own; 0 where the answer is right."""
    find = task.grader.extracted if task.grader else read_by(task.metric)
    said, given = [find(r.prediction) for r in rows], [find(r.reference) for r in rows]
    counts = Counter(given)

    def rights(answer: Any, right: Any) -> int:
        """How many rows of another reference the answer would be right for."""
        if task.metric != "contains":
            return counts[answer]
        return sum(n for other, n in counts.items() if other in answer and other != right)

    return fsum(
        rights(answer, right) / (len(rows) - counts[right])
        for row, answer, right in zip(rows, said, given, strict=True)
        if not row.worth and counts[right] < len(rows)
    ) / len(rows)


# Rows to look at


def sampled(task: Task, rows: Sequence[Answered], most: int) -> list[Sample]:
    """Up to `most` rows, without the exemplars that stand before each prompt."""
    loss = task.metric == "nll"
    return [
        Sample(
            number,
            without_middle(rows[number].prompt.removeprefix(task.shots), LONGEST_PROMPT),
            without_middle(rows[number].reference, LONGEST_ANSWER),
            None if loss else without_middle(rows[number].prediction, LONGEST_ANSWER),
            rows[number].worth / rows[number].weight if loss else rows[number].worth,
        )
        for number in evenly(len(rows), most)
    ]


def evenly(rows: int, most: int) -> list[int]:
    """Numbers of the rows that are shown: evenly over the split, whatever was answered."""
    count = min(rows, most)
    return [number * rows // count for number in range(count)]


def without_middle(text: str, longest: int) -> str:
    """A text without its middle, if it is too long."""
    if len(text) <= longest:
        return text
    end = longest // 3
    begin = longest - end
    return f"{text[:begin]} [… {len(text) - longest:,} characters …] {text[-end:]}"


# Where a generation may stop, since nothing that follows changes what it is worth
#
# Many rows are asked about after each of many tokens, so most of it is decided without decoding.

NEAR = 4
"""A question's start takes fewer tokens than this, since each of them has a character of it."""


class Endings:
    """After how many of its tokens a row is over.

    known: how many of a row's tokens were looked at before.
    text: the text of tokens.
    vocabulary: the number of tokens there are.
    """

    def __init__(self, text: Callable[[Sequence[int]], str], vocabulary: int) -> None:
        self._text = text
        self._vocabulary = vocabulary

    def graded(self, grader: Grader, tokens: Sequence[int], known: int) -> int | None:
        """After how many tokens the text has all that a grader looks at."""
        ends = self._breaks(tokens, known)
        return next((end for end in ends if grader.finished(self._text(tokens[:end]))), None)

    def wrong(
        self, completion: str, reference: Sequence[int], tokens: Sequence[int], known: int
    ) -> int | None:
        """After how many tokens the text is no longer the start of the completion, whose tokens are
        the reference."""
        if tokens == reference[: len(tokens)]:
            return None
        whole = normal(completion)
        for end in range(known + 1, len(tokens) + 1):
            start = normal(self._text(tokens[:end]).rstrip("\ufffd"))  # half a character
            if tokens[:end] != reference[:end] and not whole.startswith(start):
                return end
        return None

    def _breaks(self, tokens: Sequence[int], known: int) -> Iterator[int]:
        """After how many tokens a line ends behind a mark, or a next question starts."""
        lines, marks, questions = self._signs
        new = tokens[known:]
        if lines.isdisjoint(new) and questions.isdisjoint(new):
            return
        for end, last in enumerate(new, known + 1):
            near = tokens[max(0, end - NEAR) : end]
            marked = last in lines and not marks.isdisjoint(tokens[:end])
            if marked or (last in questions and QUESTION in self._text(near)):
                yield end

    @cached_property
    def _signs(self) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """Tokens that end a line, that may belong to a mark, and with which a question starts."""
        texts = [self._text([token]) for token in range(self._vocabulary)]

        def with_any(of: str) -> frozenset[int]:
            signs = set(of)
            return frozenset(n for n, text in enumerate(texts) if not signs.isdisjoint(text))

        return with_any("\r\n"), with_any(MARK), with_any(QUESTION[-1])


def texts_of(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    """The text of tokens, without special ones: the tokenizer's `decode`, or its faster core."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or getattr(tokenizer, "clean_up_tokenization_spaces", True):
        return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)
    return lambda tokens: str(core.decode(tokens, skip_special_tokens=True))
