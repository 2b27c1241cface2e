"""Student's tail against scipy's: it decides who falls, and comparisons report it."""

from itertools import product
from math import atan2, isclose, pi

import pytest
from scipy import special, stats

from msft.search.student import incomplete_beta, t_survival


def test_students_tail_is_scipys() -> None:
    for t, df in product(
        [0.0, 0.01, 0.3, 0.99, 1.0, 2.5, 6.5, 40.0, 1e6, -1.7], [1, 2, 3, 9, 30, 1000]
    ):
        assert isclose(t_survival(t, df), float(stats.t.sf(t, df)), rel_tol=1e-10, abs_tol=1e-300)
    for t, freedom in product([0.5, 2.0, 4.0, 8.0], [0.01, 0.5, 1.7, 1e5, 9e6, 2e7, 1e12, 1e300]):
        assert isclose(t_survival(t, freedom), float(stats.t.sf(t, freedom)), rel_tol=1e-4)
    for t in (1.0, 1e-8, 1e8):  # with one degree of freedom it is Cauchy's; scipy errs at 1e-8
        assert isclose(t_survival(t, 1), atan2(1, t) / pi, rel_tol=1e-12)
    with pytest.raises(ValueError, match="df is 0"):
        t_survival(1.0, 0)


def test_the_incomplete_beta_function_is_scipys() -> None:
    shapes = [0.5, 1, 2.5, 30, 400]
    for x, a, b in product([0, 1e-9, 0.01, 0.3, 0.5, 0.77, 0.999, 1], shapes, shapes):
        expected = float(special.betainc(a, b, x))
        assert isclose(incomplete_beta(x, a, b), expected, rel_tol=1e-9, abs_tol=1e-14)
    assert incomplete_beta(0.3, 1, 1) == pytest.approx(0.3)
    for x, a, b in [(1.5, 1, 1), (-0.5, 1, 1), (0.2, 0, 1), (0.2, 1, 0)]:
        with pytest.raises(ValueError, match=rf"I\({x}; {a}, {b}\) is not defined"):
            incomplete_beta(x, a, b)
