"""Which sub-datasets are spoiled, how much of them is wrong, and which rows to look at first.

Training rows and validation rows of a clean sub-dataset are drawn alike, so a model that has seen
neither scores them alike. The judges of an audit are such models: each is trained on one half of
the training rows of all sub-datasets, and judges the rows of the other half and all validation
rows. What training rows score less is the gap, and the gap says how much of them is wrong.

    worth:   x of a row, higher is better: 1 or 0 for a right or wrong answer, the metric's number,
             minus the loss a token for nll. A validation row has the mean over judges f, weighted
             by n_f / n, so that the judges' levels cancel.
    weights: w of a row: its tokens for nll. For choices, a validation row with k choices counts
             n_k / m_k, the training rows over the validation rows that have k: rows with few
             choices are easier, and splits may differ. Else 1.
    scores:  V and T, the weighted means of validation and training rows;
             var V = sum of (w (x - V) / W)² · m / (m - 1), with m = W² / sum of w² rows.
    gap:     V - T

    scale:   D, what a row loses if its answer is wrong: the mean over validation rows of
             d = x - (1 - x) q, where q is how likely a judge who is wrong says the very answer
             that is wrongly given: 1 / (k - 1) for k choices, as if they were drawn evenly; for
             generated answers q = chance / (1 - V), by how often the judges say what other rows
             have been given.
    share:   gap / D. If a share r of the answers is wrong, T = (1 - r) V + r (V - D).
    interval: Fieller's, all r with |gap - r D| <= z · se(r), and
             se(r)² = var V - 2 r cov(V, D) + r² var D + var T

Where a row is right or wrong, one right and one wrong row are added to either set for intervals
and tests, as Agresti and Caffo do: else a set of which all rows are right has no noise.

    test:    p = P(T > (gap - SLIGHT) / se(0)) of Student with Welch's degrees of freedom. SLIGHT
             is there because clean training rows may be a little harder than validation rows. p is
             1 where D is not surely above KNOWN: a task that the judges do not know tells nothing,
             and to leave it out would choose by luck. Holm's rule over all sub-datasets.
    spoiled: p <= 0.05 over all together, and a share of at least SPOILED.
    fine:    else, and the upper limit of the share is below LARGE.
    cannot tell: else, or with fewer than FEWEST rows on a side, or all of a side worth the same
             to a metric, or with one given answer in all training rows, which needs no question.

nll has no share: nobody knows what a wrong row loses. Its D is 1 nat a token, so that the same
rules read: a gap of at least 0.1 nats is spoiled, one surely below 0.25 is fine. A metric of the
user's own has no known scale either. Its D is V minus what the worst 5 % of validation rows are
worth at most, so gap / D is how far training rows are on the way down to these. That is enough to
call a sub-dataset spoiled, and no share of wrong answers.

Suspects of a spoiled sub-dataset are the round(share · n) rows with the largest doubts. There are
always that many in which the judge prefers another answer, but for noise: share <= 1 - T wherever
share <= (k - 1) / k. For nll they are as many as there are training rows above the 95 % quantile
of validation rows, beyond 5 % of them, which would be there anyway. For a metric of the user's own
they are at most as many as the lowest rows that must leave for the others to score V: where wrong
answers are worth less than the worst validation rows, gap / D is too much.

In later rounds the judges have not learned the suspects, so they know more, and share and ranks
are made anew. The verdict is not: a second try would double the chances of luck.

docs/results/audit.md has level, power and coverage. Mistakes that follow from the input
are learned by every judge and cannot be seen; wrong validation rows hide as much of the gap.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, fsum, sqrt
from typing import Literal

from msft.search.falls import joint_p
from msft.search.student import t_survival

LEVEL = 0.05
"""How often a mixture without a spoiled sub-dataset may have one that is called so."""

Z95 = 1.959963984540054
"""Standard errors on either side of a 95 % interval."""

POWER = 0.8416212335729143
"""Standard errors that make a test succeed in four of five cases."""

Z_HOLM = 3.0
"""Standard errors of a gap that is sure over some forty sub-datasets together."""

SLIGHT = 0.015
"""The gap that a spoiled sub-dataset must surely exceed, since clean training rows may be a little
harder. Points of a score of 1, nats a token, or shares of the scale of a metric."""

SPOILED = 0.1
LARGE = 0.25
"""Shares: what is worth an alarm, and what must be ruled out to call a sub-dataset fine."""

KNOWN = 0.1
"""The scale that the judges must surely have, where rows are right or wrong."""

FEWEST = 30
"""Fewer rows on a side have no interval that could be trusted."""

TAIL = 0.05
"""The worst validation rows: what they are worth is normal for nll, and the bottom of a metric."""

Kind = Literal["choices", "generated", "nll", "value"]
"""How rows are judged: by choices, by a generated answer that is right or wrong, by the loss of
the given answer, or by a metric of the user's own that gives numbers."""

