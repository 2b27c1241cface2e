"""One answer while it is being written: for people who read along, not for scores.

`generate` of transformers writes it in a thread, so every model that transformers can write with
does. The thread computes one token each time it is asked for one, and waits in between: two models
whose answers are read side by side never compete for the device, and either can be left in the
middle.
"""

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

EndedBy = Literal["end_token", "max_new_tokens", "stopped"]


class AnswerStream:
    """The tokens of an answer, one at a time: call `advance` until it returns false.

    tokens: the answer so far, without the token that ends it.
    ended_by: None while it goes on.
    """

    def __init__(
        self,
        model: Any,
        ends: Sequence[int],
        prompt: Sequence[int],
        most: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        """temperature: 0 takes the likeliest token each time.
        seed: of the random draws at other temperatures; equal models draw equal tokens."""
        self.tokens: list[int] = []
        self.ended_by: EndedBy | None = None
        self._ends = frozenset(ends)
        self._most = most
        self._asked = Semaphore(0)
        self._said: SimpleQueue[int | BaseException | None] = SimpleQueue()
        self._is_left = False
        draw = [_drawn(temperature, seed)] if temperature > 0 else []
        self._thread = Thread(
            target=self._write,
            daemon=True,
            args=(model, torch.tensor([[*prompt]], device=model.device)),
            kwargs={"logits_processor": LogitsProcessorList(draw)},
        )
        self._thread.start()

    def advance(self) -> bool:
        """Wait for the next token; false where the answer has ended."""
        if self.ended_by is not None:
            return False
        self._asked.release()
        said = self._said.get()
        if isinstance(said, BaseException):
            raise said
        if said is None or said in self._ends:
            self.ended_by = "end_token"
        else:
            self.tokens.append(said)
            if len(self.tokens) < self._most:
                return True
            self.ended_by = "max_new_tokens"
        self._leave()
        return False

    def stop(self) -> None:
        """Leave the answer as it is."""
        if self.ended_by is None:
            self.ended_by = "stopped"
            self._leave()

    def _leave(self) -> None:
        self._is_left = True
        self._asked.release()
        self._thread.join()

    def _write(self, model: Any, prompt: Tensor, **how: Any) -> None:
        """Generate the whole answer, without the generation settings (penalties, temperatures) of
        the model's own."""
        ends = sorted(self._ends)
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, max_new_tokens=self._most, eos_token_id=ends, pad_token_id=ends[0]
        )
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        try:
            self._asked.acquire()
            if self._is_left:
                return
            model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([self._hand_out]),
                **how,
            )
            self._said.put(None)
        except BaseException as error:  # it belongs to who waits for the token
            self._said.put(error)

    def _hand_out(self, tokens: Tensor, scores: Any, **more: Any) -> Tensor:
        """Hand out the newest token, and wait to be asked for the next one. `generate` calls this
        after every token, to learn whether the answer is over."""
        self._said.put(int(tokens[0, -1]))
        if not self._is_left:
            self._asked.acquire()
        return torch.full((len(tokens),), self._is_left, dtype=torch.bool, device=tokens.device)


def _drawn(temperature: float, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A logits processor after which the largest score is a draw from the softmax: it adds Gumbel
    noise. The noise has a random generator of its own, so other draws do not change an answer."""
    chance = torch.Generator().manual_seed(seed)

    def drawn(tokens: Tensor, scores: Tensor) -> Tensor:
        noise = -torch.empty(scores.shape).exponential_(generator=chance).log()
        return scores.float() / temperature + noise.to(scores.device)

    return drawn
