"""A benchmark: how a row becomes a question, how that is asked, and how an answer is graded.

A row is read into an `Item`, whatever its dataset calls the fields. A prompt makes a text of the
item, in the style `letters` (the paper's) or `text`. Every prompt ends before the blank and every
answer starts with it (`A:`, then ` #### C`), so that training, generation and likelihoods see the
same tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msft.benchmarks.grading import MARK, Grader
from msft.errors import DataError
from msft.example import Example
from msft.text import shown

Row = Mapping[str, Any]
Group = Literal["science", "commonsense", "math", "language", "demo"]
Style = Literal["letters", "text"]
Splits = tuple[str, str | None, str]

HELD_OUT = ("train", None, "test")
"""Splits of a dataset without labelled validation rows: they are held out from train."""

TEST_IS_HIDDEN = ("train", None, "validation")
"""Splits of a dataset whose test labels are not public: its validation rows are the test."""


# Prompts: an item as text

LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True, slots=True)
class Item:
    """What a row asks, whatever its dataset calls it.

    answer: the index of the right choice; the answer itself where there are no choices.
    subject: the row's field or topic, where the dataset has one.
    """

    question: str
    choices: tuple[str, ...]
    answer: int | str
    context: str = ""
    rationale: str = ""
    subject: str = ""

    @property
    def right(self) -> str:
        """The answer's text."""
        return self.choices[self.answer] if isinstance(self.answer, int) else self.answer


Prompt = Callable[[Item], Example]
"""An item as the model sees it; its label is empty where every answer differs."""


def lettered(item: Item) -> Example:
    """`Q: … options: A. …, B. …` and the letter as the answer.

    The paper's style: the letter is short and its grading needs no likelihoods. Small models do
    not learn it (135M stays at chance), since they must first learn to look letters up.
    """
    assert isinstance(item.answer, int)
    letter = LETTERS[item.answer]
    options = ", ".join(f"{LETTERS[n]}. {_line(text)}" for n, text in enumerate(item.choices))
    return Example(f"{_question(item)}\noptions: {options}\nA:", f" {MARK} {letter}", label=letter)


def chosen(item: Item) -> Example:
    """`Q: …` and the choice's own text as the answer; options are not shown.

    What is scored is which choice is likeliest, as in the harness, and that is learned by models
    of every size. Options in the prompt would make all of them likely: each could be copied.
    """
    assert isinstance(item.answer, int)
    choices = tuple(f" {choice}" for choice in item.choices)
    label = LETTERS[item.answer]
    return Example(f"{_question(item)}\nA:", choices[item.answer], choices=choices, label=label)


def reasoned(item: Item) -> Example:
    """As `lettered`, with the rationale before the letter.

    The paper's way with AQUA-RAT: the model computes before it commits itself to a letter.
    """
    asked = lettered(item)
    return replace(asked, completion=_reasons(item, asked.completion))


def written(item: Item) -> Example:
    """`Q: …` and the answer in words after the mark; options are not shown.

    The paper's way with SciQ, whose answers are short terms: the model must know the term, where
    among options it could recognise it. The grader reads one line, so it is one.
    """
    return Example(f"{_question(item)}\nA:", f" {MARK} {_line(item.right)}")


def worked(item: Item) -> Example:
    """As `written`, with the rationale before the answer: for answers that must be worked out.

    In both styles, since there are no choices to compare.
    """
    asked = written(item)
    return replace(asked, completion=_reasons(item, asked.completion))


def judged(item: Item) -> Example:
    """As `written`, of an item whose choices are True and False.

    The paper's way with BoolQ: two letters for two words would only have to be looked up.
    """
    return replace(written(item), label=item.right)


def classifying(task: str, prompt: Prompt) -> Prompt:
    """The row's text, then `task` as the question, and the answer as `prompt` has it.

    A text alone does not say what is to be done with it, and without options in the prompt the
    classes' names could not be guessed: `task` says both. Labels are the classes' names, since
    they are the same in every row.
    """

    def classified(item: Item) -> Example:
        asked = prompt(replace(item, context=item.question, question=task))
        return replace(asked, label=item.right)

    return classified


