"""An adapter outside of training: in checkpoints, and as a folder that peft reads.

The folder names its base. A base that only msft reads (`tiny`, `smollm2-135m`, a `.gguf` file,
another adapter) is written once as a model folder beside it.
"""

import json
from pathlib import Path
from typing import Any

import torch

from msft.engine.adapters.lora import Adapted, Weights, merged_weights
from msft.engine.memory import memory_tiers
from msft.engine.model.folders import ADAPTER_CONFIG, ADAPTER_WEIGHTS, HASHES, is_ours, write_facts
from msft.engine.model.loading import load_model
from msft.engine.saving.model_files import link_weights
from msft.engine.saving.weight_files import Copies, Divided, PublishedModel, TorchCodec, codec_of
from msft.files import remove, replace_bytes
from msft.run.folder import RunFolder, write_text
from msft.search.rollout import BASE
from msft.store.store import MANIFEST, Manifest


class AdapterFiles:
    """Files of an adapter; see `Files` in `saving/model_files.py`.

    first: the adapter's weights before training; of a rank, those that it owns.
    lanes: whose ranks have them between them.
    """

    def __init__(
        self, adapted: Adapted, first: Weights, device: torch.device, lanes: Divided | None = None
    ) -> None:
        self._adapted = adapted
        self._first = first
        self._device = device
        self._copies = Copies(device)
        self._lanes = lanes

    @property
    def links(self) -> bool:
        """Whether a checkpoint's file is that of the result; a merged model is written."""
        return not self._adapted.options.merged

    @property
    def bytes_a_weight(self) -> int:
        """Of a merged model."""
        return self._adapted.evaluated.export_dtype.itemsize

    def codec(self) -> TorchCodec:
        return codec_of(self._copies, self._lanes, ADAPTER_WEIGHTS)

    def export(self, weights: Weights | None, folder: Path) -> None:
        weights = self._first if weights is None else weights
        if self._lanes is not None:
            gathered = self._lanes.whole(weights)
            if gathered is None:  # rank 0 writes
                return
            weights = gathered
        if self._adapted.options.merged:
            whole = merged_weights(self._adapted, weights)
            PublishedModel(self._adapted.evaluated).write(whole, folder)
            return
        self._describe(folder)
        self._write({name: tensor.cpu() for name, tensor in weights.items()}, folder)

    def link(self, source: Path, folder: Path) -> None:
        """A hard link, so the best so far costs no second copy."""
        if not (folder / ADAPTER_CONFIG).exists():
            self._describe(folder)
        link_weights(source, folder, ADAPTER_WEIGHTS)

    def memory(self, each: int, aside: int, most: int) -> Any:
        return memory_tiers(each, aside, most, self._device, self._copies), self._copies.follow

    def _write(self, weights: Weights, folder: Path) -> None:
        TorchCodec(weights=ADAPTER_WEIGHTS).write(weights, folder)

    def _describe(self, folder: Path) -> None:
        """Everything but the weights."""
        config = self._adapted.config.to_dict()
        config |= {
            "base_model_name_or_path": self._base_beside(folder),
            "target_modules": sorted(config["target_modules"]),
            "inference_mode": True,
        }
        write_text(folder / ADAPTER_CONFIG, json.dumps(config, indent=2, default=_plain) + "\n")
        write_facts(folder, self._adapted.options.four_bit, self._adapted.in_bf16)
        self._adapted.loaded.tokenizer.save_pretrained(folder)

    def _base_beside(self, folder: Path) -> str:
        """What the adapter's users load the base from."""
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
