"""A model of transformers with its linear layers in four bits, as peers of QLoRA have it.

`from_pretrained` quantises files; random weights in memory are quantised here, layer by layer, on
the device that they are on. The settings are those of `BitsAndBytesConfig(load_in_4bit=True,
bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=…, bnb_4bit_use_double_quant=True)`: NF4 with
scales that are quantised too, as in msft.
"""

from typing import Any

import torch
from common import device_of, free
from torch import nn


def in_four_bits(model: Any) -> Any:
    """The model, whose linear layers but the head are packed; peft and TRL see that they are."""
    import bitsandbytes

    compute = torch.bfloat16 if device_of().type == "cuda" else torch.float32
    settings = {"quant_type": "nf4", "compress_statistics": True}
    head = model.get_output_embeddings()
    plain = [
        (name, layer)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer is not head
    ]
    while plain:
        name, layer = plain.pop()
        packed = bitsandbytes.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=compute,
            device="meta",
            **settings,
        )
        weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, **settings)
        packed.weight = weight.to(layer.weight.device)
        packed.bias = layer.bias
        model.set_submodule(name, packed)
    model.is_loaded_in_4bit = True
    free()
    return model
