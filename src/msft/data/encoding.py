"""Encoding: examples as the tokens that the model sees, with the answer tokens marked.

The prompt is encoded by itself and the answer after it, so training and test see the same tokens:
at test time only the prompt is there. (Encoding them together lets the tokenizer merge across the
border.) The loss is on the answer only, its end-of-text token included.

A conversation goes through the tokenizer's chat template, which is a program that comes with a
model: it may fail, and it may never end.
"""

import signal
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Protocol

from msft.errors import DataError
from msft.example import Encoded, Example, Message
from msft.recipe.recipe import Recipe


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that msft uses."""

    eos_token_id: int | None
    chat_template: Any

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def __call__(self, texts: list[str], *, add_special_tokens: bool, verbose: bool) -> Any: ...

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


def encoded_examples(
    examples: Sequence[Example], tokenizer: Tokenizer, most: int | None = None
) -> list[Encoded]:
    """Examples as training sees them.

    most: tokens; a longer conversation is left out later, so its answers are not looked for.
    """
    prompts = iter(encoded_prompts([e for e in examples if not e.messages], tokenizer))
    texts = [e.completion for e in examples if not e.messages]
    answers = iter(encoded_texts(texts, tokenizer, special=False))
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return [
        _chat(e, tokenizer, most) if e.messages else _joined(next(prompts), next(answers) + end)
        for e in examples
    ]


def encoded_prompts(
    examples: Sequence[Example], tokenizer: Tokenizer, shots: str = ""
) -> list[list[int]]:
    """What stands before each answer."""
    return encoded_texts([shots + e.prompt for e in examples], tokenizer, special=True)


def encoded_choices(
    examples: Sequence[Example], tokenizer: Tokenizer, shots: str = ""
) -> list[list[Encoded]]:
    """Each example once with each of its choices as the answer, without the end-of-text token."""
    prompts = encoded_prompts(examples, tokenizer, shots)
    texts = [choice for e in examples for choice in e.choices]
    answers = iter(encoded_texts(texts, tokenizer, special=False))
    return [
        [_joined(prompt, next(answers)) for _ in e.choices]
        for e, prompt in zip(examples, prompts, strict=True)
    ]


def encoded_texts(texts: list[str], tokenizer: Tokenizer, special: bool) -> list[list[int]]:
    """All texts in one call, which is many times faster than one call each."""
    if not texts:
        return []
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and not getattr(tokenizer, "split_special_tokens", False):
        backend.no_truncation()  # which a tokenizer.json may ask for
        backend.no_padding()
        return [e.ids for e in backend.encode_batch_fast(texts, add_special_tokens=special)]
    found: list[list[int]] = tokenizer(texts, add_special_tokens=special, verbose=False)[
        "input_ids"
    ]
    return found


def _joined(prompt: list[int], answer: list[int]) -> Encoded:
    marks = (False,) * len(prompt) + (True,) * len(answer)
    return Encoded((*prompt, *answer), marks)


def _chat(example: Example, tokenizer: Tokenizer, most: int | None) -> Encoded:
    """A conversation through the tokenizer's chat template; assistant turns are the answers."""
    if not tokenizer.chat_template:
        raise DataError(
            f"{example.where}: a conversation (`messages`), but this model's tokenizer has no chat "
            "template; use rows of `prompt` and `completion`, an instruct model, or give a "
            "template as chat_template"
        )
    turns = example.messages

    def tokens(count: int, prompt: bool) -> list[int]:
        text = templated(tokenizer, turns[:count], prompt, example.where, example.tools)
        return tokenizer.encode(text, add_special_tokens=False)

    whole = tokens(len(turns), False)
    refuse_silence(tokenizer, example)
    marks = [False] * len(whole)
    if most is not None and len(whole) > most:
        return Encoded(tuple(whole), tuple(marks))
    for number, turn in enumerate(turns):
        if turn.role != "assistant":
            continue
        before, after = tokens(number, True), tokens(number + 1, False)
        if whole[: len(before)] != before or whole[: len(after)] != after:
            raise DataError(
                f"{example.where}: this model's chat template changes earlier turns when later "
                "ones follow, so the assistant's tokens cannot be told apart; use rows that end "
                "with their only assistant turn"
            )
        marks[len(before) : len(after)] = [True] * (len(after) - len(before))
    return Encoded(tuple(whole), tuple(marks))


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """The rows of a split that fit `max_length`, and the places of the rows that do not.

    numbers: of each row, its 0-based number in the split, rows that are left out counted.
    """

    examples: tuple[Example, ...]
    rows: tuple[Encoded, ...]
    too_long: tuple[str, ...]
    numbers: tuple[int, ...]

    def divided(self, excluded: Collection[int]) -> "tuple[EncodedSplit, EncodedSplit]":
        """The rows that stay, and those with these numbers."""
        leaves = [number in excluded for number in self.numbers]
        stay = [place for place, out in enumerate(leaves) if not out]
        return self.only(stay), self.only([place for place, out in enumerate(leaves) if out])

    def only(self, places: Sequence[int]) -> "EncodedSplit":
        """The rows at these places."""
        return EncodedSplit(
            tuple(self.examples[place] for place in places),
            tuple(self.rows[place] for place in places),
            self.too_long,
            tuple(self.numbers[place] for place in places),
        )


