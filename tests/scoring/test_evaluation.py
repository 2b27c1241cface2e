"""Scores are exact counts of what the model says."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from msft.benchmarks.grading import LETTER, NUMBER, Grader
from msft.data.corpus import Task
from msft.data.encoding import encoded_split
from msft.engine.decode.decoder import Decoder
from msft.engine.model.loading import LoadedModel, load_model
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.engine.simple import SimplePredictor
from msft.errors import BadScore, RecipeError
from msft.example import Encoded, Example
from msft.run.engine import Generated, Likelihoods, StopRow
from msft.scoring.evaluation import MOST_WRITTEN, Evaluator, normal, texts_of
from msft.search.curves import accuracy, nll, value

TOKENIZER = tiny_tokenizer()


class Parrot:
    """A predictor that says what it was told to, and counts what it was asked.

    hasty: lets rows leave, as the decoder does.
    """

    def __init__(self, said: dict[str, str], hasty: bool = True) -> None:
        self._said = said
        self._hasty = hasty
        self.prompts: list[str] = []
        self.groups: list[list[int]] = []
        self.tokens = 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        self.groups.append(list(groups))
        rows = []
        for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            text = TOKENIZER.decode(prompt)
            self.prompts.append(text)
            answer = [*TOKENIZER.encode(self._said[text]), TOKENIZER.eos_token_id]
            row: list[int] = []
            while len(row) < min(limit, len(answer)):
                row.append(answer[len(row)])
                self.tokens += 1
                over = row[-1] == TOKENIZER.eos_token_id
                if not over and leaves(number, row, len(row) - 1) and self._hasty:
                    break
            rows.append(row)
        return Generated(rows, self.tokens)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        self.groups.append(list(groups))
        return lambda: Likelihoods([float(len(row.tokens)) for row in rows], 0)


def evaluator(said: dict[str, str], wanted: dict[str, str], **options: Any) -> Evaluator:
    predictor = options.pop("predictor", Parrot(said))
    examples = [Example(prompt, answer) for prompt, answer in wanted.items()]
    split = encoded_split(examples, TOKENIZER, 512)
    task = Task("a", options.pop("metric", "accuracy"), {"test": split}, **options)
    return Evaluator({"a": task}, predictor, TOKENIZER)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("Paris", True),
        (" paris ", True),
        ("PARIS", True),
        ("Paris.", False),
        ("Pari", False),
        ("London", False),
        ("", False),
        ("Paris and more", False),
    ],
)
def test_accuracy_compares_after_trimming_and_case_folding(said: str, right: bool) -> None:
    scored = evaluator({"Q": said}, {"Q": "Paris"})(["a"], "test")
    assert scored.scores["a"] == accuracy(int(right), 1)
    assert scored.verdicts["a"] == str(int(right))


def test_a_row_leaves_as_soon_as_it_cannot_be_right_and_no_verdict_changes() -> None:
    said = {"one": "x" * 40, "two": "Paris", "three": "Parma" + "x" * 40, "four": "ü"}
    wanted = {"one": "Paris", "two": "Paris", "three": "Paris", "four": "ü"}
    judge = evaluator(said, wanted, max_new_tokens=100)
    scored = judge(["a"], "test")
    assert scored.verdicts["a"] == "0101"
    whole = judge.answered(["a"], "test").rows["a"]
    assert [answer.worth for answer in whole] == [False, True, False, True]
    assert whole[0].prediction == "x" * 40, "a person gets the whole answer"
    assert scored.tokens < sum(len(text.encode()) for text in said.values())


def test_few_shot_exemplars_stand_before_every_prompt() -> None:
    judge = evaluator({"one 1\n\ntwo": "2"}, {"two": "2"}, shots="one 1\n\n")
    assert judge(["a"], "test").scores["a"] == accuracy(1, 1)


def test_answers_beside_a_loss_are_written_to_the_prompts_of_the_loss() -> None:
    said = {"one": "x" * 400, "two": "Paris"}
    examples = [Example("no", "y"), Example("one", "1"), Example("two", "z" * 300)]
    split = encoded_split(examples, TOKENIZER, 512)
    tasks = {
        name: Task(name, "nll", {"validation": split}, "shots\n", context=context)
        for name, context in (("a", None), ("b", 3 + 2))
    }
    predictor = Parrot(said)
    judge = Evaluator(tasks, predictor, TOKENIZER)
    found = judge.written({"a": [1, 2], "b": [2]})
    assert found == {"a": ["x" * MOST_WRITTEN, "Paris"], "b": ["Pa"]}
    assert predictor.prompts == ["one", "two", "two"]
    assert predictor.groups == [[0, 0, 1]]


def test_nll_is_the_sum_over_answer_tokens() -> None:
    scored = evaluator({}, {"ab": "c"}, metric="nll")(["a"], "test")
    assert scored.scores["a"] == nll(4.0, 2), "c and the end of the text"


@pytest.mark.parametrize(("norm", "pick"), [("none", 0), ("chars", 1), ("tokens", 1)])
def test_choices_are_picked_by_likelihood_over_length(norm: Any, pick: int) -> None:
    """The parrot's loss is the length of the whole row: 6 + 1 and 6 + 3."""
    example = Example("answer", "yyy", choices=("x", "yyy"), answer=1)
    split = encoded_split([example], TOKENIZER, 512)
    task = Task("a", "accuracy", {"test": split}, choice_norm=norm)
    scored = Evaluator({"a": task}, Parrot({}), TOKENIZER)(["a"], "test")
    assert scored.scores["a"] == accuracy(int(pick == 1), 1)


