"""What `msft env` prints: versions, devices, and which paths an engine would take here."""

from dataclasses import asdict
from typing import Any

from msft.engine.kernels import Paths, machine_paths
from msft.run.environment import OF_ADAPTERS, versions


def env_content() -> dict[str, Any]:
    """For `--json`."""
    import torch

    devices: list[Any] = [
        torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())
    ]
    cuda = [{"name": d.name, "gib": round(d.total_memory / 2**30)} for d in devices]
    return {
        **versions(OF_ADAPTERS),
        "cpu_threads": torch.get_num_threads(),
        "cuda": cuda,
        "paths": asdict(machine_paths()),
    }


def env_text(content: dict[str, Any]) -> str:
    """For a terminal."""
    beside = ("cpu_threads", "cuda", "paths")
    lines = [f"{name} {version}" for name, version in content.items() if name not in beside]
    lines.append(f"cpu threads {content['cpu_threads']}")
    lines += [
        f"cuda:{number} {device['name']}, {device['gib']} GiB"
        for number, device in enumerate(content["cuda"])
    ]
    if not content["cuda"]:
        lines.append("no cuda device")
    return "\n".join([*lines, str(Paths(**content["paths"]))])
