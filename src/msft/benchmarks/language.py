"""Benchmarks of reading and of telling texts apart."""

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape

from msft.benchmarks.benchmark import HELD_OUT, TEST_IS_HIDDEN, Benchmark, Row, Splits, labelled
from msft.benchmarks.grading import LETTER, TRUTH
from msft.benchmarks.prompts import Item, chosen, classifying, either, judged, lettered
from msft.example import Example

SENTIMENTS = ("negative", "positive")
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
KINDS = ("abbreviation", "description", "entity", "human", "location", "number")
ENTAILMENTS = ("entailment", "not_entailment")

SENTIMENT = f"Is this sentence {either(SENTIMENTS)}?"
TOPIC = f"Is this news about {either(TOPICS)}?"
KIND = f"What does this question ask for: {either(KINDS)}?"


def _logiqa(row: Row) -> Item:
    """context, question, options [4], label "a" to "d"."""
    answer = labelled(row["label"], "abcd")
    return Item(row["question"], tuple(row["options"]), answer, context=row["context"])


def _logiqa2(row: Row) -> Item:
    """text, question, options [4], answer 0 to 3, type."""
    answer = labelled(row["answer"], "0123")
    return Item(row["question"], tuple(row["options"]), answer, context=row["text"])


def _sst2(row: Row) -> Item:
    """sentence, label 0 (negative) or 1 (test: -1)."""
    return Item(row["sentence"], SENTIMENTS, labelled(row["label"], "01"))


def _ag_news(row: Row) -> Item:
    """text (title and description, with entities that may lack their `&`), label 0 to 3."""
    text = unescape(re.sub(r"&?#(\d+);", r"&#\1;", row["text"]))
    return Item(text, TOPICS, labelled(row["label"], "0123"))


def _trec(row: Row) -> Item:
    """text, coarse_label 0 to 5: ABBR, ENTY, DESC, HUM, LOC, NUM (not the alphabet's order)."""
    order = ("abbreviation", "entity", "description", "human", "location", "number")
    return Item(row["text"], KINDS, KINDS.index(order[labelled(row["coarse_label"], "012345")]))


def _rte(row: Row) -> Item:
    """sentence1 (premise), sentence2 (hypothesis), label 0 (entailment) or 1 (test: -1)."""
    answer = labelled(row["label"], "01")
    return Item(row["sentence2"], ENTAILMENTS, answer, context=row["sentence1"])


def judged_to_follow(item: Item) -> Example:
    """RTE: True or False is written, as for BoolQ."""
    return judged(_does_it_follow(item))


def likely_to_follow(item: Item) -> Example:
    """RTE: the likelier of True and False, as in the harness, of the same prompt."""
    item = _does_it_follow(item)
    return replace(chosen(item), label=item.right)


def _does_it_follow(item: Item) -> Item:
    """A hypothesis is no question, and `not_entailment` is no word: both are put into words."""
    question = (
        f"Statement: {item.question}\nDoes the statement follow from the text above, True or False?"
    )
    return replace(item, question=question, choices=("True", "False"))


def _classified(
    hub: str, read: Callable[[Row], Item], task: str, splits: Splits, classes: tuple[str, ...]
) -> Benchmark:
    """A benchmark that asks `task` of every row's text."""
    styles = classifying(task, lettered), classifying(task, chosen)
    return Benchmark(hub, "language", read, LETTER, *styles, splits=splits, classes=classes)


LANGUAGE: dict[str, Benchmark] = {
    "logiqa": Benchmark("EleutherAI/logiqa:logiqa", "language", _logiqa, LETTER),
    "logiqa2": Benchmark("baber/logiqa2:logiqa2", "language", _logiqa2, LETTER),
    "sst2": _classified("nyu-mll/glue:sst2", _sst2, SENTIMENT, TEST_IS_HIDDEN, SENTIMENTS),
    "ag_news": _classified("fancyzhx/ag_news", _ag_news, TOPIC, HELD_OUT, TOPICS),
    "trec": _classified("CogComp/trec", _trec, KIND, HELD_OUT, KINDS),
    "rte": Benchmark(
        "nyu-mll/glue:rte",
        "language",
        _rte,
        TRUTH,
        letters=judged_to_follow,
        text=likely_to_follow,
        splits=TEST_IS_HIDDEN,
        classes=ENTAILMENTS,
    ),
}
