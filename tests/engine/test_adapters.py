"""LoRA: what is trained, against peft in a plain loop; what is scored, kept and handed out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import BOTH, fast, same, settings_of
from families import loaded, model_of, rows_of
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from msft.engine.accel.fused_layers import FusedLayers
from msft.engine.adapters.lora import Adapted, adapted
from msft.engine.fast import FastEngine
from msft.engine.kernels import PLAIN_LAYERS
from msft.engine.memory import frozen_bytes
from msft.engine.model.folders import FACTS
from msft.engine.model.loading import load_model
from msft.engine.simple import answer_nll
from msft.errors import RecipeError, WrongWeights
from msft.recipe.recipe import AdapterOptions
from msft.search.feeds import Batch

CPU = torch.device("cpu")
ROWS = rows_of(64)
PLAIN = AdapterOptions(r=4, alpha=8, seed=3)
KINDS = {
    "plain": PLAIN,
    "rslora": AdapterOptions(r=4, alpha=8, seed=3, rslora=True),
    "dora": AdapterOptions(r=4, alpha=8, seed=3, dora=True),
    "some": AdapterOptions(r=4, alpha=8, seed=3, targets=("q_proj", "down_proj")),
}


def batch_of(place: int, **options: Any) -> Batch:
    return Batch(tuple(("a", (8 * place + number) % 64) for number in range(8)), **options)


def with_adapter(options: AdapterOptions, family: str = "llama") -> Adapted:
    return adapted(loaded(model_of(family, 1.0)), options, CPU, bf16=False)


def peft_of(options: AdapterOptions, family: str) -> Any:
    model = model_of(family, 1.0)
    model.set_attn_implementation("eager")
    targets = "all-linear" if options.targets is None else list(options.targets)
    config = LoraConfig(
        r=options.r,
        lora_alpha=options.alpha,
        target_modules=targets,
        use_dora=options.dora,
        use_rslora=options.rslora,
        fan_in_fan_out=family == "gpt2",
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(options.seed)
    return get_peft_model(model, config)


def losses_of_peft(options: AdapterOptions, family: str, steps: int) -> list[list[float]]:
    """Fifty lines that a user of peft would write."""
    model = peft_of(options, family)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.01)
    found = []
    for step in range(steps):
        rows = [ROWS[number] for _, number in batch_of(step).rows]
        sums = answer_nll(model, rows)
        (sums.sum() / sum(row.answer_tokens for row in rows)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        pairs = zip(sums.tolist(), rows, strict=True)
        found.append([loss / row.answer_tokens for loss, row in pairs])
    return found


@pytest.mark.parametrize(
    ("kind", "family"),
    [("plain", "llama"), ("dora", "llama"), ("plain", "gpt2")],
)
def test_fifty_steps_have_the_losses_of_peft(kind: str, family: str) -> None:
    expected = losses_of_peft(KINDS[kind], family, 50)
    engines = [make(ROWS, family, KINDS[kind], weight_decay=0.01) for make in BOTH.values()]
    for step, losses in enumerate(expected):
        for engine in engines:
            ours = list(engine.work(batch_of(step))[0].rows)
            assert ours == pytest.approx(losses, rel=1e-5, abs=1e-5), (step, type(engine))
    assert expected[-1] != pytest.approx(expected[1], rel=1e-4)  # it learned something


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=tokens, use_cache=False).logits
    return found


def trained_tiny(options: AdapterOptions, folder: Path) -> FastEngine:
    """A few steps on the model `tiny`, and its result in a run folder."""
    made = adapted(load_model("tiny", CPU), options, CPU, bf16=False)
    engine = FastEngine(made.loaded, {"a": ROWS}, settings_of(weight_decay=0.01), adapted=made)
    for step in range(5):
        engine.work(batch_of(step))
    (folder / "best").mkdir(parents=True)
    engine.export(engine.weights(), folder / "best")
    return engine


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_loads_in_transformers_and_says_what_was_scored(
    kind: str, tmp_path: Path
) -> None:
    engine = trained_tiny(KINDS[kind], tmp_path)
    rows = ROWS[:6]
    found = engine.predictor().measure(rows, [0] * len(rows))().rows
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "best", dtype=torch.float32)
    assert answer_nll(theirs, rows).tolist() == pytest.approx(found, rel=1e-5)
    base = load_model("tiny", CPU, own_attention=True)
    assert answer_nll(base.model, rows).tolist() != pytest.approx(found, rel=1e-4)
    ours = load_model(str(tmp_path / "best"), CPU, own_attention=True)
    tokens = torch.tensor([rows[0].tokens])
    assert torch.allclose(logits_of(ours.model, tokens), logits_of(theirs, tokens), atol=1e-5)
    assert {name for name, _ in ours.model.named_parameters()} == {
        name for name, _ in base.model.named_parameters()
    }
    written: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    of_peft = PeftModel.from_pretrained(written, str(tmp_path / "best"))
    assert torch.allclose(logits_of(of_peft, tokens), logits_of(theirs, tokens), atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "best").get_vocab()


def test_a_merged_result_is_a_plain_model_with_the_same_logits(tmp_path: Path) -> None:
    merged = AdapterOptions(r=4, alpha=8, seed=3, merged=True)
    trained_tiny(merged, tmp_path / "merged")
    trained_tiny(PLAIN, tmp_path / "adapter")
    config = json.loads((tmp_path / "merged/best/config.json").read_text())
    assert config["model_type"] == "llama"
    assert not (tmp_path / "merged/best/adapter_config.json").exists()
    models = [
        AutoModelForCausalLM.from_pretrained(tmp_path / kind / "best", dtype=torch.float32)
        for kind in ("merged", "adapter")
    ]
    tokens = torch.tensor([ROWS[0].tokens])
    one, other = (logits_of(model, tokens) for model in models)
    assert torch.allclose(one, other, atol=1e-5)


def test_only_the_adapter_is_kept_and_it_alone_moves() -> None:
    engine = fast(ROWS, adapter=PLAIN)
    frozen = {n: p.clone() for n, p in engine.model.named_parameters() if "lora_" not in n}
    first, size = engine.weights(), 4 * (3 * 32 + 2 * 16 + 2 * 32 + 3 * (32 + 64) + 32)
    engine.work(batch_of(0))
    second, moments = engine.weights(), engine.optimizer()
    assert engine.num_trainable == sum(w.numel() for w in second.values()) == 2 * size
    assert engine.num_parameters == engine.num_frozen == sum(p.numel() for p in frozen.values())
    assert len(moments["tensors"]) == 2 * len(second) == 2 * 2 * 7 * 2
    assert not same(first, second)
    for name, weight in engine.model.named_parameters():
        assert "lora_" in name or torch.equal(weight, frozen[name])
    engine.load(None)
    assert same(first, engine.weights())


@pytest.mark.parametrize("ema", [None, 0.5])
def test_scores_are_of_what_is_kept_now(ema: float | None) -> None:
    """The merged weights follow steps and loads; with `ema_decay` they are the average's."""
    engine = fast(ROWS, adapter=PLAIN, learning_rate=1e-2, ema_decay=ema)
    rows = ROWS[:4]

    def scored() -> list[float]:
        return list(engine.predictor().measure(rows, [0] * 4)().rows)

    before = scored()
    for step in range(3):
        engine.work(batch_of(step))
    after, kept = scored(), engine.weights()
    assert after != pytest.approx(before, rel=1e-4)
    engine.work(batch_of(3))
    assert scored() != pytest.approx(after, rel=1e-5)
    engine.load(kept)
    assert scored() == after
    engine.load(None)
    assert scored() == before


