"""A conversation on a terminal: two answers side by side; plain lines in a file or a pipe."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msft.app.chat import Chat, ChatAnswer
from msft.app.terminal.screen import say, show, show_path, unguarded, width
from msft.errors import UsageError
from msft.text import counted, safe

if TYPE_CHECKING:
    from rich.table import Table

LEAST = 60
"""Columns of a screen on which two answers stand side by side."""


def greeting(chat: Chat) -> str:
    """The models, and what can be typed."""
    lines = [f"{model.who:<8}{model.name}" for model in chat.models]
    under = "a line is the next turn, /new begins anew"
    line = under if chat.under_template else "no chat template: a line is a prompt of its own"
    most = counted(chat.options.max_new_tokens, "token")
    lines.append(f"{line}; at most {most}. Ctrl-C leaves an answer, Ctrl-D ends")
    return "\n".join(lines)


def converse(chat: Chat) -> None:
    """Ask for lines and answer them until the user ends it."""
    show(greeting(chat))
    with _own_interrupts():
        while (text := _typed()) is not None:
            if text.strip() == "/new":
                chat.forget()
                show("a new conversation")
            elif text.strip():
                try:
                    answers = chat.ask(text)
                except UsageError as error:
                    say(f"msft: {error}")
                    continue
                answer(answers)
                chat.keep(text, answers)


def _typed() -> str | None:
    """The text that the user typed; None at the end of the input. Ctrl-C drops the line."""
    while True:
        try:
            if sys.stdout.isatty():
                return input("\n> ")
            print("\n> ", end="", file=sys.stderr, flush=True)  # not among the answers
            line = sys.stdin.readline()
            if line:
                return line.rstrip("\r\n")
            raise EOFError
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            say("\n(Ctrl-D ends)")


def answer(answers: Sequence[ChatAnswer]) -> None:
    """Show answers while they are written. Ctrl-C leaves them where they are."""
    try:
        if len(answers) > 1 and sys.stdout.isatty() and width() >= LEAST:
            _side_by_side(answers)
        else:
            _in_lines(answers)
    except KeyboardInterrupt:
        print()
    for each in answers:
        if each.ended_by == "max_new_tokens":
            tokens = counted(len(each.tokens), "token")
            say(f"({each.model.who}: left after {tokens}; more with --max-new-tokens)")


def _in_lines(answers: Sequence[ChatAnswer]) -> None:
    """One answer after the other, as they come; of several each with its name above it."""
    for number, each in enumerate(answers):
        if len(answers) > 1:
            print(end="\n" * bool(number))
            show_path(f"{each.model.who}:", each.model.name)
        told = ""

        def tell(each: ChatAnswer = each) -> None:
            nonlocal told
            if len(each.text) > len(told):
                print(each.text[len(told) :], end="", flush=True)
                told = each.text

        each.write(tell)
        print(flush=True)


def _side_by_side(answers: Sequence[ChatAnswer]) -> None:
    """One answer after the other, in columns; of a long one the beginning, until all are there."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=unguarded(sys.stdout), width=width() - 1)
    try:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for each in answers:
                each.write(lambda: live.update(_columns(answers), refresh=True))
    finally:
        console.print(_columns(answers))


def _columns(answers: Sequence[ChatAnswer]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, expand=True, pad_edge=False)
    for each in answers:
        table.add_column(each.model.who, ratio=1, overflow="fold")
    table.add_row(*(Text(safe(each.text)) for each in answers))
    return table


def answers_content(chat: Chat, prompt: str, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
    """For programs."""
    return {
        "prompt": prompt,
        "system": chat.options.system,
        "chat_template": chat.under_template,
        "max_new_tokens": chat.options.max_new_tokens,
        "answers": [each.content() for each in answers],
    }


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C is Python's: it leaves an answer or a line, and does not end the program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(ImportError):
        import readline  # noqa: F401  lines can be edited, and earlier ones fetched
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
