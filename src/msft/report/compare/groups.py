"""Groups of sub-datasets, as the tables of the paper have them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msft.run.folder import RunFolder

UNGROUPED = "own data"


def groups_of(folder: Path, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Sub-datasets by the groups of their benchmarks, as the run's recipe.yaml names them; empty
    where there are not two groups."""
    from msft.benchmarks import PUBLIC

    grouped: dict[str, list[str]] = {}
    specs = _specs(RunFolder(folder).recipe)
    for name in names:
        spec = next((s for s in specs if _is_of(name, s)), {})
        benchmark = PUBLIC.get(str(spec.get("benchmark")))
        grouped.setdefault(benchmark.group if benchmark else UNGROUPED, []).append(name)
    return {group: tuple(held) for group, held in grouped.items()} if len(grouped) > 1 else {}


def _specs(recipe: Path) -> list[Mapping[str, Any]]:
    import yaml

    try:
        content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []
    specs = content.get("datasets") if isinstance(content, dict) else None
    return [s for s in specs if isinstance(s, dict)] if isinstance(specs, list) else []


def _is_of(name: str, spec: Mapping[str, Any]) -> bool:
    """Whether a sub-dataset is this one, or a part of it by `split_by`."""
    own = str(spec.get("name"))
    return name == own or (spec.get("split_by") is not None and name.startswith(f"{own}."))
