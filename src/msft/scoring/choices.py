"""Choices: by what their likelihoods are divided, and how probable the right one is."""

from collections.abc import Sequence
from math import exp, fsum

from msft.data.corpus import ChoiceNorm
from msft.example import Encoded


def length_of(choice: str, row: Encoded, norm: ChoiceNorm) -> float:
    """The blank between prompt and choice belongs to neither, as in the harness."""
    return {"chars": len(choice.strip()), "tokens": row.answer_tokens, "none": 1}[norm] or 1


def probability_of(choice: int, likelihoods: Sequence[float], lengths: Sequence[float]) -> float:
    """The probability of a choice: a softmax over likelihoods by length, times the mean length, so
    that they are on the scale of whole choices."""
    scale = fsum(lengths) / len(lengths)
    highest = max(likelihoods)
    shares = [exp(scale * (likelihood - highest)) for likelihood in likelihoods]
    return shares[choice] / fsum(shares)
