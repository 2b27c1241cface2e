"""Greedy generation and likelihoods: many rows at once, what they share computed once.

Rows may belong to groups (a task with its few-shot exemplars); what the rows of a group start
with is computed once. On CUDA in half precision all of it goes the fast way (`generation.py`),
elsewhere, and for attention with a window or a soft cap, the plain way (`plain.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from msft.engine.accel.fused_layers import NOT_FUSED, Fused
from msft.engine.accel.varlen import varlen
from msft.engine.attention import own_kernels
from msft.engine.decode.fast import FastDecoder
from msft.engine.decode.plain import PlainDecoder
from msft.engine.decode.shared_attention import Kernels
from msft.engine.decode.texts import Texts
from msft.engine.memory_model import MEMORY_OF_KEYS
from msft.errors import Unsuited
from msft.example import Encoded
from msft.run.engine import Generated, Leaves, Likelihoods

SLOTS_ELSEWHERE = 2**20

Result = TypeVar("Result")


class Decoder:
    """Asks a model for text. No answer is kept between calls, since weights may have changed.

    most_tokens: in one forward pass.
    kernels: of the fast way, to take it on any device.
    fused: the model's layers, compiled for the fast way.
    """

    def __init__(
        self,
        model: Any,
        ends: Sequence[int],
        most_tokens: int,
        kernels: Kernels | None = None,
        fused: Fused = NOT_FUSED,
    ) -> None:
        self._model = model
        self._fused = fused
        self._ends = frozenset(ends)
        self._most_tokens = most_tokens
        self._halved = 0
        self._kernels = kernels
        self._fast: FastDecoder | None = None

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: Leaves = lambda row, tokens, known: None,
        groups: Sequence[int] | None = None,
    ) -> Generated:
        """The most likely next tokens of each prompt, one after the other, up to its limit.

        A row ends with an end token, at its limit, or where `leaves` says so.
        groups: a number for each row; None: all rows are one group.
        """

        def work(way: PlainDecoder | FastDecoder) -> Generated:
            texts = Texts(self._ends, limits, leaves)
            tokens = way.generate(prompts, groups, texts)
            return Generated(texts.rows, tokens)

        return self._done(work)

    def likelihoods(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None = None
    ) -> Likelihoods:
        """-log p of each row's answer tokens, given everything before them."""
        return self.measure(rows, groups)()

    def measure(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None = None
    ) -> Callable[[], Likelihoods]:
        """Begin with it: it may go on beside a generation until it is asked for."""
        return self._done(lambda way: way.measure(rows, groups))

    def _done(self, work: Callable[[PlainDecoder | FastDecoder], Result]) -> Result:
        """Do it; if memory does not hold a batch, halve it for good. The answers are the same."""
        self._model.eval()
        while True:
            try:
                with torch.inference_mode():
                    return self._tried(work)
            except torch.OutOfMemoryError:
                if not self._most_tokens >> self._halved + 1:
                    raise
            self._fast = None
            self._halved += 1
            torch.cuda.empty_cache()

    def _tried(self, work: Callable[[PlainDecoder | FastDecoder], Result]) -> Result:
        parameter = next(self._model.parameters())
        device, kernels = parameter.device, self._kernels
        if device.type == "cuda" and parameter.dtype in (torch.bfloat16, torch.float16):
            kernels = kernels or Kernels(varlen, own_kernels())
        most_tokens = self._most_tokens >> self._halved
        if kernels is not None:
            if self._fast is None:
                slots = slots_of(self._model, device) >> self._halved
                self._fast = FastDecoder(
                    self._model, kernels, most_tokens, slots, device, self._fused
                )
            try:
                return work(self._fast)
            except Unsuited:
                pass
        return work(PlainDecoder(self._model, most_tokens, device))


def slots_of(model: Any, device: torch.device) -> int:
    """Tokens whose keys and values may be kept."""
    if device.type != "cuda":
        return SLOTS_ELSEWHERE
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = getattr(config, "num_key_value_heads", None) or heads
    width = next(model.parameters()).element_size()
    memory = int(torch.cuda.mem_get_info(device)[1] * MEMORY_OF_KEYS)
    return memory // int(2 * config.num_hidden_layers * kept * dim * width)
