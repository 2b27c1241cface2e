"""Metrics of written answers: what one answer is worth.

A metric is a function of prompt, prediction and reference, all texts. It gives a number (higher is
better), or true or false where rows are right or wrong. `BUILT_IN` has those that a recipe names by
themselves; `metric: package.module:function` names a function of the user's own.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import isclose, isfinite
from typing import Any

from msft.data.corpus import Corpus
from msft.errors import BadScore, DataError, RecipeError
from msft.own_code import BadCode, imported
from msft.recipe.dataset import metric_parts
from msft.text import counted, shown

OwnMetric = Callable[[str, str, str], float | bool]


def built_in(metric: str) -> OwnMetric:
    """The function behind a name, with its option."""
    name, option = metric_parts(metric)
    if name == "regex":
        return partial(regex, pattern=option or "")
    if name == "numeric":
        return partial(numeric, tolerance=float(option or 0))
    return BUILT_IN[name]


def own_metric(path: str) -> OwnMetric:
    """The user's function behind `package.module:function`."""
    try:
        function: OwnMetric = imported(path)
    except BadCode as error:
        raise RecipeError(f"metric {path!r} cannot be imported: {error}") from error
    return function


def judged_by(metric: OwnMetric, name: str, prompt: str, said: str, reference: str) -> float | bool:
    """What an answer is worth; mistakes of a user's metric are reported with the row they were
    made on."""
    try:
        worth = metric(prompt, said, reference)
    except (Exception, SystemExit) as error:
        raise BadScore(f"{name}: its metric failed on the prompt {prompt!r}: {error!r}") from error
    number = _number(worth)
    if number is None:
        raise BadScore(
            f"{name}: its metric gave {worth!r} for the prompt {prompt!r}; expected a finite "
            "number (higher is better), or true or false"
        )
    return number


def _number(worth: Any) -> float | bool | None:
    """A finite number or a truth value, also one of numpy or torch; None for all else."""
    try:
        plain = worth.item() if hasattr(worth, "item") else worth
        number = plain if isinstance(plain, int | float) else float(plain)
        return number if isfinite(number) and not isinstance(plain, str | bytes) else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


# Right or wrong


def folded(text: str) -> str:
    """A text as answers are compared: trimmed and case folded."""
    return text.strip().casefold()


def contains(prompt: str, prediction: str, reference: str) -> bool:
    """The reference stands somewhere in the answer; case does not count."""
    return folded(reference) in folded(prediction)


def regex(prompt: str, prediction: str, reference: str, pattern: str) -> bool:
    """What the pattern finds first in the answer is what it finds in the reference, after trimming
    and case folding: its first group, or all of the match where it has none. A reference in which
    it finds nothing is compared as a whole."""
    said, wanted = found_by(pattern, prediction), found_by(pattern, reference)
    return said is not None and folded(said) == folded(reference if wanted is None else wanted)


def found_by(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    if match is None:
        return None
    return match[0] if not match.re.groups else match[1] or ""


def json_equal(prompt: str, prediction: str, reference: str) -> bool:
    """Answer and reference are the same JSON: the order of keys, blanks and the spelling of
    numbers (1, 1.0) do not count. A fence of Markdown around the answer does not either."""
    said, wanted = json_in(prediction), json_in(reference)
    return said is not None and said == wanted


_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*?)```\s*", re.DOTALL | re.IGNORECASE)


def json_in(text: str) -> str | None:
    """A text of JSON in its one spelling; None where it is not JSON."""
    fenced = _FENCE.fullmatch(text)
    try:
        return _spelled(json.loads(fenced[1] if fenced else text))
    except (ValueError, RecursionError):
        return None


def _spelled(value: Any) -> str:
    match value:
        case dict():
            pairs = sorted((json.dumps(key), _spelled(each)) for key, each in value.items())
            return "{" + ",".join(f"{key}:{each}" for key, each in pairs) + "}"
        case list():
            return "[" + ",".join(map(_spelled, value)) + "]"
        case float() if value.is_integer():
            return str(int(value))
    return json.dumps(value)


def numeric(prompt: str, prediction: str, reference: str, tolerance: float = 0.0) -> bool:
    """The last number in the answer is the last number in the reference, up to the tolerance."""
    said, wanted = number_in(prediction), number_in(reference)
    if said is None or wanted is None:
        return False
    return isclose(said, wanted, rel_tol=1e-12, abs_tol=tolerance * (1 + 1e-12))


_NUMBERS = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?"
    r"|(?<![\w.])[-+\u2212]?\.\d+(?:[eE][-+]?\d+)?",
    re.ASCII,
)


def number_in(text: str) -> float | None:
    """The last number of a text, such as 1250.5 of `$1,250.50`; None where there is none."""
    found = _NUMBERS.findall(text)
    number = float(found[-1].replace(",", "").replace("\u2212", "-")) if found else None
    return number if number is not None and isfinite(number) else None


def read_by(metric: str) -> Callable[[str], Any]:
    """What of a text a metric that is right or wrong compares."""
    name, option = metric_parts(metric)
    if name == "regex":
        return partial(_caught, option or "")
    return READABLE[name][0] if name in READABLE else folded


def _caught(pattern: str, text: str) -> str:
    found = found_by(pattern, text)
    return folded(text if found is None else found)


# Numbers from 0 to 1


def f1(prompt: str, prediction: str, reference: str) -> float:
    """Token F1 as in SQuAD's script: case, punctuation and the articles a, an, the do not count."""
    said, wanted = _words(prediction), _words(reference)
    if not said or not wanted:
        return float(said == wanted)
    common = (Counter(said) & Counter(wanted)).total()
    return 2 * common / (len(said) + len(wanted))


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _words(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def rouge_l(prompt: str, prediction: str, reference: str) -> float:
    """ROUGE-L F-measure, as the package rouge-score has it without stemming; letters of every
    script count."""
    said, wanted = (_TOKENS.findall(text.lower()) for text in (prediction, reference))
    common = longest_common(said, wanted)
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


_TOKENS = re.compile(r"[^\W_]+")


def longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, by the bits of one number (Hyyrö, 2004)."""
    places: dict[str, int] = {}
    for place, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << place
    whole = (1 << len(one)) - 1
    left = whole
    for token in other:
        taken = left & places.get(token, 0)
        left = (left + taken | left - taken) & whole
    return len(one) - left.bit_count()


BUILT_IN: dict[str, OwnMetric] = {
    "contains": contains,
    "json_equal": json_equal,
    "f1": f1,
    "rouge_l": rouge_l,
}
"""Those without an option, by the name that a recipe has for them."""
RIGHT_OR_WRONG = ("contains", "json_equal", "numeric", "regex")
"""Those that are true or false."""

READABLE: dict[str, tuple[Callable[[str], Any], str]] = {
    "json_equal": (json_in, "JSON"),
    "numeric": (number_in, "a text with a number"),
}
"""How a metric reads a text, and what it reads; None where the text is no such thing."""


def refuse_unreadable(corpus: Corpus) -> None:
    """DataError for references that a metric cannot read, so that no answer could be right."""
    for dataset in corpus.datasets.values():
        name = metric_parts(dataset.spec.metric)[0]
        if name not in READABLE:
            continue
        read, what = READABLE[name]
        for split in filter(None, (dataset.validation, dataset.test)):
            bad = [each for each in split.examples if read(each.completion) is None]
            if bad:
                raise DataError(
                    f"{bad[0].where}: metric is {name}, but the answer of this row is "
                    f"{shown(bad[0].completion)}, not {what}, and so are {len(bad)} of "
                    f"{counted(len(split.examples), 'row')}; mend the rows, or use another metric"
                )
