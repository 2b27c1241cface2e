"""Run folders of earlier versions: what their environment.json does not say, from their recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from msft.benchmarks import PUBLIC
from msft.run.folder import RunFolder


def groups_by_recipe(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The groups of those sub-datasets that are benchmarks by the recipe.yaml of a run."""
    groups: dict[str, str] = {}
    specs = _specs(RunFolder(folder).recipe)
    for name in names:
        spec = next((each for each in specs if _is_of(name, each)), {})
        benchmark = PUBLIC.get(str(spec.get("benchmark")))
        if benchmark is not None:
            groups[name] = benchmark.group
    return groups


def _specs(recipe: Path) -> list[Mapping[str, Any]]:
    try:
        content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    specs = content.get("datasets") if isinstance(content, dict) else None
    return [spec for spec in specs if isinstance(spec, dict)] if isinstance(specs, list) else []


def _is_of(name: str, spec: Mapping[str, Any]) -> bool:
    """Whether a sub-dataset is this one, or a part of it by `split_by`."""
    own = str(spec.get("name"))
    return name == own or (spec.get("split_by") is not None and name.startswith(f"{own}."))
