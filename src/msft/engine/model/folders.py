"""Model folders: what is wrong with one, said before a library trips over it. Nothing is loaded,
nothing is executed, and no more of a file is read than its header."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msft.errors import RecipeError
from msft.text import shown

PLACE = ("model_name_or_path",)
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model", "tekken.json"),
)
"""Files one of which a tokenizer has."""
MAX_JSON = 200_000_000
"""Bytes of a JSON file in a model folder; the largest tokenizers have 30 MB."""
MAX_HEADER = 100_000_000
"""Bytes of a safetensors header, as that library has it."""
MOST = {"layers": 1000, "layer": 1000, "blocks": 1000, "experts": 10_000, "heads": 10_000}
"""The most that a config may ask for, by the last word of the key; each is an object to build."""
COUNTS = (
    *("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
)
"""Keys of a config that are whole numbers above 0 where they are given."""


def refuse_broken_config(folder: Path) -> None:
    """RecipeError where `config.json` is none, or asks for what no model has."""
    config = _object(folder / CONFIG)
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        found = f"model_type is {shown(kind)}" if "model_type" in config else "it has no model_type"
        raise _broken(folder / CONFIG, f"{found}; expected the name of an architecture")
    for key, value in _entries(config):
        last = key.rsplit("_", 1)[-1]
        counts = value if isinstance(value, list) and value else [value]  # one for each layer
        if key in COUNTS and value is not None and not all(map(_is_count, counts)):
            raise _broken(folder / CONFIG, f"{key} is {shown(value)}; expected a whole number > 0")
        if isinstance(value, int) and value > MOST.get(last, value):
            raise _broken(folder / CONFIG, f"{key} is {value:,}; expected {MOST[last]:,} at most")


def has_tokenizer(folder: Path) -> bool:
    named = any((folder / name).exists() for name in TOKENIZERS)
    return named or any(folder.glob("*.tiktoken"))


def refuse_broken_tokenizer(folder: Path) -> None:
    """RecipeError where a folder has no tokenizer, or one that is no JSON."""
    if not has_tokenizer(folder):
        raise _broken(
            folder / TOKENIZERS[0],
            "there is no such file; expected the model's tokenizer beside it",
        )
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            content = _object(folder / name)
            if name == "tokenizer.json" and not isinstance(content.get("model"), dict):
                raise _broken(folder / name, "it has no `model`; expected a tokenizer")


def refuse_broken_weights(folder: Path) -> None:
    """RecipeError where a folder has no whole safetensors files."""
    if (folder / INDEX).exists() and not (folder / WEIGHTS).exists():
        places = _object(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise _broken(
                folder / INDEX, "it has no `weight_map`; expected tensors and their files"
            )
        for shard in dict.fromkeys(places.values()):
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise _broken(folder / INDEX, f"it names {shown(shard)}; expected files beside it")
            if not (folder / shard).exists():
                raise _broken(folder / shard, f"there is no such file, but {INDEX} names it")
            refuse_torn(folder / shard)
        return
    if (folder / WEIGHTS).exists() or (folder / WEIGHTS).is_symlink():
        refuse_torn(folder / WEIGHTS)
        return
    others = [
        path.name for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".pt", ".pth")
    ]
    hint = (
        f"; {others[0]} may be a pickle, which can run code, and is not read: convert it"
        if others
        else ""
    )
    raise _broken(folder / WEIGHTS, f"there is no such file; expected the weights{hint}")


def weight_files(folder: Path) -> list[Path]:
    """The files that transformers reads weights from; none where the index cannot be read."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    try:
        names = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        return sorted(folder / Path(name).name for name in names)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def refuse_torn(path: Path) -> None:
    """The header of a safetensors file says how long the file is."""
    if not path.is_file():
        raise _broken(path, "not a regular file; expected safetensors")
    size = path.stat().st_size
    start, header = _start(path, size)
    if start.startswith(b"version "):
        raise _broken(path, "a pointer of Git LFS, not the weights; run `git lfs pull`")
    try:
        tensors = json.loads(header)
        ends = [int(each["data_offsets"][1]) for key, each in tensors.items() if key[:2] != "__"]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise _broken(path, f"{size:,} bytes that are no safetensors; fetch it again") from error
    whole = 8 + len(header) + max(ends, default=0)
    if size != whole:
        raise _broken(path, f"it has {size:,} bytes, its header says {whole:,}; fetch it again")


def _start(path: Path, size: int) -> tuple[bytes, bytes]:
    """The first bytes of a file, and the header of safetensors that they announce."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            return start, file.read(length) if length <= min(MAX_HEADER, size) else b""
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from error


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        what = "not a regular file" if path.exists() else "there is no such file"
        raise _broken(path, f"{what}; expected a JSON object")
    if path.stat().st_size > MAX_JSON:
        raise _broken(path, f"more than {MAX_JSON:,} bytes; expected a JSON object")
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise _broken(path, f"found {shown(content)}; expected a JSON object")
    return content


def _entries(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values, those of inner objects too."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value)
        else:
            yield key, value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _broken(path: Path, reason: str) -> RecipeError:
    return RecipeError(f"{path}: {reason}", PLACE)
