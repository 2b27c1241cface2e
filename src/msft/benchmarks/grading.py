"""Grading: the answer in what a model wrote.

The answer is what follows the first `####` to the end of its line: what comes before is reasoning,
what comes after is the model going on. Where it goes on with a next question (`Q:` at the start of
a line), its text is over: what it answers there is not what was asked. Each kind of answer then
has one spelling, and whatever may be read in two ways is no answer: a score should not depend on
our guess. All patterns take time linear in the text (hence the possessive `*+`).
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

MARK = "####"
"""Stands before the answer, as in GSM8K; what follows it on its line is graded."""
QUESTION = "Q:"
"""What a next question starts with."""


@dataclass(frozen=True, slots=True)
class Grader:
    """Finds the answer in a text: what follows the first mark on its line. Two texts with the same
    answer (not None) agree.

    normal: an answer in its one spelling; None where it is no answer of this kind.
    """

    normal: Callable[[str], str | None]

    def extracted(self, said: str) -> str | None:
        """The answer in one spelling; None: there is none, or more than one."""
        _, mark, after = _NEXT_QUESTION.split(said, maxsplit=1)[0].partition(MARK)
        line = _LINE_END.split(after, maxsplit=1)[0]
        return self.normal(line.lstrip("#").strip()) if mark else None

    def finished(self, said: str) -> bool:
        """Whether nothing that may still follow can change what is extracted. An empty line after
        the mark is finished too: the next line is not looked at."""
        _, _, after = said.partition(MARK)
        return bool(_LINE_END.search(after) or _NEXT_QUESTION.search(said))


_LINE_END = re.compile(r"[\r\n]")
_NEXT_QUESTION = re.compile(rf"[\r\n]{QUESTION}")
"""Not all that `splitlines` splits at: U+2028 and the like are blanks inside an answer."""
_OPEN = r"[\s({\[*:,\"'`]*+"
_LEAD = (
    rf"{_OPEN}(?:(?ai:so|therefore|the|my|final|correct|right|best|answer|option|choice|statement"
    rf"|is)\b{_OPEN})*+"
)
"""What may stand before an answer and says nothing about it: `The answer is: (`."""
_ENDS = r"(?=\s*+(?:\Z|####)|[)\]}:;*]|[.,!\"'`](?!\w)|\s++[-–—]++\s)"
"""What must follow an answer; after it, its option's text or a reason may come."""

_LETTER = re.compile(rf"{_LEAD}([A-Ja-j]){_ENDS}")
_NEXT_LETTER = re.compile(
    r"[\W_]*+(?:(?:or|and)\s++)?([A-Ja-j])(?=\W*+\Z|\s*+(?:[):;,\]]|####)|\.\s*+[A-Ja-j]\b)"
)
"""A second letter right behind the first. `A. E. coli` is not one: the dot is an initial's."""
_OTHER_LETTER = re.compile(
    r"(?<![\w(])\(?([A-J])\)"
    r"|(?:[,;]|\b(?:or|and)\b)\s*+(?:\(?([A-Ja-j])\)|([A-J])[.:]\s)"
    r"|(?ai:answer|option|choice)(?ai:\s++is\b)?[\s:(*]*+([A-J])\b"
)
"""A second letter given as an answer anywhere: `D)`, `or d)`, `, B. …`, `the answer is B`.

Small ones need the comma or the `or`, since `C. 2(a + b)` is a text."""


def letter(text: str) -> str | None:
    """`C`, `(c)`, `C. text`, `The answer is C.` → `C`.

    A letter needs a sign behind it or the end, since `A dog` starts with an article. What follows
    the sign is the option's text and may hold any word, but no other letter given as an answer.
    """
    found = _LETTER.match(text)
    if not found:
        return None
    answer = found[1].upper()
    end = found.end()
    while also := _NEXT_LETTER.match(text, end):
        if also[1].upper() != answer:
            return None
        end = also.end()
    others = (other[other.lastindex or 0] for other in _OTHER_LETTER.finditer(text, end))
    return answer if all(other.upper() == answer for other in others) else None


