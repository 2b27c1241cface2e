"""Proof that an engine suits a model: a row has the loss that it has alone.

Packed rows lie in one line, and our attention keeps them apart. A layer that mixes tokens without
asking our attention (a convolution, a state-space or linear-attention layer) would let them leak
into each other without a word. So the loaded model is tried before anything is trained: with other
tokens in one row, and with a row that is not a number, which spreads to whatever sees it, however
little weight that has. The simple engine pads rows; that is tried, too. Everything is tried twice
where rows may outgrow a window (`short_sight.py`).
"""

from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor

from msft.engine.attention import NAME as ATTENTION
from msft.engine.attention import RowLayout, logits_of
from msft.engine.decode.decoder import Decoder
from msft.engine.model.loading import LoadedModel
from msft.engine.packing import TrainingRow, answer_losses, packed
from msft.engine.short_sight import short_sight
from msft.engine.simple import SimplePredictor, answer_nll
from msft.example import Encoded

SEEN = 1e-5
"""A loss that changes by this share of itself has seen what was changed."""
ROUNDING = 1e-4
"""The most by which a loss may differ when the same row is computed in another way."""
PADDING = 2e-5
"""The same where the row is padded, and nothing else is different."""
HALF_ROUNDING = 3e-2
"""The same in 16 bits, where SmolLM2-135M differs by 3e-3 and its greedy logits by 5e-3. That a row
does not see another needs no such margin: then not one bit of its loss changes."""
LENGTHS = (11, 14, 9)
OUTGROWN = (*LENGTHS, 3)
"""The same where windows are small; the last row does not outgrow them."""
PADDED = (23, 37, 64)
"""More rows for what is padded: an index picks other keys only where their scores are equal."""
EARLY = 4
NEW_TOKENS = 4

Trial = Callable[[Sequence[int]], str | None]
"""What is wrong with rows of these lengths."""


def leak_of(model: Any, half: bool = False, longest: int | None = None) -> str | None:
    """Why the fast engine does not suit a model, in words; None: no row sees another.

    half: the model computes in 16 bits.
    longest: tokens of the longest row there will be; None: any.
    """
    model.eval()
    rounding = HALF_ROUNDING if half else ROUNDING

    def trial(lengths: Sequence[int]) -> str | None:
        return _packed_leak(model, rounding, lengths) or _decoding_leak(model, rounding, lengths)

    try:
        with torch.no_grad():
            return _beyond_windows(model, trial, longest)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model that knows no packed rows fails in its own way
        return f"it cannot run packed rows ({_reason(error)})"


def padding_leak(loaded: LoadedModel, longest: int | None = None) -> str | None:
    """Why rows of a padded batch are not what they are alone, in words; None: they are."""
    model = loaded.model
    model.eval()
    try:
        with torch.no_grad():
            return _beyond_windows(model, lambda lengths: _padded_leak(loaded, lengths), longest)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return f"it cannot run padded rows ({_reason(error)})"


def fault_of(model: Any, longest: int | None = None) -> str | None:
    """Why no engine may train a model, in words; None: rows that are alone can be trained."""

    def trial(lengths: Sequence[int]) -> str | None:
        return "its tokens see those that come after them" if sees_ahead(model) else None

    try:
        device = model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            _early_gradient(model.train())
        model.eval()
        return _beyond_windows(model, trial, longest)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return f"it cannot train a row of {LENGTHS[0]} tokens ({_reason(error)})"


def sees_ahead(model: Any) -> bool:
    """Whether tokens see those that come after them; then no engine may train the model.

    What a token does not see has no gradient, not even a small one.
    """
    return bool(_early_gradient(model.eval())[:, EARLY:].any())


def _early_gradient(model: Any) -> Tensor:
    """What a row's first losses owe to what each of its tokens embeds."""
    row = _rows(model)[0]
    early = Encoded(row.tokens, tuple(1 <= place < EARLY for place in range(len(row.tokens))))
    held: list[Tensor] = []

    def hold(module: Any, inputs: Any, embedded: Tensor) -> Tensor:
        held.append(embedded.detach().requires_grad_())
        return held[-1].clone()  # which a model may change in place

    hook = model.get_input_embeddings().register_forward_hook(hold)
    try:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(answer_nll(model, [early]).sum(), held[:1])
    finally:
        hook.remove()
    return gradient


def _beyond_windows(model: Any, trial: Trial, longest: int | None) -> str | None:
    """What is wrong with short rows, or with rows that outgrow the model's windows."""
    found = trial(LENGTHS)
    if found is not None:
        return found
    with short_sight(model, _own_losses, longest) as sight:
        names = sight.names or sight.others
        if names:
            found = trial((*OUTGROWN, 2 * sight.long + 1) if sight.long else OUTGROWN)
    return found and f"{found}, in rows beyond its {' or '.join(names)}"


def _own_losses(model: Any) -> list[float]:
    """Of rows that are alone, with attention and mask as transformers has them."""
    ours = model.config._attn_implementation
    if ours == ATTENTION:
        model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            rows = _rows(model, OUTGROWN)
            return [answer_nll(model, [row]).item() / row.answer_tokens for row in rows]
    finally:
        if ours == ATTENTION:
            model.set_attn_implementation(ATTENTION)


