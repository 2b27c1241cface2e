"""What the built-in metrics say of an answer, by value."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from msft.cli import main
from msft.data.corpus import Task
from msft.recipe.dataset import DatasetSpec
from msft.scoring.evaluation import kind_of
from msft.scoring.metrics import (
    BUILT_IN,
    OwnMetric,
    built_in,
    contains,
    f1,
    json_equal,
    longest_common,
    number_in,
    rouge_l,
)


def found(name: str) -> OwnMetric:
    function = built_in(name)
    assert function is not None
    return function


def scored(metric: OwnMetric, said: str, wanted: str) -> float | bool:
    return metric("prompt", said, wanted)


@pytest.mark.parametrize(
    ("said", "wanted", "right"),
    [
        ("It is Paris, I think", " paris ", True),
        ("PARIS", "Paris", True),
        ("Pari", "Paris", False),
        ("Paris", "It is Paris", False),
        ("", "Paris", False),
    ],
)
def test_contains_looks_for_the_reference(said: str, wanted: str, right: bool) -> None:
    assert scored(contains, said, wanted) is right


@pytest.mark.parametrize(
    ("said", "wanted", "score"),
    [
        ("The cat sat", "a cat sat", 1.0),
        ("the big cat", "cat!", 2 / 3),
        ("cat cat", "cat", 2 / 3),
        ("cat cat dog", "cat cat", 0.8),
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("the", "a", 1.0),
        ("the", "cat", 0.0),
    ],
)
def test_f1_is_that_of_squad(said: str, wanted: str, score: float) -> None:
    """Articles and punctuation do not count; a word counts as often as both have it."""
    worth = scored(f1, said, wanted)
    assert worth == pytest.approx(score)
    assert isinstance(worth, float)


@pytest.mark.parametrize(
    ("said", "wanted", "score"),
    [  # rouge-score 0.1.2, rougeL, use_stemmer=False
        ("the cat sat on the mat", "the cat is on the mat", 0.8333333333333334),
        ("police killed the gunman", "police kill the gunman", 0.75),
        ("the gunman kill police", "police killed the gunman", 0.5),
        ("It's 3 o'clock, e-mail me!", "it s three o clock: e mail ME", 0.875),
        ("a b c d e f g h", "h g f e d c b a", 0.125),
        ("x x x y", "x y x", 0.5714285714285715),
        ("", "x", 0.0),
    ],
)
def test_rouge_l_is_that_of_rouge_score(said: str, wanted: str, score: float) -> None:
    assert scored(rouge_l, said, wanted) == pytest.approx(score, abs=1e-15)


def test_the_longest_common_subsequence_is_that_of_the_table() -> None:
    def table(one: str, other: str) -> int:
        row = [0] * (len(other) + 1)
        for token in one:
            before, row = row, [0]
            for place, each in enumerate(other):
                same = before[place] + 1
                row.append(same if token == each else max(before[place + 1], row[-1]))
        return row[-1]

    draw = random.Random(0)
    for _ in range(300):
        one, other = ("".join(draw.choices("abc", k=draw.randrange(80))) for _ in range(2))
        assert longest_common(one, other) == table(one, other)


@pytest.mark.parametrize(
    ("said", "wanted", "right"),
    [
        ('{"b": [1, 2], "a": 1.0}', '{"a": 1, "b": [1, 2]}', True),
        ('```json\n{"a": 1}\n```', '{"a":1}', True),
        ('{"a": true}', '{"a": 1}', False),
        ('{"a": [2, 1]}', '{"a": [1, 2]}', False),
        ('{"a": 1} and more', '{"a": 1}', False),
        ('{"a": "1"}', '{"a": 1}', False),
        ("null", "null", True),
        ("nothing", "{", False),
    ],
)
def test_json_equal_compares_values(said: str, wanted: str, right: bool) -> None:
    assert scored(json_equal, said, wanted) is right


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it is $1,250.50.", 1250.5),
        ("first 3, then −4", -4.0),
        ("5-3", 3.0),
        ("-3e2", -300.0),
        ("x = .5", 0.5),
        ("a1", None),
        ("none", None),
    ],
)
def test_the_number_of_an_answer_is_its_last(text: str, number: float | None) -> None:
    assert number_in(text) == number


@pytest.mark.parametrize(
    ("metric", "said", "right"),
    [
        ("numeric", "so 2.50", True),
        ("numeric", "2.51", False),
        ("numeric: 0.01", "2.51", True),
        ("numeric: 0.01", "2.511", False),
        ("numeric: 0.01", "no number", False),
        ("regex: Answer: (\\d)", "Answer: 2 or Answer: 3", True),
        ("regex: Answer: (\\d)", "I say 2", False),
        ("regex: \\d", "between 2 and 9", True),
        ("regex: [x-z]+", "XYZ xy", False),
    ],
)
def test_metrics_with_an_option(metric: str, said: str, right: bool) -> None:
    wanted = "2.5" if metric.startswith("numeric") else "Answer: 2"
    assert scored(found(metric), said, wanted) is right


def test_a_reference_without_a_match_is_compared_as_a_whole() -> None:
    assert scored(found("regex: Answer: (.+)"), "Answer: Paris ", "paris") is True


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"regex": "Answer: (.+)"}, "regex: Answer: (.+)"),
        ("regex: Answer: (.+)", "regex: Answer: (.+)"),
        ("regex:[A-E]", "regex: [A-E]"),
        ({"numeric": 0.01}, "numeric: 0.01"),
        ({"numeric": 0}, "numeric"),
        ("f1", "f1"),
    ],
)
def test_an_option_is_a_part_of_the_name(given: object, kept: str) -> None:
    def spec(metric: object) -> str:
        return DatasetSpec(name="a", train="t", validation="v", metric=metric).metric  # type: ignore[arg-type]

    assert spec(given) == kept == spec(kept)


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        *((name, "generated") for name in ("contains", "json_equal", "numeric: 1", "regex: x")),
        *((name, "value") for name in ("f1", "rouge_l", "mine:metric")),
    ],
)
def test_an_audit_takes_those_that_are_right_or_wrong_as_answers(metric: str, kind: str) -> None:
    splits = {"validation": None}
    assert kind_of(Task("a", metric, splits)) == kind  # type: ignore[arg-type]


Say = Callable[[str, str], Path]

RECIPE = """\
model_name_or_path: tiny
method: sft
num_train_epochs: 1
evals_per_epoch: 1
train_batch_size: 4
datasets:
- {name: a, train: t.jsonl, validation: v.jsonl, metric: METRIC, max_new_tokens: 4}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Say:
    def written(metric: str, answer: str) -> Path:
        for file in "tv":
            rows = [f'{{"prompt": "{file}{n}", "completion": {answer}}}\n' for n in range(4)]
            (tmp_path / f"{file}.jsonl").write_text("".join(rows))
        path = tmp_path / "recipe.yaml"
        path.write_text(RECIPE.replace("METRIC", metric))
        return path

    return written


