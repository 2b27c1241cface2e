"""How weights become files: safetensors for weights and moments, JSON for the rest.

`TorchCodec` writes and reads checkpoints. It writes files by hand, piece by piece: `save_file` of
safetensors copies every tensor while it holds the interpreter's lock, and training would wait.
`Copies` brings tensors from a device to the host on a stream beside the training.

`PublishedModel` writes a model as others know it: the names, buffers, dtypes, shards and config of
`save_pretrained`. In memory a model of transformers can have other tensors than its files: experts
lie together, layers have new names. Checkpoints have the names in memory and no buffers; a
published model has those of the files. A copy of the model without weights, on the meta device,
says what they are.
"""

import copy
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from msft.engine.model.folders import INDEX, WEIGHTS
from msft.engine.model.loading import LoadedModel
from msft.files import replace_bytes

MOMENTS = "optimizer.safetensors"
STATE = "state.json"

PIECE = 2**25
"""Bytes that are copied from a device and written at a time."""

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Dtypes by their names in safetensors."""


class Copies:
    """Copies tensors on a stream of their own: after the training that made them, and without
    letting training wait for the copies.

    On the CPU there is nothing to copy or to wait for. Another thread uses this while
    the main one trains, so a CUDA graph must be captured with `capture_error_mode="thread_local"`.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device is not None and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self, payload: Any) -> Any:
        """Let copies that start from now on wait for the work that this thread has queued."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return payload

    def to_host(self, payload: Any) -> Any:
        """A nested payload in pinned host memory; `arrive` or `wait` before it is read.

        torch keeps pinned memory that is freed, and gives it out again.
        """
        self.follow(payload)
        return self._to_host(payload)

    def _to_host(self, payload: Any) -> Any:
        if isinstance(payload, Tensor) and payload.device.type == "cuda":
            held = torch.empty_like(payload, device="cpu", pin_memory=True)
            self.start(held, payload)
            if self._stream is not None:  # keeps the source's memory until the copy is done
                payload.record_stream(self._stream)
            return held
        if isinstance(payload, dict):
            return {key: self._to_host(part) for key, part in payload.items()}
        return payload

    def flat(self, tensor: Tensor) -> Tensor:
        """A tensor's bytes, on its device."""
        with torch.cuda.stream(self._stream):
            return tensor.detach().contiguous().reshape(-1).view(torch.uint8)

    def start(self, target: Tensor, source: Tensor) -> None:
        """Begin one copy; the source must stay until it is done."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def arrive(self) -> None:
        """Let work that this thread queues from now on wait for the copies."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def wait(self) -> None:
        """Wait here until all copies are done."""
        if self._stream is not None:
            self._stream.synchronize()


def part_name(file: str, number: int, world: int) -> str:
    """The file that one of `world` ranks writes, named as a shard of transformers; with one rank
    the whole file."""
    stem, _, kind = file.partition(".")
    return file if world == 1 else f"{stem}-{number:05}-of-{world:05}.{kind}"


def parts_in(folders: Sequence[Path], file: str) -> list[Path]:
    """The file in these folders, whole or in parts."""
    stem, _, kind = file.partition(".")
    every = [path for folder in folders for path in sorted(folder.glob(f"{stem}*.{kind}"))]
    return [path for path in every if path.name == file or path.name.startswith(f"{stem}-")]


class TorchCodec:
    """Writes and reads payloads: sets of weights, and the training state beside them.

    place: this rank's number, from 1, and the number of ranks that write a payload together.
    owned: names of the weights that this rank reads; None: all weights.
    weights: the name of the file with weights.
    """

    def __init__(
        self,
        copies: Copies | None = None,
        place: tuple[int, int] = (1, 1),
        owned: Collection[str] | None = None,
        weights: str = WEIGHTS,
    ) -> None:
        self._copies = copies or Copies()
        self._weights = weights
        self._buffer: Tensor | None = None
        self._place = place
        self._owned = owned

    def write(self, payload: Any, folder: Path) -> None:
        self._copies.wait()
        if "optimizer" not in payload:
            weights = folder / part_name(self._weights, *self._place)
            save_tensors(payload, weights, {"format": "pt"}, self._pieces)
            weights.chmod(0o644)  # it becomes the result, which others may read
            return
        moments = payload["optimizer"]
        path = folder / part_name(MOMENTS, *self._place)
        save_tensors(moments["tensors"], path, pieces=self._pieces)
        state = {"steps": moments["steps"], "feed": payload["feed"]}
        (folder / STATE).write_text(json.dumps(state))

    def read(self, folder: Path) -> Any:
        return self.collect([folder])

    def collect(self, folders: Sequence[Path]) -> Any:
        """One payload from the folders that ranks wrote."""
        weights = parts_in(folders, self._weights)
        if weights:
            return self._loaded(weights, lambda name: name)
        state = json.loads((folders[0] / STATE).read_text())
        tensors = self._loaded(parts_in(folders, MOMENTS), lambda name: name.rpartition(".")[0])
        moments = {"steps": state["steps"], "tensors": tensors}
        return {"optimizer": moments, "feed": state["feed"]}

    def _loaded(self, files: Sequence[Path], weight_of: Callable[[str], str]) -> dict[str, Tensor]:
        """The tensors of these files that belong to weights that this rank reads.

        weight_of: the weight that a tensor belongs to, by the tensor's name.
        """
        owned, found = self._owned, dict[str, Tensor]()
        for file in files:
            if owned is None:
                found |= load_file(file)
                continue
            with safe_open(file, "pt") as held:
                names = [name for name in held.keys() if weight_of(name) in owned]  # noqa: SIM118
                found |= {name: held.get_tensor(name) for name in names}
        return found

    def _pieces(self, tensor: Tensor) -> Iterator[memoryview]:
        """A tensor's bytes, in host memory; a piece is valid until the next one is asked for."""
        flat = self._copies.flat(tensor)
        if flat.device.type == "cpu":
            yield flat.numpy().data
            return
        if self._buffer is None:
            self._buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
        for piece in torch.split(flat, PIECE):
            held = self._buffer[: len(piece)]
            self._copies.start(held, piece)
            self._copies.wait()
            yield held.numpy().data


def _host_pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor that is in host memory."""
    yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def save_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    pieces: Callable[[Tensor], Iterator[memoryview]] = _host_pieces,
) -> None:
    """A safetensors file: the header's length, the header, the tensors, wide ones first.

    pieces: a tensor's bytes, in host memory.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        place = {"shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[name] = {"dtype": TYPES[tensor.dtype], **place}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for piece in pieces(tensors[name]):
                file.write(piece)


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
