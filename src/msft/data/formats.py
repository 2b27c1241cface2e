"""Row formats: what users' rows look like, and the one example that each becomes.

A row's format is recognised by its fields and never guessed: a row that fits none of the formats,
or two of them, is refused. `question` and `answer`, say, could mean several prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msft.data.conversations import OPENAI, SHAREGPT, conversation
from msft.data.fields import Row, answer_in, text_in
from msft.errors import DataError
from msft.example import Example
from msft.text import shown

ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)


@dataclass(frozen=True, slots=True)
class _Format:
    needed: tuple[str, ...]
    read: Callable[[Row, str], Example]


def format_of(row: Row) -> str:
    """The name of the row's format: `prompt+completion`, `choices`, `messages`, …"""
    fitting = _fitting(list(row))
    if len(fitting) > 1:  # tables have null where a row of another format has a field
        fitting = _fitting([key for key, value in row.items() if value is not None])
    if len(fitting) == 1:
        return fitting[0]
    found = shown(sorted(map(str, row)))
    if fitting:
        raise DataError(f"fields {found} fit {' and '.join(fitting)}; remove those you do not mean")
    listed = ", ".join("+".join(form.needed) for form in FORMATS.values())
    raise DataError(
        f"fields {found} fit no format; expected one of: {listed}; rename the fields or add the "
        "missing ones"
    )


def example_of(row: Any, where: str, form: str | None = None) -> tuple[Example, str]:
    """The row as an example and its format, which must be `form` if that is given."""
    try:
        if not isinstance(row, Mapping):
            raise DataError(f"found {shown(row)}; expected an object with fields such as prompt")
        if form is None:
            form = format_of(row)
        missing = [key for key in FORMATS[form].needed if key not in row]
        if missing and len(_fitting(list(row))) == 1:
            raise DataError(
                f"this row is {format_of(row)}, but the first was {form}; put rows of different "
                "formats into different files"
            )
        if missing:
            raise DataError(
                f"{missing[0]} is missing (found {shown(sorted(map(str, row)))}); add it"
            )
        return FORMATS[form].read(row, where), form
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _fitting(keys: Sequence[str]) -> list[str]:
    return [name for name, form in FORMATS.items() if set(form.needed) <= set(keys)]


def _prompt_completion(row: Row, where: str) -> Example:
    return Example(text_in(row, "prompt"), answer_in(row, "completion"), where=where)


def _choices(row: Row, where: str) -> Example:
    prompt, found = answer_in(row, "prompt"), row["choices"]
    if not isinstance(found, list | tuple):
        raise DataError(
            f"choices is {shown(found)}; expected a list of texts (in a CSV there are no lists: "
            "use .jsonl)"
        )
    choices = tuple(answer_in({f"choice {n}": text}, f"choice {n}") for n, text in enumerate(found))
    if len(choices) < 2 or len(set(choices)) < len(choices):
        raise DataError(f"choices is {shown(found)}; expected two or more, all different")
    answer = row["answer"]
    if isinstance(answer, str) and choices.count(answer) == 1:
        answer = choices.index(answer)
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer < len(choices):
        raise DataError(
            f"answer is {shown(answer)}; expected the index of the right choice, 0 to "
            f"{len(choices) - 1}, or its text exactly"
        )
    return Example(prompt, choices[answer], choices=choices, answer=answer, where=where)


def _alpaca(row: Row, where: str) -> Example:
    instruction, output = answer_in(row, "instruction"), answer_in(row, "output")
    given = "" if row.get("input") is None else text_in(row, "input")
    template = ALPACA_WITH_INPUT if given.strip() else ALPACA
    return Example(template.format(instruction=instruction, input=given), output, where=where)


_MESSAGES = partial(conversation, style=OPENAI)
_CONVERSATIONS = partial(conversation, style=SHAREGPT)
FORMATS = {
    "prompt+completion": _Format(("prompt", "completion"), _prompt_completion),
    "choices": _Format(("prompt", "choices", "answer"), _choices),
    "messages": _Format(("messages",), _MESSAGES),
    "alpaca": _Format(("instruction", "output"), _alpaca),
    "sharegpt": _Format(("conversations",), _CONVERSATIONS),
}
