"""Endings: where a generation may stop, since nothing that follows changes what it is worth.

Asked about many rows for many tokens, so most of it is decided without decoding them.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from msft.benchmarks.grading import QUESTION, Grader
from msft.benchmarks.prompts import MARK
from msft.scoring.metrics import normal

NEAR = 4
"""A question's start takes fewer tokens than this, since each of them has a character of it."""


class Endings:
    """After how many of its tokens a row is over; what was `known` before is not asked about again.

    text: what tokens say.
    vocabulary: the number of tokens there are.
    """

    def __init__(self, text: Callable[[Sequence[int]], str], vocabulary: int) -> None:
        self._text = text
        self._vocabulary = vocabulary

    def graded(self, grader: Grader, tokens: Sequence[int], known: int) -> int | None:
        """Where a grader has all it will look at."""
        ends = self._breaks(tokens, known)
        return next((end for end in ends if grader.finished(self._text(tokens[:end]))), None)

    def wrong(
        self, completion: str, reference: Sequence[int], tokens: Sequence[int], known: int
    ) -> int | None:
        """Where a text is no longer the start of the completion, whose tokens are the reference."""
        if tokens == reference[: len(tokens)]:
            return None
        whole = normal(completion)
        for end in range(known + 1, len(tokens) + 1):
            start = normal(self._text(tokens[:end]).rstrip("\ufffd"))  # half a character
            if tokens[:end] != reference[:end] and not whole.startswith(start):
                return end
        return None

    def _breaks(self, tokens: Sequence[int], known: int) -> Iterator[int]:
        """Where a line ends behind a mark, or a next question starts."""
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
