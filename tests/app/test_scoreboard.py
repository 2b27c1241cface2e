"""The scoreboard of `msft eval`: scores with intervals, groups and means."""

import json
from math import sqrt
from random import Random

import pytest

from msft.app.terminal.results import Scoreboard, answer_lines, scoreboard
from msft.report.compare.statistics import Z95
from msft.scoring.evaluation import Answered, Answers
from msft.search.curves import MeanRule, Score, accuracy, nll, value


def marks(right: int, rows: int) -> list[Answered]:
    return [Answered(f"q{n}", "said", "wanted", n < right) for n in range(rows)]


def board(
    counts: dict[str, tuple[int, int]],
    groups: dict[str, str] | None = None,
    rule: MeanRule = "macro",
) -> Scoreboard:
    """Of sub-datasets with so many right rows."""
    answers = Answers({name: marks(*count) for name, count in counts.items()}, 0)
    scores = {name: accuracy(*count) for name, count in counts.items()}
    return scoreboard(answers, scores, groups or {}, rule)


def width(interval: tuple[float, float]) -> float:
    return interval[1] - interval[0]


def test_accuracy_has_wilson_s_interval() -> None:
    """Numbers from Newcombe (1998), Table I, method 3."""
    found = board({"a": (81, 263), "b": (15, 148), "c": (0, 20), "d": (1, 29)}).datasets
    expected = {
        "a": (0.2553, 0.3662),
        "b": (0.0624, 0.1605),
        "c": (0.0, 0.1611),
        "d": (0.0061, 0.1718),
    }
    for name, interval in expected.items():
        assert found[name].interval == pytest.approx(interval, abs=5e-5)
    assert found["a"].value == pytest.approx(81 / 263)
    assert found["a"].rows == 263


def of_numbers(worths: list[float], weights: list[int] | None = None) -> Scoreboard:
    weights = weights or [1] * len(worths)
    rows = [Answered("q", "", "", w, weight=n) for w, n in zip(worths, weights, strict=True)]
    score = (
        value(sum(worths) / len(worths)) if set(weights) == {1} else nll(sum(worths), sum(weights))
    )
    return scoreboard(Answers({"a": rows}, 0), {"a": score}, {})


def test_a_metric_of_the_user_s_own_has_a_mean_and_its_standard_error() -> None:
    line = of_numbers([0.0, 0.5, 1.0, 0.5]).datasets["a"]
    half = Z95 * sqrt(0.5 / 3 / 4)
    assert line.value == 0.5
    assert line.interval == pytest.approx((0.5 - half, 0.5 + half))
    assert line.rows == 4
    assert of_numbers([0.25]).datasets["a"].interval == (0.25, 0.25)


def test_nll_has_the_standard_error_of_a_ratio() -> None:
    """Against what repeated sampling gives: rows of different length, so tokens are no sample."""
    random = Random(1)

    def drawn() -> tuple[list[float], list[int]]:
        weights = [random.choice([2, 5, 20]) for _ in range(200)]
        return [n * random.uniform(0.5, 2.5) for n in weights], weights

    boards = [of_numbers(*drawn()) for _ in range(300)]
    means = [b.datasets["a"].value for b in boards]
    centre = sum(means) / len(means)
    spread = sqrt(sum((m - centre) ** 2 for m in means) / len(means))
    half = sum(width(b.datasets["a"].interval) / 2 for b in boards) / len(boards)
    assert half / Z95 == pytest.approx(spread, rel=0.15)
    covered = [b.datasets["a"].interval[0] <= 1.5 <= b.datasets["a"].interval[1] for b in boards]
    assert 0.9 <= sum(covered) / len(covered) <= 0.99


def test_the_mean_is_of_sub_datasets_or_of_rows() -> None:
    counts = {"a": (9, 10), "b": (10, 100)}
    macro, pooled = board(counts).mean, board(counts, rule="pooled").mean
    assert macro is not None
    assert pooled is not None
    assert macro.value == pytest.approx(0.5)
    assert pooled.value == pytest.approx(19 / 110)
    assert macro.rows == pooled.rows == 110
    a, b = (width(line.interval) for line in board(counts).datasets.values())
    assert width(macro.interval) == pytest.approx(sqrt(a * a + b * b) / 2)
    assert width(pooled.interval) == pytest.approx(sqrt((10 * a) ** 2 + (100 * b) ** 2) / 110)


