"""Adapter folders of peft: an adapter's weights, and the name of the base that they belong to.

Importing this file imports neither torch nor peft: a base that cannot be found is refused before
anything is loaded.
"""

import importlib.util
import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

from msft.engine.model.folders import CONFIG, PLACE, refuse_torn
from msft.errors import RecipeError
from msft.run.folder import RunFolder
from msft.text import shown

ADAPTER = "default"
"""What peft calls the only adapter of a model; files do not name it."""
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
