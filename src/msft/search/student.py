"""Student's t: the tail that decides who falls for sure, and what guards and comparisons need."""

from functools import lru_cache
from math import erfc, exp, lgamma, log, log1p, sqrt

NORMAL_FROM = 1e7
"""Degrees of freedom from which the normal distribution is closer than the rounding of `lgamma`:
the two tails differ by about t⁴ / (4·df), in shares of the tail."""


def t_survival(t: float, df: float) -> float:
    """P(T > t) of Student's t with df degrees of freedom.

    P(T > t) = I(df / (df + t²); df/2, 1/2) / 2 = (1 − I(t² / (df + t²); 1/2, df/2)) / 2 for t >= 0
    """
    if df <= 0:
        raise ValueError(f"df is {df}; expected more than 0")
    if df > NORMAL_FROM:
        return erfc(t / sqrt(2)) / 2
    if abs(t) < 1:  # where df / (df + t²) may round to 1
        tail = (1 - incomplete_beta(t * t / (df + t * t), 0.5, df / 2)) / 2
    else:
        tail = incomplete_beta(df / (df + t * t), df / 2, 0.5) / 2
    return tail if t >= 0 else 1 - tail


@lru_cache(maxsize=256)  # a run asks the same again and again
def t_quantile(share: float, df: float) -> float:
    """The t above 0 that a share of Student's distribution lies below, by bisection."""
    low, high = 0.0, 1.0
    while t_survival(high, df) > 1 - share:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_survival(middle, df) > 1 - share else (low, middle)
    return (low + high) / 2


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I(x; a, b), by Lentz's continued fraction."""
    if not 0 <= x <= 1 or a <= 0 or b <= 0:
        raise ValueError(f"I({x}; {a}, {b}) is not defined; expected 0 <= x <= 1, a > 0 and b > 0")
    if x in (0, 1):
        return float(x)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - incomplete_beta(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    def nonzero(value: float) -> float:
        return value if abs(value) > 1e-300 else 1e-300

    c, d = 1.0, 1 / nonzero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            d = 1 / nonzero(1 + part * d)
            c = nonzero(1 + part / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return fraction
