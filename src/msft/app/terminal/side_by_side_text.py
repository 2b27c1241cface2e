"""What `msft plan --side-by-side` prints: every run, and all of them on so many devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from msft.app.terminal.plan_text import not_counted_lines
from msft.layout import WIDTH, table
from msft.text import counted, duration, si

HEAD = ("run", "FLOPs, best", "worst", "time, best", "worst", "disk")


def side_by_side_text(content: Mapping[str, Any], width: int = WIDTH) -> str:
    """A line of each run, then all of them; sentences are not wrapped."""
    rows: list[Sequence[str]] = [HEAD]
    for name, run in content["runs"].items():
        rows.append((name, *_cells(run["best"], run["worst"], "seconds"), f"{si(run['disk'])}B"))
    best, worst = content["best"], content["worst"]
    rows.append(("all", *_cells(best, worst, "device_seconds"), f"{si(content['disk'])}B"))
    blocks = [[*table(rows, width), *not_counted_lines(content["not_counted"])]]
    if content["runs"]:
        blocks.append([*_together(content), *_memory(content)])
    return "\n\n".join("\n".join(block) for block in blocks)


def _cells(best: Mapping[str, Any], worst: Mapping[str, Any], seconds: str) -> tuple[str, ...]:
    flops = (si(best["flops"]), si(worst["flops"]))
    return (*flops, duration(best[seconds]), duration(worst[seconds]))


def _together(content: Mapping[str, Any]) -> list[str]:
    ends = [duration(content[which]["seconds"]) for which in ("best", "worst")]
    longest = max(content["runs"], key=lambda name: content["runs"][name]["worst"]["seconds"])
    alone = duration(content["runs"][longest]["worst"]["seconds"])
    device = content["assumed"]
    how = "time, as tried here, for devices like this one"
    if not content["measured"]:
        how = (
            f"time is computed, not measured, since {content['not_measured']}: {device['name']}s, "
            f"{device['used']:.0%} of {si(device['flops'])}FLOP/s"
        )
    return [
        f"{counted(len(content['runs']), 'run')} on {counted(content['devices'], 'device')}, one "
        f"on each, the longest first: {ends[0]} in the best case, {ends[1]} in the worst",
        f"the longest run alone: {longest}, {alone} in the worst case",
        how,
        "FLOPs and time are those of each run alone; msft compare trains a first roll-out that "
        "several runs have in common once",
        "disk: the most of every run, if all folders stay",
    ]


def _memory(content: Mapping[str, Any]) -> list[str]:
    """What a run of each model needs of one device, however small its micro-batches are."""
    most: dict[str, tuple[int, bool]] = {}
    for run in content["runs"].values():
        least, fits = most.get(run["model"], (0, True))
        memory = run["memory"]
        most[run["model"]] = max(least, memory["least"]), fits and memory["fits"]
    told = [
        f"{model} {si(least)}B{'' if fits else ', which does NOT fit'}"
        for model, (least, fits) in most.items()
    ]
    return [f"memory of {content['memory_of']}, at least: {', '.join(told)}"]
