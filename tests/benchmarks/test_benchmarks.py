"""Built-in benchmarks: rows in each hub dataset's own schema, and what the model sees of them."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msft.benchmarks.benchmark import LETTERS, Benchmark, Item, Style
from msft.benchmarks.grading import LETTER
from msft.benchmarks.public import COMMONSENSE, LANGUAGE, MATHEMATICS, SCIENCE
from msft.errors import DataError

ALL: dict[str, Benchmark] = {**SCIENCE, **COMMONSENSE, **MATHEMATICS, **LANGUAGE}
NAMES = sorted(ALL)
STYLES: tuple[Style, ...] = ("letters", "text")
SHARED = Path(__file__).parents[3] / "shared" / "data"

ABCD = ["A", "B", "C", "D"]

ROWS: dict[str, dict[str, Any]] = {
    "openbookqa": {
        "id": "7-1",
        "question_stem": "A kettle sings when",
        "choices": {"text": ["it is cold", "water boils in it", "it rusts", "you sing"]}
        | {"label": ABCD},
        "answerKey": "B",
    },
    "sciq": {
        "question": "What gas do plants take in?",
        "distractor3": "neon",
        "distractor1": "helium",
        "distractor2": "argon",
        "correct_answer": "carbon dioxide",
        "support": "Plants take in carbon dioxide.",
    },
    "arc_easy": {
        "id": "Mercury_1",
        "question": "Which of these melts first?",
        "choices": {"text": ["iron", "ice", "stone"], "label": ["1", "2", "3"]},
        "answerKey": "2",
    },
    "arc_challenge": {
        "id": "NYSEDREGENTS_1",
        "question": " Why is the sky dark at night? ",
        "choices": {"text": ["The Sun is off.", "The Earth turns.", "It rains.", "Birds sleep."]}
        | {"label": ABCD},
        "answerKey": "B",
    },
    "medmcqa": {
        "id": "0f",
        "question": "Bone of the thigh:",
        "opa": "Femur",
        "opb": "Ulna ",
        "opc": "Tibia",
        "opd": "None of\nthe above",
        "cop": 0,
        "choice_type": "single",
        "exp": None,
        "subject_name": "Anatomy",
        "topic_name": None,
    },
    "commonsenseqa": {
        "id": "1a",
        "question": "Where do you leave wet shoes?",
        "question_concept": "shoes",
        "choices": {"label": [*ABCD, "E"], "text": ["bed", "doormat", "oven", "moon", "desk"]},
        "answerKey": "B",
    },
    "hellaswag": {
        "ind": 3,
        "activity_label": "Home and Garden",
        "ctx_a": "[header] How to hang a picture [title] Find the stud. [step] Knock on the wall.",
        "ctx_b": "the hollow Sound",
        "ctx": "unused",
        "endings": [", they say, is louder.", "[substeps] tells you where.", "sings.", "is blue."],
        "source_id": "wikihow~1",
        "label": "1",
    },
    "winogrande": {
        "sentence": "The ball did not fit into the box since the _ was too big.",
        "option1": "ball",
        "option2": "box",
        "answer": "1",
    },
    "boolq": {
        "question": "is ice lighter than water",
        "answer": True,
        "passage": "Ice floats. Its density is lower.",
    },
    "piqa": {"goal": "To dry a cup,", "sol1": "fill it.", "sol2": "wipe it.", "label": 1},
    "social_iqa": {
        "context": "Kim gave Lee a lift.",
        "question": "How would Lee feel?",
        "answerA": "thankful",
        "answerB": "robbed",
        "answerC": "hungry",
        "label": "1\n",
    },
    "cosmosqa": {
        "id": "3",
        "context": "I forgot my umbrella and came home soaked .",
        "question": "What was the weather ?",
        "answer0": "It was sunny .",
        "answer1": "None of the above choices .",
        "answer2": "It snowed .",
        "answer3": "It rained .",
        "label": 3,
    },
    "aqua_rat": {
        "question": "A pen costs 3. How much are 7 pens?",
        "options": ["A)10", "B)21", "C) 24", "D)37", "E)None of these"],
        "rationale": "7 * 3 = 21\nAnswer is B.",
        "correct": "B",
    },
    "gsm8k": {
        "question": "Ann has 48 boxes of 50 eggs. She sells half. How many eggs does she sell?",
        "answer": "She has 48*50=<<48*50=2400>>2400.\nHalf: 2400/2=<<2400/2=1200>>1200\n#### 1,200",
    },
    "mathqa": {
        "Problem": "what is 10 % of 1,000 ?",
        "Rationale": "1000 / 10 = 100",
        "options": "a ) 10 , b ) 1,000 , c ) 100 , d ) 1 , e ) none of these",
        "correct": "c",
        "annotated_formula": "divide(1000, 10)",
        "category": "gain",
    },
    "logiqa": {
        "context": "All cats sleep. Tom is a cat.",
        "question": "Which of the following follows?",
        "options": ["Tom barks.", "Tom sleeps.", "Cats are Tom.", "Nothing."],
        "label": "b",
    },
    "logiqa2": {
        "id": 9,
        "answer": 2,
        "text": "Whoever swims gets wet. Tom is dry.",
        "type": {"Categorical Reasoning": True},
        "question": "Which follows?",
        "options": ["Tom swam.", "Tom is wet.", "Tom did not swim.", "Tom sank."],
    },
    "sst2": {"sentence": "a delight from start to end ", "label": 1, "idx": 4},
    "ag_news": {"text": "Cup final tonight  The club #39;s fans &amp; foes meet.", "label": 1},
    "trec": {"text": "What is a prism ?", "coarse_label": 2, "fine_label": 24},
    "rte": {
        "sentence1": "Anna sold her boat to Ben in May.",
        "sentence2": "Ben owns a boat.",
        "label": 0,
        "idx": 1,
    },
}

KINDS = ("abbreviation", "description", "entity", "human", "location", "number")

ITEMS = {
    "openbookqa": Item(
        "A kettle sings when", ("it is cold", "water boils in it", "it rusts", "you sing"), 1
    ),
    "sciq": Item("What gas do plants take in?", ("carbon dioxide", "neon", "argon", "helium"), 0),
    "arc_easy": Item("Which of these melts first?", ("iron", "ice", "stone"), 1),
    "arc_challenge": Item(
        "Why is the sky dark at night?",
        ("The Sun is off.", "The Earth turns.", "It rains.", "Birds sleep."),
        1,
    ),
    "medmcqa": Item(
        "Bone of the thigh:",
        ("Femur", "Ulna", "Tibia", "None of\nthe above"),
        0,
        subject="Anatomy",
    ),
    "commonsenseqa": Item(
        "Where do you leave wet shoes?", ("bed", "doormat", "oven", "moon", "desk"), 1
    ),
    "hellaswag": Item(
        "How to hang a picture. Find the stud. Knock on the wall. The hollow sound",
        (", they say, is louder.", "tells you where.", "sings.", "is blue."),
        1,
        subject="Home and Garden",
    ),
    "winogrande": Item(
        "The ball did not fit into the box since the _ was too big.", ("ball", "box"), 0
    ),
    "boolq": Item(
        "is ice lighter than water",
        ("no", "yes"),
        1,
        context="Ice floats. Its density is lower.",
    ),
    "piqa": Item("To dry a cup,", ("fill it.", "wipe it."), 1),
    "social_iqa": Item(
        "How would Lee feel?", ("thankful", "robbed", "hungry"), 0, context="Kim gave Lee a lift."
    ),
    "cosmosqa": Item(
        "What was the weather ?",
        ("It was sunny .", "None of the above choices .", "It snowed .", "It rained ."),
        3,
        context="I forgot my umbrella and came home soaked .",
    ),
    "aqua_rat": Item(
        "A pen costs 3. How much are 7 pens?",
        ("10", "21", "24", "37", "None of these"),
        1,
        rationale="7 * 3 = 21\nAnswer is B.",
    ),
    "gsm8k": Item(
        "Ann has 48 boxes of 50 eggs. She sells half. How many eggs does she sell?",
        (),
        "1200",
        rationale="She has 48*50=2400.\nHalf: 2400/2=1200",
    ),
    "mathqa": Item(
        "what is 10 % of 1,000 ?",
        ("10", "1,000", "100", "1", "none of these"),
        2,
        subject="gain",
    ),
    "logiqa": Item(
        "Which of the following follows?",
        ("Tom barks.", "Tom sleeps.", "Cats are Tom.", "Nothing."),
        1,
        context="All cats sleep. Tom is a cat.",
    ),
    "logiqa2": Item(
        "Which follows?",
        ("Tom swam.", "Tom is wet.", "Tom did not swim.", "Tom sank."),
        2,
        context="Whoever swims gets wet. Tom is dry.",
    ),
    "sst2": Item("a delight from start to end", ("negative", "positive"), 1),
    "ag_news": Item(
        "Cup final tonight  The club 's fans & foes meet.",
        ("World", "Sports", "Business", "Sci/Tech"),
        1,
    ),
    "trec": Item("What is a prism ?", KINDS, 1),
    "rte": Item(
        "Ben owns a boat.",
        ("entailment", "not_entailment"),
        0,
        context="Anna sold her boat to Ben in May.",
    ),
}


def flat(item: Item) -> dict[str, Any]:
    """The item in the schema that is the same for all benchmarks."""
    return {
        "id": "x",
        "question": item.question,
        "context": item.context or None,
        "choices": list(item.choices) or None,
        "answer": item.answer,
        "subject": item.subject or None,
        "rationale": item.rationale,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_hub_row_and_a_flat_row_say_the_same(name: str) -> None:
    assert ALL[name].item(ROWS[name]) == ITEMS[name]
    assert ALL[name].item(flat(ITEMS[name])) == ITEMS[name]


ASKED: dict[tuple[str, Style], tuple[str, str, str]] = {
    ("openbookqa", "letters"): (
        "Q: A kettle sings when\n"
        "options: A. it is cold, B. water boils in it, C. it rusts, D. you sing\nA:",
        " #### B",
        "B",
    ),
    ("openbookqa", "text"): ("Q: A kettle sings when\nA:", " water boils in it", "B"),
    ("sciq", "letters"): ("Q: What gas do plants take in?\nA:", " #### carbon dioxide", ""),
    ("medmcqa", "letters"): (
        "Q: Bone of the thigh:\noptions: A. Femur, B. Ulna, C. Tibia, D. None of the above\nA:",
        " #### A",
        "A",
    ),
    ("hellaswag", "text"): (
        "Home and Garden: How to hang a picture. Find the stud. Knock on the wall. "
        "The hollow sound",
        " tells you where.",
        "B",
    ),
    ("winogrande", "letters"): (
        "Q: The ball did not fit into the box since the _ was too big.\n"
        "options: A. ball, B. box\nA:",
        " #### A",
        "A",
    ),
    ("winogrande", "text"): (
        "Q: The ball did not fit into the box since the _ was too big.\nWhat does _ stand for?\nA:",
        " ball",
        "A",
    ),
    ("boolq", "letters"): (
        "Q: Ice floats. Its density is lower.\nis ice lighter than water? True or False?\nA:",
        " #### True",
        "True",
    ),
    ("boolq", "text"): (
        "Q: Ice floats. Its density is lower.\nis ice lighter than water?\nA:",
        " yes",
        "True",
    ),
    ("aqua_rat", "letters"): (
        "Q: A pen costs 3. How much are 7 pens?\n"
        "options: A. 10, B. 21, C. 24, D. 37, E. None of these\nA:",
        " 7 * 3 = 21\nAnswer is B.\n#### B",
        "B",
    ),
    ("aqua_rat", "text"): ("Q: A pen costs 3. How much are 7 pens?\nA:", " 21", "B"),
    ("gsm8k", "text"): (
        "Q: Ann has 48 boxes of 50 eggs. She sells half. How many eggs does she sell?\nA:",
        " She has 48*50=2400.\nHalf: 2400/2=1200\n#### 1200",
        "",
    ),
    ("sst2", "letters"): (
        "Q: a delight from start to end\nIs this sentence negative or positive?\n"
        "options: A. negative, B. positive\nA:",
        " #### B",
        "positive",
    ),
    ("trec", "text"): (
        "Q: What is a prism ?\nWhat does this question ask for: "
        "abbreviation, description, entity, human, location or number?\nA:",
        " description",
        "description",
    ),
    ("rte", "letters"): (
        "Q: Anna sold her boat to Ben in May.\nStatement: Ben owns a boat.\n"
        "Does the statement follow from the text above, True or False?\nA:",
        " #### True",
        "True",
    ),
}


@pytest.mark.parametrize(("name", "style"), ASKED)
def test_what_the_model_sees(name: str, style: Style) -> None:
    example = ALL[name].example(ROWS[name], "row 1", style)
    assert (example.prompt, example.completion, example.label) == ASKED[name, style]


def wrong_answers(name: str, item: Item) -> list[str]:
    """Every other answer, as it would be written in style `letters`."""
    if not item.choices:
        return [f"#### {item.answer}1", "#### 0"]
    others = [n for n in range(len(item.choices)) if n != item.answer]
    if ALL[name].grader is LETTER:
        return [f"#### {LETTERS[n]}" for n in others]
    if name == "sciq":
        return [f"#### {item.choices[n]}" for n in others]
    example = ALL[name].example(flat(item), "", "letters")
    return ["#### False" if example.completion.endswith("True") else "#### True"]


def check(name: str, row: dict[str, Any], style: Style) -> str:
    """What holds for every row of every benchmark; returns what the row asks."""
    benchmark = ALL[name]
    item, example = benchmark.item(row), benchmark.example(row, "row 1", style)
    assert example.prompt.strip() == example.prompt != ""
    for said in (example.completion, *example.choices):
        assert re.match(r" \S", said), said
        assert said.rstrip() == said
    assert bool(example.choices) == (style == "text" and name != "gsm8k")
    if example.choices:
        assert example.answer is not None
        assert example.choices[example.answer] == example.completion
        assert len(example.choices) == len(item.choices)
    else:
        right = benchmark.grader.extracted(example.completion)
        _, after = example.completion.split("####")
        assert right == benchmark.grader.extracted(f"####{after}") is not None, example.completion
    assert bool(example.label) == (name != "gsm8k" and (name, style) != ("sciq", "letters"))
    assert example.asks == f"{item.context}\n{item.question}"
    assert (example.where, example.subject) == ("row 1", item.subject)
    return example.asks


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_fits_its_answers(name: str, style: Style) -> None:
    check(name, ROWS[name], style)
    for answer in range(len(ITEMS[name].choices)):
        check(name, flat(ITEMS[name]) | {"answer": answer}, style)


@pytest.mark.parametrize("name", NAMES)
def test_the_grader_tells_right_from_wrong(name: str) -> None:
    grader = ALL[name].grader
    right = grader.extracted(ALL[name].example(ROWS[name], "", "letters").completion)
    wrong = wrong_answers(name, ITEMS[name])
    assert right is not None
    assert wrong
    for said in wrong:
        assert grader.extracted(said) not in (None, right), said


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_changes_the_completion_and_not_the_prompt(name: str) -> None:
    item = ITEMS[name]
    for style in STYLES:
        every = [
            ALL[name].example(flat(item) | {"answer": answer}, "", style)
            for answer in range(len(item.choices))
        ]
        assert len({e.prompt for e in every}) <= 1
        assert len({e.completion for e in every}) == len(item.choices)
        if every and every[0].label:
            assert len({e.label for e in every}) == len(item.choices)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["sst2", "ag_news", "trec", "rte"])
def test_a_classification_prompt_asks_and_names_the_classes(name: str, style: Style) -> None:
    example = ALL[name].example(ROWS[name], "", style)
    named = ("True", "False") if name == "rte" else ALL[name].classes
    assert all(label in example.prompt for label in named)
    assert "?" in example.prompt
    assert example.label in named


@pytest.mark.parametrize("coarse", range(6))
def test_trec_has_another_order_on_the_hub(coarse: int) -> None:
    hub = ["ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"]
    row = ROWS["trec"] | {"coarse_label": coarse}
    starts = {"ENTY": "enti", "NUM": "numb"}.get(hub[coarse], hub[coarse].lower())
    assert ALL["trec"].item(row).right.startswith(starts)


def test_sciq_puts_the_right_choice_everywhere() -> None:
    """On the hub it has a column of its own."""
    rows = [ROWS["sciq"] | {"question": f"What is number {n}?"} for n in range(400)]
    items = [SCIENCE["sciq"].item(row) for row in rows]
    assert [SCIENCE["sciq"].item(row) for row in rows] == items
    assert all(item.right == "carbon dioxide" for item in items)
    assert all(70 <= count <= 130 for count in Counter(i.answer for i in items).values())
    assert len({item.choices for item in items}) == 24


@pytest.mark.parametrize(
    ("options", "choices"),
    [
        ("a ) $ 1 , 250 , b ) 2 , c ) 3 , d ) 4 , e ) 5", ("$ 1 , 250", "2", "3", "4", "5")),
        ("a ) ( a , b ) , b ) 2 , c ) 3 , d ) 4 , e ) 5", None),
        ("['a ) 1', 'b ) 2', 'c ) 3', 'd ) 4', 'e ) 5']", ("1", "2", "3", "4", "5")),
        ("[ ' a ) 1 ' , ' b ) 2 ' , ' c ) 3 ' , ' d ) 4 ' , ' e ) 5 ' ]", tuple("12345")),
        ("a ) a ) 1 , b ) b ) 2 , c ) c ) 3 , d ) d ) 4 , e ) e ) 5", tuple("12345")),
        ("a ) [ 1 ] , b ) 2 , c ) 3 , d ) 4 , e ) '5'", ("[ 1 ]", "2", "3", "4", "'5'")),
        ("a ) 1 , b ) 2 , d ) 4 , e ) 5", None),
        ("1 , 2 , 3 , 4 , 5", None),
        ("", None),
    ],
)
def test_options_of_mathqa_are_one_string(options: str, choices: tuple[str, ...] | None) -> None:
    row = ROWS["mathqa"] | {"options": options}
    if choices:
        assert MATHEMATICS["mathqa"].item(row).choices == choices
    else:
        with pytest.raises(DataError, match=r"options are .*expected a \) "):
            MATHEMATICS["mathqa"].item(row)


HIDDEN: dict[str, dict[str, Any]] = {
    "commonsenseqa": {"answerKey": ""},
    "hellaswag": {"label": ""},
    "winogrande": {"answer": ""},
    "medmcqa": {"cop": -1},
    "piqa": {"label": -1},
    "cosmosqa": {"label": -1},
    "sst2": {"label": -1},
    "rte": {"label": -1},
}
"""Rows of the hub's test splits."""


