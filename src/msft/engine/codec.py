"""Tensors as files: safetensors for weights and moments, JSON for the rest."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
MOMENTS = "optimizer.safetensors"
STATE = "state.json"


class TorchCodec:
    """A payload is a set of weights, or the training state beside it."""

    def write(self, payload: Any, folder: Path) -> None:
        if "optimizer" not in payload:
            save_file(_plain(payload), folder / WEIGHTS, metadata={"format": "pt"})
            (folder / WEIGHTS).chmod(0o644)  # it becomes the result, which others may read
            return
        moments = payload["optimizer"]
        save_file(_plain(moments["tensors"]), folder / MOMENTS)
        state = {"steps": moments["steps"], "feed": payload["feed"]}
        (folder / STATE).write_text(json.dumps(state))

    def read(self, folder: Path) -> Any:
        if (folder / WEIGHTS).exists():
            return load_file(folder / WEIGHTS)
        state = json.loads((folder / STATE).read_text())
        moments = {"steps": state["steps"], "tensors": load_file(folder / MOMENTS)}
        return {"optimizer": moments, "feed": state["feed"]}


def _plain(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
