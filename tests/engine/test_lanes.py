"""Lanes: the gradient of a step is a tree over them, and the bits do not depend on who sums it."""

from typing import Any

import pytest
import torch
from engines import fast
from families import loaded, model_of, rows_of
from thread_ranks import ThreadRanks, in_threads

from msft.data.corpus import load_corpus
from msft.engine import build
from msft.engine.build import agreed
from msft.engine.fast import FastEngine
from msft.engine.memory import Fit
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.engine.optimizer import TrainingSettings
from msft.engine.parallel import LanePredictor, Tree, lanes_of, nodes_of, owners, rounds, units
from msft.errors import NotANumber, UsageError
from msft.example import Encoded
from msft.ranks import ALONE
from msft.recipe.recipe import AdapterOptions, Recipe
from msft.run.engine import Generated, Likelihoods
from msft.search.feeds import Batch, Losses

ROWS = rows_of(11)
ALL = tuple(("a", number) for number in range(11))
LORA = AdapterOptions(r=4, alpha=8, seed=3, rslora=True)


def written(lanes: list[str]) -> str:
    """The tree over lanes, level by level: neighbours are added, an odd one waits."""
    while len(lanes) > 1:
        pairs = [lanes[place : place + 2] for place in range(0, len(lanes), 2)]
        lanes = [pair[0] if len(pair) == 1 else f"({pair[0]}+{pair[1]})" for pair in pairs]
    return lanes[0]


def tree(lanes: int) -> Tree[str]:
    return Tree(lanes, lambda first, second: f"({first}+{second})")


@pytest.mark.parametrize("lanes", range(1, 14))
def test_any_number_of_ranks_completes_the_same_tree(lanes: int) -> None:
    expected = written([str(lane) for lane in range(lanes)])
    for world in range(1, lanes + 1):
        whole = tree(lanes)
        for rank in range(world):
            part = tree(lanes)
            for lane in lanes_of(rank, world, lanes):
                part.push((0, lane), str(lane))
            assert [node for node, _ in part.parts] == nodes_of(rank, world, lanes)
            for node, text in part.parts:
                whole.push(node, text)
        assert [text for _, text in whole.parts] == [expected]


def test_a_rank_with_two_halves_of_a_node_sends_one_sum() -> None:
    assert nodes_of(1, 2, 4) == [(1, 1)]
    assert nodes_of(0, 2, 6) == [(1, 0), (0, 2)], "lane 2 waits for lane 3, which is elsewhere"
    assert nodes_of(2, 3, 6) == [(2, 1)], "a node without a sibling stands for its parent"


def test_choices_of_one_question_are_one_unit() -> None:
    prompts = [(1, 2), (1, 2), (1, 3), (1, 3), (1, 3)]
    assert units(prompts, [0, 0, 0, 0, 1]) == [0, 0, 1, 1, 2]


def test_owners_have_equal_shares_and_rounds_have_every_tensor_once() -> None:
    sizes = {"a": 5, "b": 90, "c": 40, "d": 45, "e": 2}
    assert owners(sizes, 2) == {"a": 1, "b": 0, "c": 1, "d": 1, "e": 0}
    found = [name for each in rounds(owners(sizes, 2), sizes, 2) for part in each for name in part]
    assert sorted(found) == sorted(sizes)


def engine_of(
    ranks: Any, lanes: int, adapter: AdapterOptions | None = None, **settings: Any
) -> FastEngine:
    how = {"learning_rate": 1e-2, "lanes": lanes, **settings}
    return fast(ROWS, adapter=adapter, ranks=ranks, **how)


def trained(ranks: Any, lanes: int, **settings: Any) -> dict[str, Any]:
    """Steps, a look-ahead, a snapshot and the way back to it; everything that can be seen."""
    engine = engine_of(ranks, lanes, **settings)
    engine.seed(3)
    seen: list[Losses] = [engine.work(Batch(ALL))[0], engine.work(Batch(ALL[:3]))[0]]
    kept = engine.weights(), engine.optimizer()
    seen.append(engine.work(Batch(ALL[:5], "look_ahead", "optimizer"))[0])
    seen.append(engine.work(Batch(ALL[:5], "look_ahead", "sgd"))[0])
    seen.append(engine.work(Batch(ALL[2:], "track"))[0])
    engine.work(Batch(ALL))
    engine.load(kept[0])
    engine.load_optimizer(kept[1])
    seen.append(engine.work(Batch(ALL[4:]))[0])
    predictor = engine.predictor()
    likely = predictor.measure(ROWS, [0] * len(ROWS))()
    prompts = [row.tokens[:4] for row in ROWS]
    said = predictor.generate(prompts, [5] * len(ROWS), lambda *_: None, [0] * len(ROWS))
    return {
        "losses": [(list(each.rows), list(each.after)) for each in seen],
        "norms": [each.update.grad_norm() for each in seen if each.update],
        "weights": {name: weight.clone() for name, weight in engine.weights().items()},
        "moments": engine.optimizer()["tensors"],
        "shown": {name: p.detach().clone() for name, p in engine.model.named_parameters()},
        "likely": (likely.rows, likely.tokens),
        "said": (said.rows, said.tokens),
        "fingerprint": engine.fingerprint(),
    }


KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "small micro-batches": {"micro_batch_tokens": 24},
    "bf16": {"bf16": True, "micro_batch_tokens": 24},
    "moments in bf16": {"bf16": True, "half_moments": True},
    "clipped": {"max_grad_norm": 0.1},
    "average": {"ema_decay": 0.5},
    "average in bf16": {"ema_decay": 0.5, "bf16": True},
    "adapter in bf16": {"adapter": LORA, "bf16": True},
    "average of DoRA with dropout in four bits": {
        "adapter": AdapterOptions(r=4, alpha=8, seed=3, dora=True, dropout=0.3, four_bit=True),
        "ema_decay": 0.5,
        "bf16": True,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_number_of_ranks(kind: str) -> None:
    alone = trained(ALONE, 4, **KINDS[kind])
    for world in (2, 3, 4) if kind == "fp32" else (3,) if "adapter" in KINDS[kind] else (2, 3):
        ranks = in_threads(world, lambda ranks: trained(ranks, 4, **KINDS[kind]))
        for found in ranks:
            for part in ("losses", "norms", "likely", "said", "fingerprint"):
                assert found[part] == alone[part], (world, part)
            for name, weight in found["shown"].items():
                assert torch.equal(weight, alone["shown"][name]), (world, name)
        for part in ("weights", "moments"):
            owned = [name for found in ranks for name in found[part]]
            assert sorted(owned) == sorted(alone[part]), "each tensor has one owner"
            for found in ranks:
                assert all(torch.equal(t, alone[part][n]) for n, t in found[part].items())


def test_dropout_is_that_of_the_lane_and_not_of_the_process() -> None:
    def work(ranks: Any, looks: bool = True) -> tuple[list[float], dict[str, Any]]:
        model = model_of("gpt2", 1.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        engine = FastEngine(
            loaded(model), {"a": ROWS}, TrainingSettings(learning_rate=1e-2, lanes=4), ranks=ranks
        )
        engine.seed(3)
        losses = list(engine.work(Batch(ALL))[0].rows)
        if looks:
            engine.work(Batch(ALL[:5], "look_ahead", "optimizer"))
        return losses + list(engine.work(Batch(ALL))[0].rows), engine.weights()

    losses, weights = work(ALONE)
    assert losses[:11] != pytest.approx(losses[11:], rel=1e-3)
    assert work(ALONE, looks=False)[0] == losses, "a look-ahead leaves no trace"
    for found, owned in in_threads(2, work):
        assert found == losses
        assert all(torch.equal(weight, weights[name]) for name, weight in owned.items())


@pytest.mark.parametrize("adapter", [None, LORA])
def test_lanes_have_the_gradient_of_the_whole_batch(adapter: AdapterOptions | None) -> None:
    one, four = (engine_of(ALONE, lanes, adapter) for lanes in (1, 4))
    losses = [engine.work(Batch(ALL))[0] for engine in (one, four)]
    assert list(losses[0].rows) == pytest.approx(list(losses[1].rows), rel=1e-5)
    norms = [each.update.grad_norm() for each in losses if each.update]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    for name, moment in one.optimizer()["tensors"].items():
        torch.testing.assert_close(moment, four.optimizer()["tensors"][name], rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("kind", ["average", "adapter in bf16"])
def test_a_rank_without_rows_meets_the_others_before_an_evaluation(kind: str) -> None:
    def scored(ranks: Any) -> list[float]:
        engine = engine_of(ranks, 4, **KINDS[kind])
        engine.work(Batch(ALL))
        return engine.predictor().measure(ROWS[:1], [0])().rows

    assert in_threads(3, scored) == [scored(ALONE)] * 3


def test_each_process_needs_a_tensor_of_its_own() -> None:
    few = AdapterOptions(r=4, alpha=8, targets=("model.layers.0.self_attn.q_proj",))
    found = in_threads(2, lambda ranks: [*engine_of(ranks, 3, few).weights()])
    assert [len(owned) for owned in found] == [1, 1]
    with pytest.raises(UsageError, match=r"only 2 tensors are trained.*start at most 2"):
        in_threads(3, lambda ranks: engine_of(ranks, 3, few))


def test_a_loss_that_is_no_number_stops_every_rank_before_its_step() -> None:
    def work(ranks: ThreadRanks) -> str:
        engine = engine_of(ranks, 2)
        weights = {name: w.clone() for name, w in engine.weights().items()}
        with torch.no_grad():
            if ranks.rank == 1:
                engine.model.model.embed_tokens.weight[:] = float("nan")
        with pytest.raises(NotANumber) as error:
            engine.work(Batch(ALL))
        assert engine._adamw.bad == 1, "a GPU takes no step either, before anybody looks"
        owned = engine.weights()
        assert all(torch.equal(owned[n], w) for n, w in weights.items() if "embed" not in n)
        return str(error.value)

    said = in_threads(2, work)
    assert said[0] == said[1]
    assert "row 1 of a" in said[0]


def test_each_lane_is_evaluated_by_itself() -> None:
    """Rows l, l+L, … of those that are generated; of likelihoods, so are the questions."""
    asked: list[Any] = []

    class Recording:
        def generate(self, prompts: Any, limits: Any, leaves: Any, groups: Any) -> Generated:
            asked.append([prompt[0] for prompt in prompts])
            assert [leaves(row, [], 0) for row in range(len(prompts))] == asked[-1]
            return Generated([[10 + prompt[0]] for prompt in prompts], len(prompts))

        def measure(self, rows: Any, groups: Any) -> Any:
            asked.append([row.tokens for row in rows])
            return lambda: Likelihoods([float(sum(row.tokens)) for row in rows], len(rows))

    predictor = LanePredictor(Recording(), 3, ALONE, lambda: None)
    prompts = [(number,) for number in range(5)]
    said = predictor.generate(prompts, [1] * 5, lambda row, tokens, known: row, [0] * 5)
    assert asked == [[0, 3], [1, 4], [2]]
    assert said == Generated([[10], [11], [12], [13], [14]], 5)
    asked.clear()
    rows = [Encoded((q, choice), (False, True)) for q in (1, 2, 3, 4) for choice in (5, 6)]
    likely = predictor.measure(rows, [0] * 8)()
    assert asked == [[(1, 5), (1, 6), (4, 5), (4, 6)], [(2, 5), (2, 6)], [(3, 5), (3, 6)]]
    assert likely == Likelihoods([6.0, 7.0, 7.0, 8.0, 8.0, 9.0, 9.0, 10.0], 8)


def test_ranks_agree_on_what_fits_in_all_of_them() -> None:
    """Devices may have other amounts of memory free; ranks with other micro-batches would wait for
    each other for ever."""
    own = [Fit(8192, False, True), Fit(64, False, True), Fit(512, True, False)]
    assert in_threads(3, lambda ranks: agreed(ranks, own[ranks.rank])) == [Fit(64, True, False)] * 3
    assert in_threads(2, lambda ranks: agreed(ranks, own[ranks.rank])) == [Fit(64, False, True)] * 2
    assert agreed(ALONE, own[2]) == own[2]


def test_engines_of_ranks_take_micro_batches_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": f"{place}:", "completion": " yes"} for place in range(8)]
    spec = {"name": "a", "train": rows[:4], "validation": rows[4:]}
    keys = {"model_name_or_path": "tiny", "datasets": [spec], "lanes": 2}
    recipe, tokens = Recipe.from_mapping(keys), iter([8192, 64])
    corpus = load_corpus(recipe, tiny_tokenizer())
    monkeypatch.setattr(build, "fit_of", lambda *given: Fit(next(tokens), False, False))

    def micro(ranks: Any) -> int:
        made = build.engine_of(recipe, corpus, tiny_tokenizer(), torch.device("cpu"), ranks=ranks)
        assert isinstance(made, FastEngine)
        return made._settings.micro_batch_tokens

    assert in_threads(2, micro) == [64, 64]
