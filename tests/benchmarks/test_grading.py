"""Graders: what counts as the answer, and what is refused."""

import re
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.benchmarks.grading import LETTER, NUMBER, PHRASE, TRUTH, Grader

GRADERS = {"letter": LETTER, "number": NUMBER, "truth": TRUTH, "phrase": PHRASE}
every_grader = pytest.mark.parametrize("grader", GRADERS.values(), ids=GRADERS)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (" #### 18", "18"),
        ("9 eggs at $2: 9 * 2 = 18\n#### 18\n\nQ: What next?\nA: #### 20", "18"),
        ("#### 18\r\n#### 19", "18"),
        ("####18", "18"),
        ("##### 18", "18"),
        ("#### 18 #### 18 #### 18", "18"),
        ("#### 18 #### 19", None),
        ("####\n18", None),
        ("####", None),
        ("### 18", None),
        ("18", None),
        ("", None),
    ],
)
def test_the_answer_follows_the_first_mark_on_its_line(said: str, answer: str | None) -> None:
    assert NUMBER.extracted(said) == answer


def lines(table: dict[str | None, str]) -> pytest.MarkDecorator:
    """A test for each line of `answer: line | line | …`."""
    rows = [(line.strip(" "), answer) for answer, row in table.items() for line in row.split("|")]
    return pytest.mark.parametrize(("line", "answer"), rows)


@lines(
    {
        "C": """C|c|(C)|(c)|C.|C)|[C]|**C**|"C"|C!|C, C|C. C|C #### C|The answer is C.|answer: C"""
        "|option C|Answer: **(c)**|So the correct answer is: C|C) the text|C. text|C: text|C - text"
        "|**C.** text|C. 2(a + b)|C) A dog|C. a dog, I think|C, because cats purr.",
        "A": "A. E. coli|A. Vitamin D|The answer is a",
        "B": "B. Hepatitis B",
        "J": "J",
        None: "|()|.|none|K|3|C3|C++|C#|C̃|Carrot|A dog|The answer is a dog|I think so|C'est|not C"
        "|A or C|A and C|A, B|A. B|A B|A/C|A-C|A,C|AC|A.C|A.C.|A - C|(A) (C)|A) or C|C, C, D"
        "|A. B. C. D|A) red B) blue|C) text or D)|c) text or d)|C) text (D)|A. red, B. blue"
        "|A. No, the answer is C.|A #### C|e.g. cats|С|С)|Ｃ|Ⓒ|İ|ı|ج",
    }
)
def test_letters(line: str, answer: str | None) -> None:
    assert LETTER.extracted(f" #### {line}") == answer


@lines(
    {
        "1000": "1000|1,000|1000.00|$1,000.00|1000.|1,000.|01000|+1000|= 1000|x = 1000|**1,000**",
        "5": "$5.00|$ 5|5$|€5|5 dollars|5%|5kg|(5)|5, 5|5=5",
        "-5": "-5|−5|-$5|$-5.0|-5 degrees",
        "0": "0|-0|0.00|000",
        "-0.5": "-0.5|-.5|-0.50",
        "1234567.5": "1,234,567.50",
        "9" * 40 + ".1": "9" * 40 + ".1",
        None: "|.|,|-|$|five|none|nan|inf|5 or 6|5-6|5–6|12/4|3 1/2|10:30|2 + 3 = 5|5 * 5|5/5|5-5"
        "|5 x 5|5x5|2**2|1 000|10 10|1,00|10,00|1,0000|0,500|1.2.3|5,6|...5|,5|1e3|1e-3|0x10|x5"
        "|COVID-19|--5|- 5|–5|٥|５|५|5٥|5½|½|5²|Ⅴ|五",
    }
)
def test_numbers(line: str, answer: str | None) -> None:
    assert NUMBER.extracted(f" #### {line}") == answer


@lines(
    {
        "true": "True|true|TRUE|True.|**True**|(true)|The answer is True.|Answer: True"
        "|True, so it is",
        "false": "False|false.|**False**|The statement is false.",
        None: "|.|yes|no|T|1|maybe|True or False|True/False|True, not false|True False|not true"
        "|The answer is not true|untrue|truely|True love|true2|trueé|falſe|Тrue|Ｔｒｕｅ",
    }
)
def test_truth(line: str, answer: str | None) -> None:
    assert TRUTH.extracted(f" #### {line}") == answer


