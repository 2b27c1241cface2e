"""Findings: each is said when it is so, and not said when it is not."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from msft.report.compare.statistics import RecordedRows
from msft.report.findings import (
    Decline,
    Departure,
    Findings,
    Growth,
    decline_text,
    departure_texts,
    finding_texts,
    findings_content,
    findings_of,
    growth_of,
    next_steps,
    shortfall_of,
    stage_tests,
)
from msft.run import log as events
from msft.run.history import History
from msft.run.log import Log, Tokens
from msft.search.curves import SELECTION
from msft.search.falls import Fall
from msft.search.rollout import BASE, CheckpointId, Run, checkpoint_id
from msft.testing import scripted

ROWS = 200
Curves = Mapping[str, Sequence[float]]
FALLS = [0.2, 0.5, 0.8, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3]
RISES = [0.2 + 0.05 * tick for tick in range(13)]
FLAT = [0.5, 0.505, 0.495, 0.5, 0.49, 0.505, 0.495, 0.5, 0.49, 0.5, 0.495, 0.5, 0.49]
"""Peaks at tick 1, by half a point."""


def lucky(share: float, *place: object) -> str:
    """Other rows are right at every place."""
    right = round(share * ROWS)
    verdict = [*("1" * right + "0" * (ROWS - right))]
    random.Random(repr(place)).shuffle(verdict)
    return "".join(verdict)


def nested(share: float, *place: object) -> str:
    """The first rows are right, as many as it takes."""
    right = round(share * ROWS)
    return "1" * right + "0" * (ROWS - right)


def rows_of(history: History, verdict: Callable[..., str] = nested) -> RecordedRows:
    """Rows that make up the scores of a scripted run."""
    verdicts = {
        (place, SELECTION, name): verdict(float(score.value), place, name)
        for place, scores in history.scores[SELECTION].items()
        for name, score in scores.items()
    }
    return RecordedRows(history, verdicts, {})


def none(history: History) -> RecordedRows:
    return RecordedRows(history, {}, {})


def run(
    stages: Sequence[Curves], method: Any = "msft", budget: float = 3, **options: Any
) -> History:
    """A run whose roll-outs answer these curves, the last of them for all that follow."""

    def answer(
        index: int, start: CheckpointId, active: tuple[str, ...], ticks: int
    ) -> dict[str, list[float]]:
        curves = stages[min(index, len(stages) - 1)]
        return {name: [*curve, *[curve[-1]] * 40] for name, curve in curves.items()}

    log = Log()
    history = scripted(
        method,
        [*stages[0]],
        answer,
        compute_budget=budget,
        num_train_epochs=budget,
        method_options=options,
        log=log,
    ).history
    history.log = log  # type: ignore[attr-defined]
    return history


def only(found: Findings, name: str) -> Departure:
    (departure,) = [each for each in found.departures if each.name == name]
    return departure


# a. Exclusions that are not sure.


def test_a_fall_that_noise_explains_is_not_sure() -> None:
    history = run([{"a": FLAT, "b": RISES}], max_stages=1)
    left = only(findings_of(history, rows_of(history, lucky)), "a")
    assert (left.stage, left.unsure, left.untested) == (0, True, None)
    assert left.fall is not None
    assert left.p is not None
    assert left.p > 0.05
    assert "its fall is not sure at 95\u00a0%: " in departure_texts(left)[0]


def test_a_real_fall_is_sure_and_nothing_is_said() -> None:
    history = run([{"a": FALLS, "b": RISES}], max_stages=1)
    found = findings_of(history, rows_of(history))
    left = only(found, "a")
    assert left.fall is not None
    assert left.fall.sure
    assert left.p is not None
    assert left.p <= 0.05
    assert departure_texts(left) == []
    assert "sure" not in " ".join(finding_texts(found))


def test_who_surely_falls_under_a_method_that_excludes_nobody_is_found() -> None:
    for method, fallen in (("sft", ("a",)), ("msft", ())):
        history = run([{"a": FALLS, "b": RISES}], method)
        assert findings_of(history, rows_of(history)).fallen == fallen
    level = run([{"a": FLAT, "b": RISES}], "sft")
    assert findings_of(level, rows_of(level, lucky)).fallen == ()


@pytest.mark.parametrize(("ticks", "untested"), [(3, "short"), (4, None)])
def test_a_roll_out_of_three_ticks_is_too_short_to_say(ticks: int, untested: str | None) -> None:
    history = run([{"a": [0.5, 0.9, 0.2, 0.1, 0.1], "b": RISES}], budget=ticks / 4, max_stages=1)
    found = findings_of(history, rows_of(history))
    left = only(found, "a")
    assert left.untested == untested
    assert not (untested and left.unsure)
    said = "fewer than 4 ticks is too short for the test" in " ".join(finding_texts(found))
    assert said == (untested == "short")


def test_without_rows_nothing_is_claimed() -> None:
    history = run([{"a": FALLS, "b": RISES}], max_stages=1)
    left = only(findings_of(history, none(history)), "a")
    assert (left.fall, left.p, left.untested, left.unsure, left.unlearned) == (
        None,
        None,
        "rows",
        False,
        False,
    )
    assert departure_texts(left) == [
        "how sure that is cannot be said: verdicts.jsonl does not have the rows"
    ]


@pytest.mark.parametrize("rows", ["", "12", "1" * (ROWS - 1), 7, [None] * ROWS])
def test_rows_of_somebody_else_are_no_rows(rows: Any) -> None:
    history = run([{"a": FALLS, "b": RISES}], max_stages=1)
    recorded = rows_of(history)
    damaged = {**recorded.verdicts, (checkpoint_id(0, 2), SELECTION, "a"): rows}
    left = only(findings_of(history, replace(recorded, verdicts=damaged)), "a")
    assert left.untested == "rows"


def test_what_the_log_has_is_not_tested_again_and_held_against_95() -> None:
    """The method asked for less: what is sure at 0.6 may not be at 0.95."""
    history = run([{"a": FALLS, "b": RISES}], max_stages=1)
    for p, sure in ((0.2, False), (0.026, False), (0.02, True)):
        fall = Fall((3, 3), 0.4, 0.1, p, True, "above")
        other = Fall((12, 12), 0.0, 0.1, 1.0, False, "above")
        event = events.FallsEvent(checkpoint_id(0, 12), 0, 0.6, {"a": fall, "b": other})
        history.add(event)
        left = only(findings_of(history, none(history)), "a")
        assert left.fall == replace(fall, sure=sure)
        assert left.p == 2 * p, "there are two of them"


def test_sro_is_judged_by_its_search_and_the_last_to_leave_are_not() -> None:
    history = run([{"a": FALLS, "b": RISES}, {"a": FLAT, "b": FLAT}], "sro", budget=3)
    (left,) = findings_of(history, rows_of(history)).departures
    assert left.name == "a"
    assert left.fall == stage_tests(history, rows_of(history))[0].falls["a"]
    assert left.fall is not None
    assert left.fall.sure


def test_in_continual_everybody_leaves_so_nobody_is_judged() -> None:
    history = run([{"a": FLAT, "b": FLAT}], "continual", budget=3)
    found = findings_of(history, rows_of(history, lucky))
    assert history.exclusions
    assert found.departures == ()


def test_many_unsure_exclusions_are_one_sentence() -> None:
    fall = Fall((1, 1), 0.01, 0.02, 0.4, False, "above")
    left = tuple(Departure(f"d{n}", n, "accuracy", fall, 1.0, None, False) for n in range(20))
    (text,) = finding_texts(Findings(departures=left))
    assert text.startswith("20 of 20 exclusions are not sure at 95\u00a0%, noise may have decided")
    assert text.endswith("d7 (stage 7) and 12 more.")
    sure = replace(left[0], fall=replace(fall, sure=True))
    assert finding_texts(Findings(departures=(sure, left[1]))) == [
        "1 of 2 exclusions is not sure at 95\u00a0%, noise may have decided: d1 (stage 1)."
    ]


def test_how_much_it_fell_is_said_in_its_unit() -> None:
    fall = Fall((1, 1), 0.013, 0.02, 0.31, False, "above")
    left = Departure("a", 0, "accuracy", fall, 0.62, None, True)
    assert departure_texts(left) == [
        "its fall is not sure at 95\u00a0%: −1.3 points after the peak, p\u00a0=\u00a00.62",
        "it has learned nothing yet: neither surely above nor surely below the base model",
    ]
    loss = replace(left, unit="nll", unlearned=False)
    assert "+0.013 nats after the peak" in departure_texts(loss)[0]
    level = replace(left, fall=replace(fall, fall=0.0), unlearned=False)
    assert departure_texts(level)[0].endswith("no fall from the peak to the last three ticks")


# b. Sub-datasets that have learned nothing yet.


def test_who_leaves_at_the_base_models_level_has_learned_nothing() -> None:
    history = run([{"a": FLAT, "b": RISES}], max_stages=1)
    found = findings_of(history, rows_of(history, lucky))
    assert only(found, "a").unlearned
    assert found.unlearned == (), "it was said when it left"
    assert any(
        text.startswith("a had learned nothing yet when it left") for text in finding_texts(found)
    )


@pytest.mark.parametrize("curve", [FALLS, [0.9, *(0.8 - tick / 20 for tick in range(12))]])
def test_who_leaves_above_or_below_the_base_model_has_learned(curve: list[float]) -> None:
    history = run([{"a": curve, "b": RISES}], max_stages=1)
    found = findings_of(history, rows_of(history))
    assert not only(found, "a").unlearned
    assert "learned" not in " ".join(finding_texts(found))


def test_what_was_learned_in_an_earlier_stage_counts() -> None:
    first = {"a": RISES, "b": FALLS, "c": RISES}
    second = {"a": [0.3, *FLAT[:12]], "b": FALLS, "c": RISES}
    lost = {**second, "a": [0.31, 0.2, *[0.2] * 11]}
    history = run([first, lost], max_stages=2)
    assert [name for name, _ in history.stages[1].excluded] == ["a"]
    left = only(findings_of(history, rows_of(history)), "a")
    assert left.fall is not None
    assert not left.unlearned


def test_who_has_learned_nothing_at_the_end_is_said() -> None:
    history = run([{"a": FLAT, "b": RISES}], "sft")
    found = findings_of(history, rows_of(history, lucky))
    assert found.unlearned == ("a",)
    said = "a has learned nothing yet: neither surely above nor surely below the base model."
    assert said in finding_texts(found)
    assert findings_of(history, none(history)).unlearned == (), "without rows it is not known"
    going_on = History(event for event in _events(history) if event.event != "end")
    assert findings_of(going_on, rows_of(history, lucky)).unlearned == ()


def test_a_few_steep_ticks_are_learning_and_not_jitter() -> None:
    history = run([{"a": [0.0, 0.0, 0.0, 0.1, 0.8], "b": [0.5] * 5}], "sft", budget=1)
    rows = rows_of(history)
    assert stage_tests(history, rows)[0].falls["a"].learned is None
    assert findings_of(history, rows).unlearned == ("b",)
    assert findings_of(history, rows_of(history, lucky)).unlearned == ("b",), "it jitters"


# c. What an excluded one lost afterwards.

DROPS = [0.9, 0.85, *(0.6 - tick / 50 for tick in range(11))]


def test_what_was_lost_after_leaving_is_said_with_both_scores() -> None:
    history = run([{"a": FALLS, "b": RISES}, {"a": DROPS, "b": RISES}], max_stages=2)
    found = findings_of(history, rows_of(history))
    (lost,) = found.declines
    assert (lost.name, lost.before, lost.after) == ("a", FALLS[3], DROPS[12])
    assert lost.checkpoint == history.stages[1].checkpoints[-1]


@pytest.mark.parametrize("curve", [[0.9] * 13, [0.9 + tick / 200 for tick in range(13)]])
def test_who_kept_its_score_lost_nothing(curve: list[float]) -> None:
    history = run([{"a": FALLS, "b": RISES}, {"a": curve, "b": RISES}], max_stages=2)
    assert findings_of(history, rows_of(history)).declines == ()


def test_who_fell_from_a_height_above_where_it_left_lost_nothing() -> None:
    low = [0.2, 0.3, 0.5, 0.3, *[0.2] * 9]
    high = [0.5, 0.7, 0.9, 0.95, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.7, 0.7, 0.7]
    history = run([{"a": low, "b": RISES}, {"a": high, "b": RISES}], max_stages=2)
    assert findings_of(history, rows_of(history)).declines == ()


def test_a_little_less_on_other_rows_is_no_loss() -> None:
    noisy = [0.9, *[0.89, 0.9, 0.885] * 4]
    history = run([{"a": FALLS, "b": RISES}, {"a": noisy, "b": RISES}], max_stages=2)
    assert findings_of(history, rows_of(history, lucky)).declines == ()


def test_what_is_not_scored_after_it_left_is_not_said() -> None:
    stages = [{"a": FALLS, "b": RISES}, {"a": DROPS, "b": RISES}]
    history = run(stages, max_stages=2, score_excluded="rollback")
    assert "a" not in history.known(checkpoint_id(1, 3))
    assert findings_of(history, rows_of(history)).declines == ()


def test_whether_the_result_has_lost_it_is_said() -> None:
    """The mean is highest in stage 0, before a left, or else at the end."""
    for late, in_result in ((RISES, False), ([*[0.2] * 12, 1.0], True)):
        history = run([{"a": FALLS, "b": RISES}, {"a": DROPS, "b": late}], max_stages=2)
        (lost,) = findings_of(history, rows_of(history)).declines
        assert lost.in_result == in_result
        assert (lost.checkpoint == history.best) == in_result


def test_a_loss_is_worded_in_its_unit() -> None:
    lost = Decline("csqa", "accuracy", 0.62, 0.41, checkpoint_id(3, 2), True)
    assert decline_text(lost) == "csqa fell from 62.0 to 41.0 after it left."
    before = replace(lost, in_result=False)
    assert decline_text(before).endswith("left; the best checkpoint is from before that.")
    nats = replace(lost, unit="nll", before=1.25, after=1.5)
    assert decline_text(nats) == "The loss of csqa grew from 1.250 to 1.500 nats after it left."


def test_of_many_losses_the_largest_are_named() -> None:
    lost = [
        Decline(f"d{n}", "accuracy", 0.9, 0.8 - n / 100, checkpoint_id(1, 1), True)
        for n in range(10)
    ]
    texts = finding_texts(Findings(declines=tuple(lost)))
    assert texts[0].startswith("d9 fell from 90.0 to 71.0")
    assert texts[-1] == "So did 2 other sub-datasets, by less."


# d. No exclusion is on the path to the best.


def test_a_best_checkpoint_of_stage_0_is_sft() -> None:
    history = run([{"a": FALLS, "b": RISES}, {"a": [0.1] * 13, "b": [0.1] * 13}], max_stages=2)
    assert history.best == "r0-t3"
    found = findings_of(history, none(history))
    assert found.sft_epochs == 0.75
    said = "No exclusion is on the path to the best: it is SFT for 0.75 epochs."
    assert said in finding_texts(found)


def test_a_best_checkpoint_of_a_stage_that_went_on_with_all_is_sft() -> None:
    low = [0.1] * 13
    rises, falls = {"a": RISES, "b": RISES}, {"a": FALLS, "b": [0.9 + 0.005 * n for n in range(13)]}
    history = run([rises, falls, {"a": low, "b": low}], max_stages=3)
    assert history.best == "r1-t3", "of the second stage, before a left"
    assert history.exclusions[0].name == "a"
    assert findings_of(history, none(history)).sft_epochs == 3.75
    more = run([rises, {"a": [0.9] * 12 + [0.95], "b": [0.9] * 12 + [0.95]}], max_stages=2)
    assert more.best == "r1-t12"
    assert findings_of(more, none(more)).sft_epochs is None, "no later stage was there to be chosen"


def test_a_later_or_only_stage_is_not_called_sft() -> None:
    better = run([{"a": FALLS, "b": RISES}, {"a": [1.0] * 13, "b": [1.0] * 13}], max_stages=2)
    single = run([{"a": FALLS, "b": RISES}], max_stages=1)
    sft = run([{"a": FALLS, "b": RISES}], "sft")
    continual = run([{"a": FALLS, "b": RISES}, {"a": [0.1] * 13, "b": [0.1] * 13}], "continual")
    given = run([{"a": [0.9] + [0.1] * 12, "b": [0.9] + [0.1] * 12}], max_stages=3)
    for history in (better, single, sft, continual, given):
        assert findings_of(history, none(history)).sft_epochs is None
    going_on = History(event for event in _events(better) if event.event != "end")
    assert findings_of(going_on, none(going_on)).sft_epochs is None


def test_a_first_stage_that_trained_less_than_all_is_not_called_sft() -> None:
    def half(run: Run) -> None:
        first = run.rollout(run.base, run.mixture.without(("a",)), 4)
        run.rollout(first.end, run.mixture, 4)

    history = run([{"a": FALLS, "b": RISES}, {"a": [0.1] * 13, "b": [0.1] * 13}], half)
    assert history.best is not None
    assert history.best.startswith("r0")
    assert findings_of(history, none(history)).sft_epochs is None


# e. A training loss that grows.


def with_losses(*stages: Sequence[float], rows: int = 200, feed: str = "shuffled") -> History:
    """A run with these mean losses of its ticks."""
    template = _events(run([{"a": RISES}], "sft", budget=1))
    opened, asked, measured = template[:3]
    reached = next(event for event in template if event.event == "point")
    told: list[Any] = [opened]
    for number, losses in enumerate(stages):
        told.append(replace(asked, rollout=number, feed={"name": feed}, ticks=len(losses)))
        told += [measured] if not number else []
        for tick, loss in enumerate(losses, start=1):
            place = checkpoint_id(number, tick)
            told.append(
                replace(reached, checkpoint=place, loss=(loss * rows, rows), tokens=Tokens())
            )
    return History(told)


def test_a_loss_that_goes_up_and_stays_there_has_grown() -> None:
    assert growth_of(with_losses([2.0, 1.5, 1.4, 3.1, 3.5, 4.0])) == Growth(0, 5, 2.0, 3.5)


def test_a_model_that_is_spoiled_within_the_first_tick_is_found_by_the_first_steps() -> None:
    losses = [8.0, 6.5, 6.0, 5.8]
    assert growth_of(with_losses(losses)) is None
    assert growth_of(with_losses(losses), (3.0 * 64, 64)) == Growth(0, 2, 3.0, 6.5)


def test_only_within_a_stage() -> None:
    """Another mixture has another loss."""
    assert growth_of(with_losses([2.0, 1.0], [3.5, 3.6, 3.5])) is None
    assert growth_of(with_losses([2.0, 1.0], [1.0, 1.6, 1.7])) == Growth(1, 3, 1.0, 1.7)


@pytest.mark.parametrize(
    "losses",
    [
        [2.0, 1.0, 0.5, 0.2, 0.1, 0.05],  # overfitting: the training loss falls
        [2.0, 2.1, 1.9, 2.2, 1.95, 2.05, 2.15, 1.9],  # nothing is learned
        [2.0, 1.5, 3.5, 1.4, 3.4, 1.3],  # single spikes
        [2.0, 2.5, 2.7, 2.8, 2.9],  # by less than a half
        [0.5] * 8,
    ],
)
def test_noise_spikes_and_overfitting_are_no_growth(losses: list[float]) -> None:
    assert growth_of(with_losses(losses), (2.0 * 64, 64)) is None


def test_a_spike_of_a_loss_that_was_nearly_nothing_is_no_growth() -> None:
    assert growth_of(with_losses([3.0, 0.1], [0.01, 0.03, 0.03, 0.02])) is None


def test_few_rows_must_grow_more() -> None:
    losses = [2.0, 3.4, 3.6]
    assert growth_of(with_losses(losses, rows=100)) is not None
    assert growth_of(with_losses(losses, rows=16)) is None
    assert growth_of(with_losses([2.0, 4.6, 4.7], rows=16)) is not None


def test_rarely_by_chance() -> None:
    """Flat losses of 32 rows whose own scatter is as large as their mean, over 20 ticks."""
    draw = random.Random(0)
    found = 0
    for _ in range(300):
        losses = [sum(draw.expovariate(1.0) for _ in range(32)) / 32 for _ in range(20)]
        found += growth_of(with_losses(losses, rows=32)) is not None
    assert found <= 3, "one in a hundred runs"


def test_feeds_that_choose_rows_by_their_loss_are_not_judged() -> None:
    assert growth_of(with_losses([1.0, 2.0, 3.0, 4.0], feed="ies")) is None


def test_growth_in_words() -> None:
    (text,) = finding_texts(Findings(growth=Growth(0, 5, 2.0, 3.5)))
    assert text == (
        "The training loss grew: from 2 to 3.5 at tick 5 of stage 0. The learning rate is probably "
        "too high."
    )


# f. The model that was given.


def test_a_base_model_that_nothing_beats_is_said() -> None:
    history = run([{"a": [0.9] + [0.1] * 12}], "sft")
    found = findings_of(history, none(history))
    assert (found.base_is_best, found.worse_than_base) == (True, False)
    said = "The best checkpoint is the model you gave: nothing that was trained is better on"
    assert finding_texts(found)[0].startswith(said)
    assert not [text for text in finding_texts(found, headline=True) if "gave" in text]
    better = run([{"a": RISES}], "sft")
    assert not findings_of(better, none(better)).base_is_best
    begun = History(_events(history)[:4])
    assert begun.best == BASE
    assert not findings_of(begun, none(begun)).base_is_best, "it has only begun"


def test_an_average_that_is_worse_than_the_base_model_is_said() -> None:
    history = run([{"a": [0.9] + [0.1] * 12}], "soup")
    found = findings_of(history, none(history))
    assert (found.base_is_best, found.worse_than_base) == (False, True)
    assert "The result is not better on validation than the model you gave." in finding_texts(found)
    better = run([{"a": RISES}], "soup")
    assert not findings_of(better, none(better)).worse_than_base


# g. An average.


def soup_of(rising: Sequence[float]) -> History:
    """One that averages from tick 1, where `early` peaks, to the peak of the other."""
    return run([{"early": [0.2] + [0.9] * 12, "late": rising}], "soup")


def test_an_average_below_its_last_tick_is_said_with_what_to_do() -> None:
    history = soup_of(RISES)
    found = findings_of(history, rows_of(history))
    assert found.shortfall is not None
    assert (found.shortfall.tick, found.shortfall.is_last) == ("r0-t12", True)
    assert float(found.shortfall.gap) == pytest.approx((sum(RISES[1:]) / 12 - RISES[12]) / 2)
    (said,) = [text for text in finding_texts(found) if "average" in text]
    below = "The average is below checkpoint r0-t12 on validation by more than chance: −0.138, p"
    assert said.startswith(below)
    assert "scores still rose" in said
    assert said.endswith("Train longer, or use method: sft with ema_decay.")
    content = findings_content(found)["average_is_lower"]
    assert content == {
        "checkpoint": "r0-t12", "difference": pytest.approx(-0.1375), "p": found.shortfall.p,
    }  # fmt: skip


def test_an_average_below_an_earlier_tick_is_said() -> None:
    history = run([{"early": FALLS, "late": [*RISES[:9], *[0.55] * 3, 0.61]}], "soup")
    found = findings_of(history, rows_of(history))
    assert found.shortfall is not None
    assert not found.shortfall.is_last
    (said,) = [text for text in finding_texts(found) if "The average" in text]
    assert "too little or too long" in said


@pytest.mark.parametrize(("last", "rows"), [(0.54, 7), (0.56, 11)])
def test_a_tick_counts_as_better_only_beyond_the_luck_of_as_many_ticks(
    last: float, rows: int
) -> None:
    history = soup_of([0.5] * 12 + [last])
    found = findings_of(history, rows_of(history)).shortfall
    p = 2 * 0.5**rows * 12  # all rows that differ are better, at the best of twelve ticks
    assert (found is not None) == (p <= 0.05)
    if found is not None:
        assert found.p == pytest.approx(p)


def test_nothing_is_said_of_averages_that_are_above_or_whose_rows_are_lost_or_of_sft() -> None:
    history = soup_of(RISES)
    assert findings_of(history, none(history)).shortfall is None
    assert findings_content(findings_of(history, none(history)))["average_is_lower"] is None
    flat = soup_of([0.2] + [0.5] * 12)
    assert findings_of(flat, rows_of(flat)).shortfall is None
    plain = run([{"a": RISES}], "sft")
    assert findings_of(plain, rows_of(plain)).shortfall is None


def averaged(gap: float, rows: Mapping[str, tuple[str | None, str]], unit: str = "value") -> Any:
    """The shortfall of an average whose mean is that far from the tick's.

    rows: of the tick and of the average, by sub-dataset; of a tick without a step there is none.
    """
    points = [SimpleNamespace(checkpoint=f"r0-t{tick}", steps=tick % 3) for tick in (1, 2, 3)]
    stage = SimpleNamespace(asked=SimpleNamespace(eligible=True), points=points)
    history: Any = SimpleNamespace(
        best="a0",
        best_tick="r0-t2",
        average_of=("r0-t1", "r0-t2"),
        has_mean=lambda checkpoint: True,
        mean={"a0": 2 + gap, "r0-t2": 2.0}.__getitem__,
        mean_unit=unit,
        unit_of=lambda name: unit,
        start=SimpleNamespace(datasets=rows),
        stages=[stage],
    )
    at = {"r0-t2": 0, "a0": 1}
    recorded: Any = SimpleNamespace(at=lambda checkpoint, name: rows[name][at[checkpoint]])
    return shortfall_of(history, recorded)


RIGHT, WRONG = "1" * 20, "0" * 20


def test_of_a_loss_less_is_better() -> None:
    found = averaged(0.5, {"a": (WRONG, RIGHT)}, "nll")
    assert (found.tick, found.gap, found.p) == ("r0-t2", 0.5, pytest.approx(2 * 0.5**20 * 2))
    assert found.is_last, "tick 3 has no step"
    assert averaged(-0.5, {"a": (WRONG, RIGHT)}, "nll") is None
    assert averaged(0.5, {"a": (RIGHT, WRONG)}, "nll") is None


def test_mean_and_rows_must_agree_and_be_complete() -> None:
    assert averaged(-0.5, {"a": (RIGHT, WRONG), "b": (WRONG, WRONG)}) is not None
    assert averaged(0.5, {"a": (RIGHT, WRONG)}) is None, "the mean is higher"
    assert averaged(-0.5, {"a": (WRONG, RIGHT)}) is None, "more rows are better"
    assert averaged(-0.5, {"a": (RIGHT, WRONG), "b": (None, WRONG)}) is None
    assert averaged(-0.5, {"a": (RIGHT, WRONG), "b": (RIGHT, "0")}) is None


# All of it.


def test_what_a_script_reads() -> None:
    history = run([{"a": FALLS, "b": RISES}, {"a": DROPS, "b": RISES}], max_stages=2)
    found = findings_of(history, rows_of(history))
    content = findings_content(found)
    left, lost = only(found, "a"), found.declines[0]
    assert left.fall is not None
    assert content["exclusions"][0] == {
        "dataset": "a",
        "stage": 0,
        "fall": left.fall.fall,
        "p": left.p,
        "sure": True,
        "untested": None,
        "learned_nothing": False,
    }
    assert content["lost_after_leaving"] == [
        {"dataset": "a", "before": 0.9, "after": lost.after, "checkpoint": lost.checkpoint}
    ]
    assert content["loss_grew"] is None
    assert content["text"] == finding_texts(found)


def test_a_stage_is_tested_once() -> None:
    history = run([{"a": FALLS, "b": RISES}], max_stages=2)
    known: dict[int, Any] = {}
    first = findings_of(history, rows_of(history), known=known)
    again = findings_of(history, none(history), known=known)
    assert again.departures == first.departures


def test_what_to_do_next_follows_from_the_findings() -> None:
    def commands(history: Any, found: Findings, stopped: bool = False) -> list[str]:
        steps = next_steps(history, found, stopped, 1e-3)
        return [command.split(" --")[0] for _, command in steps]

    def run(method: str, ended: bool = True) -> Any:
        return SimpleNamespace(start=SimpleNamespace(method=method), ended=ended or None)

    sure, unsure = (
        Departure(
            "a", 0, "accuracy", Fall((3, 3), 0.3, 0.1, 0.01, sure, "above"), 0.01, None, False
        )
        for sure in (True, False)
    )
    whole = ["msft chat .", "msft compare recipe.yaml"]
    assert commands(run("sft"), Findings()) == whole
    assert commands(run("sft"), Findings(fallen=("a",))) == ["msft audit recipe.yaml", *whole]
    assert commands(run("msft"), Findings((unsure,))) == whole
    assert commands(run("msft"), Findings((sure,))) == ["msft audit recipe.yaml", *whole]
    assert commands(run("replay"), Findings()) == whole[:1]
    lower = commands(run("sft"), Findings(growth=Growth(0, 3, 1.0, 2.0), base_is_best=True))
    assert lower == ["msft train recipe.yaml", "msft validate recipe.yaml", whole[1]]
    assert commands(run("sft"), Findings(unlearned=("a",)))[0] == "msft validate recipe.yaml"
    assert commands(run("msft", ended=False), Findings()) == []
    assert commands(run("msft", ended=False), Findings(), stopped=True) == [
        "msft train recipe.yaml"
    ]


def test_a_run_without_anything_to_say() -> None:
    history = run([{"a": RISES, "b": RISES}], "sft")
    assert finding_texts(findings_of(history, rows_of(history))) == []
    assert findings_of(History(), none(history)) == Findings()


def _events(history: History) -> list[Any]:
    """The events of a scripted run, from its log."""
    log: Log = history.log  # type: ignore[attr-defined]
    return [*log.events]
