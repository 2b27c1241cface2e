"""Prompts: an item as text, in the style `letters` (the paper's) or `text`.

Every prompt ends before the blank and every answer starts with it (`A:`, then ` #### C`), so that
training, generation and likelihoods see the same tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from msft.example import Example

LETTERS = "ABCDEFGHIJ"
MARK = "####"
"""Stands before the answer, as in GSM8K; what follows it on its line is graded."""


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
