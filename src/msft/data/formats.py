"""Row formats: what users' rows look like, and the one example that each becomes.

A row's format is recognised by its fields and never guessed: a row that fits none of the formats,
or two of them, is refused, with the `columns` that it probably needs. `question` and `answer`, say,
could mean several prompts. Conversations are turns of text, of text parts and of tool calls, in the
two ways in which people write them; a row of prompt and completion can be made into one.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    key = style.key
    messages = _messages(row, key, style)
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


def _messages(row: Row, key: str, style: Style) -> tuple[Message, ...]:
    """The turns in a field, at least one."""
    turns = row[key]
    if not isinstance(turns, list | tuple) or not turns:
        raise DataError(f"{key} is {shown(turns)}; expected a list of turns")
    if len(turns) > MAX_TURNS:
        raise DataError(
            f"{key} has {len(turns):,} turns; expected {MAX_TURNS:,} at most: split it up"
        )
    return tuple(_message(turn, style, f"{key}[{number}]") for number, turn in enumerate(turns))


def _prompt_turns(row: Row, where: str) -> Example:
    """TRL's conversational rows: the turns of the prompt are read, those of the completion are
    learned."""
    for key, other in (("prompt", "completion"), ("completion", "prompt")):
        if not isinstance(row[key], list | tuple):
            raise DataError(
                f"{key} is {shown(row[key])}, but {other} is a list of turns; expected both as "
                "text, or both as lists of turns"
            )
    prompt, completion = (_messages(row, key, OPENAI) for key in ("prompt", "completion"))
    if prompt[-1].role == "assistant" or completion[0].role != "assistant":
        raise DataError(
            f"prompt ends with a turn of the {prompt[-1].role} and completion begins with one of "
            f"the {completion[0].role}; expected the completion to begin with the assistant's "
            "first turn that is learned: move turns from one to the other"
        )
    whole = conversation({**row, OPENAI.key: [*row["prompt"], *row["completion"]]}, where, OPENAI)
    return replace(whole, read_turns=len(prompt))


def _message(turn: Any, style: Style, at: str) -> Message:
    if not isinstance(turn, Mapping) or style.role not in turn:
        other = SHAREGPT if style is OPENAI else OPENAI
        key, written = at.partition("[")[0], isinstance(turn, Mapping) and other.role in turn
        cure = f"; write columns: {{{other.key}: {key}}}" if written and key == style.key else ""
        raise DataError(f"{at} is {shown(turn)}; expected {style.role} and {style.text}{cure}")
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


# Prompts

ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)


def _prompt_completion(row: Row, where: str) -> Example:
    return Example(text_in(row, "prompt"), answer_in(row, "completion"), where=where)


# Recognising a format

TURNS, CHOICES, ALPACA_ROWS, TEXT = "prompt+completion turns", "choices", "alpaca", "text"


@dataclass(frozen=True, slots=True)
class _Format:
    needed: tuple[str, ...]
    read: Callable[[Row, str], Example]


def format_of(row: Row) -> str:
    """The name of the row's format: `prompt+completion`, `choices`, `messages`, …"""
    fitting = _fitting(list(row))
    if len(fitting) > 1:  # tables have null where a row of another format has a field
        fitting = _fitting([key for key, value in row.items() if value is not None])
    if fitting == ["prompt+completion"]:
        turns = any(_are_turns(row[key]) for key in ("prompt", "completion"))
        return TURNS if turns else fitting[0]
    if len(fitting) == 1:
        return fitting[0]
    found = shown(sorted(map(str, row)))
    if fitting:
        raise DataError(f"fields {found} fit {' and '.join(fitting)}; remove those you do not mean")
    if _is_plain_text(row):
        return TEXT
    raise DataError(f"fields {found} fit no format; {_cure_for(row)}")


