"""An adapter outside of training: in checkpoints, and as a folder that peft reads.

The folder names its base. A base that only msft reads (`tiny`, `smollm2-135m`, a `.gguf` file,
another adapter) is written once as a model folder beside it.
"""

import json
from pathlib import Path
from typing import Any

import torch

from msft.engine.adapters.lora import Adapted, Weights, merged_weights
from msft.engine.model.folders import ADAPTER_CONFIG, ADAPTER_WEIGHTS, HASHES, is_ours, write_facts
from msft.engine.model.loading import load_model
from msft.engine.saving.model_files import Divided, ModelFiles
from msft.engine.saving.weight_files import PublishedModel, TorchCodec
from msft.files import remove, replace_bytes
from msft.run.folder import RunFolder, write_text
from msft.search.rollout import BASE
from msft.store.store import MANIFEST, Manifest


class AdapterFiles(ModelFiles):
    """Files of an adapter; with `merge_adapter` the result is a whole model.

    first: the adapter's weights before training; of a rank, those that it owns.
    """

    weights_file = ADAPTER_WEIGHTS
    config_file = ADAPTER_CONFIG

    def __init__(
        self, adapted: Adapted, first: Weights, device: torch.device, lanes: Divided | None = None
    ) -> None:
        super().__init__(adapted.evaluated, first, device, lanes)
        self._adapted = adapted

    @property
    def links(self) -> bool:
        return not self._adapted.options.merged

    def _write(self, weights: Weights, folder: Path) -> None:
        if self._adapted.options.merged:
            super()._write(merged_weights(self._adapted, weights), folder)
            return
        self._describe(folder)
        host = {name: tensor.cpu() for name, tensor in weights.items()}
        TorchCodec(weights=ADAPTER_WEIGHTS).write(host, folder)

    def _describe(self, folder: Path) -> None:
        config = self._adapted.config.to_dict()
        config |= {
            "base_model_name_or_path": self._base_beside(folder),
            "target_modules": sorted(config["target_modules"]),
            "inference_mode": True,
        }
        write_text(folder / ADAPTER_CONFIG, json.dumps(config, indent=2, default=_plain) + "\n")
        options = self._adapted.options
        held = "load_in_4bit" if options.four_bit else "fp8" if options.fp8 else ""
        write_facts(folder, held, self._adapted.in_bf16)
        self._adapted.loaded.tokenizer.save_pretrained(folder)

    def _base_beside(self, folder: Path) -> str:
        """The name that users of the adapter load the base by."""
        name = self._adapted.loaded.name
        if not is_ours(name):
            path = Path(name)
            return str(path.resolve()) if path.exists() else name
        base = RunFolder(folder.parent).base
        if HASHES.fault(base, BASE, others=True) is not None:
            fresh = base.with_name(".base.tmp")
            remove(fresh)
            fresh.mkdir()
            plain = load_model(name, torch.device("cpu"), tokenizer=self._adapted.loaded.tokenizer)
            plain = plain.exported_in("float32")  # the very numbers that the adapter is trained on
            PublishedModel(plain).write(dict(plain.model.named_parameters()), fresh)
            files = {file.name: HASHES.of(file) for file in sorted(fresh.iterdir())}
            replace_bytes(fresh / MANIFEST, Manifest(files, BASE).to_bytes())
            remove(base)
            fresh.rename(base)
        return str(base.resolve())


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else getattr(value, "value", str(value))