@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_label_is_refused_and_its_split_not_used(name: str) -> None:
    (found,) = HIDDEN[name].values()
    with pytest.raises(DataError, match=rf"test:3: the label is {found!r}; expected one of "):
        ALL[name].example(ROWS[name] | HIDDEN[name], "test:3", "text")
    assert "test" not in ALL[name].splits


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("boolq", {"answer": None}, "the label is None; expected one of False, True"),
    ("boolq", {"passage": None}, "found None; expected text"),
    ("trec", {"coarse_label": 6}, "the label is 6; expected one of 0, 1"),
    ("arc_easy", {"answerKey": "D"}, "the label is 'D'; expected one of 1, 2, 3"),
    ("arc_easy", {"choices": ["iron", "ice"]}, "expected a row of allenai/ai2_arc:ARC-Easy"),
    ("piqa", {"sol2": " "}, "expected 2 to 10, none empty"),
    ("piqa", {"goal": ""}, "the question is empty"),
    ("hellaswag", {"ctx_b": None}, "expected a row of Rowan/hellaswag"),
    ("hellaswag", {"endings": ["one"]}, "expected 2 to 10"),
    ("aqua_rat", {"options": ["A)1", "B)2"]}, "options are .*; expected A"),
    ("aqua_rat", {"options": ["1", "2", "3", "4", "5"]}, "options are .*; expected A"),
    ("gsm8k", {"answer": "It is 72."}, "answer is 'It is 72.'; expected it to end with #### 72"),
    ("gsm8k", {"answer": "Easy.\n#### "}, "there is no answer"),
]


