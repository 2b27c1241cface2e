"""What `msft plan` prints: one screen from the forecast's plain data; with `--devices` the cost of
both ways to share a run, with `--side-by-side` every run of a comparison."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msft.search.curves import TEST
from msft.search.rollout import LEAN
from msft.text import SELECTED_ON_TEST, WIDTH, counted, duration, listed, plain, si, table

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


COLUMNS = (
    *("method", "stages", "epochs", "steps", "tokens", "evals", "FLOPs", "time"),
    *("training", "evaluating", "of all", "looking ahead"),
)
MOST_STAGES = 12
"""Stages whose steps are listed one by one."""


def plan_text(content: Mapping[str, Any], width: int = WIDTH) -> str:
    """All that a forecast says: time, memory and disk first; sentences are not wrapped."""
    blocks = (
        [*_head(content), *_costs(content)],
        _data(content, width),
        _methods(content, width),
        _stages(content),
        _details(content),
        *([devices_lines(content["devices"], width)] if content.get("devices") else []),
    )
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _head(content: Mapping[str, Any]) -> list[str]:
    where = "a GPU of this machine" if content["device"] == "cuda" else "this machine's CPU"
    lines = [
        f"{content['method']} on {content['model']}: {si(content['parameters'])} parameters, "
        f"{counted(len(content['datasets']), 'sub-dataset')}, on {where}"
    ]
    if "trainable" in content:
        share = content["trainable"] / content["frozen"]
        lines.append(
            f"an adapter: {content['trainable']:,} weights are trained ({share:.2%}), "
            f"{content['frozen']:,} are frozen"
        )
    return lines


def _costs(content: Mapping[str, Any]) -> list[str]:
    """Time, memory and disk: what a person decides by."""
    memory, disk = content["memory"], content["disk"]
    cases = content["methods"].get(content["method"])
    if content["calibration"] is None:
        time = f"not known, since {content['not_calibrated']}"
    elif cases is None:
        time = "not known, since the method is not counted"
    else:
        best, worst = (duration(cases[which]["seconds"]) for which in ("best", "worst"))
        time = f"{best} in the best case, {worst} in the worst"
        time = best if cases["best"] == cases["worst"] else time
    kind = "GPU memory" if content["device"] == "cuda" else "memory"
    return [
        f"time: {time}",
        f"{kind}: {_peak(memory)}: {_fits(memory['fits'], memory['peak'] <= memory['free'])}",
        f"disk: {_peak(disk)}: {_fits(disk['fits'])}",
    ]


def _peak(found: Mapping[str, Any]) -> str:
    return f"{si(found['peak'])}B at the peak, {si(found['free'])}B free"


def _fits(fits: bool, easily: bool = True) -> str:
    if not fits:
        return "does NOT fit, msft train would refuse"
    return "fits" if easily else "fits only with smaller micro-batches, which the engine takes"


def _later(epoch: tuple[str, Mapping[str, int]]) -> str:
    first, size = epoch
    sizes = ", ".join(counted(size[f"{noun}s"], noun) for noun in ("row", "token", "step"))
    return f"from epoch {first} on (the first is 0): {sizes}"


def _data(content: Mapping[str, Any], width: int) -> list[str]:
    rows: list[Sequence[str]] = [
        ("sub-dataset", "train rows", "tokens", "longest", "scored rows", "tokens", "written")
    ]
    for name, dataset in {**content["datasets"], **content["watched"]}.items():
        scored = dataset[content["selection_split"]]
        is_watched = name in content["watched"]
        train = [f"{dataset[key]:,}" for key in ("rows", "tokens", "longest") if not is_watched]
        rows.append(
            (
                plain(name, keep="") + (", watched" if is_watched else ""),
                *(train or ("-", "-", "-")),
                f"{scored['rows']:,}",
                f"{scored['tokens']:,}",
                f"≈ {scored['written']:,}" if scored["written"] else "-",
            )
        )
    epoch, evaluation = content["epoch"], content["evaluation"]
    lines = [
        *table(rows, width),
        f"one epoch: {counted(epoch['rows'], 'row')}, {counted(epoch['tokens'], 'token')}, "
        f"{counted(epoch['steps'], 'step')} of {counted(epoch['batch_size'], 'row')}, "
        f"{counted(epoch['evaluations'], 'evaluation')}",
        *map(_later, epoch.get("later_epochs", {}).items()),
        f"one evaluation: {counted(evaluation['rows'], 'row')}, "
        f"{counted(evaluation['tokens'], 'token')} through the model",
    ]
    if evaluation["written"]:
        lines.append(
            f"written: ≈ {evaluation['written']:,} of these tokens, if answers are as long as the "
            "references"
        )
    if content["selection_split"] == TEST:
        lines.append(f"note: the scored rows are those of test. {SELECTED_ON_TEST}")
    return lines


def _methods(content: Mapping[str, Any], width: int) -> list[str]:
    rows: list[Sequence[str]] = [COLUMNS]
    for name, cases in content["methods"].items():
        mark = "→ " if name == content["method"] else "  "
        same = cases["best"] == cases["worst"]
        for which, case in list(cases.items())[: 1 if same else 2]:
            rows.append((mark + name if same else f"{mark}{name}, {which}", *_cells(case)))
    return [
        *table(rows, width, COLUMNS.index("training")),
        "→ the recipe's method with its options; the others have the paper's.",
        "FLOPs are those of training, evaluating (of all: its share) and looking ahead.",
        *not_counted_lines(content["not_counted"]),
    ]


def not_counted_lines(left_out: Mapping[str, str]) -> list[str]:
    """The methods that are left out, with the reason; methods with the same reason together."""
    named: dict[str, list[str]] = {}
    for name, why in left_out.items():
        named.setdefault(why, []).append(name)
    return [f"not counted: {listed(names)}, since {why}" for why, names in named.items()]


def _cells(case: Mapping[str, Any]) -> tuple[str, ...]:
    flops = case["flops"]
    return (
        str(len(case["stages"])),
        f"{case['epochs']:g}",
        f"{case['steps']:,}",
        si(case["tokens"]["train"]),
        f"{case['evaluations']:,}",
        si(flops["total"]),
        "?" if case["seconds"] is None else duration(case["seconds"]),
        si(flops["train"]),
        si(flops["evaluation"]),
        f"{flops['evaluation'] / max(1, flops['total']):.0%}",
        si(flops["lookahead"]) if flops["lookahead"] else "-",
    )


CASES = {
    "early stopping": (
        "the mean never rises, so that early_stopping_patience ends the run",
        "the mean rises to the end",
    ),
    "msft": (
        "the largest sub-dataset left leaves after every stage, as soon as it can",
        "no sub-dataset ever overfits, until max_stages or max_epochs ends the search",
    ),
}
"""The meaning of the best and of the worst case."""


def _stages(content: Mapping[str, Any]) -> list[str]:
    """Steps of each stage of the recipe's method, and what its cases mean."""
    cases = content["methods"].get(content["method"])
    if cases is None:
        return []
    patient = content["early_stopping_patience"] is not None
    meant: tuple[str, ...] = CASES.get("early stopping" if patient else content["method"], ("", ""))
    if cases["best"] == cases["worst"]:
        cases, meant = {"": cases["best"]}, ("",)
    lines = []
    for (which, case), meaning in zip(cases.items(), meant, strict=True):
        steps = [f"{stage['steps']:,}" for stage in case["stages"]]
        shown = " ".join([*steps[:MOST_STAGES], *["…"] * (len(steps) > MOST_STAGES)])
        if len(steps) > 1 and len(set(steps)) == 1:
            shown = f"{steps[0]} in each"
        said = [f"steps of the {counted(len(steps), 'stage')}: {shown}"] if steps else []
        said += [meaning] if meaning else []
        if said:
            lines.append((f"{which}: " if which else "") + "; ".join(said))
    return lines


