"""The shape of a model, without its weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import model_of

from msft.engine.model.loading import load_model
from msft.engine.model.shape import ModelShape, named_shape, shape_of
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import RecipeError
from msft.recipe.recipe import AdapterOptions

FOUR_BIT = AdapterOptions(r=4, alpha=8, four_bit=True)


def test_a_shape_is_known_without_weights(tmp_path: Path) -> None:
    model = load_model("tiny", torch.device("cpu")).model
    size = sum(p.numel() for p in model.parameters())
    assert named_shape("tiny") == shape_of(model) == ModelShape(size, 2, 128, 320, 258, 512)
    model_of("llama").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert named_shape(str(tmp_path)) == shape_of(model_of("llama"))


def test_a_model_without_attention_keeps_no_keys() -> None:
    options: Any = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    mamba: Any = transformers.MambaForCausalLM
    with torch.device("meta"):
        shape = shape_of(mamba(transformers.MambaConfig(**options)))
    assert (shape.layers, shape.hidden, shape.inner, shape.vocabulary) == (2, 32, 64, 97)
    assert shape.keys == 0


def test_an_adapter_is_counted_and_refused_without_weights() -> None:
    def options(*targets: str) -> AdapterOptions:
        return AdapterOptions(r=4, alpha=8, targets=targets)

    llama, gpt2 = shape_of(model_of("llama")), shape_of(model_of("gpt2"))
    head = 4 * (32 + 97)
    assert llama.adapter_weights(options("lm_head")) == head
    assert llama.adapter_weights(options("lm_head", "q_proj")) == head + 2 * 4 * (32 + 32)
    for fine in (options("lm_head", "layers.1.self_attn.q_proj"), FOUR_BIT):
        llama.refuse_adapter(fine)
    for wrong in ("qproj", "proj", "embed_tokens", "all-linear"):
        with pytest.raises(RecipeError, match=f"'{wrong}', but this model has no linear layer"):
            llama.refuse_adapter(options("q_proj", wrong))
    with pytest.raises(RecipeError, match="that of the embeddings too"):
        gpt2.refuse_adapter(options("c_attn", "lm_head"))
    with pytest.raises(RecipeError, match="no plain linear layers"):
        gpt2.refuse_adapter(FOUR_BIT)
