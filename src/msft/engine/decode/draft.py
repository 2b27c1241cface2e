"""A draft of what a row says next, from what it has said before.

A step of a generation takes as long for few rows as for many. So when rows have left, those that
stay give more than one token to a step: their last one, and guesses of what follows it. A guess
that the model would have chosen itself is a token gained; the first one that it would not have,
and all after it, are forgotten (https://arxiv.org/abs/2211.17192; guesses that are looked up:
https://arxiv.org/abs/2304.04487). So what is said is what greedy decoding says without guesses, as
far as numbers are exact: in bf16 a wider product rounds otherwise, and texts part where two logits
are level. Small models repeat themselves a good deal, and so do calculations: what followed the
last time is often right.
"""

import torch
from torch import Tensor

AHEAD = 8
"""Tokens of a row in a step, at most."""
WIDTH, WIDTH_OF_SMALL = 256, 512
"""Tokens of a step that take hardly longer than one; small models are bound by launches."""
QUERIES = 128
"""Heads that share a key, times tokens ahead: more do not fit into a kernel's memory."""
SPARE = AHEAD + 1
"""Slots of a row beyond its limit, for guesses that lead there."""


def tokens_ahead(rows: int, width: int, repeats: int) -> int:
    """Tokens that each of so many rows gives to a step of this width.

    repeats: query heads of each key head.
    """
    return max(1, min(AHEAD, width // rows, QUERIES // repeats))


def guessed(said: Tensor, start: Tensor, length: Tensor, ahead: int, span: int) -> Tensor:
    """The last token of each row and guesses of those that follow it, [rows, ahead].

    They are what followed when the row had its last two tokens before, or else its last one; and
    then that again.

    said: the token of each slot. A row's first is at `start`, its last one `length` after it.
    span: more tokens than any row has.
    """
    place = torch.arange(span, device=said.device)
    row = said[(start[:, None] + place).clamp(max=len(said) - 1)]
    last, before = (row.gather(1, (length - back).clamp(min=0)[:, None]) for back in (0, 1))
    one = (row == last) & (place < length[:, None])
    two = one & (row.roll(1, 1) == before) & (place > 0)
    at = torch.where(two, place + span, torch.where(one, place, 0)).amax(1) % span
    round_trip = (length - at).clamp(min=1)[:, None]
    turn = torch.arange(ahead - 1, device=said.device) % round_trip
    following = torch.minimum(at[:, None] + 1 + turn, length[:, None])
    return torch.cat([last, row.gather(1, following)], 1)


def came_true(fed: Tensor, chosen: Tensor) -> Tensor:
    """How many guesses of each row were right, up to the first that was not.

    fed: as `guessed` has it; chosen: what the model says after each of these tokens.
    """
    return (fed[:, 1:] == chosen[:, :-1]).long().cumprod(1).sum(1)
