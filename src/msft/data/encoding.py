"""Encoding: examples as the tokens that the model sees, with the answer tokens marked.

The prompt is encoded by itself and the answer after it, so training and test see the same tokens:
at test time only the prompt is there. (Encoding them together lets the tokenizer merge across the
border.) The loss is on the answer only, its end-of-text token included.

A conversation goes through the tokenizer's chat template, which is a program that comes with a
model: it may fail, and it may never end.
"""

import re
import signal
import threading
import traceback
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from msft import process
from msft.data import token_cache
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
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    most: int | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> list[Encoded]:
    """Examples as training sees them.

    most: tokens; a longer conversation is left out later, so its answers are not looked for.
    told: is told after each part how many are done.
    """
    borders, place = Borders.of(tokenizer), None
    if borders is not None and sum(map(_size, examples)) >= token_cache.LEAST:
        place = token_cache.place_of(examples, tokenizer, most)
        found = token_cache.kept(place, len(examples)) if place is not None else None
        if found is not None:
            return found
    found, numbers = [], dict[int, int]()
    for part in in_parts(examples, _size):
        found += [_sharing(row, numbers) for row in _encoded(part, tokenizer, most, borders)]
        told(len(found))
    if place is not None:
        token_cache.keep(place, found)
    return found


def _sharing(row: Encoded, numbers: dict[int, int]) -> Encoded:
    """The row with one Python integer for all places of a token: an integer takes four times the
    memory of a reference to it."""
    return Encoded(tuple(map(numbers.setdefault, row.tokens, row.tokens)), row.answer)


def _encoded(
    examples: Sequence[Example], tokenizer: Tokenizer, most: int | None, borders: "Borders | None"
) -> list[Encoded]:
    prompts = iter(encoded_prompts([e for e in examples if not e.messages], tokenizer))
    texts = [e.completion for e in examples if not e.messages]
    answers = iter(encoded_texts(texts, tokenizer, special=False))
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    chats = iter(_chats([e for e in examples if e.messages], tokenizer, most, borders))
    return [
        next(chats) if e.messages else after(next(prompts), next(answers) + end) for e in examples
    ]


def encoded_prompts(
    examples: Sequence[Example], tokenizer: Tokenizer, shots: str = ""
) -> list[list[int]]:
    """The tokens before each answer: few-shot exemplars and prompt."""
    return encoded_texts([shots + e.prompt for e in examples], tokenizer, special=True)


def encoded_choices(
    examples: Sequence[Example], tokenizer: Tokenizer, shots: str = ""
) -> list[list[Encoded]]:
    """Each example once with each of its choices as the answer, without the end-of-text token."""
    prompts = encoded_prompts(examples, tokenizer, shots)
    texts = [choice for e in examples for choice in e.choices]
    answers = iter(encoded_texts(texts, tokenizer, special=False))
    return [
        [after(prompt, next(answers)) for _ in e.choices]
        for e, prompt in zip(examples, prompts, strict=True)
    ]


def encoded_texts(texts: list[str], tokenizer: Tokenizer, special: bool) -> list[list[int]]:
    """All texts in a few calls, which is many times faster than one call each."""
    if not texts:
        return []
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and not getattr(tokenizer, "split_special_tokens", False):
        backend.no_truncation()  # which a tokenizer.json may ask for
        backend.no_padding()
        return [
            encoding.ids
            for part in in_parts(texts, len)
            for encoding in backend.encode_batch_fast(list(part), add_special_tokens=special)
        ]
    found: list[list[int]] = tokenizer(texts, add_special_tokens=special, verbose=False)[
        "input_ids"
    ]
    return found


Item = TypeVar("Item")

PART_ROWS, PART_SIZE = 512, 4_000_000
"""Rows and characters that are encoded at a time. What the tokenizer makes of a text takes many
times its memory; small parts are also faster, since they stay in the caches of the processor."""


def in_parts(items: Sequence[Item], size: Callable[[Item], int]) -> Iterator[Sequence[Item]]:
    """The items in their order, some at a time; a large one may be alone."""
    start = total = 0
    for number, item in enumerate(items):
        total += size(item)
        if number - start == PART_ROWS or (total > PART_SIZE and number > start):
            yield items[start:number]
            start, total = number, size(item)
    if start < len(items):
        yield items[start:]


def _size(example: Example) -> int:
    """Characters of an example, about."""
    turns = sum(len(turn.content) for turn in example.messages)
    return len(example.prompt) + len(example.completion) + turns