@lines(
    {
        "sun": """sun|Sun|  the SUN. |"sun"|“The Sun.”|**sun**!|a sun|the "sun"|sun\t""",
        "ionic bonds": "ionic \t bonds",
        "caf\u00e9": "cafe\u0301",
        "strasse": "Straße",
        "vitamin a": "vitamin a",
        "schema x": "schema x",
        "another sun": "another sun",
        "the": "the",
        None: """|.|...|""|!|\t""",
    }
)
def test_phrases(line: str, answer: str | None) -> None:
    assert PHRASE.extracted(f" #### {line}  ") == answer


@pytest.mark.parametrize(
    ("grader", "reference", "right", "wrong"),
    [
        pytest.param(
            LETTER,
            " #### C",
            "#### C|#### (c)|#### C) a bank|#### The answer is C.|#### C\n\nQ: A or B?",
            "#### B|#### A or C|#### |#### a bank|C|#### С|#### 3|#### ABCDE",
            id="choices by letter: CommonsenseQA, OpenBookQA, HellaSwag, MedMCQA, …",
        ),
        pytest.param(
            LETTER,
            " Let x = 5. (A) fails, so x + 3 = 8.\n#### C",
            "Half of A is B.\n#### C|A)? No.\n#### C. 8|####c",
            "The answer is C.|#### 8|#### C or D|#### B\n#### C|C\n####\nC",
            id="a rationale, then a letter: AQUA-RAT, MathQA",
        ),
        pytest.param(
            NUMBER,
            " 10 * 100 = <<10*100=1000>>1000\n#### 1,000",
            "5 and 6.\n#### 1000|#### $1,000.00|#### 1,000 eggs.|####1000.\nQ: 5?",
            "1000|#### 1|#### -1000|#### 1 000|#### 100,0|#### 1000 or 10|####\n1000|#### ١٠٠٠",
            id="a number: GSM8K",
        ),
        pytest.param(
            TRUTH,
            " #### True",
            "#### true|#### True.|#### The answer is True.|#### True\nQ: False?",
            "#### False|#### True or False|#### not true|#### yes|#### |True",
            id="true or false: BoolQ",
        ),
        pytest.param(
            PHRASE,
            " #### the pituitary gland",
            '#### Pituitary gland.|#### the  PITUITARY gland\nQ: why?|#### "pituitary gland"',
            "#### pituitary|#### gland|#### pituitary glands|#### not the pituitary gland"
            "|#### pituitary gland or thyroid|#### |pituitary gland|#### pіtuitary gland",
            id="a phrase: SciQ",
        ),
    ],
)
def test_benchmarks(grader: Grader, reference: str, right: str, wrong: str) -> None:
    answer = grader.extracted(reference)
    assert answer is not None
    assert [said for said in right.split("|") if grader.extracted(said) != answer] == []
    assert [said for said in wrong.split("|") if grader.extracted(said) == answer] == []


def harness(said: str) -> str:
    """What the filter `strict-match` of lm-evaluation-harness 0.4 compares for `gsm8k`."""
    matches = re.findall(r"#### (\-?[0-9\.\,]+)", said)
    answer = matches[0].strip() if matches else "[invalid]"
    for ignored in (",", r"\$", r"(?s).*#### ", r"\.$"):
        answer = re.sub(ignored, "", answer)
    return answer.lower()


numbers = st.one_of(
    st.integers(-(10**9), 10**9).map(str),
    st.integers(-(10**9), 10**9).map("{:,}".format),
    st.tuples(st.integers(1, 999), st.integers(1, 9)).map(lambda pair: f"{pair[0]}.{pair[1]}"),
)