def _are_turns(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def example_of(
    row: Any, where: str, form: str | None = None, chat: bool = False
) -> tuple[Example, str]:
    """The row as an example and its format, which must be `form` if that is given.

    chat: a row of prompt and completion becomes a turn of the user and one of the assistant.
    """
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
        example = FORMATS[form].read(row, where)
        return _in_turns(example, row, form) if chat else example, form
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _fitting(keys: Sequence[str]) -> list[str]:
    return [
        name
        for name, form in FORMATS.items()
        if name not in (TURNS, TEXT) and set(form.needed) <= set(keys)
    ]


def _in_turns(example: Example, row: Row, form: str) -> Example:
    """A row of prompt and completion as two turns. Its prompt stays, since the row is known by it
    where rows are left out."""
    if example.messages:
        return example
    if form in (CHOICES, TEXT):
        raise DataError(
            f"this row is {form}, which has no turns; expected prompt and completion, or Alpaca's "
            "fields: leave format: chat out"
        )
    prompt = answer_in(row, "instruction" if form == ALPACA_ROWS else "prompt")
    if form == ALPACA_ROWS and (row.get("input") or "").strip():
        prompt = f"{prompt}\n{row['input']}"
    turns = (Message("user", prompt), Message("assistant", example.completion))
    return replace(example, prompt=prompt, messages=turns)


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


def _text(row: Row, where: str) -> Example:
    """Plain text answers nothing: without a prompt the loss is on all of its tokens."""
    return Example("", answer_in(row, "text"), where=where)


FORMATS = {
    "prompt+completion": _Format(("prompt", "completion"), _prompt_completion),
    TURNS: _Format(("prompt", "completion"), _prompt_turns),
    CHOICES: _Format(("prompt", "choices", "answer"), _choices),
    "messages": _Format(("messages",), partial(conversation, style=OPENAI)),
    ALPACA_ROWS: _Format(("instruction", "output"), _alpaca),
    "sharegpt": _Format(("conversations",), partial(conversation, style=SHAREGPT)),
    TEXT: _Format(("text",), _text),
}


# What to write for rows that fit no format

_ASKS = (
    *("prompt", "question", "query", "instruction", "input", "inputs", "problem", "user"),
    *("user_input", "human", "request", "document", "article", "dialogue", "sentence", "text"),
    *("source", "content", "context"),
)
_ANSWERS = (
    *("completion", "answer", "response", "output", "outputs", "target", "targets", "assistant"),
    *("reply", "solution", "gpt", "bot", "summary", "highlights", "translation", "label_text"),
    *("label", "labels", "category", "class", "sentiment", "intent"),
)
"""What people call a prompt and its answer, the surest names first."""
_OPTIONS = ("choices", "options")
_CONVERSED = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "chat")
_ASIDE = {"text", "source", "content", "context"}
"""Names that stand beside plain text, too: it has a source."""


def _is_plain_text(row: Row) -> bool:
    """Whether a row has text, and no field that could be an answer to it or a question."""
    apart = {*_ASKS, *_ANSWERS, *_OPTIONS, *_CONVERSED, "chosen", "rejected"} - _ASIDE
    return "text" in row and not any(str(key).lower() in apart for key in row)


def _cure_for(row: Row) -> str:
    """What to do about a row that fits no format: mostly a line that can be pasted."""
    names = {str(key).lower(): str(key) for key in row}
    if {"chosen", "rejected"} <= names.keys():
        return _no_preference(row, names)
    known = ", ".join("+".join(form.needed) for name, form in FORMATS.items() if name != TURNS)
    columns = _likely_columns(row, names)
    if columns is None:
        return (
            f"expected one of: {known}; rename the fields or add the missing ones, or name your "
            "columns: {prompt: YOUR_COLUMN, completion: YOUR_COLUMN}"
        )
    answer = row[columns[[*columns][-1]]]
    plain = isinstance(answer, str | list | tuple) or "choices" in columns
    number = "" if plain else f" (its {[*columns.values()][-1]} must be text, not {shown(answer)})"
    alone = ", or columns: {text: text} to train on the text alone" if "text" in names else ""
    return (
        f"expected one of: {known}; if it is what you mean, write this line at the sub-dataset: "
        f"{_line(columns)}{number}{alone}"
    )


def _line(columns: Mapping[str, str]) -> str:
    """The key `columns` as a recipe has it; JSON's quotes are YAML's."""
    plain = re.compile(r"[A-Za-z_][\w .-]*[\w]|[A-Za-z_]", re.ASCII)
    named = {k: c if plain.fullmatch(c) else json.dumps(c) for k, c in columns.items()}
    return f"columns: {{{', '.join(f'{field}: {column}' for field, column in named.items())}}}"


def _no_preference(row: Row, names: Mapping[str, str]) -> str:
    """The answer to rows of DPO and its relatives."""
    chosen = names["chosen"]
    columns = {"messages": chosen}
    if isinstance(row[chosen], str):
        asks = next((names[name] for name in _ASKS if name in names), "YOUR_COLUMN")
        columns = {"prompt": asks, "completion": chosen}
    return (
        "these are preference data (pairs of chosen and rejected) for DPO, ORPO or a reward model, "
        "which msft does not train: it does supervised fine-tuning on one answer. If you want to "
        f"train on the chosen answers alone, write {_line(columns)}"
    )


def _likely_columns(row: Row, names: Mapping[str, str]) -> dict[str, str] | None:
    """Our fields and the columns that probably hold them, the answer last; None where nobody can
    say."""
    for name in _CONVERSED:
        turns = row[names[name]] if name in names else None
        first = turns[0] if isinstance(turns, list | tuple) and turns else None
        for style in (OPENAI, SHAREGPT):
            if isinstance(first, Mapping) and {style.role, style.text} <= first.keys():
                return {style.key: names[name]}
    asks = next((names[name] for name in _ASKS if name in names), "")
    answer = next((names[name] for name in _ANSWERS if name in names and names[name] != asks), "")
    options = next((names[name] for name in _OPTIONS if name in names), "")
    if asks and options and answer:
        return {"prompt": asks, "choices": options, "answer": answer}
    if "instruction" in names and answer:
        given = next((names[name] for name in ("input", "context") if name in names), None)
        more = {"input": given} if given is not None else {}
        return {"instruction": names["instruction"], **more, "output": answer}
    if asks and answer:
        return {"prompt": asks, "completion": answer}
    if len(row) == 2 and all(isinstance(value, str) and value.strip() for value in row.values()):
        return dict(zip(("prompt", "completion"), map(str, row), strict=True))
    return None