def after(prompt: Sequence[int], answer: Sequence[int]) -> Encoded:
    """An answer after a prompt."""
    marks = (False,) * len(prompt) + (True,) * len(answer)
    return Encoded((*prompt, *answer), marks)


# Conversations
#
# A chat template writes a conversation as one text. The tokens of an answer are those between two
# prefixes of that text: the turns before the answer with the opening of the assistant's turn, and
# the same turns with the answer. The tokens of both prefixes must be the first tokens of the whole
# text; a template that rewrites earlier turns is refused. `_chat` does this, a conversation at a
# time.
#
# To encode whole prefixes takes most of the time of long conversations. `_chats_at_once` encodes
# the end of each prefix only. A tokenizer cuts a text at special tokens such as `<|im_end|>` before
# it does anything else (`Borders`), so up to the last border in a prefix the tokens are those of
# the whole text. What follows the border is a few characters, mostly the same in all rows, and each
# such end is encoded once (`_Cutter`). tests/data/test_many_conversations.py holds both ways to the
# same tokens.


def _chats(
    examples: Sequence[Example], tokenizer: Tokenizer, most: int | None, borders: "Borders | None"
) -> list[Encoded]:
    """Conversations, whole texts and parts of them in one call each. Where one of them is wrong,
    all go one by one, so that the first that is wrong is named, with what is wrong first."""
    if borders is not None and len(examples) > 1:
        with suppress(DataError):
            return _chats_at_once(examples, tokenizer, most, borders)
    return [_chat(example, tokenizer, most) for example in examples]


