"""Scores turned and scaled: as figures draw them, as tables rank them."""

from typing import overload

from msft.report.wording import Unit
from msft.search.scores import Number


@overload
def height(value: Number, unit: Unit) -> Number: ...
@overload
def height(value: Number | None, unit: Unit) -> Number | None: ...
def height(value: Number | None, unit: Unit) -> Number | None:
    """A score or a difference, turned so that higher is better."""
    return None if value is None else -value if unit == "nll" else value


def per_cent(value: Number | None, unit: Unit) -> float | None:
    """A score or a difference as tables give it to programs: shares of rows in per cent."""
    return None if value is None else float(100 * value if unit == "accuracy" else value)


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