def either(names: tuple[str, ...]) -> str:
    """`a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _question(item: Item) -> str:
    """What is asked comes last, next to its answer; the passage stands before it."""
    context = f"{item.context}\n" if item.context else ""
    return f"Q: {context}{item.question}"


def _reasons(item: Item, completion: str) -> str:
    """The rationale stands before the mark; a mark in it would be graded instead."""
    rationale = item.rationale.replace(MARK, "").strip()
    return f" {rationale}\n{completion.strip()}" if rationale else completion


def _line(text: str) -> str:
    return " ".join(text.split())


# Benchmarks


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A public benchmark.

    hub: its dataset on the hub, `owner/name` or `owner/name:configuration`.
    group: where it stands in tables of several benchmarks.
    read: a row in the hub's own schema → what it asks.
    grader: finds the answer in what the model wrote, where it writes one.
    letters, text: the prompt in each style.
    splits: the hub's splits that are train, validation (None: held out from train) and test.
    classes: the choices, where every row has the same; prompts may rely on their order.
    free: rows have no choices, and every answer is written.
    subject_groups: the broad group of each of its subjects, where there are some.
    """

    hub: str
    group: Group
    read: Callable[[Row], Item]
    grader: Grader
    letters: Prompt = lettered
    text: Prompt = chosen
    splits: Splits = ("train", "validation", "test")
    classes: tuple[str, ...] = ()
    free: bool = False
    subject_groups: Mapping[str, str] = field(default_factory=dict)

    def item(self, row: Row) -> Item:
        """What a row asks: in the hub's schema, or as question, context, choices and answer."""
        try:
            item = _flat(row) if "answer" in row and "choices" in row else self.read(row)
            _refuse_broken(item)
            item = _tidy(item)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"{what} (found {shown(dict(row))}); expected a row of {self.hub}, or question, "
                "choices (a list) and answer (its index)"
            ) from error
        if self.free == bool(item.choices):
            expected = "an answer and no choices" if self.free else "choices"
            raise DataError(f"choices are {shown(item.choices)}; expected {expected}")
        if self.classes and item.choices != self.classes:
            raise DataError(
                f"choices are {shown(item.choices)}; expected {shown(self.classes)}, in this order"
            )
        return item

    def example(self, row: Row, where: str, style: Style) -> Example:
        """A row as the model sees it."""
        return self._example(self._item_at(row, where), where, style)

    def others(self, row: Row, where: str, style: Style) -> tuple[Example, ...]:
        """The same row with each of its wrong choices as the answer."""
        item = self._item_at(row, where)
        wrong = [number for number in range(len(item.choices)) if number != item.answer]
        return tuple(self._example(replace(item, answer=n), where, style) for n in wrong)

    def _item_at(self, row: Row, where: str) -> Item:
        try:
            return self.item(row)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None

    def _example(self, item: Item, where: str, style: Style) -> Example:
        asked = (self.letters if style == "letters" else self.text)(item)
        answer = item.answer if asked.choices and isinstance(item.answer, int) else None
        asks = f"{item.context}\n{item.question}"
        return replace(asked, answer=answer, where=where, asks=asks, subject=item.subject)


def labelled(found: object, keys: Sequence[str]) -> int:
    """The index of a row's label among those that its dataset has."""
    key = str(found).strip()
    if key not in list(keys):
        raise DataError(
            f"the label is {shown(found)}; expected one of {', '.join(keys)} (where it is hidden, "
            "take another split)"
        )
    return list(keys).index(key)


def keyed(question: str, row: Row) -> Item:
    """Choices {"text": […], "label": ["A", …]} and answerKey "B": what AI2's datasets have."""
    choices = row["choices"]
    return Item(question, tuple(choices["text"]), labelled(row["answerKey"], choices["label"]))


def _flat(row: Row) -> Item:
    """Rows that were brought into one schema: question, context, choices, answer, …"""
    found = row["choices"]
    if not isinstance(found, list | tuple | None):
        raise DataError(f"choices are {shown(found)}; expected a list of texts")
    choices = tuple(found or ())
    return Item(
        question=row["question"],
        choices=choices,
        answer=row["answer"] if choices else str(row["answer"]),
        context=row.get("context") or "",
        rationale=row.get("rationale") or "",
        subject=row.get("subject") or "",
    )


def _tidy(item: Item) -> Item:
    """Without outer blanks: some datasets have them, and they would tell the choices apart."""
    return replace(
        item,
        question=item.question.strip(),
        choices=tuple(choice.strip() for choice in item.choices),
        answer=item.answer.strip() if isinstance(item.answer, str) else item.answer,
        context=item.context.strip(),
        rationale=item.rationale.strip(),
        subject=item.subject.strip(),
    )


def _refuse_broken(item: Item) -> None:
    for text in (item.question, *item.choices, item.context, item.rationale, item.subject):
        if not isinstance(text, str):
            raise DataError(f"found {shown(text)}; expected text")
    if not item.question.strip():
        raise DataError("the question is empty")
    if not item.choices:
        if not str(item.answer).strip():
            raise DataError("there is no answer")
        return
    count = len(item.choices)
    if not 2 <= count <= len(LETTERS) or any(not choice.strip() for choice in item.choices):
        raise DataError(
            f"choices are {shown(item.choices)}; expected 2 to {len(LETTERS)}, none empty"
        )
    answer = item.answer
    if isinstance(answer, bool) or not isinstance(answer, int):
        raise DataError(f"answer is {shown(answer)}; expected the index of the right choice")
    if not 0 <= answer < count:
        raise DataError(
            f"answer is {answer} of {count} choices; expected 0 to {count - 1} (where labels are "
            "hidden, take another split)"
        )