def _details(content: Mapping[str, Any]) -> list[str]:
    """Where checkpoints lie, the speed that was tried, and the cost of an audit; the parts of
    memory and disk are in `--json`."""
    disk, speed = content["disk"], content["calibration"]
    place = "in memory, two of them on disk too"
    if disk["policy"] != LEAN:
        place = f"on disk (disk_policy: {disk['policy']}), but for the newest"
    elif disk["checkpoints_in_memory"] < disk["checkpoints"]:
        place = f"on disk, since memory has room for {disk['checkpoints_in_memory']} only"
    count = disk["checkpoints"]
    lines = [f"the {count} checkpoints that may be needed at a time are {place}"]
    if speed is not None:
        seconds = content["evaluation"]["tokens"] / speed["evaluation_tokens_per_second"]
        rate = f"{speed['train_tokens_per_second']:,.0f}"
        lines.append(
            f"time, as tried here: {rate} tokens/s of training, an evaluation in "
            f"{duration(seconds)}, loading in {duration(speed['loading'])}"
        )
    if audit := content["audit_round"]:
        time = "" if audit["seconds"] is None else f", {duration(audit['seconds'])}"
        lines.append(
            f"msft audit: a round trains {counted(audit['steps'], 'step')} on "
            f"{si(audit['tokens']['train'])} tokens, {si(audit['flops']['total'])}FLOPs{time}; a "
            "second one follows if a sub-dataset is spoiled"
        )
    return lines


def side_by_side_text(content: Mapping[str, Any], width: int = WIDTH) -> str:
    """A line of each run, then all of them; sentences are not wrapped."""
    rows: list[Sequence[str]] = [
        ("run", "FLOPs, best", "worst", "time, best", "worst", "disk"),
    ]
    for name, run in content["runs"].items():
        rows.append(
            (name, *_cost_cells(run["best"], run["worst"], "seconds"), f"{si(run['disk'])}B")
        )
    best, worst = content["best"], content["worst"]
    rows.append(("all", *_cost_cells(best, worst, "device_seconds"), f"{si(content['disk'])}B"))
    blocks = [[*table(rows, width), *not_counted_lines(content["not_counted"])]]
    if content["runs"]:
        blocks.append([*_together(content), *_memory(content)])
    return "\n\n".join("\n".join(block) for block in blocks)


def _cost_cells(best: Mapping[str, Any], worst: Mapping[str, Any], seconds: str) -> tuple[str, ...]:
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
    """The memory that a run of each model needs on one device with the smallest micro-batches."""
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