@pytest.mark.parametrize(("name", "change", "message"), BROKEN)
def test_a_broken_row_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ALL[name].item(ROWS[name] | change)


BROKEN_FLAT: list[tuple[str, dict[str, Any], str]] = [
    ("piqa", {"answer": 2}, "answer is 2 of 2 choices; expected 0 to 1"),
    ("piqa", {"answer": -1}, "answer is -1 of 2 choices"),
    ("piqa", {"answer": True}, "answer is True; expected the index"),
    ("piqa", {"answer": "wipe it."}, "answer is 'wipe it.'; expected the index"),
    ("piqa", {"choices": "AB"}, "choices are 'AB'; expected a list"),
    ("piqa", {"choices": None, "answer": "wipe it."}, r"choices are \(\); expected choices"),
    ("piqa", {"choices": list("abcdefghijk")}, "expected 2 to 10"),
    ("piqa", {"choices": ["wipe", 3]}, "found 3; expected text"),
    ("gsm8k", {"choices": ["1", "2"], "answer": 0}, "expected an answer and no choices"),
    ("gsm8k", {"answer": ""}, "there is no answer"),
    ("boolq", {"choices": ["yes", "no"]}, r"expected \('no', 'yes'\), in this order"),
    ("rte", {"choices": ["True", "False"]}, "expected .'entailment', 'not_entailment'."),
]


