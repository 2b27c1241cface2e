"""What another tool's config counts in steps: the batch, the length, the warm-up, evaluations."""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

from msft.checks import shown
from msft.errors import RecipeError
from msft.recipe.draft import DEFAULT, Draft
from msft.recipe.foreign_defaults import AXOLOTL, BATCH, NEWER, PACKING, SWIFT, WARM_UP
from msft.recipe.foreign_entries import trained_in
from msft.recipe.foreign_keys import FOREIGN
from msft.recipe.recipe import Recipe

_WARM_UP_KEYS = ("warmup_steps", "warmup_ratio")
_TOTALS = {AXOLOTL: "batch_size", NEWER: "global_batch_size"}
"""Keys that say the whole batch."""
STEP_KEYS = {
    *(*_WARM_UP_KEYS, "max_steps", "eval_steps", *_TOTALS.values()),
    *(key for factors in BATCH.values() for key, _ in factors),
}
"""Keys that are read here."""

Lengths = Callable[[Draft], tuple[Sequence[int], str] | None]
"""Tokens of rows that stand for all rows of a mixture, and how they were counted; None where the
rows cannot be read."""


def read_steps(draft: Draft, place: Path, lengths: Lengths) -> None:
    """The batch first, since the others follow from it. All other keys have been read."""
    _read_batch(draft, lengths)
    _read_length(draft, place)
    _read_warm_up(draft, place)
    _read_evaluations(draft, place)


