"""The warm-up of another tool's config as a number of steps."""

from math import ceil
from pathlib import Path

from msft.recipe.draft import DEFAULT, Draft
from msft.recipe.foreign_defaults import AXOLOTL, WARM_UP
from msft.recipe.foreign_entries import trained_in
from msft.recipe.foreign_keys import FOREIGN

WARM_UP_KEYS = ("warmup_steps", "warmup_ratio")


def read_warm_up(draft: Draft, place: Path) -> None:
    """`warmup_steps`, given as a number or as a share of the steps. The other keys have been read.

    A share can be counted where the rows can; else it is said what to write.
    """
    given = [key for key in WARM_UP_KEYS if draft.config.get(key)]
    draft.silent += [key for key in WARM_UP_KEYS if key in draft.config and key not in given]
    if draft.keys.get("lr_scheduler_type") == "constant":
        for key in given:
            draft.leave(key, "a constant rate has no warm-up; constant_with_warmup has")
    elif given:
        for key in given:
            _read(draft, place, key)
    elif draft.tool == AXOLOTL and not draft.config.keys() & {*WARM_UP_KEYS}:
        share, most = WARM_UP
        steps = _steps(draft, place)
        if steps is None:
            draft.remarks["warmup_steps"] = (
                f"Axolotl warms up over {share:.0%} of the steps, {most} at most; msft does not: "
                f"{FOREIGN['warmup_ratio'].answer}"
            )
        else:
            count = min(int(share * steps), most)
            note = f"{DEFAULT}: {share:.0%} of {steps:,} steps"
            draft.carry("warmup_steps", "warmup_steps", count, note)


def _read(draft: Draft, place: Path, key: str) -> None:
    """transformers 5 takes a number below 1 under `warmup_steps` as a share."""
    value = draft.config[key]
    if key == "warmup_steps" and value >= 1:
        draft.carry(key, key, int(value))
        return
    steps = _steps(draft, place)
    if steps is None:
        draft.leave(key, FOREIGN["warmup_ratio"].answer)
    else:
        draft.carry(key, "warmup_steps", ceil(value * steps), f"{value:g} of {steps:,} steps")


def _steps(draft: Draft, place: Path) -> int | None:
    """About as many steps as the run has on one device; None where the rows cannot be counted."""
    if "max_steps" in draft.left:
        return None
    total = 0.0
    for spec in draft.datasets:
        rows = trained_in(spec, place)
        if rows is None:
            return None
        total += rows * spec.get("weight", 1)
    an_epoch: int = ceil(total / draft.keys["train_batch_size"])
    return ceil(an_epoch * float(draft.keys["num_train_epochs"]))