def encoded_split(
    examples: Sequence[Example], tokenizer: Tokenizer, max_length: int, scored: bool = False
) -> EncodedSplit:
    """Encode a split. A row longer than `max_length` is left out whole: an answer that is cut in
    the middle teaches the wrong thing, and a prompt that is cut may lack the question. Of a scored
    row every choice must fit, since each is measured."""
    kept: list[tuple[Example, Encoded]] = []
    numbers: list[int] = []
    too_long: list[str] = []
    encoded = encoded_examples(examples, tokenizer, max_length)
    for number, (example, row) in enumerate(zip(examples, encoded, strict=True)):
        longest = _longest(example, row, tokenizer, max_length) if scored else len(row.tokens)
        if longest > max_length:
            too_long.append(example.where)
        else:
            kept.append((_with_calls(example, row, tokenizer), row))
            numbers.append(number)
    return EncodedSplit(
        tuple(example for example, _ in kept),
        tuple(row for _, row in kept),
        tuple(too_long),
        tuple(numbers),
    )


def encoded_splits(
    name: str, splits: Mapping[str, Sequence[Example]], recipe: Recipe, tokenizer: Tokenizer
) -> tuple[dict[str, EncodedSplit], list[str]]:
    """The splits of a sub-dataset that have rows, and a note for each with rows that are too
    long."""
    encoded: dict[str, EncodedSplit] = {}
    notes: list[str] = []
    for split, examples in splits.items():
        if not examples:
            continue
        found = encoded_split(examples, tokenizer, recipe.max_length, scored=split != "train")
        if found.too_long:
            notes.append(
                f"{split}: {len(found.too_long)} of {len(examples)} rows are longer than "
                f"max_length {recipe.max_length} and are left out (first: {found.too_long[0]})"
            )
        if not found.rows:
            raise DataError(
                f"{name}: every {split} row is longer than max_length {recipe.max_length} tokens; "
                "raise max_length"
            )
        share = recipe.prompt_loss_weight if recipe.completion_only_loss else 1.0
        if split == "train" and (share or any(each.weight != 1 for each in found.examples)):
            pairs = zip(found.examples, found.rows, strict=True)
            found = replace(found, rows=tuple(_weighed(e, row, share) for e, row in pairs))
        encoded[split] = found
    return encoded, notes


def _weighed(example: Example, row: Encoded, share: float) -> Encoded:
    """The row with the weight of its loss. share: the weight of a token of the prompt; one that
    weighs 1 is an answer token like the others."""
    if share == 1:
        return Encoded(row.tokens, (True,) * len(row.tokens), example.weight)
    return Encoded(row.tokens, row.answer, example.weight, share)


def _with_calls(example: Example, row: Encoded, tokenizer: Tokenizer) -> Example:
    """The example; if its last turn calls a tool, with the text of the call as its completion."""
    if not example.messages or not example.messages[-1].calls:
        return example
    answer = row.tokens[len(row.prompt) :]
    return replace(example, completion=tokenizer.decode(answer, skip_special_tokens=True))


