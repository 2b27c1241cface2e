"""What a judge says of rows that it has not seen, by value: worth, doubts, answers and tokens."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from msft.benchmarks.grading import LETTER
from msft.data.corpus import Task
from msft.data.encoding import EncodedSplit, encoded_split
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.example import Encoded, Example
from msft.run.engine import Generated, Likelihoods, StopRow
from msft.run.rows import Judged
from msft.scoring.evaluation import judged

TOKENIZER = tiny_tokenizer()


class Told:
    """A predictor that answers a prompt, and gives a text the loss, that it was told.

    asked: the texts whose losses were asked for.
    """

    def __init__(self, answers: Mapping[str, str], losses: Mapping[str, float]) -> None:
        self._answers, self._losses = answers, losses
        self.asked: list[str] = []

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        rows = []
        for number, prompt in enumerate(prompts):
            answer = TOKENIZER.encode(self._answers[TOKENIZER.decode(prompt)])
            row = [*answer, TOKENIZER.eos_token_id]
            ends = (end for end in range(1, len(row)) if leaves(number, row[:end], end - 1))
            rows.append(row[: next(ends, len(row))])
        return Generated(rows, 1000)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        texts = [TOKENIZER.decode(row.tokens, skip_special_tokens=True) for row in rows]
        self.asked += texts
        return lambda: Likelihoods([self._losses[text] for text in texts], 10 * len(texts))


def split_of(*examples: Example) -> EncodedSplit:
    return encoded_split(examples, TOKENIZER, 512)


def asked(
    predictor: Told,
    train: EncodedSplit,
    validation: EncodedSplit,
    rows: Sequence[int],
    metric: str = "accuracy",
    **task: object,
) -> Judged:
    of = Task("a", metric, {"validation": validation}, **task)  # type: ignore[arg-type]
    return judged({"a": of}, {"a": train}, {"a": rows}, predictor, TOKENIZER)


def test_generated_answers_are_doubted_by_how_much_likelier_the_own_answer_is() -> None:
    train = split_of(Example("p0", " A"), Example("p1", " B"), Example("p2", " C"))
    seen = split_of(Example("v0", " X"), Example("v1", " Y"), Example("v2", " Y"))
    answers = {"p0": " A", "p2": " D", "v0": " X", "v1": " X", "v2": " ."}
    told = Told(answers, {"p2 C": 5.0, "p2 D": 1.5})
    found = asked(told, train, seen, [2, 0])
    rows = found.rows["a"]
    assert (rows.kind, rows.numbers) == ("generated", [2, 0])
    assert (rows.train, rows.validation) == ([0.0, 1.0], [1.0, 0.0, 0.0])
    assert rows.doubts == [3.5, 0.0], "log P(own) - log P(given); none where it is right"
    assert told.asked == ["p2 C", "p2 D"], "rows that are right need no likelihoods"
    assert found.answers == {"a": [" D", " A"]}
    assert found.tokens == 1000 + 1000 + 20
    # One of the three says X where Y was given; of the rows that were not given Y, all were given X
    assert rows.chance == pytest.approx((1 / 1 + 0) / 3)
    assert not rows.one_answer


def test_choices_are_doubted_by_how_much_likelier_the_best_one_is() -> None:
    def row(prompt: str, answer: int, *choices: str) -> Example:
        return Example(prompt, choices[answer], choices=choices, answer=answer)

    train = split_of(row("p0", 1, " a", " b"), row("p1", 0, " a", " b", " c"))
    seen = split_of(row("v0", 0, " a", " b"))
    losses = {"p0 a": 1.0, "p0 b": 4.0, "p1 a": 1.0, "p1 b": 2.0, "p1 c": 3.0}
    losses |= {"v0 a": 1.0, "v0 b": 2.0}
    found = asked(Told({}, losses), train, seen, [0, 1], choice_norm="none")
    rows = found.rows["a"]
    assert (rows.kind, rows.train, rows.validation) == ("choices", [0.0, 1.0], [1.0])
    assert rows.doubts == [3.0, 0.0]
    assert (rows.train_choices, rows.validation_choices) == ([2, 3], [2])
    assert found.answers == {"a": [" a", " a"]}
    assert found.tokens == 10 * 5 + 10 * 2, "likelihoods are asked for once"


def test_losses_are_summed_with_the_tokens_of_each_row_and_have_no_answer() -> None:
    train = split_of(Example("p0", " long answer"), Example("p1", " b"))
    seen = split_of(Example("v0", " c"))
    losses = {"p0 long answer": 6.0, "p1 b": 2.0, "v0 c": 1.0}
    found = asked(Told({}, losses), train, seen, [0, 1], metric="nll")
    rows = found.rows["a"]
    weights = [row.answer_tokens for row in train.rows]
    assert weights[0] > weights[1]
    assert (rows.kind, rows.train, rows.validation) == ("nll", [6.0, 2.0], [1.0])
    assert rows.train_weights == weights
    assert rows.validation_weights == [seen.rows[0].answer_tokens]
    assert rows.doubts == [6.0 / weights[0], 2.0 / weights[1]]
    assert found.answers == {"a": [None, None]}


@pytest.mark.parametrize(("metric", "worth"), [("halves", 0.5), ("same", 0.0)])
def test_a_metric_of_ones_own_is_doubted_by_the_loss_of_a_token(
    metric: str, worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msft.scoring.evaluation.own_metric", lambda path: METRICS[path])
    train, seen = split_of(Example("p0", " AB"), Example("p1", " B")), split_of(Example("v0", " C"))
    answers = {"p0": " AX", "p1": " B", "v0": " C"}
    found = asked(Told(answers, {"p0 AB": 6.0, "p1 B": 1.0}), train, seen, [0, 1], f"own:{metric}")
    rows = found.rows["a"]
    assert (rows.kind, rows.train, rows.validation) == ("value", [worth, 1.0], [1.0])
    lengths = [len(row.tokens) - len(row.prompt) for row in train.rows]
    assert rows.doubts == [6.0 / lengths[0], 1.0 / lengths[1]]
    assert found.answers == {"a": [" AX", " B"]}


METRICS = {
    "own:halves": lambda prompt, said, reference: 1.0 if said == reference else 0.5,
    "own:same": lambda prompt, said, reference: said == reference,
}


def test_exemplars_stand_before_what_is_asked_and_a_grader_finds_the_answer() -> None:
    train, seen = split_of(Example("p0", " #### A")), split_of(Example("v0", " #### B"))
    shots = "x #### C\n\n"
    answers = {f"{shots}p0": " well #### B", f"{shots}v0": " #### B, I say"}
    told = Told(answers, {f"{shots}p0 #### A": 3.0, f"{shots}p0 well #### B": 2.0})
    found = asked(told, train, seen, [0], shots=shots, grader=LETTER)
    rows = found.rows["a"]
    assert (rows.kind, rows.train, rows.validation) == ("generated", [0.0], [1.0])
    assert rows.doubts == [1.0]
    assert rows.one_answer


def test_a_sub_dataset_of_which_no_row_is_asked_is_judged_on_validation_alone() -> None:
    train, seen = split_of(Example("p0", " A"), Example("p1", " a ")), split_of(Example("v0", " A"))
    told = Told({"v0": " A"}, {})
    of = Task("a", "accuracy", {"validation": seen})
    found = judged({"a": of}, {"a": train}, {}, told, TOKENIZER)
    rows = found.rows["a"]
    assert (rows.numbers, rows.train, rows.doubts) == ([], [], [])
    assert rows.validation == [1.0]
    assert rows.one_answer, "of all its training rows, whoever judges them"
    assert found.answers == {"a": []}