def _padded_leak(loaded: LoadedModel, lengths: Sequence[int]) -> str | None:
    model, rows = loaded.model, _rows(loaded.model, (*lengths, *PADDED))
    alone = [answer_nll(model, [row]).item() for row in rows]
    together = answer_nll(model, rows).tolist()
    if not all(_near(*pair, PADDING) for pair in zip(alone, together, strict=True)):
        return "a row of a padded batch has another loss than alone"
    prompts = [row.tokens[: min(map(len, (each.tokens for each in rows)))] for row in rows[:2]]
    generate = SimplePredictor(loaded, 10**6).generate

    def said(asked: Sequence[Sequence[int]]) -> list[list[int]]:
        limits = [NEW_TOKENS] * len(asked)
        texts = generate(asked, limits, lambda row, tokens, known: None, [0] * len(asked)).rows
        return [list(text) for text in texts]

    try:
        each = [said([prompt])[0] for prompt in prompts]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a model that cannot generate can be asked for likelihoods
        return None
    return None if said(prompts) == each else "a text of a batch is another one than alone"


def _packed_leak(model: Any, rounding: float, lengths: Sequence[int]) -> str | None:
    rows = _rows(model, lengths)
    clean = _packed_losses(model, rows)
    for changed in range(len(rows)):
        losses = _packed_losses(model, _with_other(model, rows, changed))
        for number, (before, after) in enumerate(zip(clean, losses, strict=True)):
            if number == changed and _near(before, after, SEEN):
                return "the losses of a row do not depend on its tokens"
            if number != changed and not _near(before, after, SEEN):
                return "packed rows see each other"
    poisoned = _poisoned_losses(model, rows, 1)
    if [isnan(loss) for loss in poisoned] != [number == 1 for number in range(len(rows))]:
        return "packed rows see each other"
    model.set_attn_implementation("eager")  # attention and mask as transformers has them
    try:
        ahead = sees_ahead(model)
        alone = [answer_nll(model, [row]).item() / row.answer_tokens for row in rows]
    finally:
        model.set_attn_implementation(ATTENTION)
    if ahead or not all(_near(*pair, rounding) for pair in zip(clean, alone, strict=True)):
        return "a packed row has another loss than the same row by the model's own attention"
    return None


def _packed_losses(model: Any, rows: Sequence[Encoded]) -> list[float]:
    line = packed([TrainingRow.of(row) for row in rows], model.device)
    present = RowLayout([len(row.tokens) for row in rows], model.device)
    logits = logits_of(model, line.tokens, line.positions, present, line.targets)
    nll = answer_losses(logits, line.labels)
    return [nll[line.owners == number].mean().item() for number in range(len(rows))]


def _poisoned_losses(model: Any, rows: Sequence[Encoded], poisoned: int) -> list[float]:
    """Losses, if what one row embeds is not a number; not the first one, which padding repeats."""
    start = sum(len(row.tokens) for row in rows[:poisoned])

    def poison(module: Any, inputs: Any, embedded: Tensor) -> Tensor:
        embedded = embedded.clone()
        embedded[:, start : start + len(rows[poisoned].tokens)] = nan
        return embedded

    hook = model.get_input_embeddings().register_forward_hook(poison)
    try:
        return _packed_losses(model, rows)
    finally:
        hook.remove()


def _decoding_leak(model: Any, rounding: float, lengths: Sequence[int]) -> str | None:
    """Rows of a batch say what each says alone, with a shared prefix too."""
    rows = _rows(model, lengths)
    decoder = Decoder(model, [], 10**6)
    prefix = rows[0].tokens[:5]
    asked = [Encoded(prefix + row.tokens, (False,) * 5 + row.answer) for row in rows]
    together = decoder.measure(asked)().rows
    alone = [decoder.measure([row])().rows[0] for row in asked]
    packed = [
        loss * row.answer_tokens
        for row, loss in zip(asked, _packed_losses(model, asked), strict=True)
    ]
    for way in (alone, packed):
        if not all(_near(*pair, rounding) for pair in zip(together, way, strict=True)):
            return "a row that is decoded with others has another likelihood than alone"
    prompts = [row.tokens for row in asked]
    texts = decoder.generate(prompts, [NEW_TOKENS] * len(prompts)).rows
    for prompt, text in zip(prompts, texts, strict=True):
        if not _is_greedy(model, prompt, text, rounding):
            return "a text that is decoded with others is not the most likely one"
    return None


def _is_greedy(model: Any, prompt: Sequence[int], text: Sequence[int], rounding: float) -> bool:
    """Whether each token of a text is the most likely one, by a forward pass over all of it."""
    tokens = torch.tensor([*prompt, *text], device=model.device)
    places = torch.arange(len(tokens), device=model.device)
    present, targets = RowLayout([len(tokens)], model.device), places[len(prompt) - 1 : -1]
    asked = logits_of(model, tokens, places, present, targets).float()
    chosen = asked.gather(1, tokens[len(prompt) :, None])[:, 0]
    spread = (asked.amax(1) - asked.amin(1)).clamp(min=1e-6)
    return bool(((asked.amax(1) - chosen) / spread < rounding).all())


def _rows(model: Any, lengths: Sequence[int] = LENGTHS) -> list[Encoded]:
    """A few rows of other tokens each; every token of them is to be predicted."""
    return [
        Encoded(
            tuple(_token(model, 31 * number + 7 * place) for place in range(length)),
            tuple(place > 0 for place in range(length)),
        )
        for number, length in enumerate(lengths)
    ]


def _with_other(model: Any, rows: Sequence[Encoded], changed: int) -> list[Encoded]:
    """The same rows, but one has other tokens."""
    tokens = tuple(_token(model, 1000 + 13 * place) for place in range(len(rows[changed].tokens)))
    other = Encoded(tokens, rows[changed].answer)
    return [other if number == changed else row for number, row in enumerate(rows)]


def _token(model: Any, number: int) -> int:
    vocabulary: int = model.get_input_embeddings().num_embeddings
    return 2 + number % (vocabulary - 2)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:200]


def _near(one: float, other: float, share: float) -> bool:
    return abs(one - other) <= share * max(abs(one), abs(other), 1e-6)
