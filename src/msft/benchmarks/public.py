"""The public benchmarks, group by group: each is a reader of its rows and a row of a table."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import unescape

from msft.benchmarks.benchmark import (
    HELD_OUT,
    TEST_IS_HIDDEN,
    Benchmark,
    Item,
    Row,
    Splits,
    chosen,
    classifying,
    either,
    judged,
    keyed,
    labelled,
    lettered,
    reasoned,
    worked,
    written,
)
from msft.benchmarks.grading import LETTER, MARK, NUMBER, PHRASE, TRUTH
from msft.errors import DataError
from msft.example import Example
from msft.search.draws import shuffled
from msft.text import shown

# Science and medicine


def _openbookqa(row: Row) -> Item:
    """question_stem, choices {"text", "label"}, answerKey "A" to "D"."""
    return keyed(row["question_stem"], row)


def _arc(row: Row) -> Item:
    """question, choices {"text", "label"}, answerKey "A" to "E", or "1" to "5" in some rows."""
    return keyed(row["question"], row)


def _sciq(row: Row) -> Item:
    """question, correct_answer, distractor1 to distractor3, support.

    The right choice has a column of its own, so the order is made here, from the question alone:
    the same in every run, and no place is right more often than others. The support is left out:
    it contains the answer.
    """
    found = (row["correct_answer"], row["distractor1"], row["distractor2"], row["distractor3"])
    order = shuffled(len(found), 0, "sciq", row["question"])
    return Item(row["question"], tuple(found[n] for n in order), order.index(0))


def _medmcqa(row: Row) -> Item:
    """question, opa, opb, opc, opd, cop 0 to 3 (test: -1), subject_name, exp."""
    choices = (row["opa"], row["opb"], row["opc"], row["opd"])
    subject = row["subject_name"] or ""
    return Item(row["question"], choices, labelled(row["cop"], "0123"), subject=subject)


_MEDICAL = {
    "Anatomy": ("Anatomy",),
    "Physiology & Biochemistry": ("Physiology", "Biochemistry"),
    "Pathology & Microbiology": ("Pathology", "Microbiology"),
    "Pharmacology": ("Pharmacology",),
    "Medicine & Skin": ("Medicine", "Skin"),
    "Surgery, Orthopaedics & Anaesthesia": ("Surgery", "Orthopaedics", "Anaesthesia"),
    "Gynaecology & Pediatrics": ("Gynaecology & Obstetrics", "Pediatrics"),
    "Eye & ENT": ("Ophthalmology", "ENT"),
    "Dental": ("Dental",),
    "Forensic, Psychiatry & Radiology": ("Forensic Medicine", "Psychiatry", "Radiology"),
    "Preventive Medicine & unknown": ("Social & Preventive Medicine", "Unknown"),
}
"""The 21 subjects of MedMCQA in eleven groups. The paper has eleven too, but names two only,
Pharmacology and Forensic, Psychiatry & Radiology; the others are ours (docs/benchmarks.md)."""

MEDICAL_GROUPS = {subject: group for group, subjects in _MEDICAL.items() for subject in subjects}

SCIENCE: dict[str, Benchmark] = {
    "openbookqa": Benchmark("allenai/openbookqa:main", "science", _openbookqa, LETTER),
    "sciq": Benchmark("allenai/sciq", "science", _sciq, PHRASE, letters=written),
    "arc_easy": Benchmark("allenai/ai2_arc:ARC-Easy", "science", _arc, LETTER),
    "arc_challenge": Benchmark("allenai/ai2_arc:ARC-Challenge", "science", _arc, LETTER),
    "medmcqa": Benchmark(
        "openlifescienceai/medmcqa",
        "science",
        _medmcqa,
        LETTER,
        splits=TEST_IS_HIDDEN,
        subject_groups=MEDICAL_GROUPS,
    ),
}


# Common sense; the paper's group "commonsense and language"
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


# Mathematics
def _aqua_rat(row: Row) -> Item:
    """question, options ["A)21", …], rationale, correct "A" to "E"."""
    options = [re.match(r"([A-E])\s*\)", option) for option in row["options"]]
    if [option and option[1] for option in options] != list("ABCDE"):
        raise DataError(f"options are {shown(row['options'])}; expected A)… to E)…")
    return Item(
        row["question"],
        tuple(option.string[option.end() :] for option in options if option),
        labelled(row["correct"], "ABCDE"),
        rationale=row["rationale"],
    )


def _gsm8k(row: Row) -> Item:
    """question, answer: the rationale with marks such as <<48/2=24>>, newline, `#### 72`.

    The marks are for a calculator that the model does not have.
    """
    rationale, mark, answer = row["answer"].rpartition(MARK)
    if not mark:
        raise DataError(f"answer is {shown(row['answer'])}; expected it to end with {MARK} 72")
    rationale = re.sub("<<.*?>>", "", rationale)
    return Item(row["question"], (), answer.replace(",", ""), rationale=rationale)


def _mathqa(row: Row) -> Item:
    """Problem, options "a ) 38 , b ) 27.675 , … , e ) 3", correct "a" to "e", Rationale, category.

    Some options are a printed list, or have their letter twice. The rationale is left out, as in
    the harness: what is asked is the choice.
    """
    _, *found = re.split(r"(?:^\W*|,[\s'\"]*)([a-e]) \)", row["options"])
    letters, texts = found[::2], found[1::2]
    if letters != list("abcde"):
        raise DataError(f"options are {shown(row['options'])}; expected a ) …, b ) … to e ) …")
    if row["options"].lstrip().startswith("["):
        texts = [text.strip("'\" ]") for text in texts]
    choices = tuple(re.sub(r"^\s*[a-e] \)", "", text).strip() for text in texts)
    subject = row.get("category") or ""
    return Item(row["Problem"], choices, labelled(row["correct"], "abcde"), subject=subject)


MATHEMATICS: dict[str, Benchmark] = {
    "aqua_rat": Benchmark("deepmind/aqua_rat:raw", "math", _aqua_rat, LETTER, letters=reasoned),
    "gsm8k": Benchmark(
        "openai/gsm8k:main",
        "math",
        _gsm8k,
        NUMBER,
        letters=worked,
        text=worked,
        splits=HELD_OUT,
        free=True,
    ),
    "mathqa": Benchmark("regisss/math_qa", "math", _mathqa, LETTER),
}


# Reading, and telling texts apart
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
