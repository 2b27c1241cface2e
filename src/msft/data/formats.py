"""Row formats: what users' rows look like, and the one example that each becomes.

A row's format is recognised by its fields and never guessed: a row that fits none of the formats,
or two of them, is refused. `question` and `answer`, say, could mean several prompts. Conversations
are turns of text, of text parts and of tool calls, in the two ways in which people write them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msft.errors import DataError
from msft.example import Example, Message
from msft.text import shown

Row = Mapping[str, Any]

_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def text_in(row: Row, key: str, prefix: str = "") -> str:
    """A field that must be text; messages call it `prefix` and `key`."""
    text = row[key]
    if not isinstance(text, str):
        found = "null" if text is None else shown(text)
        raise DataError(f"{prefix}{key} is {found}; expected text")
    bad = _NOT_TEXT.search(text)
    if bad:
        kind = "a NUL character" if bad.group() == "\x00" else f"half a character, {bad.group()!a}"
        raise DataError(f"{prefix}{key} has {kind} at position {bad.start()}; remove or mend it")
    return text


def answer_in(row: Row, key: str, prefix: str = "") -> str:
    """A field that must be text and may not be blank."""
    text = text_in(row, key, prefix)
    if not text.strip():
        raise DataError(f"{prefix}{key} is {shown(text)}; expected text that is not blank")
    return text


# Conversations

MAX_TURNS = 2000
"""Of a conversation: a chat template reads all turns again for each answer."""

CALLS = "function_call"
"""ShareGPT's role for a turn whose text is a tool call."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a row writes its turns; `roles` says what each role is called here."""

    key: str
    role: str
    text: str
    roles: Mapping[str, str]


OPENAI = Style(
    "messages",
    "role",
    "content",
    {
        "system": "system",
        "developer": "system",
        "user": "user",
        "assistant": "assistant",
        "tool": "tool",
    },
)
SHAREGPT = Style(
    "conversations",
    "from",
    "value",
    {
        "system": "system",
        "human": "user",
        "user": "user",
        "gpt": "assistant",
        "assistant": "assistant",
        CALLS: "assistant",
        "observation": "tool",
        "tool": "tool",
    },
)


def conversation(row: Row, where: str, style: Style) -> Example:
    """A row of turns as an example; the last turn must be the assistant's."""
    key, turns = style.key, row[style.key]
    if not isinstance(turns, list | tuple) or not turns:
        raise DataError(f"{key} is {shown(turns)}; expected a list of turns")
    if len(turns) > MAX_TURNS:
        raise DataError(
            f"{key} has {len(turns):,} turns; expected {MAX_TURNS:,} at most: split it up"
        )
    messages = tuple(_message(turn, style, f"{key}[{number}]") for number, turn in enumerate(turns))
    if all(message.role != "assistant" for message in messages):
        raise DataError(f"{key} has no turn of the assistant, so there is nothing to learn; add it")
    if messages[-1].role != "assistant":
        raise DataError(
            f"{key} ends with a turn of the {messages[-1].role}; expected the assistant's answer "
            "as the last turn: add it, or remove what follows it"
        )
    if messages[0].role == "assistant":
        raise DataError(
            f"{key} begins with a turn of the assistant, which has nothing to answer; expected the "
            "user or the system first: add its turn, or remove this one"
        )
    tools = _tools(row.get("tools"))
    return Example("", messages[-1].content, messages, tools=tools, where=where)


def _message(turn: Any, style: Style, at: str) -> Message:
    if not isinstance(turn, Mapping) or style.role not in turn:
        raise DataError(f"{at} is {shown(turn)}; expected {style.role} and {style.text}")
    role = turn[style.role]
    if not isinstance(role, str) or role not in style.roles:
        raise DataError(
            f"{at}.{style.role} is {shown(role)}; expected one of: {', '.join(style.roles)}"
        )
    calls = turn.get("tool_calls")
    if role == CALLS:
        calls = [_loaded(turn.get(style.text), f"{at}.{style.text}")]
    more: dict[str, Any] = {
        key: text_in(turn, key, f"{at}.")
        for key in ("name", "tool_call_id")
        if turn.get(key) is not None
    }
    if calls:
        if style.roles[role] != "assistant":
            raise DataError(
                f"{at}.tool_calls stands in a turn of the {role}; expected it only in "
                "the assistant's: move it"
            )
        more["tool_calls"] = _calls(calls, f"{at}.tool_calls")
        content = "" if role == CALLS or turn.get(style.text) is None else _content(turn, style, at)
        return Message("assistant", content, more)
    if style.text not in turn:
        raise DataError(f"{at} is {shown(turn)}; expected {style.role} and {style.text}")
    content = _content(turn, style, at)
    if style.roles[role] == "assistant":
        answer_in({style.text: content}, style.text, f"{at}.")
    return Message(style.roles[role], content, more)


def _content(turn: Row, style: Style, at: str) -> str:
    """The text of a turn, which may stand in parts."""
    found = turn[style.text]
    if not isinstance(found, list | tuple):
        return text_in(turn, style.text, f"{at}.")
    texts = []
    for number, part in enumerate(found):
        place = f"{at}.{style.text}[{number}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in (None, "text"):
            raise DataError(
                f"{place} is of the type {shown(kind)}; expected text: msft trains on text only, "
                "so remove the part, or rows with images, audio and video"
            )
        if not isinstance(part, Mapping) or "text" not in part:
            raise DataError(f"{place} is {shown(part)}; expected {{type: text, text: …}}")
        texts.append(text_in(part, "text", f"{place}."))
    return "".join(texts)


def _calls(calls: Any, at: str) -> list[dict[str, Any]]:
    """Tool calls as chat templates expect them: the arguments are an object, not its JSON text."""
    if not isinstance(calls, list | tuple):
        raise DataError(f"{at} is {shown(calls)}; expected a list of calls")
    found = []
    for number, call in enumerate(calls):
        place = f"{at}[{number}]"
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(
                f"{place} is {shown(call)}; expected {{type: function, function: {{name: …, "
                "arguments: {…}}}"
            )
        given = function.get("arguments")
        arguments = _loaded(given, f"{place}.arguments") if isinstance(given, str) else given
        if not isinstance(arguments, Mapping | None):
            raise DataError(f"{place}.arguments is {shown(given)}; expected an object")
        kept = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        named = {"name": function["name"], "arguments": dict(arguments or {})}
        found.append({**kept, "type": "function", "function": named})
    return found


def _tools(given: Any) -> tuple[Any, ...]:
    """The field `tools`: a list of schemas, or the text of one."""
    tools = _loaded(given, "tools") if isinstance(given, str) and given.strip() else given
    if not tools:
        return ()
    if not isinstance(tools, list | tuple) or not all(
        isinstance(tool, Mapping) and isinstance(tool.get("function", tool).get("name"), str)
        for tool in tools
    ):
        raise DataError(
            f"tools is {shown(given)}; expected a list of functions with a name, as JSON schemas"
        )
    return tuple(
        dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}
        for tool in tools
    )


def _loaded(text: Any, at: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise DataError(f"{at} is {shown(text)}; expected JSON") from None


# Recognising a format

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