def _chat(example: Example, tokenizer: Tokenizer, most: int | None) -> Encoded:
    """A conversation through the tokenizer's chat template; assistant turns are the answers."""
    _refuse_no_template(example, tokenizer)
    turns = example.messages

    def text(count: int, prompt: bool) -> str:
        return templated(tokenizer, turns[:count], prompt, example.where, example.tools)

    def tokens(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    written = text(len(turns), False)
    whole = tokens(written)
    refuse_silence(tokenizer, example, written)
    marks = [False] * len(whole)
    if most is not None and len(whole) > most:
        return Encoded(tuple(whole), tuple(marks))
    for number in _learned(example):
        before, after = tokens(text(number, True)), tokens(text(number + 1, False))
        if whole[: len(before)] != before or whole[: len(after)] != after:
            raise _changed(example)
        marks[len(before) : len(after)] = [True] * (len(after) - len(before))
    return Encoded(tuple(whole), tuple(marks))


def _learned(example: Example) -> list[int]:
    """Numbers of the turns that are answers."""
    return [
        number
        for number, turn in enumerate(example.messages)
        if turn.role == "assistant" and number >= example.read_turns
    ]


def _refuse_no_template(example: Example, tokenizer: Tokenizer) -> None:
    if not tokenizer.chat_template:
        raise DataError(
            f"{example.where}: a conversation (`messages`), but this model's tokenizer has no chat "
            "template; use rows of `prompt` and `completion`, an instruct model, or give a "
            "template as chat_template"
        )


def _changed(example: Example) -> DataError:
    return DataError(
        f"{example.where}: this model's chat template changes earlier turns when later "
        "ones follow, so the assistant's tokens cannot be told apart; use rows that end "
        "with their only assistant turn"
    )


def _chats_at_once(
    examples: Sequence[Example], tokenizer: Tokenizer, most: int | None, borders: "Borders"
) -> list[Encoded]:
    """What `_chat` makes of each. The tokens of a conversation's first turns are those of the whole
    up to the last border in their text, and those of what comes after it: a few characters, which
    mostly are the same in all rows."""
    _refuse_no_template(examples[0], tokenizer)
    with limited() as limit:
        write = _writer(tokenizer, examples, limit)
        texts = [write(example, len(example.messages), False) for example in examples]
        for example, written in zip(examples, texts, strict=True):
            refuse_silence(tokenizer, example, written)
        wholes = encoded_texts(texts, tokenizer, special=False)
        cutter, parts = _Cutter(borders, texts[0]), list[list[_Part]]()
        held = 0
        for example, written, whole in zip(examples, texts, wholes, strict=True):
            known = cutter.borders(written, whole)
            each: list[_Part] = []
            for number in [] if most is not None and len(whole) > most else _learned(example):
                is_last = number + 1 == len(example.messages)
                before = write(example, number, True)
                after = written if is_last else write(example, number + 1, False)
                each += [cutter.part(written, known, first) for first in (before, after)]
            parts.append(each)
            held += sum(len(part.rest) for part in each)
            if held > 4 * PART_SIZE:  # of a template without borders
                return [_chat(example, tokenizer, most) for example in examples]
    rests = list(dict.fromkeys(part.rest for each in parts for part in each))
    tokens = dict(zip(rests, encoded_texts(rests, tokenizer, special=False), strict=True))
    found: list[Encoded] = []
    for example, whole, each in zip(examples, wholes, parts, strict=True):
        marks = [False] * len(whole)
        ends = []
        for part in each:
            rest = tokens[part.rest]
            end = part.start + len(rest)
            if whole[part.start : end] != rest:
                raise _changed(example)
            ends.append(end)
        for first, last in zip(ends[::2], ends[1::2], strict=True):
            marks[first:last] = [True] * (last - first)
        found.append(Encoded(tuple(whole), tuple(marks)))
    return found


Limit = AbstractContextManager[None]
Writer = Callable[[Example, int, bool], str]
"""writer(example, count, prompt): its first turns as text, as `templated` has it."""


def _is_plain(example: Example) -> bool:
    return not example.tools and not any(turn.more for turn in example.messages)


def _writer(tokenizer: Any, examples: Sequence[Example], limit: Limit) -> Writer:
    """`templated` for these conversations. Half of its time goes into copies that transformers
    makes of the turns. Plain turns need none, so they go to the compiled template; but not where
    that is not found, or writes the first of them in another way.
    """

    def usual(each: Example, count: int, prompt: bool) -> str:
        turns = each.messages[:count]
        return templated(tokenizer, turns, prompt, each.where, each.tools, limit)

    first = next(filter(_is_plain, examples), None)
    if first is None:
        return usual
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        compiled = _compile_jinja_template(tokenizer.get_chat_template())
    except Exception:
        return usual
    known = {"tools": None, "documents": None, **tokenizer.special_tokens_map}

    def fast(each: Example, count: int, prompt: bool) -> str:
        if not _is_plain(each):
            return usual(each, count, prompt)
        turns = [{"role": turn.role, "content": turn.content} for turn in each.messages[:count]]
        try:
            with limit:
                text = compiled.render(messages=turns, add_generation_prompt=prompt, **known)
        except _TooSlow:
            raise DataError(each.where) from None  # which goes alone then
        except Exception:
            text = ""
        return text if 0 < len(text) <= MAX_TEXT else usual(each, count, prompt)

    asked = (first, len(first.messages), False)
    return fast if fast(*asked) == usual(*asked) else usual


@dataclass(frozen=True, slots=True)
class Borders:
    """Texts that are one token each wherever they stand, such as `<|im_end|>`: a tokenizer cuts a
    text at them before anything else, so what stands on one side does not change the other side.

    tokens: their ids. others: every text that is cut out at this stage, between NULs.
    """

    tokens: Mapping[str, int]
    others: str

    @classmethod
    def of(cls, tokenizer: Any) -> "Borders | None":
        """None: it is not known how this tokenizer cuts texts."""
        from transformers import PreTrainedTokenizerFast as Usual

        kind = type(tokenizer)
        if not isinstance(tokenizer, Usual) or tokenizer.split_special_tokens:
            return None
        if any(getattr(kind, name) is not getattr(Usual, name) for name in _ENCODE):
            return None
        added = tokenizer.added_tokens_decoder
        first = {token.content: (number, token) for number, token in added.items()}
        first = {text: found for text, found in first.items() if text and not found[1].normalized}
        tokens = {
            text: number
            for text, (number, token) in first.items()
            if not (
                token.lstrip or token.rstrip or token.single_word or any(map(str.isspace, text))
            )
        }
        return cls(tokens, "\0".join(["", *first, ""]))

    def is_alone(self, text: str) -> bool:
        """Whether no other of these texts, nor the same again, can share a character with it."""
        ends = [text[start:] for start in range(1, len(text))]
        starts = [text[:end] for end in range(1, len(text))]
        inner = [start[at:] for start in starts for at in range(1, len(start))]
        return self.others.count(text) == 1 and not (
            any(f"\0{end}" in self.others for end in ends)
            or any(f"{start}\0" in self.others for start in starts)
            or any(f"\0{each}\0" in self.others for each in inner)
        )


_ENCODE = ("encode", "_encode_plus", "apply_chat_template")


class _Part(NamedTuple):
    """The first turns of a conversation: the tokens of the whole before `start`, then those of
    `rest`."""

    start: int
    rest: str


class _Cutter:
    """Finds the borders that texts have in common in each of them, and in its tokens."""

    def __init__(self, borders: Borders, example: str) -> None:
        self._tokens = {
            text: token
            for text, token in borders.tokens.items()
            if text in example and borders.is_alone(text)
        }
        self._numbers = frozenset(self._tokens.values())
        self._pattern = re.compile("|".join(map(re.escape, self._tokens)) or "(?!)")

    def borders(self, text: str, tokens: Sequence[int]) -> list[tuple[int, int, str]]:
        """Of each border, where it ends in the text, where it is in the tokens, and its text."""
        places = [place for place, token in enumerate(tokens) if token in self._numbers]
        found = [(match.end(), match.group()) for match in self._pattern.finditer(text)]
        if [tokens[place] for place in places] != [self._tokens[each] for _, each in found]:
            return []  # a model may write a border's token for another text
        return [(end, place, each) for (end, each), place in zip(found, places, strict=True)]

    def part(self, whole: str, borders: Sequence[tuple[int, int, str]], text: str) -> _Part:
        """The first turns, whose text is this one, in the whole with these borders."""
        if whole.startswith(text):
            number = bisect_right(borders, len(text), key=itemgetter(0))
            if number:
                end, place, border = borders[number - 1]
                return _Part(place, border + text[end:])
        return _Part(0, text)


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
        numbers = enumerate(self.numbers)
        leave = [place for place, number in numbers if number in excluded]
        stay = sorted({*range(len(self.rows))} - {*leave})
        return self.only(stay), self.only(leave)

    def only(self, places: Sequence[int]) -> "EncodedSplit":
        """The rows at these places."""
        return EncodedSplit(
            tuple(self.examples[place] for place in places),
            tuple(self.rows[place] for place in places),
            self.too_long,
            tuple(self.numbers[place] for place in places),
        )


def encoded_split(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    max_length: int,
    scored: bool = False,
    name: str = "",
) -> EncodedSplit:
    """Encode a split. A row longer than `max_length` is left out whole: an answer that is cut in
    the middle teaches the wrong thing, and a prompt that is cut may lack the question. Of a scored
    row every choice must fit, since each is measured.

    name: of sub-dataset and split, for the line of progress.
    """
    kept: list[tuple[Example, Encoded]] = []
    numbers: list[int] = []
    too_long: list[str] = []
    try:
        told = partial(_tell, name, len(examples))
        encoded = encoded_examples(examples, tokenizer, max_length, told)
    finally:
        if process.progress is not None:
            process.progress("")
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


def _tell(name: str, rows: int, done: int) -> None:
    if process.progress is not None and done < rows:
        process.progress(f"encoding {name}: {done:,} of {rows:,} rows")


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
        found = encoded_split(
            examples, tokenizer, recipe.max_length, split != "train", f"{name}, {split}"
        )
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
    tokenizer: Any,
    turns: Sequence[Message],
    prompt: bool,
    where: str,
    tools: Sequence[Any] = (),
    limit: "Limit | None" = None,
) -> str:
    """A conversation as text; DataError, with the row's place, where the template fails.

    prompt: the assistant's turn is still to come.
    tools: the functions that may be called.
    limit: of many conversations, the one that `limited` gave for all of them.
    """
    if limit is None:
        with limited() as limit:
            return templated(tokenizer, turns, prompt, where, tools, limit)
    said = [{"role": turn.role, "content": turn.content, **turn.more} for turn in turns]
    known = {"tools": list(tools)} if tools else {}
    try:
        with limit:
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


