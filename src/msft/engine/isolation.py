"""Isolation: the proof that no row sees another, tried on the loaded model before it trains.

Packed rows lie in one line, and our attention keeps them apart (`packing.py`). A layer that mixes
tokens without asking our attention (a convolution, a state-space or linear-attention layer) would
let rows leak into each other, and no loss would show it. A list of families that are known to be
safe would be wrong with the next release of transformers. So the model itself is tried, with a few
short rows:

- One row gets other tokens (`_packed_leak`). The losses of all others must stay the same.
- What one row embeds becomes NaN. NaN spreads to whatever sees it, however little weight that has,
  so the losses of exactly one row may become NaN.
- Each row alone, with attention and mask as transformers has them (`_nll_alone`), must have the
  loss that it has in the line.
- No early loss may have a gradient at a later token (`sees_ahead`).
- Rows that the decoder measures or generates together (`_decoding_leak`), with a shared prefix too,
  must get the answers that they get alone.

A model that fails is trained by the simple engine, which pads rows. `padding_leak` tries that, and
`fault_of` finds models that no engine may train.

**Windows.** What a layer does may depend on how long a row is: a sliding window, a chunk, the keys
that an index picks, a rate of compression, the places that positions were trained for. Rows of
thousands of tokens would take long to try. So `short_sight` makes these numbers small for a while,
and everything is tried a second time. Which numbers they are is not a list of names: every whole
number of a config that no weight depends on is one. Two models without weights are built, one of
them with the small number; what differs in their modules is set in the loaded model, too. What
cannot be made small (a weight for every place of a block, say) is outgrown by a longer row.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.decode.decoder import Decoder
from msft.engine.kernels import NO_LABEL, answer_losses, cause_of
from msft.engine.model.loading import LoadedModel
from msft.engine.packing import NAME as ATTENTION
from msft.engine.packing import RowLayout, TrainingRow, logits_of, packed
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

    return _tried("it cannot run packed rows", lambda: _beyond_windows(model, trial, longest))


def padding_leak(loaded: LoadedModel, longest: int | None = None) -> str | None:
    """Why rows of a padded batch are not what they are alone, in words; None: they are."""
    model = loaded.model.eval()

    def trial(lengths: Sequence[int]) -> str | None:
        return _padded_leak(loaded, lengths)

    return _tried("it cannot run padded rows", lambda: _beyond_windows(model, trial, longest))


def fault_of(model: Any, longest: int | None = None) -> str | None:
    """Why no engine may train a model, in words; None: rows that are alone can be trained."""

    def trial(lengths: Sequence[int]) -> str | None:
        return "its tokens see those that come after them" if sees_ahead(model) else None

    def trained() -> str | None:
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            _early_gradient(model.train())
        model.eval()
        return _beyond_windows(model, trial, longest)

    return _tried(f"it cannot train a row of {LENGTHS[0]} tokens", trained)


def _tried(failure: str, work: Callable[[], str | None]) -> str | None:
    """What `work` finds, or how it fails: each model has its own way to fail."""
    try:
        with torch.no_grad():
            return work()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return f"{failure} ({cause_of(error)})"


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
            (gradient,) = torch.autograd.grad(_nll_alone(model, early), held[:1])
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
    """Losses of rows that are alone, with attention and mask as transformers has them."""
    ours = model.config._attn_implementation
    if ours == ATTENTION:
        model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            rows = _rows(model, OUTGROWN)
            return [_nll_alone(model, row).item() / row.answer_tokens for row in rows]
    finally:
        if ours == ATTENTION:
            model.set_attn_implementation(ATTENTION)


def _nll_alone(model: Any, row: Encoded) -> Tensor:
    """-log p of the answer tokens of a row that is alone, summed in fp32: the plainest forward
    pass, which knows nothing of packing."""
    tokens = torch.tensor(row.tokens, device=model.device)[None]
    answer = torch.tensor(row.answer, device=model.device)[None]
    logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
    labels = tokens.masked_fill(~answer, NO_LABEL)[0, 1:]
    return answer_losses(logits[0, :-1], labels).sum()


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
        alone = [_nll_alone(model, row).item() / row.answer_tokens for row in rows]
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


def _near(one: float, other: float, share: float) -> bool:
    return abs(one - other) <= share * max(abs(one), abs(other), 1e-6)


# Small windows.

SMALL = 3
"""What windows, chunks and indices are made. Short rows outgrow it, and its square."""
SIZES = re.compile(
    r"(^|_)(hidden|intermediate|vocab|embd|embedding|dims?|ranks?|heads?|layers?|experts?|tok|ids?|"
    r"ff|ffn|dff|channels|width|conv|kernel|state|mult)(_|$)|"
    r"^(max_position_embeddings|n_positions|n_inner|d_model|d_rel|n_groups?|topk_group)$"
)
"""Names of numbers that are no length for sure. This list only saves time."""
LONG = 1024
"""Tokens of the longest row that is tried because a number cannot be made small."""
_MODULE = frozenset(vars(nn.Module()))


@dataclass(frozen=True, slots=True)
class Sight:
    """What a row may outgrow.

    names: of numbers that are small.
    others: of those that cannot be made small; rows longer than `long` outgrow them.
    """

    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    long: int = 0


@contextmanager
def short_sight(
    model: Any, runs: Callable[[Any], Any], longest: int | None = None
) -> Iterator[Sight]:
    """The model with small windows inside.

    runs: raises where the model cannot run.
    longest: tokens of the longest row there will be. A number of twice that or more stays, since no
        row outgrows it (a window may look to both sides). None: rows may be of any length.
    """
    most = float("inf") if longest is None else 2 * longest
    held = [(module, _plain(module), dict(module._buffers)) for module in model.modules()]
    configs = [(config, dict(vars(config))) for config in _configs(model)]

    def restore() -> None:
        for module, values, buffers in held:
            vars(module).update(values)
            module._buffers.update(buffers)
        for config, values in configs:
            vars(config).update(values)

    def made_small(names: Collection[str]) -> bool:
        """Whether the model runs with these numbers small; if not, it is as it was."""
        changes = _changes(model, names, most)
        if changes is None:
            return False
        modules = dict(model.named_modules())
        for place, values in changes.items():
            modules[place].__dict__.update(values)
        for config, _ in configs:
            vars(config).update(_smaller(config, names, most))
        try:
            runs(model)
        except torch.OutOfMemoryError:
            restore()
            raise
        except Exception:  # numbers that do not fit each other; the model itself runs
            restore()
            return False
        return True

    names = sorted({name for config, _ in configs for name, _ in _lengths(vars(config), most)})
    chosen = tuple(names)
    if names and not made_small(names):
        chosen = ()
        for name in names:
            if made_small((*chosen, name)):
                chosen = (*chosen, name)
        if chosen:
            made_small(chosen)
    others = {name for name in names if name not in chosen}
    stays = [
        number
        for config, _ in configs
        for name, value in _lengths(vars(config), most)
        for number in (value if isinstance(value, list | tuple) else [value])
        if name in others and _small(number, most) != number and number < LONG
    ]
    try:
        yield Sight(chosen, tuple(sorted(others)), max(stays, default=0))
    finally:
        restore()


def _changes(model: Any, names: Collection[str], most: float) -> dict[str, dict[str, Any]] | None:
    """What small numbers change in the modules of a model; None: they change its weights."""
    config = deepcopy(model.config)
    try:
        before = _skeleton(type(model), config)
        for each in _inner(config):
            vars(each).update(_smaller(each, names, most))
        after = _skeleton(type(model), config)
    except Exception:  # no such model can be built
        return None
    if _structure(before) != _structure(after):
        return None
    here = dict(model.named_modules())
    changes: dict[str, dict[str, Any]] = {}
    for (place, one), other in zip(before.named_modules(), after.modules(), strict=True):
        now = _plain(other)
        found = {key: now[key] for key, old in _plain(one).items() if now.get(key, old) != old}
        if found and place in here:
            changes[place] = found
    return changes


def _skeleton(kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind(deepcopy(config))


def _structure(model: Any) -> list[Any]:
    """Modules and tensors: what two models have in common that can hold each other's weights."""
    modules = [(name, type(module).__name__) for name, module in model.named_modules()]
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [*modules, *((name, tuple(tensor.shape)) for name, tensor in tensors)]


