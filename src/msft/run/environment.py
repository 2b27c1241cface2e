"""What a run was made with: versions and device, for its report and for bug reports."""

import json
import platform
from importlib import metadata
from pathlib import Path

from msft.run.folder import write_text

PACKAGES = ("msft", "torch", "transformers", "accelerate", "datasets", "safetensors")

Environment = dict[str, str]
"""Names and versions. No host and no path, so that a report can be shown to others."""


def versions() -> Environment:
    """Python, the system and the packages that results may depend on."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    return found | {package: _version(package) for package in PACKAGES}


def environment() -> Environment:
    """The versions, and the device that trains; loads torch."""
    import torch

    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else f"cpu, threads: {torch.get_num_threads()}"
    return versions() | {"device": device} | ({"cuda": str(torch.version.cuda)} if cuda else {})


def record_environment(path: Path, now: Environment) -> None:
    """Add to a run's environments, in the order of use, unless it is the last one already."""
    known = read_environments(path)
    if known[-1:] != [now]:
        write_text(path, json.dumps([*known, now], indent=2) + "\n")


def read_environments(path: Path) -> list[Environment]:
    """The environments of a run; none where the file is missing or is not one of ours."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    items = raw if isinstance(raw, list) else []
    return [
        {str(key): str(value) for key, value in item.items()}
        for item in items
        if isinstance(item, dict)
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