def test_a_pooled_nll_is_weighted_by_tokens() -> None:
    """A sub-dataset of long rows counts more than its rows say, in the mean and its interval."""
    short = [Answered("q", "", "", w, weight=1) for w in (1.0, 2.0)]
    long = [Answered("q", "", "", w, weight=99) for w in (99.0, 198.0)]
    answers = Answers({"short": short, "long": long}, 0)
    scores = {"short": nll(3.0, 2), "long": nll(297.0, 198)}
    found = scoreboard(answers, scores, {}, "pooled")
    assert found.mean is not None
    assert found.mean.value == pytest.approx(1.5)
    assert width(found.mean.interval) == pytest.approx(width(found.datasets["long"].interval), 0.02)


def test_groups_have_means_where_there_are_two() -> None:
    counts = {"a": (1, 10), "b": (3, 10), "c": (8, 10), "mine": (0, 10)}
    groups = {"a": "math", "b": "math", "c": "science", "mine": ""}
    found = board(counts, groups)
    assert {group: line.value for group, line in found.groups.items()} == pytest.approx(
        {"math": 0.2, "science": 0.8}
    )
    assert found.groups["math"].rows == 20
    assert found.groups["science"].interval[0] < 0.8 < found.groups["science"].interval[1]
    one = board({"a": (1, 10), "b": (3, 10)}, {"a": "math", "b": "math"})
    assert one.groups == {}, "the mean says the same"
    assert board({"mine": (1, 10)}).groups == {}


def test_mixed_metrics_have_no_mean() -> None:
    answers = Answers({"a": marks(1, 2), "b": [Answered("q", "", "r", 3.0, weight=2)]}, 0)
    scores: dict[str, Score] = {"a": accuracy(1, 2), "b": nll(3.0, 2)}
    found = scoreboard(answers, scores, {"a": "math", "b": "science"})
    assert found.mean is None
    assert list(found.groups) == ["math", "science"], "within a group there is one metric"
    assert "\nmean" not in found.text()
    assert found.text().splitlines()[-1] == (
        "no mean: metrics differ (accuracy, nll), and a mean of gains would need the base model's "
        "scores, which one evaluation does not have"
    )
    assert "no mean" not in board({"a": (1, 2), "b": (2, 2)}).text()
    assert found.content()["mean"] is None
    assert set(found.content()["intervals"]) == {"a", "b"}
    assert scoreboard(answers, scores, {"a": "math", "b": "math"}).groups == {}


def test_what_is_written() -> None:
    groups = {"a": "math", "b": "science"}
    content = json.loads(json.dumps(board({"a": (5, 10), "b": (8, 10)}, groups).content()))
    assert content["mean"] == pytest.approx(0.65)
    assert content["datasets"] == {"a": 0.5, "b": 0.8}
    assert content["rows"] == {"a": 10, "b": 10}
    assert content["groups"] == {"math": 0.5, "science": 0.8}
    assert list(content["intervals"]) == ["a", "b"]
    assert content["mean_interval"][0] < content["mean"] < content["mean_interval"][1]
    assert content["intervals"]["a"] == pytest.approx([0.2366, 0.7634], abs=5e-5)


def test_what_is_printed() -> None:
    groups = {"a": "math", "b": "science"}
    lines = board({"a": (5, 10), "b": (1600, 2000)}, groups).text().splitlines()
    assert lines[0].split() == ["sub-dataset", "score", "95", "%", "interval", "rows", "metric"]
    assert lines[1].split() == ["a", "0.5000", "0.2366", "to", "0.7634", "10", "accuracy"]
    assert lines[2].split()[-2:] == ["2,000", "accuracy"]
    assert [line.split()[0] for line in lines[3:]] == ["[math]", "[science]", "mean"]


def test_every_answer_is_a_line() -> None:
    answers = Answers(
        {
            "a": [
                Answered("q1", "#### C", "#### C", True, extracted="C"),
                Answered("q2", "so", "#### C", False),
            ],
            "b": [Answered("q3", " x", " y", False, likelihoods=(-1.0, -2.0))],
            "c": [Answered("q4", "", "z", 0.5, weight=3)],
        },
        0,
    )
    assert list(answer_lines(answers)) == [
        {
            "dataset": "a",
            "row": 0,
            "prompt": "q1",
            "prediction": "#### C",
            "reference": "#### C",
            "extracted": "C",
            "score": True,
        },
        {
            "dataset": "a",
            "row": 1,
            "prompt": "q2",
            "prediction": "so",
            "reference": "#### C",
            "score": False,
        },
        {
            "dataset": "b",
            "row": 0,
            "prompt": "q3",
            "prediction": " x",
            "reference": " y",
            "likelihoods": [-1.0, -2.0],
            "score": False,
        },
        {
            "dataset": "c",
            "row": 0,
            "prompt": "q4",
            "prediction": "",
            "reference": "z",
            "score": 0.5,
        },
    ]
