"""The result folder `best/`: what transformers loads, there during a run too.

The weights are a hard link to the checkpoint's file, so the best so far costs no second copy.
"""

import copy
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from msft.engine.saving.safetensors_codec import WEIGHTS, TorchCodec
from msft.run.folder import write_text


class ResultFolder:
    """Keeps a folder equal to one checkpoint of a run."""

    def __init__(self, folder: Path, checkpoints: Path, model: Any, tokenizer: Any) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._model = model
        self._tokenizer = tokenizer
        self._made = False

    def update(self, checkpoint: str, base: Mapping[str, Tensor], card: str) -> bool:
        """Let the folder be this checkpoint; `base` is written where the base model is it.

        False if the checkpoint is not on disk yet. What is the same for all checkpoints is written
        once.
        """
        source = self._checkpoints / f"{checkpoint}.weights" / WEIGHTS
        if checkpoint != "base" and not source.exists():
            return False
        try:
            if self._made and checkpoint != "base":
                self._swap(source, card)
            else:
                self._make(None if checkpoint == "base" else source, base, card)
        except FileNotFoundError:  # it is being written anew just now
            return False
        self._made = True
        return True

    def _swap(self, source: Path, card: str) -> None:
        """Only the weights and their card."""
        fresh = self._folder / f".{WEIGHTS}"
        fresh.unlink(missing_ok=True)
        _linked(source, fresh)
        fresh.replace(self._folder / WEIGHTS)
        self.card(card)

    def _make(self, source: Path | None, base: Mapping[str, Tensor], card: str) -> None:
        """The whole folder, beside the old one until it is complete."""
        fresh = self._folder.with_name(".best.tmp")
        old = self._folder.with_name(".best.old")
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir(parents=True)
        config = copy.deepcopy(self._model.config)
        config.dtype = "float32"
        config.architectures = [type(self._model).__name__]
        config.save_pretrained(fresh)
        if self._model.generation_config is not None:
            self._model.generation_config.save_pretrained(fresh)
        self._tokenizer.save_pretrained(fresh)
        if source is None:
            TorchCodec().write({name: tensor.cpu() for name, tensor in base.items()}, fresh)
        else:
            _linked(source, fresh / WEIGHTS)
        write_text(fresh / "README.md", card)
        if self._folder.exists():
            self._folder.rename(old)
        fresh.rename(self._folder)
        shutil.rmtree(old, ignore_errors=True)

    def card(self, card: str) -> None:
        """Only the model card, when the checkpoint stays the same."""
        write_text(self._folder / "README.md", card)


def _linked(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
