"""FLOPs: the arithmetic of the paper's appendices, and what was kept of a run's work.

The formulas per method are oracles in `test_every_method`; here stands Appendix A, the share of
SFT in the training of OLMo 2, as far as the paper states its inputs.
"""

from fractions import Fraction

import pytest

from mortal import PLAIN, VARIED, quick_folder
from msft.run.history import (
    History,
    first_rollout_flops,
    flops_of,
    inference_flops,
    look_ahead_flops,
    path_tokens,
    train_flops,
)
from msft.run.log import PointEvent, read_log

BILLION, TRILLION = 10**9, 10**12
SIZES = {"7B": 7 * BILLION, "13B": 13 * BILLION, "32B": 32 * BILLION}

PRINTED = {
    "pre": {"7B": "1.64e23", "13B": "3.90e23", "32B": "1.16e24"},
    "mid": {"7B": "6.30e21", "13B": "4.68e22", "32B": "1.04e23"},
    "sft": {"7B": "2.85e19", "13B": "5.29e19", "32B": "1.20e20"},
    "dpo": {"7B": "1.94e19", "13B": "3.70e19", "32B": "1.26e20"},
    "grad": {"7B": "7.12e19", "13B": "1.32e20", "32B": "3.26e20"},
    "roll": {"7B": "7.60e20", "13B": "1.41e21", "32B": "3.47e21"},
    "post": {"7B": "8.79e20", "13B": "1.63e21", "32B": "4.05e21"},
    "post/total": {"7B": "0.517e-2", "13B": "0.374e-2", "32B": "0.319e-2"},
    "sft/post": {"7B": "3.24e-2", "13B": "3.24e-2", "32B": "2.97e-2"},
}
POST = ("sft", "dpo", "grad", "roll")


class Rounded:
    """All numbers that are printed like this."""

    def __init__(self, low: Fraction, high: Fraction) -> None:
        self.low, self.high = low, high

    @staticmethod
    def of(cell: str, model: str) -> "Rounded":
        text = PRINTED[cell][model]
        mantissa, exponent = text.split("e")
        digits = len(mantissa.split(".")[1])
        half = Fraction(1, 2 * 10**digits) * Fraction(10) ** int(exponent)
        return Rounded(Fraction(text) - half, Fraction(text) + half)

    def __add__(self, other: "Rounded") -> "Rounded":
        return Rounded(self.low + other.low, self.high + other.high)

    def __truediv__(self, other: "Rounded") -> "Rounded":
        return Rounded(self.low / other.high, self.high / other.low)

    def meets(self, other: "Rounded") -> bool:
        return self.low <= other.high and other.low <= self.high

    def __contains__(self, number: int | Fraction) -> bool:
        return self.low <= number <= self.high


def post_of(model: str) -> Rounded:
    sft, dpo, grad, roll = (Rounded.of(cell, model) for cell in POST)
    return sft + dpo + grad + roll


