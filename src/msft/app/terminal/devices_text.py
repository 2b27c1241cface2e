"""What `msft plan --devices` prints: the cost of both ways to share, side by side."""

from collections.abc import Callable, Mapping
from typing import Any

from msft.layout import table
from msft.text import counted, duration, si

Cost = Mapping[str, Any]


def _bytes(key: str) -> Callable[[Cost], str]:
    return lambda cost: f"{si(cost[key])}B"


def _seconds(key: str) -> Callable[[Cost], str]:
    return lambda cost: short_time(cost[key])


ROWS: dict[str, Callable[[Cost], str]] = {
    "memory of a device": _bytes("memory"),
    "  what is there whole": _bytes("weights"),
    "  its share": _bytes("owned"),
    "  activations": _bytes("activations"),
    "fits": lambda cost: "yes" if cost["fits"] else "no",
    "a step": _seconds("step"),
    "  sending": _seconds("sending"),
    "times one device": lambda cost: f"{cost['faster']:.1f}",
    "training, worst case": _seconds("training"),
    "evaluating, worst case": _seconds("evaluating"),
    "a snapshot": _bytes("snapshot"),
    "  taking it": _seconds("snapshot_seconds"),
    "a roll-back": _seconds("rollback_seconds"),
    "all checkpoints of a device": _bytes("kept"),
    "disk, all devices": _bytes("disk"),
}
"""Every line, and how it is read from a cost."""


def short_time(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else duration(seconds)


def devices_lines(content: Mapping[str, Any], width: int) -> list[str]:
    """Both ways to share in a table, and what it was computed for."""
    costs, device = content["sharding"], content["assumed"]
    named = counted(content["world"], "device")
    rows = [(f"on {named}", *costs)]
    rows += [(name, *map(read, costs.values())) for name, read in ROWS.items()]
    recomputed = [name for name, cost in costs.items() if cost["recomputed"]]
    lines = [
        *table(rows, width),
        f"computed, not measured: {device['name']}s with {si(device['memory'])}B, "
        f"{device['used']:.0%} of {si(device['flops'])}FLOP/s, {si(device['inside'])}B/s between "
        f"the {device['node']} of a machine and {si(device['between'])}B/s to others",
    ]
    if recomputed:
        lines.append(f"activations are recomputed to fit: {', '.join(recomputed)}")
    fitting = content["fitting"]
    return [
        *lines,
        f"sharding: {fitting} fits" if fitting else "it does not fit on so many devices",
    ]
