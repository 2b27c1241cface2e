"""Eq. 4, the change of peaks and the compute shares, against numbers worked out by hand."""

from collections.abc import Mapping
from fractions import Fraction

import pytest

from msft.report.compare.paper import (
    BASE_STAGES,
    OLMO_2,
    POST_STAGES,
    Parts,
    changes,
    decomposition,
    decomposition_split,
    left_out,
    mean_decomposition,
    mean_parts,
    mean_shift,
)
from msft.run.history import History
from msft.run.log import (
    DecisionEvent,
    EndEvent,
    Event,
    PointEvent,
    RolloutEvent,
    RunEvent,
    ScoresEvent,
    Tokens,
)
from msft.search.curves import Score, accuracy, nll
from msft.search.rollout import BASE, CheckpointId, checkpoint_id
from msft.store.store import Disk

Table = Mapping[str, list[Score]]


def opened(names: Mapping[str, int], method: str = "msft") -> RunEvent:
    settings = {"evals_per_epoch": 4, "compute_budget": 4, "train_ticks": 4, "mean": "macro"}
    peaks = {"peaks": {"smooth": 0, "min_delta": 0.0, "include_start": True}}
    return RunEvent(method, 20, 1000, names, settings | peaks, {})


def stage(number: int, start: CheckpointId, active: list[str], curves: Table) -> list[Event]:
    """A roll-out with one point per column of the curves."""
    ticks = len(next(iter(curves.values())))
    rows = dict.fromkeys(active, 8)
    return [
        RolloutEvent(number, start, rows, {}, ticks, {"name": "shuffled"}, "fresh", True),
        *(
            PointEvent(
                checkpoint_id(number, tick + 1),
                1,
                (8.0, 8),
                Tokens(10, 5),
                Disk(1, 1, 1),
                {name: scores[tick] for name, scores in curves.items()},
            )
            for tick in range(ticks)
        ),
    ]


def hits(*right: int) -> list[Score]:
    return [accuracy(number, 100) for number in right]


NAMES = {"a": 8, "b": 8, "c": 8}
START = {name: accuracy(10, 100) for name in NAMES}


def sft() -> History:
    curves = {"a": hits(40, 30), "b": hits(40, 50), "c": hits(30, 60)}
    events = [
        opened(NAMES, "sft"),
        ScoresEvent(BASE, "validation", Tokens(), START),
        *stage(0, BASE, [*NAMES], curves),
        EndEvent("budget", checkpoint_id(0, 2)),
    ]
    return History(events)


def msft(*later: Event) -> History:
    """a leaves at the first tick of stage 0; what follows is told."""
    curves = {"a": hits(45, 30), "b": hits(40, 50), "c": hits(30, 40)}
    return History(
        [
            opened(NAMES),
            ScoresEvent(BASE, "validation", Tokens(), START),
            *stage(0, BASE, [*NAMES], curves),
            DecisionEvent("exclude", checkpoint_id(0, 1), ("a",), 1),
            *later,
        ]
    )


BETTER = {"a": hits(42, 41), "b": hits(60, 55), "c": hits(40, 70)}


def whole() -> History:
    """b leaves at tick 1 of stage 1, whose second tick is the best of all."""
    return msft(
        *stage(1, checkpoint_id(0, 1), ["b", "c"], BETTER),
        DecisionEvent("exclude", checkpoint_id(1, 1), ("b",), 1),
    )


def test_the_two_parts_are_those_of_the_equation() -> None:
    assert sft().best == "r0-t2"
    assert whole().best == "r1-t2"
    parts = decomposition(sft(), whole())
    # a: 41 - 30 gained; it left with 45 and lost 4 of it; 15 are what SFT lost by overfitting
    assert parts["a"] == Parts(Fraction(11, 100), Fraction(15, 100), Fraction(-4, 100))
    # b left at 60, before the best checkpoint, which has 55; SFT has 50
    assert parts["b"] == Parts(Fraction(5, 100), Fraction(10, 100), Fraction(-5, 100))
    assert parts["c"] == Parts(Fraction(10, 100), rest=Fraction(10, 100), why="never left")


def test_the_mean_is_of_all_and_the_undefined_is_its_rest() -> None:
    parts = decomposition(sft(), whole())
    mean = mean_parts([*parts.values()])
    assert mean == Parts(
        Fraction(26, 300),  # 41 + 55 + 70 less 30 + 50 + 60
        Fraction(25, 300),
        Fraction(-9, 300),
        Fraction(10, 300),
        "never left",
    )


