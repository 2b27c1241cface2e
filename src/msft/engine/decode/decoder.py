"""Greedy generation and likelihoods: many rows at once, what they share computed once.

Rows may belong to groups (a task with its few-shot exemplars); what the rows of a group start
with is computed once. On CUDA in half precision all of it goes the fast way (`fast.py`),
elsewhere, and for attention with a window or a soft cap, the plain way (`plain.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from msft.engine import kernels
from msft.engine.decode.fast import FastDecoder
from msft.engine.decode.plain import PlainDecoder
from msft.engine.decode.plans import GeneratedRows
from msft.engine.decode.step import Kernels
from msft.engine.kernels import PLAIN_LAYERS, Layers, Way, recorder_of, say_once
from msft.engine.memory import MEMORY_OF_KEYS
from msft.engine.model.shape import shape_of
from msft.errors import Unsuited, is_out_of_memory
from msft.example import Encoded
from msft.run.engine import Generated, Likelihoods, StopRow

SLOTS_ELSEWHERE = 2**20

Result = TypeVar("Result")


class Decoder:
    """Asks a model for text. No answer is kept between calls, since weights may have changed.

    most_tokens: in one forward pass.
    kernels: of the fast way, to take it on any device.
    layers: the model's, compiled for the fast way.
    most_slots: tokens whose keys are kept; None: as an eighth of the device's memory holds.
    fast: what goes the fast way; None: nothing has.
    """

    def __init__(
        self,
        model: Any,
        ends: Sequence[int],
        most_tokens: int,
        kernels: Kernels | None = None,
        layers: Layers = PLAIN_LAYERS,
        most_slots: int | None = None,
    ) -> None:
        self._model = model
        self._layers = layers
        self._ends = frozenset(ends)
        self._most_tokens = most_tokens
        self._halved = 0
        self._most_slots = most_slots
        self._kernels = kernels
        self.fast: FastDecoder | None = None
        self._unsuited = ""

    @property
    def way(self) -> Way:
        """The path of the last call, or of the first one where there was none: fast or plain."""
        kernels, reason = self._chosen()
        reason = self._unsuited if kernels else reason
        return Way("plain" if reason else "fast", reason)

    @property
    def most_tokens(self) -> int:
        """In one forward pass; less than was given, once memory has run out."""
        return self._most_tokens >> self._halved

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow = lambda row, tokens, known: None,
        groups: Sequence[int] | None = None,
    ) -> Generated:
        """The most likely next tokens of each prompt, one after the other, up to its limit.

        A row ends with an end token, at its limit, or where `leaves` says so.
        groups: a number for each row; None: all rows are one group.
        """

        def work(way: PlainDecoder | FastDecoder) -> Generated:
            texts = GeneratedRows(self._ends, limits, leaves)
            tokens = way.generate(prompts, groups, texts)
            return Generated(texts.rows, tokens)

        return self._done(work)

    def measure(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None = None
    ) -> Callable[[], Likelihoods]:
        """-log p of each row's answer tokens, given everything before them; it may go on beside a
        generation until it is asked for."""
        return self._done(lambda way: way.measure(rows, groups))

    def _done(self, work: Callable[[PlainDecoder | FastDecoder], Result]) -> Result:
        """Do it; if memory does not hold a batch, halve it for good. The answers are the same."""
        self._model.eval()
        while True:
            try:
                with torch.inference_mode():
                    return self._tried(work)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or not self.most_tokens >> 1:
                    raise
            self.fast = None
            self._halved += 1
            torch.cuda.empty_cache()

    def _tried(self, work: Callable[[PlainDecoder | FastDecoder], Result]) -> Result:
        device = next(self._model.parameters()).device
        kernels, _ = self._chosen()
        if kernels is not None:
            if self.fast is None:
                slots = (self._most_slots or slots_of(self._model, device)) >> self._halved
                sizes = (self.most_tokens, slots, device)
                recorder = recorder_of(device).item
                self.fast = FastDecoder(self._model, kernels, *sizes, self._layers, recorder)
            try:
                result = work(self.fast)
            except Unsuited as error:
                self._unsuited = f"{error} in attention"
                say_once(f"evaluation goes the plain way, which is slower: {self._unsuited}")
            else:
                self._unsuited = ""
                return result
        return work(PlainDecoder(self._model, self.most_tokens, device))

    def _chosen(self) -> tuple[Kernels | None, str]:
        """The kernels of the fast way; None: it cannot be gone, for this reason."""
        if self._kernels is not None:
            return self._kernels, ""
        parameter = next(self._model.parameters())
        if not parameter.is_cuda or parameter.dtype not in kernels.HALF:
            return None, "fp32" if parameter.is_cuda else kernels.NO_CUDA
        flash = kernels.varlen()
        return (
            Kernels(flash.item, kernels.short_rows().item) if flash.item else None
        ), flash.reason


def slots_of(model: Any, device: torch.device) -> int:
    """Tokens whose keys and values may be kept."""
    if device.type != "cuda":
        return SLOTS_ELSEWHERE
    width: int = next(model.parameters()).element_size()
    memory = int(torch.cuda.mem_get_info(device)[1] * MEMORY_OF_KEYS)
    return memory // (shape_of(model).keys * width)
