"""Weights of rows and prompts: every path of both engines, against a loss written out by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from engines import BOTH, Direct, Engine, fast, simple
from families import model_of, rows_of
from thread_ranks import in_threads

from msft.engine.simple import SimpleEngine
from msft.example import Encoded
from msft.ranks import ALONE
from msft.recipe.recipe import AdapterOptions
from msft.search.feeds import Batch

PLAIN = rows_of(11)
ALL = tuple(("a", number) for number in range(11))
WEIGHTS = [0.0, 1.0, 2.5, 0.5]
LORA = AdapterOptions(r=4, alpha=8, seed=3)


def weighed(share: float) -> list[Encoded]:
    """Rows with weights; a token of the prompt weighs `share`."""
    return [
        replace(row, weight=WEIGHTS[number % 4], prompt_weight=share)
        for number, row in enumerate(PLAIN)
    ]


def by_hand(share: float, rows: Sequence[int]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of rows, and the gradient of the batch, token by token and row by row."""
    model = model_of("llama", 1.0)
    model.set_attn_implementation("eager")
    total, mass, losses = torch.zeros(()), 0.0, []
    for number in rows:
        tokens, answer = PLAIN[number].tokens, PLAIN[number].answer
        logits = model(input_ids=torch.tensor([tokens])).logits[0]
        nll = -torch.log_softmax(logits.float(), -1)
        answers = []
        for place in range(1, len(tokens)):
            loss = nll[place - 1, tokens[place]]
            counts = 1.0 if answer[place] else share
            total = total + WEIGHTS[number % 4] * counts * loss
            mass += counts
            answers += [loss.item()] if answer[place] else []
        losses.append(sum(answers) / len(answers))
    (total / mass).backward()  # type: ignore[no-untyped-call]
    return losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


ENGINES: dict[str, Callable[[list[Encoded]], Engine]] = {
    "simple": simple,
    "simple, one row at a time": lambda rows: simple(rows, micro_batch_tokens=1),
    "fast": fast,
    "fast, micro-batches": lambda rows: fast(rows, micro_batch_tokens=40),
    "fast, lanes": lambda rows: fast(rows, lanes=4),
}


def moved(engine: Engine, rows: Sequence[int]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses before a plain step down the gradient, and the gradient that it had."""
    found: dict[str, torch.Tensor] = {}
    take = engine._adamw.step if isinstance(engine, SimpleEngine) else engine._adamw._gradients

    def watched(*given: Any) -> Any:
        if isinstance(engine, SimpleEngine):
            parameters = engine._parameters
            found.update({n: p.grad.clone() for n, p in parameters.items() if p.grad is not None})
            return take(*given)
        gradients: Any = take()
        found.update({name: gradient.clone() for name, gradient in gradients.items()})
        return gradients

    setattr(engine._adamw, "step" if isinstance(engine, SimpleEngine) else "_gradients", watched)
    losses, _ = engine.work(Batch(tuple(("a", number) for number in rows)))
    return list(losses.rows), found


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("name", ENGINES)
def test_the_gradient_is_that_of_the_loss_written_out(name: str, share: float) -> None:
    rows = range(11)
    losses, gradients = moved(ENGINES[name](weighed(share)), rows)
    expected, expected_gradients = by_hand(share, rows)
    assert losses == pytest.approx(expected, rel=1e-5), "answers alone, without weights"
    assert gradients.keys() == expected_gradients.keys()
    for key, gradient in expected_gradients.items():
        assert torch.allclose(gradients[key], gradient, rtol=1e-3, atol=1e-6), key


@pytest.mark.parametrize("name", ENGINES)
def test_a_batch_without_weight_has_no_gradient(name: str) -> None:
    engine = ENGINES[name](weighed(0.0))
    losses, gradients = moved(engine, [0, 4, 8])
    assert all(loss > 0 for loss in losses)
    assert all(not gradient.any() for gradient in gradients.values())


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_rows_of_weight_one_are_the_bits_of_rows_without(make: Callable[..., Engine]) -> None:
    plain, other = make(PLAIN), make([replace(row, weight=1.0) for row in PLAIN])
    for engine in (plain, other):
        engine.work(Batch(ALL))
    assert all(torch.equal(w, other.weights()[name]) for name, w in plain.weights().items())


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_both_engines_go_the_same_way(share: float) -> None:
    one, other = simple(weighed(share)), fast(weighed(share))
    for step in range(12):
        batch = Batch(ALL[step % 4 :])
        pair = [list(engine.work(batch)[0].rows) for engine in (one, other)]
        assert pair[0] == pytest.approx(pair[1], rel=1e-4, abs=1e-5), step


@pytest.mark.parametrize("rule", ["optimizer", "sgd"])
def test_a_look_ahead_steps_by_the_weights_and_shows_losses_of_answers(rule: Any) -> None:
    batch = Batch(ALL, "look_ahead", rule)
    ahead = [make(weighed(0.3), learning_rate=0.1).work(batch)[0] for make in (simple, fast)]
    plain = simple(PLAIN, learning_rate=0.1).work(batch)[0]
    assert list(ahead[0].rows) == pytest.approx(list(plain.rows), rel=1e-6)
    assert list(ahead[0].after) == pytest.approx(list(ahead[1].after), rel=1e-4)
    assert list(ahead[0].after) != pytest.approx(list(plain.after), rel=1e-4)


def test_an_adapter_learns_by_the_weights() -> None:
    pair = [make(weighed(0.3), adapter=LORA, learning_rate=1e-2) for make in BOTH.values()]
    for step in range(5):
        rows = [list(each.work(Batch(ALL))[0].rows) for each in pair]
        assert rows[0] == pytest.approx(rows[1], rel=1e-4, abs=1e-5), step


@pytest.mark.usefixtures("plain_kernels")
@pytest.mark.parametrize("lanes", [1, 4])
def test_recorded_steps_and_lanes_read_weights_from_their_buffers(lanes: int) -> None:
    """Padded lines, whole and in lanes: the gradient of every replay, not of the first alone."""
    how: dict[str, Any] = {"learning_rate": 0.0, "lanes": lanes, "batch_rows": 11, "bf16": True}
    engine = fast(weighed(0.3), recorder=Direct, **how)
    for rows in (range(11), [2, 3, 4], range(1, 11)):
        losses, gradients = moved(engine, rows)
        assert engine.paths().steps == "recorded"
        expected, by_loss = by_hand(0.3, rows)
        assert losses == pytest.approx(expected, rel=2e-2)
        for key, gradient in by_loss.items():
            assert (gradients[key] - gradient).norm() < 0.05 * gradient.norm(), key


def test_lanes_in_ranks_have_the_bits_of_one_process() -> None:
    def trained(ranks: Any) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
        engine = fast(weighed(0.3), ranks=ranks, learning_rate=1e-2, lanes=4)
        rows = [list(engine.work(Batch(rows))[0].rows) for rows in (ALL, ALL[2:5], ALL)]
        return rows, engine.weights()

    losses, weights = trained(ALONE)
    for found, held in in_threads(2, trained):
        assert found == losses
        assert held
        assert all(torch.equal(weight, weights[name]) for name, weight in held.items())
