"""Findings in words: one wording for the live table, the result, the report and the model card."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from msft.report.compare.evidence import Z95
from msft.report.findings import Decline, Departure, Findings, StageTest, Untested
from msft.report.loss_growth import Growth
from msft.report.shortfall import Shortfall
from msft.report.wording import Unit, difference, difference_in_words, number, p_value
from msft.search.falls import FEWEST_TICKS, Fall
from msft.search.scores import SELECTION
from msft.text import counted, epochs_in_words, listed

MOST_NAMED = 8
"""Sub-datasets that a sentence names; the others are counted."""

NOT_OFF_BASE = "neither surely above nor surely below the base model"
_WHY = {
    "short": f"a roll-out of fewer than {FEWEST_TICKS} ticks is too short for the test",
    "rows": "verdicts.jsonl does not have the rows",
}
_SHORT_WHY: dict[Untested, str] = {"short": "too few ticks to test", "rows": "no row verdicts"}


def finding_texts(found: Findings, headline: bool = False) -> list[str]:
    """Every finding of a run, one sentence or two each.

    headline: another sentence says already that the base model is the best.
    """
    texts = [
        *result_texts(found, headline),
        *([growth_text(found.growth)] if found.growth else []),
        *_departure_texts(found.departures),
        *_unlearned_texts(found.unlearned),
    ]
    declines = sorted(found.declines, key=lambda each: -abs(float(each.after - each.before)))
    texts += [decline_text(each) for each in declines[:MOST_NAMED]]
    if len(declines) > MOST_NAMED:
        more = counted(len(declines) - MOST_NAMED, "other sub-dataset")
        texts.append(f"So did {more}, by less.")
    return texts


def departure_texts(left: Departure) -> list[str]:
    """What there is to say at once of one that left; nothing if its fall is sure."""
    texts: list[str] = []
    if left.untested:
        texts.append(f"how sure that is cannot be said: {_WHY[left.untested]}")
    if left.fall and left.p is not None and left.unsure:
        measured = _measured(left.fall, left.p, left.unit)
        texts.append(f"its fall is not sure at 95\u00a0%: {measured}")
    if left.unlearned:
        texts.append(f"it has learned nothing yet: {NOT_OFF_BASE}")
    return texts


def decline_text(each: Decline) -> str:
    before, after = number(each.before, each.unit), number(each.after, each.unit)
    text = f"{each.name} fell from {before} to {after} after it left"
    if each.unit == "nll":
        text = f"The loss of {each.name} grew from {before} to {after} nats after it left"
    return f"{text}." if each.in_result else f"{text}; the best checkpoint is from before that."


def growth_text(growth: Growth) -> str:
    where = f"at tick {growth.tick} of stage {growth.stage}"
    return (
        f"The training loss grew: from {growth.first:.3g} to {growth.now:.3g} {where}. The "
        "learning rate is probably too high."
    )


def certainty(test: StageTest | None, name: str, unit: Unit, unlearned: bool) -> tuple[str, str]:
    """How sure a sub-dataset fell in a roll-out: in words, and as measured with its 95 % interval
    and p; unlearned: as of a Departure."""
    fall = test.falls.get(name) if test else None
    if test is None or fall is None:
        why: Untested = (test and test.untested) or "rows"
        return _SHORT_WHY[why], ""
    sign, half = 1 if unit == "nll" else -1, Z95 * fall.error
    change = sign * fall.fall
    interval = f"{difference(change - half, unit)} to {difference(change + half, unit)}"
    measured = f"{difference_in_words(change, unit)} ({interval}), {p_value(test.p(name))}"
    return _sureness(fall.sure, unlearned, "not sure, may be chance"), measured


def certainty_of(departures: Sequence[Departure], name: str) -> str:
    """How sure the fall of one that left is, in a few words; nothing if that was not asked."""
    for each in departures:
        if each.name == name:
            if each.fall is None:
                return _SHORT_WHY[each.untested or "rows"]
            return _sureness(each.fall.sure, each.unlearned)
    return ""


def _sureness(sure: bool, unlearned: bool, unsure: str = "not sure") -> str:
    return ("sure" if sure else unsure) + (", nothing learned yet" if unlearned else "")


def findings_content(found: Findings) -> dict[str, Any]:
    """For `summary.json`, in score units."""
    return {
        "exclusions": [_departure_content(each) for each in found.departures],
        "lost_after_leaving": [
            {
                "dataset": each.name,
                "before": float(each.before),
                "after": float(each.after),
                "checkpoint": each.checkpoint,
            }
            for each in found.declines
        ],
        "learned_nothing": [*found.unlearned],
        "only_stage_0_helped": found.sft_epochs is not None,
        "loss_grew": asdict(found.growth) if found.growth else None,
        "base_is_best": found.base_is_best,
        "worse_than_base": found.worse_than_base,
        "average_is_lower": _shortfall_content(found.shortfall) if found.shortfall else None,
        "text": finding_texts(found),
    }


def _shortfall_content(found: Shortfall) -> dict[str, Any]:
    return {"checkpoint": found.tick, "difference": float(found.gap), "p": found.p}


def _departure_content(left: Departure) -> dict[str, Any]:
    fall = left.fall
    return {
        "dataset": left.name,
        "stage": left.stage,
        "fall": fall.fall if fall else None,
        "p": left.p,
        "sure": fall.sure if fall else None,
        "untested": left.untested,
        "learned_nothing": left.unlearned,
    }


def result_texts(found: Findings, headline: bool = False) -> list[str]:
    """What the result is; headline: as of `finding_texts`."""
    texts: list[str] = []
    if found.base_is_best and not headline:
        texts.append(
            "The best checkpoint is the model you gave: nothing that was trained is better on "
            f"{found.selection}."
        )
    if found.worse_than_base:
        texts.append(f"The result is not better on {found.selection} than the model you gave.")
    if found.sft_epochs is not None:
        length = epochs_in_words(found.sft_epochs)
        texts.append(f"Nothing after stage 0 helped: this is SFT for {length}.")
    if found.shortfall:
        texts.append(shortfall_text(found.shortfall, found.selection))
    return texts


def shortfall_text(found: Shortfall, selection: str = SELECTION) -> str:
    cause = (
        "It is the last tick: scores still rose, and the average has half-trained weights in it. "
        "Train longer, or use method: sft with ema_decay."
        if found.is_last
        else "The average has weights in it that were trained too little or too long. Use "
        "method: sft with ema_decay."
    )
    measured = f"{difference_in_words(found.gap, found.unit)}, {p_value(found.p)}"
    below = f"The average is below checkpoint {found.tick} on {selection} by more than chance"
    return f"{below}: {measured}. {cause}"


def _departure_texts(departures: Sequence[Departure]) -> list[str]:
    texts: list[str] = []
    unsure = [each for each in departures if each.unsure]
    tested = sum(each.fall is not None for each in departures)
    if unsure:
        some = _named([f"{each.name} (stage {each.stage})" for each in unsure])
        count = f"{len(unsure)} of {counted(tested, 'exclusion')}"
        are = "is" if len(unsure) == 1 else "are"
        texts.append(f"{count} {are} not sure at 95\u00a0%, noise may have decided: {some}.")
    for why, reason in _WHY.items():
        untested = [each.name for each in departures if each.untested == why]
        if untested:
            was = "was" if len(untested) == 1 else "were"
            of = f"the {counted(len(untested), 'exclusion')} of {_named(untested)}"
            texts.append(f"How sure {of} {was} cannot be said: {reason}.")
    unlearned = [each.name for each in departures if each.unlearned]
    if unlearned:
        it = "it left: it was" if len(unlearned) == 1 else "they left: they were"
        texts.append(f"{_named(unlearned)} had learned nothing yet when {it} {NOT_OFF_BASE}.")
    return texts


def _unlearned_texts(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    have = "has" if len(names) == 1 else "have"
    return [f"{_named(names)} {have} learned nothing yet: {NOT_OFF_BASE}."]


def _measured(fall: Fall, p: float, unit: Unit) -> str:
    """What the rows that did not choose the peak say of a fall."""
    if fall.fall <= 0:
        return "no fall from the peak to the last three ticks"
    sign = 1 if unit == "nll" else -1
    return f"{difference_in_words(sign * fall.fall, unit)} after the peak, {p_value(p)}"


def _named(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])} and {rest} more" if rest > 0 else listed(names)