def _configs(model: Any) -> list[Any]:
    """The config of a model, those in it, and copies that modules have."""
    found = {id(config): config for config in _inner(model.config)}
    for module in model.modules():
        for value in vars(module).values():
            if _is_config(value):
                found |= {id(config): config for config in _inner(value)}
    return list(found.values())


def _inner(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if _is_config(value):
            yield from _inner(value)


def _is_config(value: Any) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)


def _lengths(values: Mapping[Any, Any], most: float) -> Iterator[tuple[str, Any]]:
    """Numbers, or lists of them, that may be lengths, by their names; in inner objects too."""
    for key, value in values.items():
        name = str(key)
        if name.startswith("_") or SIZES.search(name) or _is_config(value):
            continue
        if isinstance(value, Mapping):
            yield from _lengths(value, most)
        elif _small(value, most) != value:
            yield name, value


def _smaller(config: Any, names: Collection[str], most: float) -> dict[str, Any]:
    """The values of a config that are others where these numbers are small."""

    def of(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: of(str(key), each) for key, each in value.items()}
        return _small(value, most) if name in names else value

    plain = {key: value for key, value in vars(config).items() if not key.startswith("_")}
    changed = {key: of(key, value) for key, value in plain.items() if not _is_config(value)}
    return {key: value for key, value in changed.items() if value != plain[key]}


def _small(value: Any, most: float) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return SMALL if SMALL < value < most else value
    if isinstance(value, list | tuple):
        return type(value)(_small(each, most) for each in value)
    return value


def _plain(module: nn.Module) -> dict[str, Any]:
    """A module's own numbers and words."""
    own = {key: value for key, value in vars(module).items() if key not in _MODULE}
    return {key: value for key, value in own.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, int | float | str)
