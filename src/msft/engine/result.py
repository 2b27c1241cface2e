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

from msft.engine.codec import WEIGHTS, TorchCodec
from msft.folder import write_text


class ResultFolder:
    """Keeps a folder equal to one checkpoint of a run."""

    def __init__(self, folder: Path, checkpoints: Path, model: Any, tokenizer: Any) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._model = model
        self._tokenizer = tokenizer

    def update(self, checkpoint: str, base: Mapping[str, Tensor], card: str) -> bool:
        """Let the folder be this checkpoint; `base` is written where the base model is it.

        False if the checkpoint is not on disk yet.
        """
        source = self._checkpoints / f"{checkpoint}.weights" / WEIGHTS
        if checkpoint != "base" and not source.exists():
            return False
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
        if checkpoint == "base":
            TorchCodec().write(dict(base), fresh)
        else:
            _linked(source, fresh / WEIGHTS)
        write_text(fresh / "README.md", card)
        if self._folder.exists():
            self._folder.rename(old)
        fresh.rename(self._folder)
        shutil.rmtree(old, ignore_errors=True)
        return True

    def card(self, card: str) -> None:
        """Only the model card, when the checkpoint stays the same."""
        write_text(self._folder / "README.md", card)


def _linked(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
