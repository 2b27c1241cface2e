"""What a run was made with: versions, device and the groups of its benchmarks, for its report and
for bug reports."""

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from msft.errors import Diverged
from msft.files import DAMAGED, read_text
from msft.run.folder import write_json

PACKAGES = ("msft", "torch", "transformers", "accelerate", "datasets", "safetensors")
OF_ADAPTERS = ("peft", "bitsandbytes")
"""Packages that only runs with an adapter depend on."""

BEGAN = "began"
"""When a run was begun with an environment, in UTC."""

_APART = ("groups", "base", BEGAN)
"""Keys of `environment.json` that say nothing of the environment itself."""

ROLLOUT_FROM = "rollout_from"
"""Of a run that took its first roll-out over from another one: that run's folder."""

BaseRecord = dict[str, list[Any]]
"""The files that a run's base model came from, by name: size, SHA-256, and what tells whether the
file was touched since (None: it was too young to tell)."""

Environment = dict[str, str]
"""Names and versions. No host and no path, so that a report can be shown to others."""


def versions(more: Iterable[str] = ()) -> Environment:
    """Python, the system and the packages that results may depend on.

    more: those that not every run depends on.
    """
    found = {"python": platform.python_version(), "system": platform.platform()}
    return found | {package: version_of(package) for package in (*PACKAGES, *more)}


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def environment(more: Iterable[str] = ()) -> Environment:
    """The versions, and the device that trains; loads torch."""
    import torch

    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else f"cpu, threads: {torch.get_num_threads()}"
    found = versions(more) | {"device": device}
    return found | ({"cuda": str(torch.version.cuda)} if cuda else {})


def record_environment(
    path: Path, now: Environment, groups: Mapping[str, str], base: BaseRecord | None = None
) -> None:
    """Add to a run's environments, in the order of use, unless it is the last one already.

    groups: the groups of the sub-datasets that are benchmarks; written as `groups` of the last
        environment.
    base: written as `base` of the last environment; None: the recorded base stays.

    The run that lent a first roll-out stays recorded, too.
    """
    base = base or read_base(path)
    lender = now.get(ROLLOUT_FROM) or rollout_from(path)
    now = now | ({ROLLOUT_FROM: lender} if lender else {})
    items = _items(path)
    if read_environments(path)[-1:] != [now]:
        items.append(now | {BEGAN: datetime.now(UTC).strftime("%Y-%m-%d %H:%M")})
    elif items[-1].get("groups") == groups and items[-1].get("base") == base:
        return
    items[-1] |= {"groups": dict(groups)} | ({"base": base} if base else {})
    write_json(path, items)


def check_environment(
    path: Path,
    now: Environment,
    base: BaseRecord,
    deterministic: bool,
    notice: Callable[[str], None],
) -> None:
    """Say that a run goes on with another torch, transformers or device; Diverged where it was
    promised the same bits, or where its base model has changed.

    The number of threads is not compared. A run of an earlier version recorded no base.
    """
    before = read_environments(path)[-1:]
    others = "; ".join(
        f"{key} was {was}, now it is {now[key].split(', threads')[0]}"
        for key in ("torch", "transformers", *OF_ADAPTERS, "device", "cuda")
        if before
        and key in before[0]
        and key in now
        and (was := before[0][key].split(", threads")[0]) != now[key].split(", threads")[0]
    )
    if others and deterministic:
        raise Diverged(
            f"{path.parent}: {others}, so the bits may differ, and the recipe says deterministic: "
            "true; go on with what it was begun with, or begin anew with another --out"
        )
    if others:
        notice(f"{others}: the bits may differ from those of a run left alone")
    changed = changed_files(read_base(path) or {}, base) if base else []
    if changed:
        raise Diverged(
            f"the base model has changed since {path.parent} was begun: {'; '.join(changed)}. Put "
            "back what the run began with, or begin anew with another --out"
        )


def changed_files(then: Mapping[str, Sequence[Any]], now: Mapping[str, Sequence[Any]]) -> list[str]:
    """What is different about files that have a size and a digest each, for people to read."""
    found = []
    for file in sorted({**then, **now} if then else {}):
        if file not in now:
            found.append(f"{file} is not there")
        elif file not in then:
            found.append(f"{file} was not there")
        elif then[file][:2] != now[file][:2]:
            size, digest = then[file][:2]
            here = f"{now[file][0]:,} bytes with SHA-256 {now[file][1][:12]}…"
            found.append(f"{file} was {size:,} bytes with SHA-256 {digest[:12]}…, now {here}")
    return found


def read_base(path: Path) -> BaseRecord | None:
    """The files of the base model; None where the version that trained did not record them."""
    for item in reversed(_items(path)):
        if is_base_record(found := item.get("base")):
            return dict(found)
    return None


def is_base_record(content: Any) -> bool:
    """Whether the content is a `BaseRecord`: a list of size, digest and identity for each file."""
    return isinstance(content, dict) and all(
        isinstance(value, list)
        and [type(each) for each in value[:2]] == [int, str]
        and all(rest is None or isinstance(rest, list) for rest in value[2:])
        and all(type(each) is int for rest in value[2:] for each in rest or ())
        for value in content.values()
    )


def read_environments(path: Path) -> list[Environment]:
    """The environments of a run; none where the file is missing or is not one of ours."""
    return [
        {str(key): str(value) for key, value in item.items() if key not in _APART}
        for item in _items(path)
    ]


def begun_on(path: Path) -> str | None:
    """When a run was begun; None where the version that trained did not record it."""
    return next((str(item[BEGAN]) for item in _items(path) if BEGAN in item), None)


def rollout_from(path: Path) -> str | None:
    """The run whose first roll-out a run took over; None where it trained by itself."""
    found = [item[ROLLOUT_FROM] for item in read_environments(path) if ROLLOUT_FROM in item]
    return found[-1] if found else None


def read_groups(path: Path) -> dict[str, str]:
    """The groups by sub-dataset; none where the version that trained did not record them."""
    for item in reversed(_items(path)):
        if isinstance(item.get("groups"), dict):
            return {str(name): str(group) for name, group in item["groups"].items()}
    return {}


def _items(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        raw = json.loads(read_text(path))
    except DAMAGED:
        return []
    return [item for item in raw if isinstance(item, dict)] if isinstance(raw, list) else []
