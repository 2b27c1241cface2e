"""Benchmarks of mathematics."""

import re

from msft.benchmarks.benchmark import HELD_OUT, Benchmark, Row, labelled
from msft.benchmarks.grading import LETTER, NUMBER
from msft.benchmarks.prompts import MARK, Item, reasoned, worked
from msft.errors import DataError
from msft.text import shown


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
