"""The shape of a model, without its weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from families import model_of

from msft.engine.model.loading import load_model
from msft.engine.model.shape import ModelShape, named_shape, shape_of
from msft.engine.model.tokenizers import tiny_tokenizer


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
