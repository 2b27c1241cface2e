"""Conversations: turns of text, of text parts, and of tool calls, in the two ways people write
them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msft.data.fields import Row, answer_in, text_in
from msft.errors import DataError
from msft.example import Example, Message
from msft.text import shown

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
    """Tool calls as chat templates expect them: arguments as an object, not as text of one."""
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
