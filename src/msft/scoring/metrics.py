"""Metrics of the user's own: what one answer is worth.

`metric: package.module:function` in a recipe names a function, which is called as
`function(prompt, prediction, reference)` and gives a number (higher is better) or a truth value.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any

from msft.errors import BadScore, RecipeError
from msft.own_code import BadCode, imported

OwnMetric = Callable[[str, str, str], float | bool]


def own_metric(path: str) -> OwnMetric:
    """The user's function behind `package.module:function`."""
    try:
        function: OwnMetric = imported(path)
    except BadCode as error:
        raise RecipeError(f"metric {path!r} cannot be imported: {error}") from error
    return function


def judged_by(metric: OwnMetric, name: str, prompt: str, said: str, reference: str) -> float | bool:
    """A user's metric, whose mistakes are reported with the row they were made on."""
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
