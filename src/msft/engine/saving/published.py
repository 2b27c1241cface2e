"""A model as others know it: the names, buffers, dtypes, shards and config of `save_pretrained`.

In memory a model of transformers can have other tensors than its files: experts lie together,
layers have new names. Checkpoints have the names in memory and no buffers. What is handed out has
those of the files. A copy of the model without weights, on the meta device, says what they are.
"""

import copy
import inspect
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from msft.engine.model.folders import INDEX, WEIGHTS
from msft.engine.model.loading import LoadedModel
from msft.engine.saving.safetensors_codec import save_tensors
from msft.files import replace_bytes

GENERATION = "generation_config.json"


class PublishedModel:
    """What `save_pretrained` would write of a model, with other weights in it.

    loaded: whose `export_dtype` the files have.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        model = loaded.model
        first = {id(weight): name for name, weight in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        self._weights = {name: first[id(weight)] for name, weight in every}
        self._buffers = {  # not by `state_dict`, before which FSDP2 takes whole weights apart
            f"{path}.{name}" if path else name: buffer
            for path, module in model.named_modules(remove_duplicate=False)
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        }

    @cached_property
    def _skeleton(self) -> Any:
        """The model without weights, in the dtype of the files."""
        model = self._loaded.model
        kind = next(each for each in type(model).__mro__ if not each.__name__.startswith("FSDP"))
        config = copy.deepcopy(model.config)
        with torch.device("meta"):
            made = kind._from_config(config, dtype=self._loaded.export_dtype)  # type: ignore[attr-defined]
        made.generation_config = model.generation_config
        made._weight_conversions = getattr(model, "_weight_conversions", None)
        made.config.dtype = str(self._loaded.export_dtype).rpartition(".")[2]
        made.config.architectures = [kind.__name__]
        return made

    @cached_property
    def _kept(self) -> dict[str, Tensor]:
        """The tensors that are written, without numbers: tied ones once, each in the dtype that
        `from_pretrained` would give it."""
        from transformers.core_model_loading import build_glob_alternation
        from transformers.modeling_utils import remove_tied_weights_from_state_dict

        model = self._skeleton
        state = remove_tied_weights_from_state_dict(dict(model.state_dict()), model)
        plan = model._get_dtype_plan(self._loaded.export_dtype)
        wide = build_glob_alternation(list(plan))[0] if plan else None
        return {
            name: tensor.float() if wide and wide.search(name) else tensor
            for name, tensor in state.items()
            if name not in (model._keys_to_ignore_on_save or ())
        }

    @cached_property
    def is_in_memory(self) -> bool:
        """Whether the files have exactly the trained weights, by their names in memory."""
        written = self._restored(self._kept)
        same = written.keys() == set(self._weights.values())
        return same and all(written[name] is self._kept.get(name) for name in written)

    @property
    def is_a_checkpoint(self) -> bool:
        """Whether the file of weights is the very file of a checkpoint."""
        whole = all(tensor.dtype == torch.float32 for tensor in self._kept.values())
        return whole and self.is_in_memory and not self._shards(self._kept).is_sharded

    def write(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Everything, into a folder that is there. weights: by their names in memory."""
        made: dict[str, Tensor] = {}
        for name, like in self._kept.items():
            tensor = weights[self._weights[name]] if name in self._weights else self._buffers[name]
            dtype = like.dtype if tensor.is_floating_point() else tensor.dtype
            made[name] = tensor.detach().to(device="cpu", dtype=dtype)
        made = self._restored(made)
        shards = self._shards(made)
        for file, names in shards.filename_to_tensors.items():
            save_tensors({name: made.pop(name) for name in names}, folder / file, {"format": "pt"})
            (folder / file).chmod(0o644)
        if shards.is_sharded:
            size = {"total_parameters": self._skeleton.num_parameters(), **shards.metadata}
            index = {"metadata": size, "weight_map": shards.tensor_to_filename}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            replace_bytes(folder / INDEX, text.encode())
        self.describe(folder)

    def describe(self, folder: Path) -> None:
        """Everything but the weights."""
        model = self._skeleton
        if model.is_remote_code():
            from transformers.dynamic_module_utils import custom_object_save

            custom_object_save(model, folder, config=model.config)
        model.config.save_pretrained(folder)
        if model.can_generate() and model.generation_config is not None:
            try:
                model.generation_config.save_pretrained(folder)
            except ValueError:  # the base was published with this one, which is read all the same
                model.generation_config.to_json_file(folder / GENERATION)
        self._loaded.tokenizer.save_pretrained(folder)

    def _restored(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of a model in memory as those of its files."""
        from transformers.core_model_loading import revert_weight_conversion

        made: dict[str, Tensor] = revert_weight_conversion(self._skeleton, dict(state))
        return made

    def _shards(self, state: Mapping[str, Tensor]) -> Any:
        from huggingface_hub import split_torch_state_dict_into_shards

        most = inspect.signature(self._skeleton.save_pretrained).parameters["max_shard_size"]
        pattern = WEIGHTS.replace(".", "{suffix}.")
        return split_torch_state_dict_into_shards(
            dict(state), filename_pattern=pattern, max_shard_size=most.default
        )