@pytest.mark.parametrize(
    ("cell", "model", "tokens"),
    [
        ("mid", "7B", 3 * 50 * BILLION),
        ("mid", "13B", 3 * 100 * BILLION + 300 * BILLION),
        ("mid", "32B", (660 - 606) * TRILLION // 100),
        ("pre", "32B", 606 * TRILLION // 100),
        ("pre", "7B", 390 * TRILLION // 100),
    ],
)
def test_the_cells_of_appendix_a_whose_tokens_are_stated(
    cell: str, model: str, tokens: int
) -> None:
    assert f"{train_flops(SIZES[model], tokens):.2e}".replace("e+", "e") == PRINTED[cell][model]


@pytest.mark.parametrize("model", SIZES)
def test_post_training_is_the_sum_of_its_parts(model: str) -> None:
    assert post_of(model).meets(Rounded.of("post", model))


@pytest.mark.parametrize("model", SIZES)
def test_the_ratios_of_appendix_a(model: str) -> None:
    """As printed, `total` is pre- plus mid-training: post-training is not part of it."""
    post, before = post_of(model), Rounded.of("pre", model) + Rounded.of("mid", model)
    assert (post / before).meets(Rounded.of("post/total", model))
    assert (Rounded.of("sft", model) / post).meets(Rounded.of("sft/post", model))


@pytest.mark.parametrize(("model", "pre_tokens"), [("7B", 390), ("32B", 606)])
def test_post_training_is_not_in_the_printed_total(model: str, pre_tokens: int) -> None:
    mid = {"7B": 15, "32B": 54}[model]
    before = train_flops(SIZES[model], (pre_tokens + mid) * TRILLION // 100)
    post = sum((Fraction(PRINTED[cell][model]) for cell in POST), Fraction(0))
    assert post / before in Rounded.of("post/total", model)
    assert post / (before + post) not in Rounded.of("post/total", model)


@pytest.mark.parametrize("model", SIZES)
def test_the_reinforcement_rows_were_reckoned_with_2714_tokens_not_4096(model: str) -> None:
    episodes = 10 * 10**6
    updates, models = (episodes // 16, 1) if model == "32B" else (episodes // 32, 2)

    def fits(length: int) -> list[bool]:
        roll = 2 * inference_flops(SIZES[model], episodes * length)
        grad = models * train_flops(SIZES[model], updates * length)
        return [roll in Rounded.of("roll", model), grad in Rounded.of("grad", model)]

    assert fits(2714) == [True, True]
    assert fits(4096) == [False, False]


def test_a_look_ahead_is_two_forwards_and_a_backward() -> None:
    forward, backward = inference_flops(3, 5), train_flops(3, 5) - inference_flops(3, 5)
    assert look_ahead_flops(3, 5) == 2 * forward + backward == 8 * 3 * 5


@pytest.mark.parametrize("name", ["msft", "ies", "dynamix"])
def test_the_first_rollout_is_trained_looked_ahead_and_scored(name: str) -> None:
    with quick_folder() as folder:
        points = PLAIN[name].run(folder).stages[0].points
        history = History(read_log(folder / "run.jsonl"))
    train, look, evaluation = (
        sum(getattr(point.tokens, kind) for point in points)
        for kind in ("train", "lookahead", "evaluation")
    )
    assert first_rollout_flops(history) == 1000 * (6 * train + 8 * look + 2 * evaluation)
    assert first_rollout_flops(History([history.start])) == 0


@pytest.mark.parametrize("name", PLAIN | VARIED)
def test_kept_and_discarded_are_all_of_training_at_any_time(name: str) -> None:
    with quick_folder() as folder:
        (PLAIN | VARIED)[name].run(folder)
        events = read_log(folder / "run.jsonl")
    for length in range(1, len(events) + 1):
        flops = flops_of(History(events[:length]))
        assert flops.kept + flops.discarded == flops.train + flops.lookahead
        assert flops.kept >= 0 <= flops.discarded
        assert flops.total == flops.train + flops.lookahead + flops.evaluation
    points = [event for event in events if isinstance(event, PointEvent)]
    assert flops.train == 6 * 1000 * sum(point.tokens.train for point in points)


def test_kept_is_the_work_on_the_path_to_the_result() -> None:
    """By hand: r0 to its tick 1, then r1 from its tick 0, then r2 and r3 from there."""
    with quick_folder() as folder:
        history = PLAIN["msft"].run(folder)
    assert history.best == "r3-t1"
    starts = [stage.asked.start for stage in history.stages]
    assert starts == ["base", "r0-t1", "r0-t1", "r2-t3"]
    on_path = [
        *history.stages[0].points[:1],
        *history.stages[2].points[:3],
        *history.stages[3].points[:1],
    ]
    assert path_tokens(history, history.best).train == sum(p.tokens.train for p in on_path)
    assert flops_of(history).kept == 6 * 1000 * sum(p.tokens.train for p in on_path)


def test_frozen_weights_have_no_gradient_of_their_own() -> None:
    frozen, trained, tokens = 1000, 30, 7
    assert train_flops(frozen, tokens, trained) == (4 * frozen + 6 * trained) * tokens
    assert look_ahead_flops(frozen, tokens, trained) == (6 * frozen + 8 * trained) * tokens
