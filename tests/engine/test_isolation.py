"""No row may see another: the proof that the fast engine suits a model, and what it refuses."""

from typing import Any

import pytest
import torch
from families import FAMILIES, OTHER_FAMILIES, SHAPE, loaded, model_of, own_model_of, rows_of
from torch import Tensor, nn
from transformers import BertConfig, BertLMHeadModel

from msft.engine.isolation import fault_of, leak_of, padding_leak, sees_ahead, short_sight
from msft.engine.packing import NAME
from msft.engine.simple import answer_nll


@pytest.mark.parametrize("sharpen", [1.0, 4.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_fast_engine_suits_models_whose_tokens_meet_in_attention_alone(
    family: str, sharpen: float
) -> None:
    assert leak_of(model_of(family, sharpen)) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_it_suits_them_in_16_bits_too(family: str) -> None:
    assert leak_of(model_of(family).bfloat16(), half=True) is None


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("family", OTHER_FAMILIES)
def test_a_model_with_layers_that_mix_tokens_in_their_own_way_is_found_out(
    family: str, half: bool
) -> None:
    model = own_model_of(family)
    model.set_attn_implementation(NAME)
    assert leak_of(model.bfloat16() if half else model, half) is not None


class Neighbour(nn.Module):
    """Lets each token see a little of the one before it, whosever it is."""

    def __init__(self, inner: nn.Module, share: float) -> None:
        super().__init__()
        self.inner = inner
        self.share = share

    def forward(self, states: Tensor) -> Any:
        return self.inner(states + self.share * states.roll(1, 1))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("share", [1.0, 1e-12])
def test_a_leak_is_found_however_small_it_is(share: float, half: bool) -> None:
    model = model_of("llama")
    model.model.layers[1].mlp = Neighbour(model.model.layers[1].mlp, share)
    assert leak_of(model.bfloat16() if half else model, half) == "packed rows see each other"


def test_a_model_that_does_not_look_at_its_tokens_is_found_out() -> None:
    model = model_of("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert leak_of(model) == "the losses of a row do not depend on its tokens"


class Biased(nn.Module):
    """Attention whose queries are halved only where the model's own attention computes them."""

    def __init__(self, inner: nn.Module, model: Any) -> None:
        super().__init__()
        self.inner = inner
        self.config = model.config

    def forward(self, states: Tensor) -> Any:
        own = self.config._attn_implementation != NAME
        return self.inner(states) * (0.5 if own else 1.0)


def test_an_attention_that_is_not_ours_is_found_out() -> None:
    model = model_of("llama")
    layer = model.model.layers[0].self_attn
    layer.q_proj = Biased(layer.q_proj, model)
    assert "by the model's own attention" in str(leak_of(model))


def test_a_failure_is_a_reason_and_names_itself() -> None:
    model = model_of("llama")

    def broken(*inputs: Any) -> None:
        raise RuntimeError("no such thing\nand more")

    model.register_forward_pre_hook(broken)
    assert leak_of(model) == "it cannot run packed rows (no such thing)"


def test_the_proof_leaves_the_model_as_it_was() -> None:
    model = model_of("llama")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    random = torch.get_rng_state()
    leak_of(model)
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert model.config._attn_implementation == NAME
    assert not model.get_input_embeddings()._forward_hooks


def test_only_a_model_that_looks_ahead_is_no_decoder() -> None:
    shape = {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}
    bert = BertLMHeadModel(BertConfig(**shape))
    assert sees_ahead(bert)
    for family in ("llama", "mamba", "falcon"):
        assert not sees_ahead(own_model_of(family))


# Rows that outgrow a window.


OUTGROWN = {
    "phimoe": "sliding_window",
    "llama4": "attention_chunk_size",
    "longrope": "original_max_position_embeddings",
}
"""The fast engine passes over these; short rows do not show it."""


@pytest.mark.parametrize("family", OUTGROWN)
def test_a_window_that_is_passed_over_is_found_where_rows_outgrow_it(family: str) -> None:
    model = model_of(family)
    assert f"in rows beyond its {OUTGROWN[family]}" in str(leak_of(model))
    assert f"in rows beyond its {OUTGROWN[family]}" in str(leak_of(model, longest=40))
    assert leak_of(model, longest=32) is None


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_window_that_is_kept_is_no_reason(family: str) -> None:
    model = own_model_of(family, sliding_window=64)
    model.set_attn_implementation(NAME)
    assert leak_of(model) is None
    assert model.config.sliding_window == 64
    inside = {getattr(module, "sliding_window", None) for module in model.modules()}
    assert inside <= {64, None}


def test_the_proof_leaves_windows_and_frequencies_as_they_were() -> None:
    model = model_of("longrope")
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    config = model.config.to_dict()
    leak_of(model)
    assert model.config.to_dict() == config
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())


def test_a_number_that_cannot_be_small_is_outgrown_by_a_longer_row() -> None:
    model = own_model_of("llama")
    model.config.block, model.config.huge, model.config.chunk = 40, 5000, 60

    def runs(model: Any) -> None:
        if (model.config.block, model.config.huge) != (40, 5000):
            raise ValueError("weights for every place of a block")

    with short_sight(model, runs) as sight:
        assert model.config.chunk < 10
        assert "chunk" in sight.names
        assert sight.others == ("block", "huge")
        assert sight.long == 40, "no row is as long as the other one"
    assert (model.config.block, model.config.chunk) == (40, 60)
    with short_sight(model, runs, longest=20) as sight:
        assert sight.long == 0, "no row will be as long"


# Rows that are padded.


@pytest.mark.parametrize("family", ["llama", "gpt2", "mamba", "qwen3_next", "lfm2"])
def test_a_padded_row_has_the_loss_that_it_has_alone(family: str) -> None:
    assert padding_leak(loaded(own_model_of(family))) is None


@pytest.mark.parametrize("family", ["deepseek_v32", "longrope"])
def test_a_row_that_padding_changes_is_found_out(family: str) -> None:
    model = own_model_of(family)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
        rows = rows_of(8, longest=100)
        alone = [answer_nll(model, [row]).item() for row in rows]
        padded = answer_nll(model, rows).tolist()
    assert padded != pytest.approx(alone, rel=1e-4)
    assert "a row of a padded batch has another loss than alone" in str(padding_leak(loaded(model)))


def test_a_model_that_changes_its_embeddings_in_place_can_be_tried() -> None:
    assert fault_of(own_model_of("ctrl")) is None


def test_a_model_that_takes_rows_of_some_lengths_only_is_at_fault() -> None:
    fault = str(fault_of(own_model_of("reformer")))
    assert fault.startswith("it cannot train a row of 11 tokens (")
    assert "sequence_length: 11" in fault
