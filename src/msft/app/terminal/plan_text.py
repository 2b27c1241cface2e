"""What `msft plan` prints: one screen from the forecast's plain data."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from msft.text import counted, duration, label, si, table

COLUMNS = (
    *("method", "stages", "epochs", "steps", "tokens", "evals"),
    *("training", "evaluating", "ahead", "all", "evals are", "time"),
)
MOST_STAGES = 12
"""Stages whose steps are listed one by one."""


def plan_text(content: Mapping[str, Any]) -> str:
    """All that a forecast says, from rows to time."""
    blocks = [
        _head(content),
        _data(content),
        _methods(content),
        _search(content),
        _machine(content),
    ]
    if content.get("known"):
        blocks.append(known_text(content["known"]))
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(content: Mapping[str, Any]) -> list[str]:
    where = "a GPU of this machine" if content["device"] == "cuda" else "this machine's CPU"
    return [
        f"{content['method']} on {content['model']}: {si(content['parameters'])} parameters, "
        f"{counted(len(content['datasets']), 'sub-dataset')}, on {where}"
    ]


def _data(content: Mapping[str, Any]) -> list[str]:
    rows: list[Sequence[str]] = [
        ("sub-dataset", "train rows", "tokens", "longest", "scored rows", "tokens", "written")
    ]
    for name, found in content["datasets"].items():
        scored = found["validation"]
        rows.append(
            (
                label(name),
                f"{found['rows']:,}",
                f"{found['tokens']:,}",
                f"{found['longest']:,}",
                f"{scored['rows']:,}",
                f"{scored['tokens']:,}",
                f"≈ {scored['written']:,}" if scored["written"] else "-",
            )
        )
    epoch, evaluation = content["epoch"], content["evaluation"]
    lines = [
        *table(rows),
        f"one epoch: {counted(epoch['rows'], 'row')}, {counted(epoch['tokens'], 'token')}, "
        f"{counted(epoch['steps'], 'step')} of {counted(epoch['batch_size'], 'row')}, "
        f"{counted(epoch['evaluations'], 'evaluation')}",
        f"one evaluation: {counted(evaluation['rows'], 'row')}, "
        f"{counted(evaluation['tokens'], 'token')} through the model (what rows share, once)",
    ]
    if evaluation["written"]:
        lines.append(
            f"  ≈ {evaluation['written']:,} of them are written by the model: as long as the "
            "references, which is an estimate"
        )
    return lines


def _methods(content: Mapping[str, Any]) -> list[str]:
    rows: list[Sequence[str]] = [COLUMNS]
    for name, cases in content["methods"].items():
        mark = "→ " if name == content["method"] else "  "
        same = cases["best"] == cases["worst"]
        for case, found in cases.items():
            if same and case == "worst":
                continue
            shown = mark + name if same else f"{mark}{name}, {case}"
            rows.append((shown, *_cells(found)))
    return [
        *table(rows),
        "training, evaluating, (looking) ahead and all are FLOPs: 6, 2 and 8 for each weight and "
        "token.",
        "→ the recipe's method with its options; the others have the paper's.",
    ]


def _cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    flops = found["flops"]
    return (
        str(len(found["stages"])),
        f"{found['epochs']:g}",
        f"{found['steps']:,}",
        si(found["tokens"]["train"]),
        f"{found['evaluations']:,}",
        si(flops["train"]),
        si(flops["evaluation"]),
        si(flops["lookahead"]) if flops["lookahead"] else "-",
        si(flops["total"]),
        f"{flops['evaluation'] / max(1, flops['total']):.0%}",
        "?" if found["seconds"] is None else duration(found["seconds"]),
    )


def _search(content: Mapping[str, Any]) -> list[str]:
    """The recipe's method, stage by stage."""
    cases = content["methods"][content["method"]]
    shown = ["best", "worst"] if cases["best"] != cases["worst"] else ["best"]
    lines = []
    for case in shown:
        steps = [f"{stage['steps']:,}" for stage in cases[case]["stages"]]
        if not steps:
            continue
        which = f", {case} case" if len(shown) > 1 else ""
        listed = " ".join([*steps[:MOST_STAGES], *["…"] * (len(steps) > MOST_STAGES)])
        if len(steps) > 1 and len(set(steps)) == 1:
            listed = f"{steps[0]} in each"
        lines.append(f"steps of the {counted(len(steps), 'stage')}{which}: {listed}")
    if content["method"] == "msft":
        lines += [
            "best: the largest sub-dataset left leaves after every stage, as soon as it can.",
            "worst: nobody ever overfits, until max_stages or max_epochs ends the search.",
        ]
    return lines


def _machine(content: Mapping[str, Any]) -> list[str]:
    memory, disk = content["memory"], content["disk"]
    where = "GPU memory" if content["device"] == "cuda" else "memory"
    parts = {
        "weights and moments": memory["held"],
        "the base model": memory["base"],
        "a batch, an evaluation or a snapshot": memory["work"],
        "checkpoints": memory["checkpoints"],
        "libraries": memory["libraries"],
    }
    listed = ", ".join(f"{name} {si(size)}B" for name, size in parts.items() if size)
    own = f", beside {si(memory['program'])}B that the program has now" if memory["program"] else ""
    held = disk["checkpoints_in_memory"]
    kept = "in memory, two of them on disk too"
    if held < disk["checkpoints"]:
        kept = f"on disk, since memory has room for {held} only"
    lines = [
        f"{where}: {si(memory['peak'])}B at the peak{own}; {si(memory['free'])}B are free: "
        + _fits(memory["fits"], memory["peak"] <= memory["free"]),
        *textwrap.wrap(listed, 92, initial_indent="  ", subsequent_indent="  "),
        f"disk: {si(disk['peak'])}B at the peak in {disk['out']}; {si(disk['free'])}B are free: "
        + _fits(disk["fits"], True),
        f"  the {disk['checkpoints']} checkpoints that may be needed at a time are {kept}",
    ]
    return [*lines, *_speed(content)]


def _fits(fits: bool, easily: bool) -> str:
    if not fits:
        return "does NOT fit, msft train would refuse"
    return "fits" if easily else "fits only with smaller micro-batches, which the engine takes"


def _speed(content: Mapping[str, Any]) -> list[str]:
    speed = content["calibration"]
    if speed is None:
        return [f"time: not known, since {content['not_calibrated']}"]
    seconds = content["evaluation"]["tokens"] / speed["evaluation_tokens_per_second"]
    sampled = ", from a few rows" if speed["sampled"] else ""
    return [
        f"time, as tried here: {speed['train_tokens_per_second']:,.0f} tokens/s of training, an "
        f"evaluation in {duration(seconds)}{sampled}, loading in {duration(speed['loading'])}"
    ]


def known_text(known: Mapping[str, Any]) -> list[str]:
    """A finished run: what the plan says of its path, and what was."""
    rows: list[Sequence[str]] = [("", "forecast", "was", "apart")]
    for what, pair in known["compared"].items():
        unit = "B" if what.startswith("disk") else ""
        show = duration if what == "seconds" else lambda amount, unit=unit: si(amount) + unit
        cells = ["?" if amount is None else show(amount) for amount in pair]
        rows.append((what, *cells, apart(*pair)))
    return [f"{known['folder']} ({known['method']}), now that its path is known:", *table(rows)]


def apart(forecast: float | None, was: float | None) -> str:
    """How far a forecast lies from what was, in per cent of that."""
    if forecast is None or not was:
        return "-"
    return f"{forecast / was - 1:+.1%}"
