"""Conversations: content in parts, tool calls, and templates that do not know them."""

import json
from typing import Any

import pytest

from msft.data.encoding import encoded_split
from msft.data.formats import example_of
from msft.data.splits import question_of
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import DataError
from msft.example import Example

ASK = {"role": "user", "content": "weather in Rome?"}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "name": "weather", "content": "18 degrees"}
SAYING = {"role": "assistant", "content": "It is 18 degrees."}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
TEMPLATE = (
    "{% if tools %}[{{ tools | tojson }}]{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def example(*turns: Any, **more: Any) -> Example:
    return example_of({"messages": list(turns), **more}, "here")[0]


def shown(given: Example, template: str = TEMPLATE) -> tuple[str, Example]:
    """The row as text, answers in brackets, and the example as it is scored."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    split = encoded_split([given], tokenizer, 10_000)
    (row,), (kept,) = split.rows, split.examples
    text = ""
    for token, marked, before in zip(
        row.tokens, row.answer, (False, *row.answer[:-1]), strict=True
    ):
        text += "⟦" * (marked and not before) + "⟧" * (before and not marked)
        text += tokenizer.decode([token])
    return text + "⟧", kept


def test_text_parts_are_one_text() -> None:
    parts = [{"type": "text", "text": "one "}, {"text": "two"}]
    joined = example({"role": "user", "content": parts}, {"role": "assistant", "content": parts})
    assert [turn.content for turn in joined.messages] == ["one two", "one two"]
    assert joined.completion == "one two"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([{"type": "image", "image": "x.png"}], "content[0] is of the type 'image'; expected text"),
        ([{"text": "a"}, {"type": "image_url"}], "content[1] is of the type 'image_url'"),
        ([{"type": "input_audio"}], "msft trains on text only"),
        ([{"type": "text"}], "content[0] is {'type': 'text'}; expected {type: text, text: …}"),
        (["hi"], "content[0] is 'hi'"),
        ([{"text": 3}], "content[0].text is 3; expected text"),
    ],
)
def test_other_parts_are_refused_by_name(content: Any, says: str) -> None:
    with pytest.raises(DataError) as caught:
        example({"role": "user", "content": content}, SAYING)
    assert says in str(caught.value)
    assert str(caught.value).startswith("here: messages[0].content")


def test_tool_calls_go_through_the_template_and_are_answers() -> None:
    text, kept = shown(example(ASK, CALLING, TOLD, SAYING, tools=TOOLS))
    assert text == (
        f"[{json.dumps(TOOLS)}]<user>weather in Rome?<eos><assistant>"
        '⟦{"name": "weather", "arguments": {"city": "Rome"}}<eos>⟧<tool>18 degrees<eos><assistant>'
        "⟦It is 18 degrees.<eos>⟧"
    )
    assert kept.completion == "It is 18 degrees."


def test_a_last_turn_that_calls_is_scored_by_what_the_template_writes() -> None:
    text, kept = shown(example(ASK, CALLING))
    assert text.endswith('<assistant>⟦{"name": "weather", "arguments": {"city": "Rome"}}<eos>⟧')
    assert kept.completion == '{"name": "weather", "arguments": {"city": "Rome"}}'


def test_arguments_may_be_text_and_shapes_may_differ() -> None:
    usual = example(ASK, CALLING, tools=TOOLS)
    as_text = {"name": "weather", "arguments": json.dumps({"city": "Rome"})}
    bare = {"role": "assistant", "tool_calls": [as_text]}
    assert example(ASK, bare, tools=json.dumps([TOOLS[0]["function"]])) == usual
    rows = {
        "conversations": [
            {"from": "human", "value": "weather in Rome?"},
            {"from": "function_call", "value": json.dumps(as_text)},
        ],
        "tools": TOOLS,
    }
    assert example_of(rows, "here")[0] == usual
    tables = example({**ASK, "tool_calls": None, "name": None}, CALLING, tools=TOOLS)
    assert tables == usual  # a table has a null where a turn has no such field


@pytest.mark.parametrize(
    ("turns", "more", "says"),
    [
        ([CALLING], {}, "messages[1], the call of weather"),
        ([CALLING, TOLD, SAYING], {}, "messages[1], the call of weather"),
        ([SAYING], {"tools": TOOLS}, "the tools that may be called"),
    ],
)
def test_a_template_that_leaves_tools_out_is_refused(
    turns: list[Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(DataError) as caught:
        shown(example(ASK, *turns, **more), tiny_tokenizer().chat_template)
    assert str(caught.value).startswith(f"here: this model's chat template does not write {says}; ")


def test_a_template_that_leaves_answers_of_tools_out_is_refused() -> None:
    silent = TEMPLATE.replace(
        "{{ m.content }}", "{% if m.role != 'tool' %}{{ m.content }}{% endif %}"
    )
    with pytest.raises(DataError, match=r"does not write messages\[2\], the answer of a tool"):
        shown(example(ASK, CALLING, TOLD, SAYING), silent)
    quoting = TEMPLATE.replace("{{ m.content }}", "{{ m.content | tojson }}")
    told = {**TOLD, "content": '{"degrees": 18}'}
    text, _ = shown(example(ASK, CALLING, told, SAYING), quoting)
    assert "<tool>" + json.dumps(told["content"]) in text


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        ({**CALLING, "tool_calls": "x"}, "tool_calls is 'x'; expected a list of calls"),
        ({**CALLING, "tool_calls": [3]}, "tool_calls[0] is 3; expected {type: function"),
        ({**CALLING, "tool_calls": [{"name": 3}]}, "tool_calls[0] is {'name': 3}"),
        (
            {**CALLING, "tool_calls": [{"name": "f", "arguments": "x"}]},
            "arguments is 'x'; expected JSON",
        ),
        (
            {**CALLING, "tool_calls": [{"name": "f", "arguments": [1]}]},
            "arguments is [1]; expected an",
        ),
        ({**CALLING, "role": "user"}, "stands in a turn of the user; expected it only in"),
        ({"role": "assistant"}, "expected role and content"),
        ({"role": "assistant", "content": None}, "content is null; expected text"),
        ({"role": "assistant", "content": " ", "tool_calls": []}, "content is ' '; expected text"),
        ({**SAYING, "name": 3}, "messages[1].name is 3; expected text"),
    ],
)
def test_wrong_turns(turn: Any, says: str) -> None:
    with pytest.raises(DataError) as caught:
        example(ASK, turn, SAYING)
    assert says in str(caught.value)


@pytest.mark.parametrize("tools", ["x", {"name": "f"}, [3], [{"name": 3}]])
def test_wrong_tools(tools: Any) -> None:
    with pytest.raises(DataError, match="here: tools is "):
        example(ASK, SAYING, tools=tools)


def test_conversations_that_call_other_tools_ask_something_else() -> None:
    other = {**CALLING, "tool_calls": [{"name": "time", "arguments": {}}]}
    first, second = example(ASK, CALLING, SAYING), example(ASK, other, SAYING)
    assert question_of(first) != question_of(second)
    assert question_of(first) == question_of(example(ASK, CALLING, SAYING))