def _read_batch(draft: Draft, lengths: Lengths) -> None:
    """The rows of a step. Axolotl's `batch_size` is all of them, in steps of `micro_batch_size`."""
    factors, total = _factors(draft), _TOTALS.get(draft.tool, "")
    if total in draft.config:
        if "gradient_accumulation_steps" in draft.config:
            draft.leave(total, "gradient_accumulation_steps says it")
        else:
            factors = ((total, 1),)
    if "micro_batch_size" in draft.config and factors[0][0] == total:
        draft.leave("micro_batch_size", "msft chooses micro-batches by itself")
    count = 1
    for key, default in factors:
        found = draft.config.get(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise RecipeError(f"{key} is {shown(found)}; expected a whole number above 0")
        count *= found
    names = " × ".join(key for key, _ in factors)
    devices = "on one device; times the devices you used"
    if not _is_packed(draft):
        draft.carry(names, "train_batch_size", count, devices)
        return
    length = draft.config.get("packing_length", draft.keys.get("max_length", Recipe.max_length))
    read = lengths(draft)
    fitting = [tokens for tokens in (read[0] if read else ()) if tokens <= length]
    if read is None or not fitting:
        draft.leave(
            names,
            f"theirs counts packed sequences: {count:,} of {length:,} tokens, {devices}. The rows "
            f"cannot be read here, so write train_batch_size: {count * length:,} / the mean tokens "
            f"of a row, which `msft validate` shows (without it: {Recipe.train_batch_size})",
            changes=True,
        )
        return
    each = _rows_a_sequence(fitting, length, draft.config.get("packing_strategy") == "wrapped")
    draft.carry(
        names,
        "train_batch_size",
        max(1, round(count * each)),
        f"{count:,} packed sequences of {length:,} tokens, {each:.3g} rows in each "
        f"(rows of {sum(fitting) / len(fitting):.0f} tokens on average, {read[1]}), {devices}",
    )


def _factors(draft: Draft) -> tuple[tuple[str, int], ...]:
    """ms-swift fills up to 16 rows where it is not told how many batches to accumulate."""
    first, *rest = BATCH[draft.tool]
    rows = draft.config.get(first[0], first[1])
    if draft.tool == SWIFT and isinstance(rows, int) and rows > 0:
        return (first, (rest[0][0], ceil(rest[0][1] / rows)))
    return (first, *rest)


def _is_packed(draft: Draft) -> bool:
    strategy = str(draft.config.get("batching_strategy", ""))
    return strategy.startswith("dynamic") or any(
        draft.config.get(key) is True for key in PACKING[draft.tool]
    )


def _rows_a_sequence(lengths: Sequence[int], most: int, wrapped: bool) -> float:
    """Rows in a packed sequence: the longest first, each where the least space remains. Wrapped
    sequences have no gaps, since a row goes on in the next."""
    if wrapped:
        return len(lengths) * most / sum(lengths)
    spaces: list[int] = []
    for length in sorted(lengths, reverse=True):
        found = bisect_left(spaces, length)
        insort(spaces, (spaces.pop(found) if found < len(spaces) else most) - length)
    return len(lengths) / len(spaces)


def _read_length(draft: Draft, place: Path) -> None:
    """`max_steps` goes before epochs in all of these tools."""
    wanted, key = draft.config.get("max_steps"), "num_train_epochs"
    if wanted is None:
        return
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        draft.silent.append("max_steps")
        return
    an_epoch = _an_epoch(draft, place)
    if an_epoch is None:
        draft.leave(
            "max_steps",
            f"their run ends after {wanted:,} steps, whatever the epochs; the steps of an epoch "
            f"cannot be counted here, so write num_train_epochs: {wanted:,} / the steps of an "
            f"epoch, which `msft plan` shows (now it is {draft.keys.get(key)})",
            changes=True,
        )
        return
    draft.take_back(key, "max_steps goes before it")
    given = draft.keys.get("evals_per_epoch")
    evaluations, ticks = _ticks(wanted, an_epoch, given)
    note = f"{wanted:,} of {an_epoch:,} steps an epoch"
    draft.carry("max_steps", key, ticks / evaluations, note)
    if evaluations != given:
        draft.take_back("evals_per_epoch", "a run ends with an evaluation, after max_steps")
        draft.carry("max_steps", "evals_per_epoch", evaluations, "the run ends with one")


def _ticks(steps: int, an_epoch: int, given: Any) -> tuple[int, int]:
    """Evaluations per epoch, and how many of them end a run after these steps, to one in a hundred.

    A run ends with an evaluation, and epochs are written as decimals.
    """
    usual = given if isinstance(given, int) and 0 < given <= 1000 else Recipe.evals_per_epoch
    for per_epoch in (*range(usual, 1001), *range(1, usual)):
        ticks = max(1, round(steps * per_epoch / an_epoch))
        exact = (Fraction(repr(ticks / per_epoch)) * per_epoch).denominator == 1
        if exact and abs(ceil(ticks * an_epoch / per_epoch) - steps) <= steps // 100:
            return per_epoch, ticks
    return usual, max(1, round(steps * usual / an_epoch))


def _read_warm_up(draft: Draft, place: Path) -> None:
    """`warmup_steps`, given as a number or as a share of the steps.

    A share can be counted where the rows can; else it is said what to write.
    """
    given = [key for key in _WARM_UP_KEYS if draft.config.get(key)]
    draft.silent += [key for key in _WARM_UP_KEYS if key in draft.config and key not in given]
    if draft.keys.get("lr_scheduler_type", Recipe.lr_scheduler_type) == "constant":
        for key in given:
            draft.leave(key, "a constant rate has no warm-up; constant_with_warmup has")
    elif given:
        for key in given:
            _read_share(draft, place, key)
    elif draft.tool == AXOLOTL and not draft.config.keys() & {*_WARM_UP_KEYS}:
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


def _read_share(draft: Draft, place: Path, key: str) -> None:
    """transformers 5 takes a number below 1 under `warmup_steps` as a share."""
    value = draft.config[key]
    if key == "warmup_steps" and value >= 1:
        draft.carry(key, key, int(value))
        return
    steps = _steps(draft, place)
    if steps is None:
        draft.leave(key, FOREIGN["warmup_ratio"].answer, changes=True)
    else:
        draft.carry(key, "warmup_steps", ceil(value * steps), f"{value:g} of {steps:,} steps")


def _read_evaluations(draft: Draft, place: Path) -> None:
    """`eval_steps`, a number or a share of the steps, as evaluations per epoch."""
    given = draft.config.get("eval_steps")
    if given is None:
        return
    an_epoch = _an_epoch(draft, place)
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    off = "no" in (draft.config.get("eval_strategy"), draft.config.get("evaluation_strategy"))
    if an_epoch is None or off or not is_number or "evals_per_epoch" in draft.keys:
        draft.leave("eval_steps")
        return
    apart = given if given >= 1 else given * an_epoch * float(draft.keys["num_train_epochs"])
    epochs = Fraction(repr(float(draft.keys["num_train_epochs"])))
    nearest = min(1000, max(1, round(an_epoch / max(apart, 1))))
    fitting = [each for each in range(nearest, 1001) if (epochs * each).denominator == 1]
    if fitting:
        note = f"{shown(given)} of {an_epoch:,} steps an epoch"
        draft.carry("eval_steps", "evals_per_epoch", fitting[0], note)
    else:
        draft.leave("eval_steps")


def _steps(draft: Draft, place: Path) -> int | None:
    """About as many steps as the run has on one device; None where the rows cannot be counted."""
    an_epoch = _an_epoch(draft, place)
    if an_epoch is None or "max_steps" in draft.left:
        return None
    return ceil(an_epoch * float(draft.keys["num_train_epochs"]))


def _an_epoch(draft: Draft, place: Path) -> int | None:
    """About as many steps as an epoch has; None where rows or their batch cannot be counted."""
    total = 0.0
    for spec in draft.datasets:
        rows = trained_in(spec, place)
        if rows is None:
            return None
        total += rows * spec.get("weight", 1)
    batch = draft.keys.get("train_batch_size")
    return None if batch is None else ceil(total / batch)
