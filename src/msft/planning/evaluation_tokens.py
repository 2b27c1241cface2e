"""What an evaluation pushes through the model, counted without one.

Prompts, shared prefixes and choices are counted as the decoder computes them. How long an answer
gets is for the model to decide; here it is taken to be as long as its reference, within the limit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from msft.data.corpus import Task
from msft.data.encoding import Tokenizer
from msft.engine.decode.batch_plans import answer_plan
from msft.engine.decode.prefix_lines import grouped, question
from msft.example import Encoded
from msft.run.engine import Generated, Leaves, Likelihoods
from msft.scoring.evaluation import Evaluator
from msft.search.scores import Score

LINE = 2**62
"""How lines are cut does not change their tokens."""


@dataclass(frozen=True, slots=True)
class Load:
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

    def at(self, score: Score) -> int:
        """Tokens of an evaluation that came out like this."""
        if not self.cut_short or score.metric != "accuracy":
            return self.tokens
        return self.tokens - round(self.written * (1 - score.value))


class _Counter:
    """A predictor that counts what is asked of it and answers nothing.

    stems: whether what choices share below the prefix is computed once, as on CUDA in bf16.
    """

    def __init__(self, stems: bool) -> None:
        self._stems = stems

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: Leaves,
        groups: Sequence[int],
    ) -> Generated:
        return Generated([[] for _ in prompts], _with_prefixes(prompts, prompts, groups))

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        if self._stems:
            tokens = answer_plan(rows, groups, LINE, torch.device("cpu")).tokens
        else:
            asked = [question(row) for row in rows]
            tokens = _with_prefixes(asked, [row.tokens for row in rows], groups)
        return lambda: Likelihoods([0.0] * len(rows), tokens)


def _with_prefixes(
    starts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], groups: Sequence[int]
) -> int:
    """Tokens of the rows, what the rows of a group start with once."""
    found = grouped(starts, groups)
    shared = sum(len(group.prefix) * (len(group.rows) - 1) for group in found)
    return sum(map(len, rows)) - shared


class Tally(Evaluator):
    """An evaluator that counts instead of scoring; a metric of the user's own is not called."""

    def __init__(self, tasks: Mapping[str, Task], tokenizer: Tokenizer, stems: bool) -> None:
        super().__init__(tasks, _Counter(stems), tokenizer)

    def loads(self) -> dict[tuple[str, str], Load]:
        """Of every sub-dataset and split."""
        return {
            (name, split): self.load(name, split)
            for name, task in self._tasks.items()
            for split in task.splits
        }

    def load(self, name: str, split: str) -> Load:
        count = len(self._tasks[name].splits[split].rows)
        if self._way(name, split) != "generate":
            rows = self._rows(name, split)
            tokens = self._predictor.measure(rows, [0] * len(rows))().tokens
            return Load(count, tokens, answers=sum(row.answer_tokens for row in rows))
        asked = self._questions(name, split)
        limits = [row.limit for row in asked]
        prompts = [row.prompt for row in asked]
        read = self._predictor.generate(
            prompts, limits, lambda row, tokens, known: None, [0] * len(asked)
        ).tokens
        written = sum(min(len(row.reference), row.limit) - 1 for row in asked)
        task = self._tasks[name]
        cut_short = task.grader is None and task.metric == "accuracy"
        return Load(count, read + written, written, cut_short, slots=read + sum(limits))
