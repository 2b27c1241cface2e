"""An adapter folder as a plain model: its base with the adapter in every weight."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from msft.engine.model.adapter_folders import FOUR_BIT, import_peft, refuse_broken_adapter
from msft.engine.model.four_bit import packed, unpacked
from msft.errors import WrongWeights


def with_adapter(model: Any, folder: Path) -> Any:
    """The base with the adapter of a folder merged in; the base is used up."""
    refuse_broken_adapter(folder)
    peft = import_peft()
    if (folder / FOUR_BIT).exists():
        _round_to_four_bits(model, json.loads((folder / FOUR_BIT).read_bytes()).get("bf16", False))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*missing adapter keys", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by old names
        try:
            merged = peft.PeftModel.from_pretrained(model, folder).merge_and_unload()
        except (UserWarning, ValueError, RuntimeError, KeyError) as error:
            said = (str(error).strip() or type(error).__name__).split("\n")[0]
            raise WrongWeights(
                f"{folder}: its adapter does not fit its base model: {said[:300]}. Get the "
                "adapter and the model that its adapter_config.json names"
            ) from error
    for parameter in merged.parameters():
        parameter.requires_grad_()
    return merged


def _round_to_four_bits(model: Any, bf16: bool) -> None:
    """Let the base have the numbers that the adapter was trained beside.

    bf16: they were packed from bf16, and unpacked into it.
    """
    head = model.get_output_embeddings()
    for module in model.modules():
        if type(module) is nn.Linear and module is not head:
            weight = module.weight.data.to(torch.bfloat16 if bf16 else module.weight.dtype)
            module.weight.data.copy_(unpacked(packed(weight), torch.empty_like(weight)))