def test_transfer_is_positive_and_the_parts_always_add_up() -> None:
    risen = {"a": hits(50), "b": hits(60), "c": hits(71)}
    parts = decomposition(sft(), msft(*stage(1, checkpoint_id(0, 1), ["b", "c"], risen)))
    assert parts["a"].forgetting == Fraction(5, 100)
    assert parts["a"].prevention == Fraction(15, 100)
    for part in parts.values():
        if part.prevention is not None and part.forgetting is not None:
            assert part.prevention + part.forgetting == part.gain


def test_a_best_checkpoint_at_the_leaving_itself_has_forgotten_nothing() -> None:
    low = {"a": hits(1), "b": hits(1), "c": hits(1)}
    later = stage(1, checkpoint_id(0, 1), ["b", "c"], low)
    run = msft(*later, DecisionEvent("report", checkpoint_id(0, 1)))
    part = decomposition(sft(), run)["a"]
    assert (part.gain, part.prevention, part.forgetting) == (
        Fraction(15, 100),
        Fraction(15, 100),
        Fraction(0),
    )


def test_a_best_checkpoint_of_the_discarded_end_counts_as_in_the_paper() -> None:
    low = {"a": hits(1), "b": hits(1), "c": hits(1)}
    run = msft(*stage(1, checkpoint_id(0, 1), ["b", "c"], low))
    assert run.best == "r0-t2"
    # 30 there and 45 at its peak; SFT has 30
    part = decomposition(sft(), run)["a"]
    assert part == Parts(Fraction(0), Fraction(15, 100), Fraction(-15, 100))


def test_who_leaves_after_the_best_checkpoint_has_parts_too() -> None:
    """c leaves two stages after it, from a checkpoint that is not on the path to it."""
    run = msft(
        *stage(1, checkpoint_id(0, 1), ["b", "c"], BETTER),
        DecisionEvent("exclude", checkpoint_id(1, 1), ("b",), 1),
        *stage(2, checkpoint_id(1, 1), ["c"], {"a": hits(1), "b": hits(1), "c": hits(52)}),
        DecisionEvent("exclude", checkpoint_id(2, 1), ("c",), 1),
    )
    assert run.best == "r1-t2"
    part = decomposition(sft(), run)["c"]
    # 70 at the best and 52 where it left; SFT has 60
    assert part == Parts(Fraction(10, 100), Fraction(-8, 100), Fraction(18, 100))


def test_leaving_at_the_base_model() -> None:
    curves = {"a": hits(5, 5), "b": hits(40, 50), "c": hits(30, 40)}
    later = {"a": hits(8), "b": hits(60), "c": hits(70)}
    start: list[Event] = [opened(NAMES), ScoresEvent(BASE, "validation", Tokens(), START)]
    first: list[Event] = [
        *start,
        *stage(0, BASE, [*NAMES], curves),
        DecisionEvent("exclude", BASE, ("a",), 0),
    ]
    run = History([*first, *stage(1, BASE, ["b", "c"], later)])
    assert decomposition(sft(), run)["a"].forgetting == Fraction(-2, 100)
    # best: r0-t2 with 5; it left with 10
    assert decomposition(sft(), History(first))["a"].forgetting == Fraction(-5, 100)


def test_losses_count_upwards_and_exactly() -> None:
    rows = {"a": 8, "b": 8}
    base = {name: nll(30.0, 10) for name in rows}

    def run(*events: Event) -> History:
        return History([opened(rows), ScoresEvent(BASE, "validation", Tokens(), base), *events])

    straight = run(*stage(0, BASE, ["a", "b"], {"a": [nll(21.0, 10)], "b": [nll(20.0, 10)]}))
    curves = {"a": [nll(17.0, 10), nll(19.0, 10)], "b": [nll(22.0, 10), nll(25.0, 10)]}
    later = {"a": [nll(18.0, 10)], "b": [nll(11.0, 10)]}
    search = run(
        *stage(0, BASE, ["a", "b"], curves),
        DecisionEvent("exclude", checkpoint_id(0, 1), ("a",), 1),
        *stage(1, checkpoint_id(0, 1), ["b"], later),
    )
    part = decomposition(straight, search)["a"]
    assert part.gain is not None
    assert part.prevention is not None
    assert part.forgetting is not None
    assert float(part.gain) == pytest.approx(0.3)
    assert float(part.forgetting) == pytest.approx(-0.1)
    assert part.prevention + part.forgetting == part.gain