def test_the_blank_before_a_choice_is_no_part_of_its_length() -> None:
    """The parrot's losses are 6 + 2 and 6 + 3; the choices have 1 and 2 letters."""
    example = Example("answer", " x", choices=(" x", " yy"), answer=0)
    split = encoded_split([example], TOKENIZER, 512)
    for norm, expected in (("chars", (-8.0, -4.5)), ("tokens", (-4.0, -3.0)), ("none", (-8, -9))):
        task = Task("a", "accuracy", {"test": split}, choice_norm=norm)  # type: ignore[arg-type]
        answers = Evaluator({"a": task}, Parrot({}), TOKENIZER).answered(["a"], "test")
        assert answers.rows["a"][0].likelihoods == expected


class Weighed(Parrot):
    """A parrot with losses of its own for the rows that are measured."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__({})
        self._losses = losses

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        return lambda: Likelihoods(self._losses, 0)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("none", exp(-2.0) / (exp(-1.0) + exp(-2.0) + exp(-3.0))),
        # 1, 2 and 3 characters, 2 on average: 2 · (-1/1, -2/2, -3/3) are all equal
        ("chars", 1 / 3),
        # with the blank 2, 3 and 4 tokens, 3 on average: 3 · (-1/2, -2/3, -3/4)
        ("tokens", exp(-2.0) / (exp(-1.5) + exp(-2.0) + exp(-2.25))),
    ],
)
def test_the_probability_of_the_right_choice_by_hand(norm: Any, expected: float) -> None:
    example = Example("Q", " yy", choices=(" x", " yy", " zzz"), answer=1)
    split = encoded_split([example], TOKENIZER, 512)
    task = Task("a", "accuracy", {"test": split}, choice_norm=norm, soft=True)
    judge = Evaluator({"a": task}, Weighed([1.0, 2.0, 3.0]), TOKENIZER)
    score = judge(["a"], "test").scores["a"]
    assert score.probability == pytest.approx(expected, rel=1e-12)
    assert replace(score, probability=None) == accuracy(0, 1), "it decides nothing about right"


def test_probabilities_are_averaged_over_rows_and_only_where_they_are_wanted() -> None:
    rows = [Example(f"Q{n}", " x", choices=(" x", " y"), answer=0) for n in range(2)]
    split = encoded_split(rows, TOKENIZER, 512)
    losses = [0.0, log(3.0), 2000.0, 1000.0]  # 3/4, and 0 where e^-1000 is 0 too
    for soft, expected in ((True, pytest.approx(0.375, rel=1e-12)), (False, None)):
        task = Task("a", "accuracy", {"test": split}, soft=soft)
        scored = Evaluator({"a": task}, Weighed(losses), TOKENIZER)(["a"], "test")
        assert scored.scores["a"].probability == expected
        assert scored.verdicts["a"] == "10"


def graded(said: str, wanted: str, grader: Grader, hasty: bool) -> tuple[Any, int]:
    """The answer to one row, and how many tokens it took."""
    parrot = Parrot({"Q": said}, hasty)
    split = encoded_split([Example("Q", wanted)], TOKENIZER, 512)
    task = Task("a", "accuracy", {"test": split}, max_new_tokens=10_000, grader=grader)
    answers = Evaluator({"a": task}, parrot, TOKENIZER).answered(["a"], "test", early=hasty)
    return answers.rows["a"][0], parrot.tokens


PIECES = ["####", "#", " C", "C", " D.", " 5", " 12", "1,000", "Q:", "\n", "\r", "\n\nQ: next?\nA:"]
PIECES += [" so", ":", " ", "ü", "\u2028", "The answer is (C)"]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), st.sampled_from("CD5"))
def test_a_graded_row_that_leaves_early_has_the_verdict_of_its_whole_text(
    said: str, right: str
) -> None:
    grader = NUMBER if right == "5" else LETTER
    hasty, took = graded(said, f" #### {right}", grader, True)
    whole, most = graded(said, f" #### {right}", grader, False)
    assert whole.prediction == said
    assert said.startswith(hasty.prediction)
    assert (hasty.worth, hasty.extracted) == (whole.worth, whole.extracted)
    assert took <= most


@pytest.mark.parametrize(
    ("said", "extracted", "heard"),
    [
        (" #### C\n\nQ: Which?\nA: #### D\n", "C", " #### C\n"),
        (" reasons\nmore: reasons\n#### 7\n#### 8", "7", " reasons\nmore: reasons\n#### 7\n"),
        (" no idea\n\nQ: Which?\nA: #### C", None, " no idea\n\nQ:"),
        (" ####\nC", None, " ####\n"),
        (" #### The answer is: C\nMore: D", "C", " #### The answer is: C\n"),
        (" #### C", "C", " #### C"),
        (" never a mark: at all\n", None, " never a mark: at all\n"),
    ],
)
def test_a_graded_row_leaves_when_its_answer_is_over(
    said: str, extracted: str | None, heard: str
) -> None:
    grader = NUMBER if extracted == "7" else LETTER
    answer, took = graded(said, f" #### {extracted or 'C'}", grader, True)
    assert (answer.prediction, answer.extracted) == (heard, extracted)
    assert answer.worth is (extracted is not None)
    assert took == len(heard) + (heard == said and "\n\nQ:" not in said), (
        "and its end, if it said so"
    )


def half(prompt: str, prediction: str, reference: str) -> float:
    return 0.5


def is_right(prompt: str, prediction: str, reference: str) -> bool:
    return prediction == reference


def test_a_metric_of_the_user_s_own() -> None:
    said, wanted = {"p": "x", "q": "y"}, {"p": "x", "q": "z"}
    numbers = evaluator(said, wanted, metric=f"{__name__}:half")(["a"], "test")
    assert numbers.scores["a"] == value(1.0, 2)
    truths = evaluator(said, wanted, metric=f"{__name__}:is_right")(["a"], "test")
    assert truths.scores["a"] == accuracy(1, 2)
    with pytest.raises(RecipeError, match="cannot be imported"):
        evaluator(said, wanted, metric="no.such.module:f")


def credit(prompt: str, prediction: str, reference: str) -> float | bool:
    return prediction == reference or 0.5


def test_sub_datasets_with_one_metric_have_one_kind_of_score() -> None:
    said = {"a?": "a", "b?": "no", "c?": "c"}
    splits = {
        name: {"test": encoded_split([Example(f"{name}?", name)], TOKENIZER, 512)} for name in "abc"
    }
    metrics = {"a": "credit", "b": "credit", "c": "is_right"}
    tasks = {n: Task(n, f"{__name__}:{metrics[n]}", split) for n, split in splits.items()}
    scored = Evaluator(tasks, Parrot(said), TOKENIZER)([*"abc"], "test")
    assert scored.scores == {"a": value(1.0), "b": value(0.5), "c": accuracy(1, 1)}
    assert scored.verdicts == {"a": [1.0], "b": [0.5], "c": "1"}


def learned_places(count: int) -> LoadedModel:
    """A small GPT-2 that always says "a": a token beyond its places is an error, not a guess."""
    sizes: Any = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": len(TOKENIZER)}
    ends: Any = {"bos_token_id": 0, "eos_token_id": 0}
    made: Any = GPT2LMHeadModel
    model = made(GPT2Config(n_positions=count, **sizes, **ends))
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.transformer.wte.weight[TOKENIZER.encode("a")] = 1.0
    return LoadedModel(model.eval(), TOKENIZER, "gpt2")


@pytest.mark.parametrize("engine", ["simple", "fast"])
def test_a_generation_ends_with_the_places_that_the_model_has(engine: str) -> None:
    loaded = learned_places(32)
    model: Any = SimplePredictor(loaded, 64)
    if engine == "fast":
        model = Decoder(loaded.model, [TOKENIZER.eos_token_id], 64)
    wanted = {"p" * 31: "x", "q" * 27: "long", "r": "x"}
    options: dict[str, Any] = {"metric": f"{__name__}:half", "max_new_tokens": 30}
    judge = evaluator({}, wanted, predictor=model, context=32, **options)
    assert [len(TOKENIZER.encode(prompt)) for prompt in wanted] == [31, 27, 1]
    said = [row.prediction for row in judge.answered(["a"], "test").rows["a"]]
    assert said == ["a", "a" * 5, "a" * 30]
    without = evaluator({}, wanted, predictor=model, **options)
    with pytest.raises(IndexError, match="index out of range"):
        without(["a"], "test")


def test_several_sub_datasets_go_in_one_batch() -> None:
    splits = {
        name: {"test": encoded_split([Example(f"{name}?", name)], TOKENIZER, 512)}
        for name in ("a", "b")
    }
    tasks = {name: Task(name, "accuracy", split) for name, split in splits.items()}
    parrot = Parrot({"a?": "a", "b?": "no"})
    scored = Evaluator(tasks, parrot, TOKENIZER)(["a", "b"], "test")
    assert parrot.prompts == ["a?", "b?"]
    assert parrot.groups == [[0, 1]]
    assert [scored.scores[name].total for name in ("a", "b")] == [1, 0]


def test_all_that_is_answered_by_likelihood_goes_in_one_batch_too() -> None:
    """The parrot's loss is a row's length: of a, 2 + 1 and 2 + 3; of b, 2 + 1 and an end."""
    choices = Example("a?", "x", choices=("x", "yyy"), answer=0)
    tasks = {
        "a": Task("a", "accuracy", {"test": encoded_split([choices], TOKENIZER, 512)}),
        "b": Task("b", "nll", {"test": encoded_split([Example("b?", "b")], TOKENIZER, 512)}),
        "c": Task("c", "accuracy", {"test": encoded_split([Example("c?", "c")], TOKENIZER, 512)}),
    }
    parrot = Parrot({"c?": "c"})
    judge = Evaluator(tasks, parrot, TOKENIZER)
    answers = judge.answered(["b", "c", "a"], "test")
    assert parrot.groups == [[0, 1, 1], [0]]
    assert list(answers.rows) == ["b", "c", "a"]
    assert answers.rows["a"][0].likelihoods == (-3.0, -5 / 3)
    assert [answers.rows[name][0].worth for name in "abc"] == [False, 4.0, True]
    assert judge.answered(["a"], "test").rows["a"] == answers.rows["a"]


def test_the_model_s_own_word_is_what_counts() -> None:
    """The whole way with the tiny model: what it says greedily is right, anything else wrong."""
    loaded = load_model("tiny", torch.device("cpu"))
    decoder = Decoder(loaded.model, [TOKENIZER.eos_token_id], 10**6)
    prompts = ["hello", "what", "x"]
    rows = decoder.generate([TOKENIZER.encode(p) for p in prompts], [5] * 3).rows
    said = [TOKENIZER.decode(row, skip_special_tokens=True) for row in rows]
    examples = [Example(p, text) for p, text in zip(prompts, said, strict=True)]
    examples += [Example("again", "something else")]
    task = Task(
        "a", "accuracy", {"test": encoded_split(examples, TOKENIZER, 512)}, max_new_tokens=5
    )
    scored = Evaluator({"a": task}, decoder, TOKENIZER)(["a"], "test")
    expected = [normal(text) != "" for text in said]
    assert scored.verdicts["a"] == "".join("1" if right else "0" for right in expected) + "0"


def broken(prompt: str, prediction: str, reference: str) -> float:
    raise RuntimeError("boom")


def nothing(prompt: str, prediction: str, reference: str) -> None:
    return None


def number(prompt: str, prediction: str, reference: str) -> Any:
    """What the answer names."""
    return NUMBERS[prediction]


NUMBERS: dict[str, Any] = {
    "half": np.float32(0.5),
    "one": np.int64(1),
    "yes": np.True_,
    "third": Fraction(1, 4),
    "tensor": torch.tensor(0.75),
    "nan": np.float32("nan"),
    "inf": float("inf"),
    "huge": 10**400,
    "text": "0.5",
    "array": np.zeros(2),
    "list": [1.0],
}


def test_a_metric_may_return_whatever_is_a_number() -> None:
    words = ("half", "one", "third", "tensor")
    answers = {word: word for word in words}
    judge = evaluator(answers, answers, metric=f"{__name__}:number")
    assert judge(["a"], "test").verdicts["a"] == [0.5, 1.0, 0.25, 0.75]
    truths = evaluator({"p": "yes"}, {"p": "yes"}, metric=f"{__name__}:number")(["a"], "test")
    assert truths.scores["a"] == accuracy(1, 1)


@pytest.mark.parametrize("word", ["nan", "inf", "huge", "text", "array", "list"])
def test_what_is_no_finite_number_is_refused(word: str) -> None:
    judge = evaluator({"p": word}, {"p": word}, metric=f"{__name__}:number")
    with pytest.raises(BadScore, match="expected a finite number"):
        judge(["a"], "test")


@pytest.mark.parametrize(("metric", "said"), [("broken", "boom"), ("nothing", "None")])
def test_a_metric_that_fails_is_named_with_its_row(metric: str, said: str) -> None:
    judge = evaluator({"what?": "x"}, {"what?": "x"}, metric=f"{__name__}:{metric}")
    with pytest.raises(BadScore, match=rf"a: .*(what\?.*{said}|{said}.*what\?)"):
        judge(["a"], "test")


@pytest.mark.parametrize(
    "said",
    [
        " 2 + 3 = 5\n#### 5\nQ: and then?",
        " so:\nit is #### 7",
        " FAQ: no\n\nQ: 1 + 1?\nA: #### 2\n",
        " ##\n## 5\n#### 6\r\nmore",
        "\nQ: at once",
        " nothing to see: here\n" * 3,
    ],
)
@pytest.mark.parametrize("grader", [NUMBER, None])
def test_many_tokens_are_looked_at_as_one_after_the_other(said: str, grader: Grader | None) -> None:
    wanted = {"q?": " 2 + 3 = 5\n#### 5"}
    tokens, text = TOKENIZER.encode(said), texts_of(TOKENIZER)
    ends: list[int | None] = []

    class Pieces:
        """Asks after every piece of the answer whether the row may leave, and where."""

        def generate(
            self,
            prompts: Sequence[Sequence[int]],
            limits: Sequence[int],
            leaves: StopRow,
            groups: Sequence[int],
        ) -> Generated:
            for size in (1, 2, 7, len(tokens)):
                starts = range(0, len(tokens), size)
                parts = (leaves(0, tokens[: start + size], start) for start in starts)
                ends.append(next((end for end in parts if end), None))
            return Generated([tokens], len(tokens))

    evaluator({}, wanted, predictor=Pieces(), grader=grader)(["a"], "test")
    assert ends == [ends[0]] * 4
    if grader is not None:
        done = [n for n in range(1, len(tokens) + 1) if grader.finished(text(tokens[:n]))]
        assert ends[0] == next(iter(done), None)


def test_every_row_counts_in_full_where_that_is_asked_for() -> None:
    """Prompts of 7 and 9 tokens with their exemplar, answers of 1 and 3 with an end that is not
    read; choices "a?x" and "a?yyy"; the loss "b?b" and its end."""
    choices = Example("a?", "x", choices=("x", "yyy"), answer=0)
    written = [Example("c?", "c"), Example("ddd?", "ddd")]
    splits = {
        "a": encoded_split([choices], TOKENIZER, 512),
        "b": encoded_split([Example("b?", "b")], TOKENIZER, 512),
        "c": encoded_split(written, TOKENIZER, 512),
    }
    shots = {"c": "s 1\n\n"}
    for counts, expected in ((False, (0, 0, 6)), (True, (3 + 5, 4, 7 + 9 + 1 + 3))):
        tasks = {
            name: Task(
                name,
                "nll" if name == "b" else "accuracy",
                {"test": split},
                shots=shots.get(name, ""),
                counts_rows=counts,
            )
            for name, split in splits.items()
        }
        said = {"s 1\n\nc?": "c", "s 1\n\nddd?": "ddd"}
        found = [Evaluator(tasks, Parrot(said), TOKENIZER)([n], "test").tokens for n in "abc"]
        assert tuple(found) == expected
        together = Evaluator(tasks, Parrot(said), TOKENIZER)(["a", "b", "c"], "test")
        assert together.tokens == sum(expected)