@given(
    st.text(st.characters(codec="utf-8")).filter(lambda text: "#" not in text),
    numbers,
    st.sampled_from(["", ".", " ", " dollars", " eggs.", "%"]),
    st.sampled_from(["", "\n", "\n\nQ: What next?\nA: 7 * 8 = 56\n#### 56", "\n\n\n#### 9\n"]),
)
def test_ordinary_generations_are_graded_as_in_the_harness(
    reasoning: str, number: str, unit: str, more: str
) -> None:
    said = f"{reasoning}\n#### {number}{unit}{more}"
    assert NUMBER.extracted(said) == harness(said)


@pytest.mark.parametrize(
    ("said", "ours", "theirs"),
    [
        # We take more.
        ("####18", "18", "[invalid]"),
        ("####  18", "18", "[invalid]"),
        ("#### $18", "18", "[invalid]"),
        ("#### **18**", "18", "[invalid]"),
        ("#### x = 18", "18", "[invalid]"),
        ("#### −18", "-18", "[invalid]"),
        ("#### +18", "18", "[invalid]"),
        ("#### 18.00", "18", "18.00"),
        ("#### 018", "18", "018"),
        ("#### .5", "0.5", ".5"),
        ("#### -0", "0", "-0"),
        # We take less.
        ("#### 5 or 6", None, "5"),
        ("#### 12/4", None, "12"),
        ("#### 3 1/2", None, "3"),
        ("#### 1 000", None, "1"),
        ("#### 10:30", None, "10"),
        ("#### 5 + 6 = 11", None, "5"),
        ("#### 5 #### 6", None, "5"),
        ("#### 1e3", None, "1"),
        ("#### 20 m2", None, "20"),
        ("#### 20 m²", None, "20"),
        ("#### 5½", None, "5"),
        ("#### 5٣", None, "5"),
        ("#### 1,00", None, "100"),
        ("#### 1.2.3", None, "1.2.3"),
        ("#### ...", None, ".."),
        # Only the first mark counts.
        ("####\n#### 18", None, "18"),
        ("#### unknown\n#### 18", None, "18"),
        ("#### $17\n#### 18", "17", "18"),
    ],
)
def test_where_the_harness_reads_another_number(said: str, ours: str | None, theirs: str) -> None:
    assert (NUMBER.extracted(said), harness(said)) == (ours, theirs)


answers = st.sampled_from(["#", "##", "####", "C", "(", ")", ". ", ", ", "18", "-", "$", "True"])
blanks = st.sampled_from([" ", "\n", "\r", "\r\n", "\t", "\x0b", "\x85", "\u2028"])
texts = st.lists(st.one_of(answers, blanks, st.text(max_size=5)), max_size=12).map("".join)


@every_grader
@given(said=texts, more=texts)
def test_what_follows_a_finished_answer_changes_nothing(
    grader: Grader, said: str, more: str
) -> None:
    if grader.finished(said):
        assert grader.extracted(said + more) == grader.extracted(said)
        assert grader.finished(said + more)


@every_grader
@given(said=texts)
def test_any_text_is_graded(grader: Grader, said: str) -> None:
    assert grader.extracted(said) != "", "an empty answer is none"
    assert grader.finished(f"{said}####{said}\n")


@every_grader
def test_an_answer_is_finished_with_its_line(grader: Grader) -> None:
    unfinished = ("", "\n", "so\n###", "so\n####", "#### ", "#### C", "#### 1\u2028")
    finished = ("####\n", "#### \r", "#### C\n", "#### C\nmore", "so\n####\n18")
    assert not any(map(grader.finished, unfinished))
    assert all(map(grader.finished, finished))


@every_grader
@pytest.mark.parametrize(
    "noise",
    [
        *("#", " ", "C, ", "C) (", "is ", "the answer is ", "A. ", ", C. ", "or ", "*", "x\t", "é"),
        *("-", "- ", "$ ", "5", "5, ", ".", "1,000,", "٥", "True "),
    ],
)
def test_10_000_characters_are_graded_at_once(grader: Grader, noise: str) -> None:
    long = (noise * 10_000)[:10_000]
    start = process_time()
    for said in (f"#### {long}", f"#### {long}!x", f"#### C{long}?", f"#### True, {long}?"):
        grader.extracted(said)
        grader.finished(said)
    assert process_time() - start < 0.5, "a pattern goes back over what it has read"