_NUMBERS = re.compile(r"([-−–—]\s*+)?([$€£]\s*+)?([-−])?([0-9.,]+)")
_NUMBER = re.compile(r"(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?:\.[0-9]+)?|\.[0-9]+")


def number(text: str) -> str | None:
    """`1,000`, `$1,000.00`, `1000 dollars`, `= 1000.` → `1000`; digits are never rounded.

    Words around a number are units, as in the harness (lm-evaluation-harness, `gsm8k`, filter
    `strict-match`: `#### (\\-?[0-9\\.\\,]+)`, compared without `,`, `$` and a last `.`). Where a
    plain number follows `#### `, the two agree. They differ where

    - we take more: `####18`, `$18`, `**18**`, `= 18`, `−18` (U+2212); `18.00`, `018` equal `18`;
    - we take less: two numbers (`5 or 6`, `12/4`, `3 1/2`, `1 000`), digits in a word (`1e3`),
      misplaced commas and dots (`1,00`, `1.2.3`), digits of other scripts (`5½`, `5٣`). The
      harness takes what comes first;
    - only the first mark counts here; the harness looks for one with a number behind it.
    """
    if any(sign.isnumeric() and not sign.isascii() for sign in text):
        return None
    answer, end = None, 0
    for found in _NUMBERS.finditer(text):
        digits = found[4].rstrip(".,")
        if not digits:
            continue
        value = _signed(found[1] or found[3] or "", digits)
        glued = found.start() > 0 and text[found.start() - 1].isalnum()
        if value is None or glued or (found[1] and found[3]):
            return None
        if answer is not None and not (value == answer and _repeats(text[end : found.start()])):
            return None
        answer, end = value, found.start(4) + len(digits)
    return answer


def _signed(sign: str, digits: str) -> str | None:
    """A sign must touch its number: `- 5` may be a dash."""
    if sign not in ("", "-", "−") or not _NUMBER.fullmatch(digits):
        return None
    whole, _, part = digits.replace(",", "").partition(".")
    value = f"{whole.lstrip('0') or '0'}.{part.rstrip('0')}".rstrip(".")
    return f"-{value}" if sign and value != "0" else value


def _repeats(gap: str) -> bool:
    """Whether what stands between equal numbers says that they are one: `5 #### 5`, not `5 * 5`."""
    return not gap.isspace() and all(sign.isspace() or sign in "#=;,.$" for sign in gap)


_TRUTH = re.compile(rf"{_LEAD}((?ai:true|false)){_ENDS}")
_TRUTHS = re.compile(r"\b(?ai:true|false)\b")


def truth(text: str) -> str | None:
    """`True`, `false.`, `The answer is TRUE.` → `true` or `false`.

    Only these words: the prompt asks for them, and `no` also starts sentences that are no answer.
    """
    found = _TRUTH.match(text)
    if not found or len({word.lower() for word in _TRUTHS.findall(text)}) != 1:
        return None
    return found[1].lower()


_QUOTES = "\"'`*“”„‘’«» "
_ARTICLE = re.compile(r"\A(?:a|an|the) (?=.)")


def phrase(text: str) -> str | None:
    """`The  Sun.` → `sun`: case, blanks, quotes and a last `.` or `!` do not count.

    Nor does a first article: references have one or not by chance, and it never is the answer's
    only difference. All else counts; a part of the answer is not the answer.
    """
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    bare = " ".join(folded.split()).lstrip(_QUOTES).rstrip(_QUOTES + ".!")
    return _ARTICLE.sub("", bare, count=1).lstrip(_QUOTES) if bare else None


LETTER = Grader(letter)
NUMBER = Grader(number)
TRUTH = Grader(truth)
PHRASE = Grader(phrase)
