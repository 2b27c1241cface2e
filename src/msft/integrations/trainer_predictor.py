"""What a Trainer's model says: our decoder on it, with our attention for as long as it runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from msft.engine.attention import NAME as ATTENTION
from msft.engine.attention import RowLayout, logits_of
from msft.engine.decode.decoder import Decoder
from msft.engine.isolation import leak_of, padding_leak
from msft.engine.memory_model import EVALUATED_TOKENS
from msft.engine.model.loading import LoadedModel, end_tokens
from msft.engine.paths import HALF
from msft.engine.simple import SimplePredictor
from msft.example import Encoded
from msft.run.engine import Generated, Likelihoods, StopRow


class TrainerPredictor:
    """A `msft.run.engine.Predictor`. Where our attention does not suit the model, transformers
    generates.

    more_ends: tokens that end an answer, besides those that the model knows.
    """

    def __init__(self, loaded: LoadedModel, more_ends: Sequence[int], bf16: bool) -> None:
        model = loaded.model
        self._model = inner_model(model)
        parameter = next(self._model.parameters())
        self._device: str = parameter.device.type
        self._bf16 = bf16 and parameter.dtype == torch.float32
        most = 4 * EVALUATED_TOKENS.get(self._device, EVALUATED_TOKENS["cpu"])
        plain = LoadedModel(self._model, loaded.tokenizer, loaded.name)
        ends = sorted({*end_tokens(plain), *more_ends})
        self._decoder: Decoder | SimplePredictor = Decoder(self._model, ends, most)
        with self._ours(exact=True), _in_fp32(self._model) as half:
            self._leak = leak_of(self._model, half)
        self._padding: str | None = None
        if self._leak is not None:
            self._decoder = SimplePredictor(plain, most, self._bf16, more_ends)
            with self._ours(exact=True), _in_fp32(self._model):
                self._padding = padding_leak(plain)
            plain = replace(plain, padded=self._padding is None)
            self._decoder = SimplePredictor(plain, most, self._bf16, more_ends)

    def how(self) -> str:
        """Who decodes, for people to read."""
        if self._leak is None:
            return "msft's decoder answers"
        alone = f"; one row at a time: {self._padding}" if self._padding else ""
        return f"transformers generates, which is slower ({self._leak}{alone})"

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        with self._ours():
            return self._decoder.generate(prompts, limits, leaves, groups)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        with self._ours():
            found = self._decoder.measure(rows, groups)()
        return lambda: found

    @contextmanager
    def _ours(self, exact: bool = False) -> Iterator[None]:
        """Our attention in the model, and the precision in which the trainer computes; exact: that
        of the weights."""
        config, training = self._model.config, self._model.training
        theirs = config._attn_implementation
        if isinstance(self._decoder, Decoder):
            config._attn_implementation = ATTENTION
        bf16 = self._bf16 and not exact
        precision = torch.autocast(self._device, torch.bfloat16, enabled=bf16, cache_enabled=False)
        try:
            with precision:
                yield
        finally:
            config._attn_implementation = theirs
            self._model.train(training)


def inner_model(model: Any) -> Any:
    """The model of transformers, with the layers of its adapter in it: of a PeftModel the one that
    it wraps; one with `add_adapter` is that already."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def _in_fp32(model: Any) -> Iterator[bool]:
    """The model in fp32 for a while, as rounding in 16 bits would hide what is to be proved.

    True: it computes in 16 bits all the same, since memory does not hold it in fp32, four bits are
    computed in 16, or somebody else's autocast is around it.
    """
    wrapped = vars(model).get("forward")
    before = vars(model).get("_original_forward")  # what accelerate has put autocast around
    every = (*model.parameters(), *model.buffers())
    halves = [(tensor, tensor.dtype) for tensor in every if tensor.dtype in HALF]
    try:
        try:
            for tensor, _ in halves:
                tensor.data = tensor.data.float()
        except torch.OutOfMemoryError:
            _restore(halves)
        if before is not None:
            model.forward = before
        yield _computes_in_half(model)
    finally:
        if before is not None:
            model.forward = wrapped
        _restore(halves)


def _computes_in_half(model: Any) -> bool:
    """Whether a layer of the model gives, or multiplies with, numbers of 16 bits."""
    found: set[Any] = {getattr(module, "compute_dtype", None) for module in model.modules()}

    def look(module: Any, inputs: Any, output: Any) -> None:
        found.add(getattr(output, "dtype", None))

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    tokens = torch.tensor([2, 3], device=model.device)
    places = torch.arange(2, device=model.device)
    try:
        with torch.no_grad():
            logits_of(model, tokens, places, RowLayout([2], model.device), places)
    except Exception:  # leak_of says why it does not run
        found.clear()
    finally:
        for hook in hooks:
            hook.remove()
    return not found.isdisjoint(HALF)


def _restore(halves: Sequence[tuple[Any, torch.dtype]]) -> None:
    """Every tensor in its own precision again, bit by bit the same."""
    for tensor, kind in halves:
        tensor.data = tensor.data.to(kind)
