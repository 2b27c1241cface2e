"""Run folders of earlier versions: what their environment.json does not say, from their recipe."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from msft.benchmarks import PUBLIC
from msft.files import DAMAGED, read_text
from msft.run.folder import RunFolder


def groups_by_recipe(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The groups of those sub-datasets that are benchmarks by the recipe.yaml of a run, whole or in
    parts by `split_by`; none where that file is missing or damaged."""
    groups: dict[str, str] = {}
    try:
        content = yaml.safe_load(read_text(RunFolder(folder).recipe))
        for spec in content["datasets"]:
            own, key = str(spec["name"]), str(spec.get("benchmark"))
            parts = (f"{own}.",) if spec.get("split_by") is not None else ()
            for name in names if key in PUBLIC else ():
                if name == own or name.startswith(parts):
                    groups.setdefault(name, PUBLIC[key].group)
    except DAMAGED:
        return {}
    except yaml.YAMLError:
        return {}
    return groups
