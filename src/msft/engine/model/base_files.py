"""The files that a base model's weights come from, with the size and the SHA-256 of each.

A run records them in its environment.json, an adapter in its folder. A base that has changed since
is refused, with the name of the file. A file is not read again where nothing has touched it: the
record has its inode and its times. Nothing here imports torch.
"""

import json
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from msft.engine.model.adapter_folders import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    FACTS,
    adapter_facts,
    base_of,
    config_digest,
    is_adapter,
)
from msft.engine.model.folders import CONFIG, INDEX, weight_files
from msft.engine.model.tokenizers import TINY, located
from msft.errors import RecipeError, WrongWeights
from msft.run.environment import BaseRecord, changed_files, is_base_record, read_base
from msft.run.folder import RunFolder, write_json
from msft.store.disk import MANIFEST, Digest, Hashes

THREADS = 4
HASHES = Hashes(at_once=2**22, strict=True)
"""What this process knows of files that models were loaded from."""


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


def write_facts(folder: Path, four_bit: bool = False, bf16: bool = False) -> None:
    """What an adapter's config, which is there, does not say: the digests of it and of its base.

    four_bit: the base was held in four bits. bf16: they were packed from bf16, not from fp32.
    """
    facts: dict[str, Any] = {"load_in_4bit": True, "bf16": bf16} if four_bit else {}
    facts["config_sha256"] = config_digest((folder / ADAPTER_CONFIG).read_bytes())
    with suppress(RecipeError, OSError):  # of a Trainer: a base that is in no file
        facts["base"] = {
            file: list(digest) for file, digest in digests_of(base_of(str(folder))).items()
        }
    write_json(folder / FACTS, facts)
