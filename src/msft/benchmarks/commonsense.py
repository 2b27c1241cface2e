"""Benchmarks of common sense; the paper's group "commonsense and language"."""

import re
from dataclasses import replace
from functools import partial

from msft.benchmarks.benchmark import TEST_IS_HIDDEN, Benchmark, Row, keyed, labelled
from msft.benchmarks.grading import LETTER, TRUTH
from msft.benchmarks.prompts import Item, chosen, judged
from msft.example import Example

ANSWERS = ("no", "yes")


def _commonsenseqa(row: Row) -> Item:
    """question, question_concept, choices {"text", "label"}, answerKey "A" to "E" (test: "")."""
    return keyed(row["question"], row)


def _hellaswag(row: Row) -> Item:
    """activity_label, ctx_a, ctx_b, endings [4], label "0" to "3" (test: "").

    Cleaned as in the harness; `ctx_b` opens a sentence that the endings finish.
    """
    return Item(
        _without_markup(f"{row['ctx_a']} {row['ctx_b'].capitalize()}"),
        tuple(_without_markup(ending) for ending in row["endings"]),
        labelled(row["label"], "0123"),
        subject=row["activity_label"],
    )


def _without_markup(text: str) -> str:
    """How-to texts have marks such as [title], [step] and [substeps]."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return re.sub(" +", " ", text)


def _winogrande(row: Row) -> Item:
    """sentence with one `_`, option1, option2, answer "1" or "2" (test: "")."""
    choices = (row["option1"], row["option2"])
    return Item(row["sentence"], choices, labelled(row["answer"], "12"))


def _boolq(row: Row) -> Item:
    """question (lower case, without its mark), passage, answer true or false."""
    answer = labelled(row["answer"], ("False", "True"))
    return Item(row["question"], ANSWERS, answer, context=row["passage"])


def _piqa(row: Row) -> Item:
    """goal, sol1, sol2, label 0 or 1 (test: -1)."""
    return Item(row["goal"], (row["sol1"], row["sol2"]), labelled(row["label"], "01"))


def _social_iqa(row: Row) -> Item:
    """context, question, answerA to answerC, label "1" to "3"."""
    choices = (row["answerA"], row["answerB"], row["answerC"])
    return Item(row["question"], choices, labelled(row["label"], "123"), context=row["context"])


def _cosmosqa(row: Row) -> Item:
    """context, question, answer0 to answer3, label 0 to 3 (test: -1)."""
    choices = tuple(row[f"answer{n}"] for n in range(4))
    return Item(row["question"], choices, labelled(row["label"], "0123"), context=row["context"])


def continued(item: Item) -> Example:
    """HellaSwag as plain text: `Activity: context`, and the endings continue it.

    As in the harness. The context often stops within a sentence, where `A:` would make it a
    question. An ending that starts with a comma has a blank before it, as in the harness: else
    the first token alone would tell it from the others.
    """
    activity = f"{item.subject}: " if item.subject else ""
    return replace(chosen(item), prompt=f"{activity}{item.question}")


def filled(item: Item) -> Example:
    """Winogrande: the sentence, what its blank stands for, and the option as the answer.

    The harness compares the rest of the sentence after each option: two prompts with one
    completion. Rows here have one prompt, and what is learned should be the choice, which is the
    option's few tokens. Options are not shown, so the question is put into words.
    """
    return chosen(replace(item, context=item.question, question="What does _ stand for?"))


def true_or_false(item: Item) -> Example:
    """BoolQ: the passage, the question, and True or False as the answer, as in the paper.

    The question alone would be answered with yes or no, so the two words are named.
    """
    question = f"{_marked(item.question)} True or False?"
    return judged(replace(item, question=question, choices=("False", "True")))


def yes_or_no(item: Item) -> Example:
    """BoolQ: the passage, the question, and yes or no as the answer, as in the harness."""
    asked = chosen(replace(item, question=_marked(item.question)))
    return replace(asked, label="True" if item.right == "yes" else "False")


def _marked(question: str) -> str:
    return question if question.endswith("?") else f"{question}?"


_benchmark = partial(Benchmark, group="commonsense", grader=LETTER, splits=TEST_IS_HIDDEN)
_WINOGRANDE = "allenai/winogrande:winogrande_debiased"

COMMONSENSE: dict[str, Benchmark] = {
    "commonsenseqa": _benchmark("tau/commonsense_qa", read=_commonsenseqa),
    "hellaswag": _benchmark("Rowan/hellaswag", read=_hellaswag, text=continued),
    "winogrande": _benchmark(_WINOGRANDE, read=_winogrande, text=filled),
    "boolq": _benchmark(
        "google/boolq",
        read=_boolq,
        grader=TRUTH,
        letters=true_or_false,
        text=yes_or_no,
        classes=ANSWERS,
    ),
    "piqa": _benchmark("baber/piqa", read=_piqa),
    "social_iqa": _benchmark("lighteval/siqa", read=_social_iqa),
    "cosmosqa": _benchmark("allenai/cosmos_qa", read=_cosmosqa),
}