def _longest(example: Example, row: Encoded, tokenizer: Tokenizer, most: int) -> int:
    """Tokens of a row with its longest choice. Choices are encoded only where their bytes do not
    already show that they fit `most`."""
    bytes_of = [len(choice.encode()) for choice in example.choices]  # a token has a byte at least
    if not example.choices or len(row.prompt) + max(bytes_of) <= most:
        return len(row.tokens)
    choices = encoded_texts(list(example.choices), tokenizer, special=False)
    return max(len(row.tokens), len(row.prompt) + max(map(len, choices)))


# Chat templates

SECONDS = 5.0
"""How long a template may take for one conversation."""
MAX_TEXT = 100_000_000
"""Characters of one conversation."""


class _TooSlow(Exception):
    """A chat template took more than SECONDS."""


def templated(
    tokenizer: Any, turns: Sequence[Message], prompt: bool, where: str, tools: Sequence[Any] = ()
) -> str:
    """A conversation as text; DataError, with the row's place, where the template fails.

    prompt: the assistant's turn is still to come.
    tools: the functions that may be called.
    """
    said = [{"role": turn.role, "content": turn.content, **turn.more} for turn in turns]
    known = {"tools": list(tools)} if tools else {}
    try:
        with _limited():
            text = tokenizer.apply_chat_template(
                said, tokenize=False, add_generation_prompt=prompt, **known
            )
    except _TooSlow:
        raise DataError(
            f"{where}: this model's chat template did not end within {SECONDS:g} s; mend the "
            "template, or use rows of `prompt` and `completion`"
        ) from None
    except Exception as error:
        raise DataError(
            f"{where}: this model's chat template failed{_line(error)}: {_said(error)}; mend the "
            "row or the template, or use rows of `prompt` and `completion`"
        ) from error
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise DataError(
            f"{where}: this model's chat template made {len(text):,} characters of it; expected "
            f"{MAX_TEXT:,} at most"
        )
    return text


def refuse_silence(tokenizer: Any, example: Example) -> None:
    """DataError where the template leaves out what it does not know: tools, their calls, and what
    they answer. Else a model would be trained on an empty turn."""

    def text(given: Example) -> str | None:
        try:
            return templated(tokenizer, given.messages, False, given.where, given.tools)
        except DataError:  # so it looks at what is missing
            return None

    for what, less in _poorer(example):
        if text(less) == text(example):
            raise DataError(
                f"{example.where}: this model's chat template does not write {what}; use a model "
                "whose template knows tools, or give one as chat_template"
            )


def _poorer(example: Example) -> Iterator[tuple[str, Example]]:
    """The conversation without its tools, and without each call and answer of one."""
    if example.tools:
        yield "the tools that may be called", replace(example, tools=())
    for number, turn in enumerate(example.messages):
        kept = {key: value for key, value in turn.more.items() if key != "tool_calls"}
        what = f"the call of {', '.join(turn.calls)}" if turn.calls else "the answer of a tool"
        content = turn.content if turn.calls else ""
        if turn.calls or (turn.role == "tool" and turn.content):
            less = replace(turn, content=content, more=kept)
            before, after = example.messages[:number], example.messages[number + 1 :]
            yield f"messages[{number}], {what}", replace(example, messages=(*before, less, *after))


@contextmanager
def _limited() -> Iterator[None]:
    """Raise `_TooSlow` after SECONDS. Only the main thread can be interrupted, and only while no
    other code uses the alarm."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(
        signal.ITIMER_REAL
    ) != (0.0, 0.0):
        yield
        return

    def ring(number: int, frame: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _line(error: Exception) -> str:
    """The line of the template that failed, where the error has it."""
    number = getattr(error, "lineno", None)
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            number = trace.tb_lineno
        trace = trace.tb_next
    return f" in its line {number}" if number else ""


def _said(error: Exception) -> str:
    """The first line of an error's text."""
    first = next((line.strip() for line in str(error).split("\n") if line.strip()), "")
    kind = type(error).__name__
    return first if kind == "TemplateError" else f"{kind}: {first}" if first else kind