@pytest.mark.parametrize(("name", "change", "message"), BROKEN_FLAT)
def test_a_broken_flat_row_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ALL[name].item(flat(ITEMS[name]) | change)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_something_else_is_refused(name: str) -> None:
    with pytest.raises(DataError, match=rf"is missing .*expected a row of {ALL[name].hub}"):
        ALL[name].item({"prompt": "2+2=", "completion": "4"})


def test_a_mark_in_the_rationale_is_not_graded() -> None:
    row = ROWS["aqua_rat"] | {"rationale": "#### Steps\n7 * 3 = 21"}
    example = MATHEMATICS["aqua_rat"].example(row, "", "letters")
    assert example.completion == " Steps\n7 * 3 = 21\n#### B"


def test_a_row_without_rationale_has_the_answer_alone() -> None:
    row = ROWS["aqua_rat"] | {"rationale": ""}
    assert MATHEMATICS["aqua_rat"].example(row, "", "letters").completion == " #### B"


FOLDERS = sorted(path.parent.name for path in SHARED.glob("*/train.jsonl"))


def rows_of(name: str, split: str) -> Iterator[dict[str, Any]]:
    with (SHARED / name / f"{split}.jsonl").open() as lines:
        yield from map(json.loads, lines)


@pytest.mark.skipif(not FOLDERS, reason="the shared data is not there")
def test_every_folder_of_shared_data_has_its_benchmark() -> None:
    assert set(FOLDERS) <= set(ALL)


@pytest.mark.parametrize("name", FOLDERS)
def test_all_real_rows_can_be_read_and_splits_are_disjoint(name: str) -> None:
    asked: list[set[str]] = []
    for split in ("train", "validation", "test"):
        rows = list(rows_of(name, split))
        asks = [check(name, row, style) for row in rows for style in STYLES]
        asked.append({"".join(c for c in text.lower() if c.isalnum()) for text in asks})
        assert len(asked[-1]) == len(rows)
    assert len(set.union(*asked)) == sum(map(len, asked))
