"""Scores, differences and methods as texts of tables and sentences, and as numbers of figures."""

from fractions import Fraction
from typing import TypeVar

from msft.search.curves import Metric, Number

NOTHING = "–"
_METHODS = {
    "sft": "SFT",
    "continual": "Continual SFT",
    "dynamix": "DynamixSFT",
    "ies": "IES",
    "sro": "SRO SFT",
    "soft_sro": "Soft SRO SFT",
    "msft": "mSFT",
    "soup": "Soup",
    "replay": "Replay",
}

Score = TypeVar("Score", Number, Number | None)
Unit = Metric | None
"""The metric of a score; None for a mean over mixed metrics, which is a mean gain."""

MEAN_OF_GAINS = (
    "Metrics differ between sub-datasets, so means are of gains over the base model: points for "
    "accuracy and own metrics, relative decrease for nll; +0.01 is one point or 1\u00a0%."
)


def method_name(method: str) -> str:
    return _METHODS.get(method, method)


def metric_name(unit: Unit) -> str:
    """The metric of a sub-dataset in words; a function of the user's own gives values."""
    return "own metric" if unit == "value" else str(unit)


def number(value: Number | None, unit: Unit) -> str:
    """A score; shares of right rows in per cent."""
    if value is None:
        return NOTHING
    if unit == "accuracy":
        return f"{float(100 * value):.1f}"
    return f"{float(value):.3f}" if unit else f"{float(value):+.3f}"


def difference(value: Number | None, unit: Unit, more: int = 0) -> str:
    """A difference of scores, with its sign; of shares in points. more: digits beyond the usual."""
    if value is None:
        return NOTHING
    shares = unit == "accuracy"
    text = f"{float(100 * value if shares else value):+.{more + (1 if shares else 3)}f}"
    zero = not text.strip("+-0.")
    return text.replace("+", "±").replace("-", "±") if zero else text.replace("-", "−")


def in_words(value: Number | None, unit: Unit) -> str:
    """A score within a sentence, with its unit."""
    suffix = {"accuracy": "\u00a0%", "nll": " nats", "value": "", None: " over the base model"}[
        unit
    ]
    return number(value, unit) + suffix


def difference_in_words(value: Number | None, unit: Unit) -> str:
    suffix = {"accuracy": " points", "nll": " nats", "value": "", None: ""}[unit]
    return difference(value, unit) + suffix


def p_value(p: Fraction | float) -> str:
    number_of = float(p)
    if number_of < 0.001:
        return "p\u00a0<\u00a00.001"
    return f"p\u00a0=\u00a0{number_of:.{3 if number_of < 0.1 else 2}f}"


def height(value: Score, unit: Unit) -> Score:
    """A score or a difference, turned so that higher is better."""
    return None if value is None else -value if unit == "nll" else value


def per_cent(value: Number | None, unit: Unit) -> Number | None:
    """A score or a difference as tables give it to programs: shares of rows in per cent."""
    return 100 * value if value is not None and unit == "accuracy" else value


def points(value: Number, unit: Unit) -> float:
    """A score or a difference as figures draw it: shares of rows and mixed gains in points."""
    return float(value) * (100 if unit in ("accuracy", None) else 1)


def gain_unit(unit: Unit) -> str:
    """The unit of gains, for an axis."""
    return {
        "accuracy": "points",
        "nll": "nats saved",
        "value": "",
        None: "points, nll: % saved",
    }[unit]


def score_unit(unit: Unit) -> str:
    """The unit of scores, for an axis."""
    return {"accuracy": "accuracy, %", "nll": "nll, nats", "value": "score", None: "gain, %"}[unit]


def flops_counted(adapter: bool) -> str:
    """The FLOPs per parameter and token. adapter: some of the weights were frozen beside one."""
    frozen = " (4, 2 and 6 where it is frozen beside an adapter)" if adapter else ""
    return f"6 per parameter and token trained, 2 evaluated, 8 looked ahead{frozen}"
