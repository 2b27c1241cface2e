"""Encoding: examples as the tokens that the model sees, with the answer tokens marked.

The prompt is encoded by itself and the answer after it, so training and test see the same tokens:
at test time only the prompt is there. (Encoding them together lets the tokenizer merge across the
border.) The loss is on the answer only, its end-of-text token included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msft.data import DataError, Example


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    eos_token_id: int | None
    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row's tokens, and which of them are answer tokens."""

    tokens: tuple[int, ...]
    answer: tuple[bool, ...]

    @property
    def answer_tokens(self) -> int:
        """Answer tokens that can be predicted: the very first token of a row cannot."""
        return sum(self.answer[1:])

    @property
    def prompt(self) -> tuple[int, ...]:
        """Everything before the last answer: what a generation starts from."""
        end = len(self.tokens)
        while end and self.answer[end - 1]:
            end -= 1
        return self.tokens[:end]


def encoded(example: Example, tokenizer: Tokenizer) -> Encoded:
    """An example as training sees it."""
    if example.messages:
        return _chat(example, tokenizer)
    prompt = tokenizer.encode(example.prompt, add_special_tokens=True)
    return _joined(prompt, answer_tokens(example.completion, tokenizer))


def encoded_choices(example: Example, tokenizer: Tokenizer, shots: str = "") -> list[Encoded]:
    """The example once with each of its choices as the answer, without the end-of-text token."""
    prompt = tokenizer.encode(shots + example.prompt, add_special_tokens=True)
    return [
        _joined(prompt, tokenizer.encode(choice, add_special_tokens=False))
        for choice in example.choices
    ]


def answer_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """An answer's tokens and the end of the text."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tokenizer.encode(text, add_special_tokens=False) + end


def _joined(prompt: list[int], answer: list[int]) -> Encoded:
    marks = (False,) * len(prompt) + (True,) * len(answer)
    return Encoded((*prompt, *answer), marks)


def _chat(example: Example, tokenizer: Tokenizer) -> Encoded:
    """A conversation through the tokenizer's chat template; assistant turns are the answers."""
    if not tokenizer.chat_template:
        raise DataError(
            f"{example.where}: a conversation (`messages`), but this model's tokenizer has no chat "
            "template; use rows of `prompt` and `completion`, or an instruct model"
        )
    turns = [{"role": turn.role, "content": turn.content} for turn in example.messages]
    whole = _templated(tokenizer, turns, False)
    marks = [False] * len(whole)
    for number, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        before = _templated(tokenizer, turns[:number], True)
        after = _templated(tokenizer, turns[: number + 1], False)
        if whole[: len(before)] != before or whole[: len(after)] != after:
            raise DataError(
                f"{example.where}: this model's chat template changes earlier turns when later "
                "ones follow, so the assistant's tokens cannot be told apart; use rows that end "
                "with their only assistant turn"
            )
        marks[len(before) : len(after)] = [True] * (len(after) - len(before))
    return Encoded(tuple(whole), tuple(marks))


def _templated(tokenizer: Tokenizer, turns: list[dict[str, str]], prompt: bool) -> list[int]:
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
    return tokenizer.encode(text, add_special_tokens=False)


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """The rows of a split that fit, and the numbers of those left out because they do not."""

    examples: tuple[Example, ...]
    rows: tuple[Encoded, ...]
    too_long: tuple[str, ...]


def encoded_split(
    examples: Sequence[Example], tokenizer: Tokenizer, max_length: int
) -> EncodedSplit:
    """Encode a split. A row longer than `max_length` is left out whole: an answer that is cut in
    the middle teaches the wrong thing, and a prompt that is cut may lack the question."""
    kept: list[tuple[Example, Encoded]] = []
    too_long: list[str] = []
    for example in examples:
        row = encoded(example, tokenizer)
        if len(row.tokens) > max_length:
            too_long.append(example.where)
        else:
            kept.append((example, row))
    return EncodedSplit(
        tuple(example for example, _ in kept), tuple(row for _, row in kept), tuple(too_long)
    )