RIGHT_OR_WRONG: tuple[Kind, ...] = ("choices", "generated")

Verdict = Literal["spoiled", "fine", "cannot_tell"]


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """What the judges of one round said of one sub-dataset.

    numbers: row numbers of the training rows, in the order of `train`.
    train: the worth of each training row under the one judge that has not seen it: 1 or 0 for
    choices and generated answers, the summed loss for nll, the metric's number for value.
    validation: the worth of each validation row, the mean over judges f weighted by n_f / n, n_f
    being the training rows that f judges.
    doubts: of each training row; the larger, the more its judge speaks against the given answer.
    choices: log P(best) - log P(given); generated: log P(own answer) - log P(given). nll and
    value: the loss per token of the given answer.
    train_weights, validation_weights: nll: answer tokens of each row; else empty.
    train_choices, validation_choices: choices: how many each row has; else empty.
    chance: generated: how likely the answers of judges equal a wrong answer, drawn from what other
    rows have been given; the mean over validation rows, 0 for those that a judge has right.
    one_answer: all training rows have the same given answer.
    """

    kind: Kind
    numbers: Sequence[int]
    train: Sequence[float]
    validation: Sequence[float]
    doubts: Sequence[float]
    train_weights: Sequence[float] = ()
    validation_weights: Sequence[float] = ()
    train_choices: Sequence[int] = ()
    validation_choices: Sequence[int] = ()
    chance: float = 0.0
    one_answer: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval; not cut off at 0 or 1."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What is found of one sub-dataset.

    validation, train: mean scores; nll: nats a token.
    gap: how much worse training rows do than validation rows; above 0 is worse, for nll too.
    wrong_share: None where nothing can be said of it (nll, value, a task that is not known).
    suspects: row numbers, worst first; empty unless spoiled.
    rows: training rows that were judged.
    why: one sentence that a person understands.
    """

    verdict: Verdict
    validation: float
    train: float
    gap: Estimate
    wrong_share: Estimate | None
    suspects: tuple[int, ...]
    rows: int
    why: str


_Side = Counter[tuple[float, float, float]]
"""How many rows of a split have this worth, this weight, and this to say of the scale. Rows that
are right or wrong have few such values."""


@dataclass(frozen=True, slots=True)
class _Means:
    """Of a side: its means, their variances and covariance, and its size."""

    worth: float
    scale: float
    var: float
    var_scale: float
    cov: float
    size: float


@dataclass(frozen=True, slots=True)
class _Measured:
    """A sub-dataset before its verdict.

    scale: what a row loses if its answer is wrong.
    share: gap / scale; None where `untold` says why nothing can be said of it.
    slight: the gap that it must surely exceed to be spoiled.
    p: how likely luck alone gives as much.
    """

    judged: JudgedRows
    validation: _Means
    train: _Means
    gap: Estimate
    scale: Estimate
    share: Estimate | None
    slight: float
    p: float
    untold: str


def found_in(
    judged: Mapping[str, JudgedRows], first: Mapping[str, Finding] | None = None
) -> dict[str, Finding]:
    """The finding of each sub-dataset, by the rows that the judges of one round judged.

    first: in a later round, what round 1 found. Verdicts stay; who is spoiled gets new shares and
    ranks, if it was judged again and its task is still known, and everybody else keeps the finding
    of round 1.
    """
    measured = {name: _measured(rows) for name, rows in judged.items()}
    if first is None:
        holm = joint_p({name: each.p for name, each in measured.items()})
        return {name: _decided(each, holm[name]) for name, each in measured.items()}
    found = dict(first)
    for name, each in measured.items():
        if first[name].verdict == "spoiled" and each.share is not None:
            why, less = _why_spoiled(each, each.share), each.share.value < SPOILED
            more = " The verdict is that of round 1, whose judges saw more wrong." if less else ""
            found[name] = _finding_of(each, "spoiled", f"{why}{more}")
    return found


def join_judgments(judgments: Sequence[Mapping[str, JudgedRows]]) -> dict[str, JudgedRows]:
    """What the judges of a round say together: each training row has one judge, and a validation
    row has the mean of all judges, by the training rows that each of them judges."""
    return {name: _joined([judgment[name] for judgment in judgments]) for name in judgments[0]}


def _joined(parts: Sequence[JudgedRows]) -> JudgedRows:
    counts = [len(part.numbers) for part in parts]
    shares = [count / sum(counts) for count in counts]
    numbers = [number for part in parts for number in part.numbers]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)

    def of_train(values: Sequence[Sequence[float]]) -> list[float]:
        every = [value for each in values for value in each]
        return [every[place] for place in order] if every else []

    return replace(
        parts[0],
        numbers=sorted(numbers),
        train=of_train([part.train for part in parts]),
        doubts=of_train([part.doubts for part in parts]),
        train_weights=of_train([part.train_weights for part in parts]),
        train_choices=[int(k) for k in of_train([part.train_choices for part in parts])],
        validation=[
            fsum([share * each for share, each in zip(shares, said, strict=True)])
            for said in zip(*(part.validation for part in parts), strict=True)
        ],
        chance=fsum([share * part.chance for share, part in zip(shares, parts, strict=True)]),
        one_answer=all(part.one_answer for part in parts),
    )


def _measured(judged: JudgedRows) -> _Measured:
    sides = _sides(judged)
    validation, train = map(_means, sides)
    binary = judged.kind in RIGHT_OR_WRONG
    v, t = map(_means, map(_with_two_more, sides)) if binary else (validation, train)
    gap = Estimate(validation.worth - train.worth, *_around(v.worth - t.worth, v.var + t.var))
    scale = Estimate(validation.scale, *_around(v.scale, v.var_scale))
    slight = SLIGHT * (scale.value if judged.kind == "value" else 1.0)
    known = scale.value > 0 and scale.low > (KNOWN if binary else 0.0)
    untold = _untold(judged, validation, train, scale, known)
    if untold:
        return _Measured(judged, validation, train, gap, scale, None, slight, 1.0, untold)
    share = Estimate(gap.value / scale.value, *_fieller(v, t))
    return _Measured(judged, validation, train, gap, scale, share, slight, _p(v, t, slight), "")


def _sides(judged: JudgedRows) -> tuple[_Side, _Side]:
    """Validation and training rows."""
    validation, train = judged.validation, judged.train
    weights = [1.0] * len(validation), [1.0] * len(train)
    match judged.kind:
        case "choices":
            choices = judged.validation_choices
            weights = _weights_by_choices(choices, judged.train_choices)
            # A row of one choice has no wrong one; it counts nothing.
            scales = [x - (1 - x) / max(1, k - 1) for x, k in zip(validation, choices, strict=True)]
        case "generated":
            wrong = fsum([1 - x for x in validation])
            q = judged.chance * len(validation) / wrong if wrong else 0.0
            scales = [x - (1 - x) * q for x in validation]
        case "nll":
            weights = [*judged.validation_weights], [*judged.train_weights]
            validation = _a_token(validation, weights[0], -1)
            train = _a_token(train, weights[1], -1)
            scales = [1.0] * len(validation)
        case "value":
            bottom = _quantile(validation, TAIL)
            scales = [x - bottom for x in validation]
    return (
        Counter(zip(validation, weights[0], scales, strict=True)),
        Counter((x, w, 0.0) for x, w in zip(train, weights[1], strict=True)),
    )


def _weights_by_choices(
    validation: Sequence[int], train: Sequence[int]
) -> tuple[list[float], list[float]]:
    """What rows count, so that either side has as many rows of each number of choices. Rows whose
    number the other side does not have count nothing."""
    m, n = Counter(validation), Counter(train)
    both = {k for k in m if k > 1 and n[k]}
    whole = sum(m[k] for k in both), sum(n[k] for k in both)
    heights = {k: (n[k] * whole[0]) / (m[k] * whole[1]) for k in both}
    return [heights.get(k, 0.0) for k in validation], [float(k in both) for k in train]


def _a_token(losses: Sequence[float], tokens: Sequence[float], sign: int) -> list[float]:
    return [sign * x / w if w else 0.0 for x, w in zip(losses, tokens, strict=True)]


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else 0.0


def _with_two_more(side: _Side) -> _Side:
    """A right and a wrong row more, each of mean weight."""
    rows = sum(count for (_, w, _), count in side.items() if w)
    weight = fsum(count * w for (_, w, _), count in side.items()) / rows if rows else 1.0
    wrong = fsum(count * w * (1 - x) for (x, w, _), count in side.items())
    lost = fsum(count * w * (x - d) for (x, w, d), count in side.items())
    q = lost / wrong if wrong else 0.0
    return side + Counter([(1.0, weight, 1.0), (0.0, weight, -q)])


def _means(side: _Side) -> _Means:
    """Ratios of sums, with variances by linearisation."""
    rows = [(count, x, w, d) for (x, w, d), count in side.items() if w]
    if not rows:
        return _Means(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    whole = fsum(n * w for n, _, w, _ in rows)
    size = whole**2 / fsum(n * w * w for n, _, w, _ in rows)
    worth = fsum(n * w * x for n, x, w, _ in rows) / whole
    # Rounding must not make noise of rows that are all worth the same.
    worth = min(max(worth, min(x for _, x, _, _ in rows)), max(x for _, x, _, _ in rows))
    scale = fsum(n * w * d for n, _, w, d in rows) / whole
    enough = size / (size - 1) / whole**2 if size > 1 else 0.0
    var = fsum(n * (w * (x - worth)) ** 2 for n, x, w, _ in rows)
    var_scale = fsum(n * (w * (d - scale)) ** 2 for n, _, w, d in rows)
    cov = fsum(n * w * w * (x - worth) * (d - scale) for n, x, w, d in rows)
    return _Means(worth, scale, enough * var, enough * var_scale, enough * cov, size)


def _around(value: float, variance: float) -> tuple[float, float]:
    half = Z95 * sqrt(variance)
    return value - half, value + half


def _fieller(v: _Means, t: _Means) -> tuple[float, float]:
    """All shares r with (gap - r D)² <= z² · var(gap - r D); D is surely above 0."""
    gap, z2 = v.worth - t.worth, Z95**2
    a = v.scale**2 - z2 * v.var_scale
    b = gap * v.scale - z2 * v.cov
    c = gap**2 - z2 * (v.var + t.var)
    half = sqrt(max(0.0, b * b - a * c))
    return (b - half) / a, (b + half) / a


def _p(v: _Means, t: _Means, slight: float) -> float:
    """How likely a gap of `slight` looks so large."""
    variance = v.var + t.var
    freedom = variance**2 / (v.var**2 / (v.size - 1) + t.var**2 / (t.size - 1))
    return t_survival((v.worth - t.worth - slight) / sqrt(variance), freedom)


def _untold(
    judged: JudgedRows, validation: _Means, train: _Means, scale: Estimate, known: bool
) -> str:
    """Why nothing can be said of the share; empty if something can."""
    m, n = len(judged.validation), len(judged.train)
    if min(m, n) < FEWEST:
        decided = _would_do(validation, train, max(scale.value, LARGE))
        return f"{_counted(m, n)} are too few: {decided}."
    if judged.one_answer:
        return "All training rows have the same answer, so it needs no question to be right."
    if round(min(validation.size, train.size), 6) < FEWEST:
        if judged.kind == "choices":
            return (
                "Too few validation rows have as many choices as the training rows: "
                f"{FEWEST} of each number are needed."
            )
        return f"{_counted(m, n)} are too few: most of the tokens are in a few of them."
    if judged.kind not in RIGHT_OR_WRONG and not validation.var + train.var:
        return "The rows of either split are all worth the same, so nothing shows what luck gives."
    if known:
        return ""
    if judged.kind == "value":
        return "The validation rows are all worth nearly the same: no row can be worse than others."
    if scale.value > KNOWN:
        needed = validation.size * ((scale.value - scale.low) / (scale.value - KNOWN)) ** 2
        return (
            f"{m:,} validation rows are too few to say whether the model knows this task: about "
            f"{_rounded_up(needed):,} would do."
        )
    return (
        f"The model does not know this task: {_percent(validation.worth)} of the validation rows "
        "are right, hardly more than by chance."
    )


def _decided(measured: _Measured, holm_p: float) -> Finding:
    share = measured.share
    if share is None:
        return _finding_of(measured, "cannot_tell", measured.untold)
    if holm_p <= LEVEL and share.value >= SPOILED:
        return _finding_of(measured, "spoiled", _why_spoiled(measured, share))
    if share.high < LARGE:
        return _finding_of(measured, "fine", _why_fine(measured, share))
    return _finding_of(measured, "cannot_tell", _why_undecided(measured, share))


def _finding_of(measured: _Measured, verdict: Verdict, why: str) -> Finding:
    judged, sign = measured.judged, -1 if measured.judged.kind == "nll" else 1
    return Finding(
        verdict,
        sign * measured.validation.worth,
        sign * measured.train.worth,
        measured.gap,
        measured.share if judged.kind in RIGHT_OR_WRONG else None,
        _suspects(measured) if verdict == "spoiled" else (),
        len(judged.train),
        why,
    )


def _suspects(measured: _Measured) -> tuple[int, ...]:
    judged, share = measured.judged, measured.share
    assert share is not None
    n = len(judged.train)
    count = round(min(1.0, max(0.0, share.value)) * n)
    if judged.kind == "nll":
        losses = _a_token(judged.train, judged.train_weights, 1)
        bar = _quantile(_a_token(judged.validation, judged.validation_weights, 1), 1 - TAIL)
        count = max(0, round(sum(loss > bar for loss in losses) - TAIL * n))
    if judged.kind == "value":
        count = min(count, _lowest(judged.train, measured.validation.worth))
    ranked = sorted(
        zip(judged.doubts, judged.numbers, strict=True), key=lambda row: (-row[0], row[1])
    )
    return tuple(number for _, number in ranked[:count])


def _lowest(worths: Sequence[float], mean: float) -> int:
    """How many of the rows that are worth least make the others worth a mean by leaving."""
    rows = sorted(worths)
    below = accumulate(worth - mean for worth in reversed(rows))  # of the best row, the two best, …
    return len(rows) - max((n for n, sum_ in enumerate(below, start=1) if sum_ >= 0), default=0)


def _why_spoiled(measured: _Measured, share: Estimate) -> str:
    kind, gap = measured.judged.kind, measured.gap
    if kind == "nll":
        limits = f"({gap.low:.2f} to {gap.high:.2f})"
        return (
            f"Training rows cost {gap.value:.2f} {limits} nats a token more than validation rows."
        )
    if kind == "value":
        return f"{_scores(measured)}, {_percent(share.value)} of the way down to the worst rows."
    return (
        f"{_scores(measured)}: about {_percent(share.value)} ({_percent(share.low)} to "
        f"{_percent(share.high)}) of the training answers are wrong."
    )


def _why_fine(measured: _Measured, share: Estimate) -> str:
    kind = measured.judged.kind
    if share.high < 0:
        return (
            f"{_scores(measured)}, less than training rows: either these are easier, or some "
            "validation answers are wrong."
        )
    if kind == "nll":
        return f"{_scores(measured)}: they surely differ by less than {LARGE} nats a token."
    if kind == "value":
        return f"{_scores(measured)}, at most {_percent(share.high)} of the way to the worst rows."
    return f"{_scores(measured)}: at most {_percent(share.high)} of the training answers are wrong."


def _why_undecided(measured: _Measured, share: Estimate) -> str:
    scale, slight = measured.scale.value, measured.slight
    needed = _would_do(measured.validation, measured.train, scale, share.value, slight)
    kind = measured.judged.kind
    limit = f"{share.high:.2f} nats a token" if kind == "nll" else _percent(share.high)
    what = {"nll": "a gap of", "value": "a way to the worst rows of"}.get(kind, "wrong answers of")
    return f"Too few rows: luck alone could be the gap, and so could {what} {limit}; {needed}."


def _would_do(
    validation: _Means, train: _Means, scale: float, share: float = 0.0, slight: float = 0.0
) -> str:
    """How many rows decide in four of five cases, if the share is what it looks like.

    Training rows get at most half of the variance that there may be, validation rows the rest.
    """
    fine = (LARGE - max(0.0, share)) * scale / (Z95 + POWER)
    spoiled = (share * scale - slight) / (Z_HOLM + POWER) if share >= SPOILED else 0.0
    variance = max(fine, spoiled) ** 2
    n = max(train.size, FEWEST, 2 * train.var * train.size / variance)
    left = variance - train.var * train.size / n
    m = max(validation.size, FEWEST, validation.var * validation.size / left)
    more = [
        f"{_rounded_up(needed):,} {split} rows"
        for needed, size, split in ((m, validation.size, "validation"), (n, train.size, "training"))
        if needed > size
    ]
    return f"about {' and '.join(more)} would do" if more else "a few more would do"


def _scores(measured: _Measured) -> str:
    v, t = measured.validation.worth, measured.train.worth
    match measured.judged.kind:
        case "nll":
            return f"Validation rows cost {-v:.2f} nats a token, unseen training rows {-t:.2f}"
        case "value":
            return f"Validation rows score {v:.3g}, unseen training rows {t:.3g}"
    return f"Of validation rows {_percent(v)} are right, of unseen training rows {_percent(t)}"


def _counted(m: int, n: int) -> str:
    return f"{m:,} validation and {n:,} training rows"


def _percent(share: float) -> str:
    return f"{max(0.0, 100 * share):.0f} %"


def _rounded_up(number: float) -> int:
    """To two digits."""
    step: int = 10 ** max(0, len(str(ceil(number))) - 2)
    return ceil(number / step) * step
