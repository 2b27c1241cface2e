"""Guesses make a generation shorter and, in exact arithmetic, change nothing that is said."""

from random import Random

import pytest
import torch
from families import END, model_of
from plain_varlen import plain_varlen

from msft.engine.decode.decoder import Decoder, GeneratedRows
from msft.engine.decode.fast import FastDecoder
from msft.engine.decode.plans import (
    AHEAD,
    BUCKET,
    SPARE,
    SPARE_OF_ROW,
    bucket_of,
    padding_rows,
    prompt_plan,
    smaller_bucket,
)
from msft.engine.decode.step import (
    WIDTH_OF_SMALL,
    Kernels,
    accepted,
    drafted,
    tokens_ahead,
)

CPU = torch.device("cpu")


def guesses_of(*rows: list[int], ahead: int = 5) -> list[list[int]]:
    """Rows lie in slots one behind the other, with slots between them that nobody may read."""
    span = 16
    said = torch.full((len(rows) * span,), -1)
    for number, row in enumerate(rows):
        said[number * span : number * span + len(row)] = torch.tensor(row)
    start = torch.arange(len(rows)) * span
    length = torch.tensor([len(row) - 1 for row in rows])
    found: list[list[int]] = drafted(said, start, length, ahead, span).tolist()
    return found


def test_what_followed_the_last_time_follows_again() -> None:
    assert guesses_of([1, 2, 3, 4, 5, 6, 1, 2]) == [[2, 3, 4, 5, 6]]


def test_two_tokens_say_more_than_one_and_later_ones_more_than_earlier_ones() -> None:
    rows = [[1, 2, 7, 3, 2, 8, 1, 2], [1, 2, 7, 1, 2, 8, 1, 2], [4, 2, 7, 3, 2, 8, 1, 2]]
    assert [row[1] for row in guesses_of(*rows)] == [7, 8, 8]


def test_a_row_that_goes_round_is_guessed_to_go_on() -> None:
    assert guesses_of([9, 5, 6, 5, 6], [3, 3, 3]) == [[6, 5, 6, 5, 6], [3, 3, 3, 3, 3]]


def test_a_row_without_repetition_and_one_of_a_single_token_have_some_guess() -> None:
    first, second = guesses_of([1, 2, 3, 4], [7])
    assert first[0] == 4
    assert set(first) <= {1, 2, 3, 4}
    assert second == [7] * 5


def test_guesses_count_up_to_the_first_wrong_one() -> None:
    fed = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    chosen = torch.tensor([[2, 3, 4], [2, 9, 4], [9, 3, 4]])
    assert accepted(fed, chosen).tolist() == [2, 1, 0]
    assert accepted(fed[:, :1], chosen[:, :1]).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("rows", "width", "repeats", "ahead"),
    [(2048, 512, 1, 1), (256, 512, 3, 2), (64, 256, 9, 4), (16, 40, 1, 2), (16, 512, 48, 2)],
)
def test_a_step_is_as_wide_as_said(rows: int, width: int, repeats: int, ahead: int) -> None:
    assert tokens_ahead(rows, width, repeats) == ahead <= AHEAD


def test_a_small_model_takes_wider_steps_and_memory_sets_a_limit() -> None:
    model = model_of("llama")

    def width(most: int) -> int:
        return FastDecoder(model, Kernels(plain_varlen), most, 10**6, CPU).width

    assert (width(10**6), width(40)) == (WIDTH_OF_SMALL, 40)


@pytest.mark.parametrize("prefix", [0, 20])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_guesses_save_steps_and_change_no_word(family: str, prefix: int) -> None:
    """Up to the last position that the model knows, beyond which a guess may lead."""
    model = model_of(family).eval()
    positions = 64
    model.config.max_position_embeddings = positions
    if family == "gpt2":
        table = model.transformer.wpe
        table.weight.data = table.weight.data[:positions]
    random = Random(1)
    shared = tuple(random.randrange(2, 60) for _ in range(prefix))
    prompts = [shared + tuple(random.randrange(2, 60) for _ in range(n)) for n in (2, 5, 9, 14)]
    limits = [positions - len(prompt) for prompt in prompts]
    said, steps = [], []
    for width in (1, WIDTH_OF_SMALL):
        decoder = FastDecoder(model, Kernels(plain_varlen), 10**6, 10**6, CPU, width=width)
        texts = GeneratedRows(frozenset({END}), limits, lambda row, tokens, known: None)
        with torch.inference_mode():
            decoder.generate(prompts, None, texts)
        said.append(texts.rows)
        steps.append(decoder.steps)
    assert said[0] == said[1] == Decoder(model, [END], 10**6).generate(prompts, limits).rows
    assert max(map(len, said[0])) > 20
    assert steps[1] < 0.75 * steps[0], "random models repeat themselves"


def test_there_is_room_for_padding_rows() -> None:
    for rows in range(1, 300):
        first = bucket_of(rows)
        later = [(smaller_bucket(left), left) for left in range(1, rows)]
        assert padding_rows(rows) >= max(
            size - left for size, left in [*later, (first, rows)] if size <= first
        )


@pytest.mark.parametrize("most", [1000, 4000, 10**6])
def test_spare_slots_count_as_slots(most: int) -> None:
    prompts, limits = [tuple(range(2, 12))] * 300, [16] * 300
    plan = prompt_plan(prompts, limits, range(300), 10**6, most, torch.device("cpu"))
    few = (1 + SPARE) * bucket_of(1) + SPARE_OF_ROW * BUCKET
    assert plan.slots <= min(most, 300 * (10 + 15 + SPARE_OF_ROW)) + few
