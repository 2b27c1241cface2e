"""Mutants that a reader has found to change nothing that anybody could see, with the reason."""

from mutant_changes import Key

FALLS = "search/falls.py"
STATISTICS = "report/compare/statistics.py"
ROUNDING_LINE = (
    "rounding = ROUNDING * largest * len(half) / (fsum(each.weights[row] for row in half) or 1.0)"
)
EXCESS = "excess = max(0.0, fsum(found) / len(found) - 1) if found else 0.0"
SIDE = "if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side"
FORMULA = "if abs(t) < 1:  # where df / (df + t²) may round to 1"
STOP = "if abs(c * d - 1) < 1e-15:"
GOES_ON = "it takes all 10,000 terms, of which the later ones are 1: slower, and the same number"
BINOMIAL = "hit, miss, whole = log(moved / rows), log1p(-moved / rows), lgamma(rows + 1)"
STATE = 'twister.set_state(("MT19937", np.array(state, dtype=np.uint32), at, 0, 0.0))'
BELOW = (
    "below = float((totals < -1e-12).mean())  # sums of floats that should be 0 are not below it"
)

JUDGED: dict[Key, str] = {
    ("search/methods/ies.py", "self._epoch, self._rows = -1, list[RowId]()", "1 -> 2"): (
        "no epoch has a number below 0, so either number says that there is none yet"
    ),
    ("search/feeds.py", "self._epoch = -1", "1 -> 2"): (
        "no epoch has a number below 0, so either number says that there is none yet"
    ),
    (
        "search/methods/dynamix.py",
        "self._prior = [part.rows / place.mixture.rows for part in self._parts]",
        "Div -> Mult",
    ): "probabilities divides by the sum of the odds, so a factor of all of them cancels",
    (FALLS, EXCESS, "0.0 -> 1.0"): (
        "without a curve whose rows vary, excess is only multiplied by by_rows, which is 0"
    ),
    (
        FALLS,
        "count = len(squared) or 1",
        "1 -> 2",
    ): "the sum over no tick is 0, whatever divides it",
    (
        FALLS,
        ROUNDING_LINE,
        "1.0 -> 2.0",
    ): "of rows without weight the value is 0 before it is rounded",
    (
        FALLS,
        "largest = max(max(map(abs, column), default=0.0) for column in columns)",
        "0.0 -> 1.0",
    ): "a half without rows has a value of 0 before it is rounded",
    (FALLS, "return (value if abs(value) > rounding else 0.0), variance", "Gt -> GtE"): (
        "a value that is exactly the bound of rounding is 0, or a fall of 1e-12 of the score"
    ),
    (STATISTICS, FORMULA, "Lt -> LtE"): "at 1 both formulas give the same tail",
    (STATISTICS, FORMULA, "1 -> 2"): "between 1 and 2 both formulas give the same tail",
    (STATISTICS, FORMULA, "abs -> float"): (
        "below -1 the tail is small and taken from 1, where its rounding is lost"
    ),
    (STATISTICS, "return tail if t >= 0 else 1 - tail", "GtE -> Gt"): "at 0 the tail is one half",
    (STATISTICS, "if x in (0, 1):", "1 -> 2"): (
        "1 is then on the other side of the fraction, which gives 1 - I(0; b, a) = 1"
    ),
    (STATISTICS, SIDE, "Gt -> GtE"): "at the bound both sides converge equally fast",
    (STATISTICS, SIDE, "1 -> 2"): "between the two bounds the fraction converges on either side",
    (STATISTICS, "for m in range(1, 10_000):", "10000 -> 10001"): (
        "the fraction converges long before"
    ),
    (STATISTICS, STOP, "Sub -> Add"): GOES_ON,
    (STATISTICS, STOP, "Mult -> Div"): GOES_ON,
    (STATISTICS, STOP, "1 -> 2"): GOES_ON,
    (STATISTICS, STOP, "Lt -> LtE"): (
        "no double lies exactly 1e-15 from 1; one step more would not change the fraction"
    ),
    (STATISTICS, "return value if abs(value) > tiny else tiny", "Gt -> GtE"): (
        "a value of exactly tiny is returned either way"
    ),
    (STATISTICS, "return value if abs(value) > tiny else tiny", "abs -> float"): (
        "on the side of the bound that is taken, no denominator of the fraction is negative"
    ),
    (
        STATISTICS,
        "return t, min(1.0, 2 * t_survival(abs(t), count - 1))",
        "1.0 -> 2.0",
    ): "the tail from 0 on is one half at most; the limit is against rounding",
    (STATISTICS, BINOMIAL, "Add -> Sub"): (
        "a factor of all terms, and a draw is scaled by their sum"
    ),
    (STATISTICS, BINOMIAL, "1 -> 2"): "a factor of all terms, and a draw is scaled by their sum",
    (STATISTICS, STATE, "0 -> 1"): "says that a normal number is held, and none is ever drawn",
    (STATISTICS, STATE, "0.0 -> 1.0"): "the normal number that is held, and none is ever drawn",
    (STATISTICS, BELOW, "Lt -> LtE"): "no sum of rows is exactly -1e-12",
    (
        STATISTICS,
        "times = min(bisect_right(bounds, twister.random_sample() * bounds[-1]), rows)",
        "Mult -> Div",
    ): "the last bound is 1 but for rounding",
    (
        "report/headroom.py",
        "found: NDArray[np.intp] = np.argmax(curves >= curves.max(axis=0) - 1e-12, axis=0)",
        "GtE -> Gt",
    ): "no candidate lies exactly 1e-12 below the highest one",
    ("report/headroom.py", "counts = [1] * len(lines[0])", "0 -> 1"): (
        "every candidate has the same rows"
    ),
    (
        "report/headroom.py",
        "weights = np.array(counts if loss else [1] * len(lines[0]), dtype=float)",
        "0 -> 1",
    ): "every candidate has the same rows",
    ("search/rehearsal.py", "seed: ClassVar[int] = 0", "0 -> 1"): (
        "of a first question only the number of ticks counts, which no seed changes"
    ),
    ("search/rehearsal.py", "return (first.ticks if first else 0) + method.averages", "0 -> 1"): (
        "where there is no first roll-out, the case of contenders has matched"
    ),
    (STATISTICS, "while t_survival(high, df) > 1 - share:", "Gt -> GtE"): (
        "bisection finds the same root from a wider interval"
    ),
    (STATISTICS, "low, high = 0.0, 1.0", "1.0 -> 2.0"): (
        "bisection finds the same root from a wider interval"
    ),
    (STATISTICS, "low, high = high, 2 * high", "2 -> 3"): (
        "bisection finds the same root from a wider interval"
    ),
    (STATISTICS, "for _ in range(60):", "60 -> 61"): "60 halvings are below the last digit already",
    (
        STATISTICS,
        "low, high = (middle, high) if t_survival(middle, df) > 1 - share else (low, middle)",
        "Gt -> GtE",
    ): "the two ends meet at the root from either side",
}