def refuse_silence(tokenizer: Any, example: Example, whole: str) -> None:
    """DataError where the template leaves out what it does not know: tools, their calls, and what
    they answer. Else a model would be trained on an empty turn.

    whole: what the template makes of it.
    """

    def text(given: Example) -> str | None:
        try:
            return templated(tokenizer, given.messages, False, given.where, given.tools)
        except DataError:  # so it looks at what is missing
            return None

    for what, less in _poorer(example):
        if text(less) == whole:
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
def limited() -> Iterator[Limit]:
    """Gives what raises `_TooSlow` where its block takes more than SECONDS; it can be used again.
    Only the main thread can be interrupted, and only while no other code uses the alarm."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(
        signal.ITIMER_REAL
    ) != (0.0, 0.0):
        yield nullcontext()
        return

    def ring(number: int, frame: object) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield _Alarm()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class _Alarm:
    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _line(error: Exception) -> str:
    """The line of the template that failed, where the error has it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    number = lines[-1] if lines else getattr(error, "lineno", None)
    return f" in its line {number}" if number else ""


def _said(error: Exception) -> str:
    """The first line of an error's text."""
    first = next((line.strip() for line in str(error).split("\n") if line.strip()), "")
    kind = type(error).__name__
    return first if kind == "TemplateError" else f"{kind}: {first}" if first else kind
