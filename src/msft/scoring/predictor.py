"""What an evaluation asks of an engine, and what it gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msft.data.encoding import Encoded

Leaves = Callable[[int, Sequence[int], int], int | None]
"""leaves(row, tokens so far, how many of them were known before): after how many of them the
row may leave the batch; None: it goes on."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens of each row, and how many went through the model: what greedy decoding needs, not
    guesses or rows that only fill up."""

    rows: list[list[int]]
    tokens: int


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Summed negative log-likelihood of each row's answer, and tokens through the model."""

    rows: list[float]
    tokens: int


class Predictor(Protocol):
    """What an evaluation needs of an engine; see `msft.engine.decode.decoder.Decoder`.

    groups: a number for each row; rows of a group may start with the same tokens.
    """

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: Leaves,
        groups: Sequence[int],
    ) -> Generated: ...

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        """Begin with likelihoods, which may go on beside a generation until they are called for."""