@pytest.mark.parametrize(
    ("metric", "answer", "said"),
    [
        ("numeric", '"seven"', "v.jsonl, line 1: metric is numeric, but the answer of this row is"),
        ("json_equal", '"{"', "not JSON, and so are 4 of 4 rows"),
        ("{regex: '('}", '"x"', "'(' is no regular expression"),
        ("{numeric: -1}", '"1"', "its tolerance is -1; expected a number of 0 or more"),
        ("regex", '"x"', "regex needs a pattern"),
    ],
)
def test_what_a_metric_cannot_read_is_refused_by_validate(
    recipe: Say, metric: str, answer: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(recipe(metric, answer))]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("metric", [*BUILT_IN, "numeric", "{numeric: 0.5}", "{regex: '[0-9]'}"])
def test_every_metric_trains_resumes_and_is_refused_if_it_changes(
    recipe: Say, metric: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_reports: None
) -> None:
    path, out = recipe(metric, '"7"'), str(tmp_path / "run")
    assert main(["train", str(path), "--out", out, "--quiet"]) == 0
    log = (tmp_path / "run" / "run.jsonl").read_bytes()
    number = metric in ("f1", "rouge_l")
    assert (b'"scores":{"a":[' in log) is not number
    if number:
        assert b'"a":{"value":' in log
    samples = (tmp_path / "run" / "samples.jsonl").read_text()
    assert '"reference":"7"' in samples.replace(": ", ":")
    assert main(["train", str(path), "--out", out, "--quiet"]) == 0
    other = path.read_text().replace(f"metric: {metric}", "metric: {numeric: 0.25}")
    path.write_text(other)
    capsys.readouterr()
    assert main(["train", str(path), "--out", out, "--quiet"]) == 2
    assert "metric" in capsys.readouterr().err
