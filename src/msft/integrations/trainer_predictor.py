"""What a Trainer's model says: our decoder on it, with our attention for as long as it runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from msft.engine.attention import NAME as ATTENTION
from msft.engine.decode.decoder import Decoder
from msft.engine.isolation import leak_of
from msft.engine.memory_model import EVALUATED_TOKENS
from msft.engine.model.loading import LoadedModel, end_tokens
from msft.engine.simple import SimplePredictor
from msft.example import Encoded
from msft.run.engine import Generated, Leaves, Likelihoods


class TrainerPredictor:
    """A `msft.run.engine.Predictor`. Where our attention does not suit the model, transformers
    generates.

    more_ends: tokens that end an answer, besides those that the model knows.
    """

    def __init__(self, loaded: LoadedModel, more_ends: Sequence[int], bf16: bool) -> None:
        model = loaded.model
        self._model = model.get_base_model() if hasattr(model, "peft_config") else model
        parameter = next(self._model.parameters())
        self._device: str = parameter.device.type
        self._bf16 = bf16 and parameter.dtype == torch.float32
        most = 4 * EVALUATED_TOKENS.get(self._device, EVALUATED_TOKENS["cpu"])
        plain = LoadedModel(self._model, loaded.tokenizer, loaded.name)
        ends = sorted({*end_tokens(plain), *more_ends})
        self._decoder: Decoder | SimplePredictor = Decoder(self._model, ends, most)
        with self._ours():
            self._leak = leak_of(self._model)
        if self._leak is not None:
            self._decoder = SimplePredictor(plain, most, self._bf16, more_ends)

    def how(self) -> str:
        """Who decodes, for people to read."""
        if self._leak is None:
            return "msft's decoder answers"
        return f"transformers generates, which is slower ({self._leak})"

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: Leaves,
        groups: Sequence[int],
    ) -> Generated:
        with self._ours():
            return self._decoder.generate(prompts, limits, leaves, groups)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        with self._ours():
            found = self._decoder.measure(rows, groups)()
        return lambda: found

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Our attention in the model, and the precision in which the trainer computes."""
        config, training = self._model.config, self._model.training
        theirs = config._attn_implementation
        if isinstance(self._decoder, Decoder):
            config._attn_implementation = ATTENTION
        precision = torch.autocast(
            self._device, torch.bfloat16, enabled=self._bf16, cache_enabled=False
        )
        try:
            with precision:
                yield
        finally:
            config._attn_implementation = theirs
            self._model.train(training)
