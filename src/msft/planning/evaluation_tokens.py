"""What an evaluation pushes through the model, counted without one.

Prompts, shared prefixes and choices are counted as the decoder computes them. How long an answer
gets is for the model to decide; here it is taken to be as long as its reference, within the limit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from msft.data.corpus import Task
from msft.data.encoding import Tokenizer
from msft.engine.decode.batch_plans import answer_plan
from msft.engine.decode.prefix_lines import grouped, question
from msft.example import Encoded
from msft.run.engine import Generated, Leaves, Likelihoods
from msft.scoring.evaluation import Evaluator

LINE = 2**62
"""How lines are cut does not change their tokens."""
NO_METRIC = "none"
"""Stands for a metric of the user's own, which is not called: its rows are generated too."""


@dataclass(frozen=True, slots=True)
class EvaluationSize:
    """One evaluation of a sub-dataset's split.

    tokens: through the model.
    written: of those, the estimate of what the model writes itself.
    cut_short: a wrong answer is left as soon as it is known to be wrong.
    slots: tokens whose keys are kept at a time, where it writes.
    answers: tokens whose prediction is wanted, where it does not.
    """

    rows: int
    tokens: int
    written: int = 0
    cut_short: bool = False
    slots: int = 0
    answers: int = 0


EvaluationSizes = Mapping[tuple[str, str], EvaluationSize]
"""By sub-dataset and split."""


def evaluation_sizes(
    tasks: Mapping[str, Task], tokenizer: Tokenizer, stems: bool
) -> EvaluationSizes:
    """Of every sub-dataset and split.

    stems: whether what choices share below the prefix is computed once, as on CUDA in bf16.
    """
    counter = _Counter(stems)
    silent = {n: replace(t, metric=NO_METRIC) if ":" in t.metric else t for n, t in tasks.items()}
    evaluator = Evaluator(silent, counter, tokenizer)
    sizes: dict[tuple[str, str], EvaluationSize] = {}
    for name, task in tasks.items():
        for split, encoded in task.splits.items():
            counter.limits = ()  # nothing is generated yet
            read = evaluator.answered([name], split).tokens
            sizes[name, split] = _size(task, encoded.rows, read, counter)
    return sizes


def _size(task: Task, rows: Sequence[Encoded], read: int, counter: "_Counter") -> EvaluationSize:
    if not counter.limits:
        return EvaluationSize(len(rows), read, answers=counter.answers)
    references = (len(row.tokens) - len(row.prompt) for row in rows)
    written = sum(min(pair) - 1 for pair in zip(references, counter.limits, strict=True))
    cut_short = task.grader is None and task.metric == "accuracy"
    slots = read + sum(counter.limits)
    return EvaluationSize(len(rows), read + written, written, cut_short, slots)


class _Counter:
    """A predictor that counts what is asked of it and answers nothing.

    limits, answers: of the last generation, and of the last likelihoods.
    """

    def __init__(self, stems: bool) -> None:
        self.limits: Sequence[int] = ()
        self.answers = 0
        self._stems = stems

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: Leaves,
        groups: Sequence[int],
    ) -> Generated:
        self.limits = limits
        return Generated([[] for _ in prompts], _with_prefixes(prompts, prompts, groups))

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        self.answers = sum(row.answer_tokens for row in rows)
        if self._stems:
            tokens = answer_plan(rows, groups, LINE, torch.device("cpu")).tokens
        else:
            questions = [question(row) for row in rows]
            tokens = _with_prefixes(questions, [row.tokens for row in rows], groups)
        return lambda: Likelihoods([0.0] * len(rows), tokens)


def _with_prefixes(
    starts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], groups: Sequence[int]
) -> int:
    """Tokens of the rows, what the rows of a group start with once."""
    shared = sum(len(group.prefix) * (len(group.rows) - 1) for group in grouped(starts, groups))
    return sum(map(len, rows)) - shared