def test_test_is_used_only_if_the_leavings_are_scored_there() -> None:
    straight, search = sft(), whole()
    assert decomposition_split(straight, search) == "validation"
    for run, places in (
        (straight, [checkpoint_id(0, 2)]),
        (search, [checkpoint_id(0, 1), checkpoint_id(1, 1), checkpoint_id(1, 2)]),
    ):
        for place in places:
            run.add(ScoresEvent(place, "test", Tokens(), dict(run.known(place))))
    assert decomposition_split(straight, search) == "test"
    assert decomposition(straight, search, "test") == decomposition(straight, search)


def test_what_is_not_scored_is_undefined() -> None:
    parts = decomposition(sft(), whole(), "test")
    assert parts["a"] == Parts(None, why="not scored on test")
    search = whole()
    search.add(ScoresEvent(checkpoint_id(1, 2), "test", Tokens(), START))
    assert decomposition(sft(), search, "test")["a"] == parts["a"], "SFT's score is missing"
    straight = sft()
    straight.add(ScoresEvent(checkpoint_id(0, 2), "test", Tokens(), START))
    part = decomposition(straight, search, "test")["a"]
    assert part == Parts(Fraction(0), why="not scored on test where it left")


def test_one_checkpoint_without_a_test_score_is_enough_to_stay_on_validation() -> None:
    needed = [(sft, checkpoint_id(0, 2))]
    needed += [(whole, checkpoint_id(*place)) for place in ((0, 1), (1, 1), (1, 2))]
    for lacking in range(len(needed)):
        runs = {sft: sft(), whole: whole()}
        for number, (which, place) in enumerate(needed):
            if number != lacking:
                known = dict(runs[which].known(place))
                runs[which].add(ScoresEvent(place, "test", Tokens(), known))
        assert decomposition_split(runs[sft], runs[whole]) == "validation"


@pytest.mark.parametrize("which", [0, 1])
def test_no_gain_where_only_one_of_the_runs_is_scored(which: int) -> None:
    runs = (sft(), whole())
    best = runs[which].best
    assert best is not None
    runs[which].add(ScoresEvent(best, "test", Tokens(), dict(runs[which].known(best))))
    for part in decomposition(*runs, "test").values():
        assert part == Parts(None, why="not scored on test")


def test_means_are_over_all() -> None:
    one = Parts(Fraction(3), Fraction(4), Fraction(-1))
    two = Parts(Fraction(1), Fraction(0), Fraction(1))
    unknown = Parts(Fraction(9), rest=Fraction(9), why="never left")
    assert mean_parts([one, two]) == Parts(Fraction(2), Fraction(2), Fraction(0))
    mixed = mean_parts([one, two, unknown])
    assert mixed == Parts(Fraction(13, 3), Fraction(4, 3), Fraction(0), Fraction(3), "never left")
    assert mean_parts([unknown]) == unknown
    assert mean_parts([unknown, Parts(Fraction(1), rest=Fraction(1), why="never left")]) == Parts(
        Fraction(5), rest=Fraction(5), why="never left"
    )
    assert mean_parts([]).gain is None
    lacking = mean_parts([one, Parts(None, why="not scored on test")])
    assert lacking == Parts(None, why="not scored on test")
    pooled = mean_decomposition([{"a": one, "b": unknown}, {"a": two}])
    assert pooled == {"a": Parts(Fraction(2), Fraction(2), Fraction(0)), "b": unknown}


def branch(active: list[str], curves: Table) -> History:
    events = [
        opened(NAMES),
        ScoresEvent(BASE, "validation", Tokens(), START),
        *stage(0, BASE, [*NAMES], {name: hits(12) for name in NAMES}),
        *stage(1, checkpoint_id(0, 1), active, curves),
    ]
    return History(events)


def test_the_change_of_optimal_compute_is_between_the_last_roll_outs() -> None:
    full = branch([*NAMES], {"a": hits(11, 10), "b": hits(13, 20), "c": hits(20, 13)})
    less = branch(["b", "c"], {"b": hits(20, 13), "c": hits(12, 11), "a": hits(5, 5)})
    assert left_out(full, less) == "a"
    moved = changes(full, less, "a")
    assert moved == {"b": -0.25, "c": -0.25}  # from tick 2 to 1, and from 1 to 0 (12, as before)
    assert mean_shift(moved) == 0.25
    assert mean_shift({"b": -1.0, "c": 0.5}) == 0.75
    assert mean_shift({}) == 0


