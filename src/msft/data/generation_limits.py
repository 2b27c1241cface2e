"""How many tokens a generation may take: the recipe's limit, within the places that are left."""

from collections.abc import Sequence

from msft.example import Encoded
from msft.text import counted

SLACK = 8
"""Tokens that a generation may take beyond the longest reference, for other ways to write it."""


def limits_of(
    rows: Sequence[Encoded],
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int | None,
    context: int | None,
) -> list[int]:
    """Of each row. A prompt that leaves no place can still be answered with one token.

    prompts: as the model reads them, exemplars included.
    max_new_tokens: None: as many as the longest reference, and a little more.
    context: how many tokens the model has places for; None: not known.
    """
    most = max_new_tokens or max(len(row.tokens) - len(row.prompt) for row in rows) + SLACK
    if context is None:
        return [most] * len(prompts)
    return [max(1, min(most, context - len(prompt))) for prompt in prompts]


def limit_note(
    split: str, rows: Sequence[Encoded], max_new_tokens: int | None, context: int | None
) -> list[str]:
    """A note on rows, without exemplars, whose generation ends with the model's places."""
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