def test_the_same_seed_gives_the_same_adapter_and_another_one_another() -> None:
    one, again, other = (
        fast(ROWS, adapter=AdapterOptions(r=4, alpha=8, seed=seed)).weights() for seed in (1, 1, 2)
    )
    assert same(one, again)
    assert not same(one, other)


@pytest.mark.parametrize("make", BOTH.values(), ids=BOTH)
def test_a_look_ahead_changes_nothing(make: Any) -> None:
    engine = make(ROWS, adapter=PLAIN)
    engine.work(batch_of(0))
    weights, moments = engine.weights(), engine.optimizer()
    engine.work(batch_of(1, use="look_ahead", step="optimizer"))
    assert same(weights, engine.weights())
    assert same(moments["tensors"], engine.optimizer()["tensors"])


@pytest.mark.filterwarnings("ignore:The following")  # of peft
@pytest.mark.parametrize(
    ("family", "options", "said"),
    [
        ("mixtral", PLAIN, r"such as lora_target_modules: \[q_proj, v_proj\]"),
        ("llama", AdapterOptions(r=2, alpha=2, targets=("query",)), "no linear layer of that name"),
        ("gpt2", AdapterOptions(r=2, alpha=2, targets=("lm_head",)), "that of the embeddings too"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_refused(
    family: str, options: AdapterOptions, said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        with_adapter(options, family)


FOUR_BIT = AdapterOptions(r=4, alpha=8, seed=3, four_bit=True)
IN_FP8 = AdapterOptions(r=4, alpha=8, seed=3, fp8=True)
SOME_PACKED = AdapterOptions(r=4, alpha=8, seed=3, four_bit=True, targets=("q_proj",), dora=True)


@pytest.mark.parametrize("options", [FOUR_BIT, SOME_PACKED], ids=["all", "some, DoRA"])
def test_weights_in_four_bits_are_scored_and_read_as_they_were_trained(
    options: AdapterOptions, tmp_path: Path
) -> None:
    engine, rows = trained_tiny(options, tmp_path), ROWS[:6]
    found = engine.predictor().measure(rows, [0] * len(rows))().rows
    ours = load_model(str(tmp_path / "best"), CPU, own_attention=True)
    assert answer_nll(ours.model, rows).tolist() == pytest.approx(found, rel=1e-5)
    seen = engine.work(Batch(tuple(("a", place) for place in range(6)), use="track"))[0].rows
    sums = [loss * row.answer_tokens for loss, row in zip(seen, rows, strict=True)]
    assert sums == pytest.approx(found, rel=1e-5)  # through the adapter, not merged
    unpacked = AutoModelForCausalLM.from_pretrained(tmp_path / "best", dtype=torch.float32)
    assert answer_nll(unpacked, rows).tolist() != pytest.approx(found, rel=1e-4)
    packed = AutoModelForCausalLM.from_pretrained(
        tmp_path / "best",
        dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        ),
    )
    modules: list[Any] = [*packed.modules()]
    for module in modules:  # bitsandbytes computes in bf16 where a CPU can
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    assert answer_nll(packed, rows).tolist() == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize("options", [FOUR_BIT, IN_FP8], ids=["NF4", "FP8"])
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_a_merged_base_has_the_numbers_that_were_trained_beside(
    bf16: bool, options: AdapterOptions, tmp_path: Path
) -> None:
    """Numbers that are packed from bf16 are others than those packed from fp32."""
    made = adapted(load_model("tiny", CPU), options, CPU, bf16)
    settings = settings_of(bf16=bf16, learning_rate=0.0)
    engine = FastEngine(made.loaded, {"a": ROWS}, settings, adapted=made)
    engine.export(engine.weights(), tmp_path)  # B is 0, so the base is what is merged
    merged = load_model(str(tmp_path), CPU).model.state_dict()
    for layer in made.layers:
        beside = layer.module.base_layer.weight
        assert beside.dtype == (torch.bfloat16 if bf16 else torch.float32)
        assert torch.equal(merged[f"{layer.name}.weight"], beside.float())


def test_an_adapter_beside_fp8_is_scored_and_read_as_it_was_trained(tmp_path: Path) -> None:
    engine, rows = trained_tiny(IN_FP8, tmp_path), ROWS[:6]
    found = engine.predictor().measure(rows, [0] * len(rows))().rows
    ours = load_model(str(tmp_path / "best"), CPU, own_attention=True)
    assert answer_nll(ours.model, rows).tolist() == pytest.approx(found, rel=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "best", dtype=torch.float32)
    assert answer_nll(plain, rows).tolist() != pytest.approx(found, rel=1e-4)
    seen = engine.work(Batch(tuple(("a", place) for place in range(6)), use="track"))[0].rows
    sums = [loss * row.answer_tokens for loss, row in zip(seen, rows, strict=True)]
    assert sums == pytest.approx(found, rel=0.05)  # activations are rounded there, too
    assert sums != pytest.approx(found, rel=1e-5)


def test_what_peft_only_warns_of_is_shown_and_missing_weights_are_refused(tmp_path: Path) -> None:
    trained_tiny(AdapterOptions(r=4, alpha=8, targets=("q_proj",)), tmp_path)
    (tmp_path / "best" / FACTS).unlink()  # as in an adapter of another program
    config = tmp_path / "best" / "adapter_config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps({**content, "of_a_newer_peft": 1}))
    with pytest.warns(UserWarning, match="of_a_newer_peft"):
        load_model(str(tmp_path / "best"), CPU)
    config.write_text(json.dumps({**content, "target_modules": ["q_proj", "v_proj"]}))
    with pytest.raises(WrongWeights, match=r"does not fit its base model: .*missing adapter keys"):
        load_model(str(tmp_path / "best"), CPU)


def test_packed_weights_take_the_bytes_that_are_counted() -> None:
    made = with_adapter(FOUR_BIT)
    frozen = sum(
        tensor.numel() * tensor.element_size()
        for name, tensor in [*made.loaded.model.named_parameters(), *buffers_of(made)]
        if "lora_" not in name
    )
    expected = frozen_bytes(made.shape, bf16=False, four_bit=True)
    assert frozen == pytest.approx(expected, rel=0.02)
    assert expected < 0.6 * frozen_bytes(made.shape, bf16=False, four_bit=False)
    assert made.shape.adapter_tensors(FOUR_BIT) == [p.numel() for p in made.trained.values()]


def test_an_adapter_in_four_bits_begins_as_its_packed_base() -> None:
    """DoRA's lengths are those of the rows that are computed with."""
    made = with_adapter(SOME_PACKED)
    for layer in made.layers:
        rows = torch.linalg.norm(layer.module.base_layer.weight, dim=1)
        assert torch.equal(layer.module.lora_magnitude_vector["default"].weight, rows)


def buffers_of(made: Adapted) -> list[tuple[str, Tensor]]:
    found = made.loaded.model.named_buffers()
    return [(name, tensor) for name, tensor in found if "rotary" not in name]


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_in_bf16_only_the_adapter_has_fp32_masters() -> None:
    """With compiled layers and weights that lie together, as on a GPU."""
    torch._dynamo.reset()
    found = []
    for bf16 in (False, True):
        made = adapted(loaded(model_of("llama", 1.0)), PLAIN, CPU, bf16)
        layers = FusedLayers(made.loaded.model, backend="eager") if bf16 else PLAIN_LAYERS
        settings = settings_of(learning_rate=1e-2, bf16=bf16)
        engine = FastEngine(made.loaded, {"a": ROWS}, settings, layers, adapted=made)
        losses = [list(engine.work(batch_of(step))[0].rows) for step in range(12)]
        scores = engine.predictor().measure(ROWS[:4], [0] * 4)().rows
        found.append([*losses[0], *losses[-1], *scores])
        dtype = torch.bfloat16 if bf16 else torch.float32
        assert {p.dtype for p in made.loaded.model.parameters()} == {dtype}
        assert {p.dtype for p in made.evaluated.model.parameters()} == {dtype}
        assert {weight.dtype for weight in engine.weights().values()} == {torch.float32}
    assert found[1] == pytest.approx(found[0], rel=5e-3)
    assert found[0][:8] != pytest.approx(found[0][8:16], rel=5e-3)
