"""An answer that is handed out token by token is the one that transformers writes at once."""

from collections import Counter
from typing import Any

import pytest
import torch

from msft.engine.decode.stream import AnswerStream, _drawn
from msft.engine.model.loading import load_model

PROMPT = [70, 71, 72]
NEVER = [255]


@pytest.fixture
def model() -> Any:
    return load_model("tiny", torch.device("cpu"), own_attention=True).model.eval()


def written(model: Any, most: int, **how: Any) -> list[int]:
    prompt = torch.tensor([PROMPT])
    how = {"attention_mask": torch.ones_like(prompt), "pad_token_id": 1, **how}
    whole = model.generate(prompt, max_new_tokens=most, eos_token_id=NEVER, **how)
    return [*map(int, whole[0, len(PROMPT) :])]


def finished(stream: AnswerStream) -> list[int]:
    while stream.advance():
        pass
    return stream.tokens


def test_it_is_the_likeliest_answer_whatever_habits_a_model_has(model: Any) -> None:
    plain = written(model, 12, do_sample=False)
    model.generation_config.repetition_penalty = 5.0
    assert written(model, 12, do_sample=False) != plain
    stream = AnswerStream(model, NEVER, PROMPT, 12)
    assert finished(stream) == plain
    assert stream.ended_by == "max_new_tokens"
    assert not stream.advance()


def test_the_token_that_ends_it_is_no_part_of_it(model: Any) -> None:
    plain = written(model, 12, do_sample=False)
    end = next(token for token in plain if token != plain[0])
    stream = AnswerStream(model, [end], PROMPT, 12)
    assert finished(stream) == plain[: plain.index(end)]
    assert stream.ended_by == "end_token"


def test_it_can_be_left_and_the_model_asked_again(model: Any) -> None:
    plain = written(model, 400, do_sample=False)
    stream = AnswerStream(model, NEVER, PROMPT, 400)
    assert all(stream.advance() for _ in range(3))
    stream.stop()
    assert (stream.tokens, stream.ended_by) == (plain[:3], "stopped")
    assert not stream._thread.is_alive()
    assert finished(AnswerStream(model, NEVER, PROMPT, 5)) == plain[:5]
    before = AnswerStream(model, NEVER, PROMPT, 5)
    before.stop()
    assert before.tokens == []


def test_two_that_are_read_side_by_side_draw_what_each_draws_alone(model: Any) -> None:
    def drawn(seed: int) -> AnswerStream:
        return AnswerStream(model, NEVER, PROMPT, 8, temperature=1.0, seed=seed)

    alone = finished(drawn(3))
    one, other, third = drawn(3), drawn(4), drawn(3)
    for _ in range(8):
        one.advance(), other.advance()
    torch.manual_seed(9)
    assert one.tokens == finished(third) == alone
    assert other.tokens != alone
    assert alone != written(model, 8, do_sample=False)


@pytest.mark.parametrize(("temperature", "shares"), [(1.0, [0.7, 0.2, 0.1]), (0.5, [49, 4, 1])])
def test_what_is_drawn_has_the_probabilities_of_the_scores(
    temperature: float, shares: list[float]
) -> None:
    draw = _drawn(temperature, 5)
    scores = torch.tensor([[0.7, 0.2, 0.1]]).log()
    count = Counter(int(draw(scores, scores).argmax()) for _ in range(4000))
    expected = [share / sum(shares) for share in shares]
    assert [count[n] / 4000 for n in range(3)] == pytest.approx(expected, abs=0.025)


def test_an_error_comes_to_who_waits_for_the_token(model: Any) -> None:
    stream = AnswerStream(model, NEVER, [10_000], 4)
    with pytest.raises(IndexError):
        stream.advance()
