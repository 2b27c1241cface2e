"""A conversation on a terminal: answers side by side while they are written; plain lines in a file
or a pipe."""

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from os import get_terminal_size
from typing import Any, TextIO

from msft.app.chat import Chat, ChatAnswer
from msft.app.terminal.screen import say, show, show_path, unguarded, width
from msft.errors import UsageError
from msft.text import broken, columns_of, counted, cut, safe, screen_width

LEAST = 60
"""Columns of a screen on which two answers stand side by side."""
BETWEEN = " │ "
_COMMAND = re.compile(r"/[a-z]+")

HELP = """\
A line is {line}. A line that ends with \\ goes on in the next one.
/new    {new}
/help   this text
/quit   end; so does Ctrl-D. Ctrl-C leaves an answer where it is"""


def greeting(chat: Chat) -> str:
    """The models, and the options of their answers."""
    options = chat.options
    lines = [f"{model.who:<8}{model.name}" for model in chat.models]
    drawn = f"temperature {options.temperature:g}, seed {options.seed}"
    how = drawn if options.temperature else "the likeliest token each time"
    under = "under the chat template" if chat.under_template else "without a chat template"
    most = counted(options.max_new_tokens, "token")
    lines.append(f"{under}; {how}; at most {most}; /help")
    return "\n".join(lines)


def converse(chat: Chat) -> None:
    """Ask for lines and answer them until the user ends it."""
    show(greeting(chat))
    with _own_interrupts():
        while (text := _typed()) is not None:
            word = text.strip()
            if not word:
                continue
            if _COMMAND.fullmatch(word.split()[0]):
                if word == "/quit":
                    return
                _obey(chat, word)
                continue
            try:
                answers = chat.ask(text)
            except UsageError as error:
                say(f"msft: {error}")
                continue
            answer(answers)
            chat.keep(text, answers)


def _obey(chat: Chat, word: str) -> None:
    if word == "/new":
        chat.forget()
        show("a new conversation" if chat.under_template else "every line is a prompt of its own")
        return
    if word != "/help":
        say(f"there is no {word}; expected /new, /help or /quit (a blank before / sends it)")
        return
    line = "the next turn of the conversation" if chat.under_template else "a prompt of its own"
    new = "forget the conversation" if chat.under_template else "nothing to forget: see above"
    show(HELP.format(line=line, new=new))


def _typed() -> str | None:
    """The text that the user typed; None at the end of the input. Ctrl-C drops the line."""
    lines: list[str] = []
    while True:
        prompt = "... " if lines else "\n> "
        try:
            if sys.stdout.isatty():
                line = input(prompt)
            else:  # `input` would write the prompt among the answers
                print(prompt, end="", file=sys.stderr, flush=True)
                line = sys.stdin.readline()
                if not line:
                    raise EOFError
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            say("\n(Ctrl-D or /quit ends)")
            lines = []
            continue
        lines.append(line.rstrip("\r\n"))
        if not lines[-1].endswith("\\"):
            return "\n".join(lines)
        lines[-1] = lines[-1][:-1]


def answer(answers: Sequence[ChatAnswer]) -> None:
    """Show answers while they are written. Ctrl-C leaves them where they are."""
    try:
        if screen_width(sys.stdout) is None or not sys.stdout.isatty():
            _in_lines(answers)
        elif len(answers) > 1 and width() < LEAST:
            for each in answers:
                _in_columns([each])
        else:
            _in_columns(answers)
    except KeyboardInterrupt:
        print()
    finally:
        for each in answers:
            each.stream.stop()
    for each in answers:
        if each.stream.ended_by == "max_new_tokens":
            tokens = counted(len(each.stream.tokens), "token")
            say(f"({each.model.who}: left after {tokens}; more with --max-new-tokens)")


def _in_lines(answers: Sequence[ChatAnswer]) -> None:
    """One answer after the other, as they come; of several each with its name above it."""
    for number, each in enumerate(answers):
        if len(answers) > 1:
            print(end="\n" * bool(number))
            show_path(f"{each.model.who}:", each.model.name)
        told = 0
        while each.stream.advance():
            text = each.text
            print(text[told:], end="", flush=True)
            told = max(told, len(text))
        print(each.text[told:], flush=True)


def _in_columns(answers: Sequence[ChatAnswer]) -> None:
    """All at a time. The answer that has the fewest lines goes on, so that no line is touched that
    has left the screen."""
    columns = Columns(unguarded(sys.stdout), width() - 1, [each.model.who for each in answers])
    texts = [""] * len(answers)
    going = {*range(len(answers))}
    columns.show(texts)
    while going:
        number = min(going, key=lambda n: (*columns.reach(texts[n]), n))
        if not answers[number].stream.advance():
            going.remove(number)
        texts[number] = safe(answers[number].text)
        columns.show(texts)
    columns.end()


class Columns:
    """Texts beside each other that grow at their ends."""

    def __init__(self, stream: TextIO, width: int, names: Sequence[str]) -> None:
        """width: of all columns. names: above them; a single column has none."""
        self._stream = stream
        self._each = (width - len(BETWEEN) * (len(names) - 1)) // len(names)
        self._rows: list[str] = []
        if len(names) > 1:
            self._print([self._row([cut(name, self._each) for name in names])])

    def reach(self, text: str) -> tuple[int, int]:
        """The number of lines of a text, and the columns of the last one."""
        lines = self._lines(text)
        return len(lines), columns_of(lines[-1])

    def show(self, texts: Sequence[str]) -> None:
        """Write what is not on the screen yet: from the first line that differs on."""
        lines = [self._lines(text) for text in texts]
        most = max(map(len, lines))
        rows = [
            self._row([each[n] if n < len(each) else "" for each in lines]) for n in range(most)
        ]
        pairs = zip(rows, self._rows, strict=False)
        same = next((n for n, (new, old) in enumerate(pairs) if new != old), len(self._rows))
        up = min(len(self._rows) - same, self._height())
        if up > 0:
            self._stream.write(f"\x1b[{up}A")
        self._print(rows[len(self._rows) - up :])
        self._rows = rows

    def end(self) -> None:
        self._stream.flush()

    def _print(self, rows: Sequence[str]) -> None:
        self._stream.write("".join(f"\r{row}\x1b[K\n" for row in rows))
        self._stream.flush()

    def _row(self, cells: Sequence[str]) -> str:
        padded = [cell + " " * (self._each - columns_of(cell)) for cell in cells]
        return BETWEEN.join(padded).rstrip()

    def _lines(self, text: str) -> list[str]:
        whole = text.expandtabs(4).split("\n")
        return [part for line in whole for part in broken(line, self._each, "")]

    def _height(self) -> int:
        with suppress(OSError, ValueError):
            return max(1, get_terminal_size(self._stream.fileno()).lines - 1)
        return 24


def answers_content(chat: Chat, prompt: str, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
    """For programs."""
    options = chat.options
    return {
        "prompt": prompt,
        "system": options.system,
        "chat_template": chat.under_template,
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
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