def test_branches_that_are_none_are_refused() -> None:
    full = branch([*NAMES], {"a": hits(11), "b": hits(13), "c": hits(20)})
    with pytest.raises(ValueError, match="go on without it"):
        changes(full, full, "a")
    with pytest.raises(ValueError, match="not trained in the branch with all"):
        changes(full, full, "z")
    with pytest.raises(ValueError, match="differ by 0"):
        left_out(full, full)
    with pytest.raises(ValueError, match="no evaluation yet"):
        changes(History([opened(NAMES)]), full, "a")


PRINTED = {
    "OLMo 2 7B": (1.64e23, 6.30e21, 2.85e19, 1.94e19, 7.12e19, 7.60e20, 8.79e20, 0.517, 3.24),
    "OLMo 2 13B": (3.90e23, 4.68e22, 5.29e19, 3.70e19, 1.32e20, 1.41e21, 1.63e21, 0.374, 3.24),
    "OLMo 2 32B": (1.16e24, 1.04e23, 1.20e20, 1.26e20, 3.26e20, 3.47e21, 4.05e21, 0.319, 2.97),
}
"""The cells of the table in Appendix A, in its order."""


@pytest.mark.parametrize("model", OLMO_2, ids=lambda model: model.name)
def test_the_cells_of_appendix_a(model: object) -> None:
    training = next(each for each in OLMO_2 if each is model)
    *stages, post, post_share, sft_share = PRINTED[training.name]
    for stage_name, cell in zip(BASE_STAGES + POST_STAGES, stages, strict=True):
        assert float(f"{training.flops[stage_name]:.2e}") == cell
    trained = sum(training.flops[stage_name] for stage_name in POST_STAGES)
    assert trained == pytest.approx(post, rel=0.003)
    before = sum(training.flops[stage_name] for stage_name in BASE_STAGES)
    assert 100 * trained / before == pytest.approx(post_share, abs=0.001)
    assert round(100 * training.flops["SFT"] / trained, 2) == sft_share


def test_what_the_appendix_prints_as_share_of_the_total_is_not_one() -> None:
    for training in OLMO_2:
        *_, post_share, _ = PRINTED[training.name]
        trained = sum(training.flops[stage_name] for stage_name in POST_STAGES)
        assert 100 * trained / training.total < post_share - 0.0009


def test_computed_cells_come_from_stated_tokens() -> None:
    small, middle, large = OLMO_2
    assert small.flops["mid-training"] == 6 * 7e9 * 150e9
    assert middle.flops["mid-training"] == 6 * 13e9 * 600e9
    assert large.flops["pre-training"] == 6 * 32e9 * 6.06e12
    assert not {"pre-training", "mid-training"} & set(large.printed)


EPISODES = 10_000_000
ROWS = {  # of SFT in 2 epochs, pairs of DPO, passes of RLVR with gradients: PPO trains two models
    "OLMo 2 7B": (939_334, 366_700, 2 * EPISODES // 32),
    "OLMo 2 13B": (939_334, 377_700, 2 * EPISODES // 32),
    "OLMo 2 32B": (866_138, 377_900, EPISODES // 16),
}


def test_printed_cells_stand_for_these_lengths_of_a_row() -> None:
    for training in OLMO_2:
        sft, pairs, passes = ROWS[training.name]
        tokens = {stage: cost / training.num_parameters for stage, cost in training.flops.items()}
        assert 2700 < tokens["RLVR-roll"] / (2 * 2 * EPISODES) < 2720  # the formula says 4,096
        assert 2700 < tokens["RLVR-grad"] / (6 * passes) < 2720
        assert 360 < tokens["SFT"] / (6 * 2 * sft) < 362
        assert tokens["DPO"] / (6 * 2 * pairs) < 2048


def test_sft_is_about_a_ten_thousandth_and_a_search_is_little_more() -> None:
    for training in OLMO_2:
        assert 0.00009 < training.share("SFT") < 0.00017
        assert training.share("SFT", 2) == pytest.approx(2 * training.share("SFT"), rel=0.001)
        total = sum(training.share(each) for each in BASE_STAGES + POST_STAGES)
        assert total == pytest.approx(1)
        others = training.total - training.flops["SFT"]
        assert training.share("SFT", others / training.flops["SFT"]) == pytest.approx(0.5)
