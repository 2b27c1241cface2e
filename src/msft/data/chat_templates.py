"""Chat templates: a program that comes with a model, so it may fail, and it may never end."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

from msft.errors import DataError
from msft.example import Example, Message

SECONDS = 5.0
"""How long a template may take for one conversation."""
MAX_TEXT = 100_000_000
"""Characters of one conversation."""


class _TooSlow(Exception):
    """The time is up."""


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
    """Raise `_TooSlow` after so many seconds; only the main thread can be interrupted, and only
    where nobody else has set the alarm."""
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
    """Where in the template it happened, if the error knows."""
    number = getattr(error, "lineno", None)
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            number = trace.tb_lineno
        trace = trace.tb_next
    return f" in its line {number}" if number else ""


def _said(error: Exception) -> str:
    """One line of what it said."""
    first = next((line.strip() for line in str(error).split("\n") if line.strip()), "")
    kind = type(error).__name__
    return first if kind == "TemplateError" else f"{kind}: {first}" if first else kind
