"""A row on its way: as it was read, and as the model sees it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; role is system, user, assistant or tool.

    more: what else a chat template is given of it: `tool_calls`, `tool_call_id`, `name`.
    """

    role: str
    content: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What the turn says, its tool calls included."""
        calls = self.more.get("tool_calls")
        return (
            f"{self.content}{json.dumps(calls, ensure_ascii=False, default=str)}"
            if calls
            else self.content
        )

    @property
    def calls(self) -> tuple[str, ...]:
        """The names of the functions that this turn calls."""
        return tuple(call["function"]["name"] for call in self.more.get("tool_calls", ()))


@dataclass(frozen=True, slots=True)
class Example:
    """One row, whatever its format was.

    messages: of a conversation, the last one is the assistant's; its content is `completion`,
        and `prompt` is empty, but for a row of prompt and completion that became a conversation.
        Where that turn calls a tool, `completion` is what the chat template writes of it.
    choices, answer: of a choice row; `completion` is the right choice.
    where: file and line, for messages.
    asks: what a benchmark's row asks without the words around it, by which leaks are found.
    label: what the right answer is called, for the balance of labels.
    subject: the value by which the sub-dataset may be split.
    others: the same row with each of its wrong choices as the answer, where `label_noise` asks.
    tools: the functions that a conversation may call, as JSON schemas.
    read_turns: so many turns at the start of a conversation are read; their answers are not
        learned.
    weight: of its loss in training.
    """

    prompt: str
    completion: str
    messages: tuple[Message, ...] = ()
    choices: tuple[str, ...] = ()
    answer: int | None = None
    where: str = ""
    asks: str = ""
    label: str = ""
    subject: str = ""
    others: tuple["Example", ...] = ()
    tools: tuple[Any, ...] = ()
    read_turns: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Split:
    """The examples of one source, their format, how many bad rows were skipped, and what was wrong
    with the first of them."""

    examples: tuple[Example, ...]
    format: str
    skipped: int = 0
    first_skipped: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row's tokens, and which of them are answer tokens.

    weight: of the row's loss in training; prompt_weight: of the loss of a token that is no answer.
        A repr does not have them, since logs have digests of it that are older.
    """

    tokens: tuple[int, ...]
    answer: tuple[bool, ...]
    weight: float = field(default=1.0, repr=False)
    prompt_weight: float = field(default=0.0, repr=False)

    @property
    def answer_tokens(self) -> int:
        """Answer tokens that can be predicted: the very first token of a row cannot."""
        return sum(self.answer[1:])

    @property
    def trained_tokens(self) -> int:
        """Tokens whose loss is trained."""
        return len(self.tokens) - 1 if self.prompt_weight else self.answer_tokens

    @property
    def mass(self) -> float:
        """What the row adds to the number by which a batch divides its loss: a token counts 1, one
        of the prompt its weight. The row's own weight is not in it."""
        answers = self.answer_tokens
        if not self.prompt_weight:
            return answers
        return answers + self.prompt_weight * (len(self.tokens) - 1 - answers)

    @property
    def prompt(self) -> tuple[int, ...]:
        """Everything before the last answer: what a generation starts from."""
        end = len(self.tokens)
        while end and self.answer[end - 1]:
            end -= 1
        return self.tokens[:end]
