"""`summary.json` and `schedule.json`: the keys and meanings of the contract, for every method."""

import json
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import pytest

from mortal import LEARNERS, PLAIN, VARIED, WATCHED
from msft.run.history import History, disk_of, flops_of, schedule_of, summary_of
from msft.run.log import Event, PointEvent, RolloutEvent, RunEvent, ScoresEvent, Tokens, read_log
from msft.run.rows import Verdicts, read_verdicts
from msft.search.curves import Scores, accuracy, nll
from msft.search.methods import METHODS
from msft.search.rollout import BASE, EndedBy, Run, checkpoint_id, place_of
from msft.store.store import Disk
from msft.testing import scripted, simulate

CASES = PLAIN | VARIED

SHAPE: dict[str, Any] = {
    "method": str,
    "seed": int,
    "status": str,
    "ended_by": str,
    "num_parameters": int,
    "optim": str,
    "ema_decay": (float, type(None)),
    "stages": list,
    "best": {
        "checkpoint": str,
        "epochs": float,
        "candidates": int,
        "average_of": (list, type(None)),
        "path_exclusions": list,
        "validation": {"mean": float, "datasets": dict},
        "test": None,
    },
    "watched": dict,
    "epochs_trained": float,
    "tokens": {"train": int, "evaluation": int, "lookahead": int},
    "flops": dict.fromkeys(("train", "evaluation", "lookahead", "total", "kept", "discarded"), int),
    "disk": {"mean_copies": float, "peak_copies": int, "peak_bytes": int},
}
STAGE = {
    "stage": int,
    "start": str,
    "active": list,
    "ticks": int,
    "peaks": dict,
    "excluded": list,
    "rolled_back_to": (float, type(None)),
}


def fits(value: Any, shape: Any) -> bool:
    if shape is None:
        return value is None or fits(value, SHAPE["best"]["validation"])
    if isinstance(shape, dict):
        return set(value) == set(shape) and all(fits(value[key], shape[key]) for key in shape)
    return isinstance(value, shape)


@pytest.mark.parametrize("name", CASES)
def test_the_summary_has_the_keys_of_the_contract(name: str, folder: Path) -> None:
    history = CASES[name].run(folder)
    summary = summary_of(history)
    assert json.loads(json.dumps(summary)) == summary
    controls, selection = summary.pop("controls", []), summary.pop("selection_split", None)
    assert bool(controls) == (name == "soup-controls")
    assert summary.pop("guards", {}).keys() == CASES[name].guards.keys()
    assert summary["watched"].keys() == ({*WATCHED} if CASES[name].watches else set())
    assert fits(summary, SHAPE)
    assert all(fits(stage, STAGE) for stage in summary["stages"])
    assert len(summary["stages"]) == len(history.stages)
    assert summary["method"] == CASES[name].method
    assert summary["ended_by"] in get_args(EndedBy)
    assert summary["tokens"]["train"] == sum(
        p.tokens.train for s in history.stages for p in s.points
    )
    assert summary["flops"]["total"] == flops_of(history).total
    assert (summary["best"]["test"] is None) == (CASES[name].score_test == "none")
    assert selection == (None if CASES[name].selection_split == "validation" else "test")
    if selection:
        assert summary["best"]["test"] == summary["best"]["validation"]


@pytest.mark.parametrize("name", CASES)
def test_a_summary_can_be_had_at_any_time(name: str, folder: Path) -> None:
    CASES[name].run(folder)
    events = read_log(folder / "run.jsonl")
    for length in range(1, len(events)):
        history = History(events[:length])
        assert summary_of(history)["status"] == "running"
        assert summary_of(history)["ended_by"] is None
        assert summary_of(history, stopped=True)["status"] == "stopped"
        optional = {"controls", "selection_split", "guards"}
        assert set(summary_of(history)) - optional == set(SHAPE)
        assert schedule_of(history)["method"] == CASES[name].method
    assert summary_of(History(events), stopped=True)["status"] == "finished"


# Which points can be the best.

ELIGIBLE: dict[str, Any] = {
    "msft": lambda rollout: True,
    "sft": lambda rollout: True,
    "dynamix": lambda rollout: True,
    "ies": lambda rollout: True,
    "sro": lambda rollout: rollout != 0,
    "soft_sro": lambda rollout: rollout != 0,
}


@pytest.mark.parametrize("method", ELIGIBLE)
def test_the_best_is_the_highest_mean_of_the_eligible_points(method: str, folder: Path) -> None:
    history = PLAIN[method].run(folder)
    points = [
        (mean(Fraction(score.value) for score in scores.values()), place_of(checkpoint))
        for checkpoint, scores in history.scores["validation"].items()
        if len(scores) == len(LEARNERS) and ELIGIBLE[method](place_of(checkpoint)[0])
    ]
    best = summary_of(history)["best"]
    assert best["candidates"] == len(points)
    highest = max(height for height, _ in points)
    assert place_of(best["checkpoint"]) == min(at for height, at in points if height == highest)
    assert best["validation"]["mean"] == pytest.approx(float(highest), abs=0)


def test_every_method_has_a_rule_for_the_best() -> None:
    assert set(ELIGIBLE) | {"continual", "soup"} == set(METHODS)


# a peaks at tick 2, b at tick 3; both fall below the base model's mean afterwards.
SOUP = {"a": [0.5, 0.4, 0.8, 0.5, 0.1, 0.0], "b": [0.9, 0.4, 0.2, 0.6, 0.5, 0.0]}


def soup_by_hand(**options: Any) -> History:
    return scripted(
        "soup",
        ["a", "b"],
        lambda index, *_: SOUP,
        num_train_epochs=2.5,
        evals_per_epoch=2,
        method_options=options,
        average=lambda ids: {"a": 0.7, "b": 0.25 * len(ids)},
    ).history


def test_the_result_of_soup_is_its_average_whatever_scored_best() -> None:
    history = soup_by_hand()
    assert history.best_tick == BASE, "its mean of 0.7 is the highest"
    summary = summary_of(history)
    assert summary["best"] == {
        "checkpoint": "a0",
        "epochs": 1.5,
        "candidates": 5,
        "average_of": ["r0-t2", "r0-t3"],
        "path_exclusions": [],
        "validation": {"mean": pytest.approx(0.6), "datasets": {"a": 0.7, "b": 0.5}},
        "test": None,
    }
    assert summary["stages"][0]["peaks"] == {"a": 1.0, "b": 1.5}, "the start does not count"
    assert "controls" not in summary


def test_other_averages_of_the_same_training_are_controls_and_so_is_the_best_tick() -> None:
    summary = summary_of(soup_by_hand(of=["peaks", "last"], k=3))
    assert summary["best"]["average_of"] == ["r0-t2", "r0-t3"]
    assert [(each["checkpoint"], each["average_of"]) for each in summary["controls"]] == [
        ("a1", ["r0-t3", "r0-t4", "r0-t5"]),
        ("base", None),
    ]
    assert summary["controls"][0]["validation"]["datasets"] == {"a": 0.7, "b": 0.75}


def test_the_schedule_of_an_average_ends_at_its_latest_tick_and_names_all_of_them() -> None:
    schedule = schedule_of(soup_by_hand())
    assert [stage["epochs"] for stage in schedule["stages"]] == [1.5]
    assert schedule["average_of"] == [1.0, 1.5]
    assert schedule["datasets"] == {"a": 1.5, "b": 1.5}
    assert "average_of" not in schedule_of(
        scripted("sft", ["a", "b"], lambda index, *_: SOUP, 2, 2.5, 2).history
    )


def test_what_is_averaged_but_not_on_the_path_has_no_epochs_in_the_schedule() -> None:
    def two_branches(run: Run) -> None:
        first = run.rollout(run.base, run.mixture, 2, keep="all")
        second = run.rollout(first.at(1), run.mixture, 2, keep="all")
        run.report(run.average([run.base, first.at(1), first.at(2), second.at(2)]))

    curves = {"a": [0.1, 0.2, 0.3]}
    history = scripted(two_branches, ["a"], lambda index, *_: curves, evals_per_epoch=2).history
    assert schedule_of(history)["average_of"] == [0.0, 0.5, None, 1.5]
    assert summary_of(history)["best"]["epochs"] == 1.5
    assert float(history.mean(history.best or BASE)) == pytest.approx((0.1 + 0.2 + 0.3 + 0.3) / 4)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("soup")])
def test_kept_flops_of_an_average_reach_its_latest_tick(name: str, folder: Path) -> None:
    history = CASES[name].run(folder)
    flops = flops_of(history)
    assert history.best is not None
    tick = max(place_of(part)[1] for part in history.averages[history.best].of)
    trained = [point.tokens.train for point in history.stages[0].points]
    assert flops.kept == 6 * history.start.num_parameters * sum(trained[:tick])
    assert flops.kept + flops.discarded == flops.train + flops.lookahead
    assert flops.evaluation == 2 * history.start.num_parameters * history.tokens.evaluation


def test_an_average_counts_where_the_disk_has_the_most(folder: Path) -> None:
    """Four ticks and the newest one's moments, then the average beside the four."""
    history = simulate(
        "soup",
        LEARNERS,
        num_train_epochs=2,
        evals_per_epoch=2,
        train_batch_size=8,
        method_options={"of": "all"},
        folder=folder,
    )
    use = disk_of(history)
    assert use["peak_copies"] == 5
    assert use["mean_copies"] == (0 + 1 + 2 + 3) / 4, "the mean is over ticks"
    assert max(point.peak_copies for point in history.disk) == 4


def test_the_result_of_continual_is_the_model_after_the_last_stop() -> None:
    def answer(index: int, start: str, active: tuple[str, ...], ticks: int) -> dict[str, Any]:
        own = {"a": [0, 1, 9, 2, 3], "b": [1, 2, 2, 5, 1]}
        return {n: own[n] if n in active else [0.0] * 5 for n in own}

    out = scripted("continual", ["a", "b"], answer, compute_budget=1)
    summary = summary_of(out.history)
    assert summary["best"]["checkpoint"] == "r1-t3"
    assert summary["best"]["candidates"] == 1
    assert summary["best"]["epochs"] == (2 / 4 + 3 / 4) / 2, "Ep. is the mean of the stops"
    assert [stage["rolled_back_to"] for stage in summary["stages"]] == [0.5, 0.75]
    assert [stage["excluded"] for stage in summary["stages"]] == [["a"], ["b"]]


def test_with_scores_only_at_roll_backs_only_fully_scored_points_are_candidates(
    folder: Path,
) -> None:
    history = VARIED["msft-accounted"].run(folder)
    full = [c for c, s in history.scores["validation"].items() if len(s) == len(LEARNERS)]
    assert summary_of(history)["best"]["candidates"] == len(full)
    every = 1 + sum(stage.ticks for stage in history.stages)
    assert len(full) < every
    assert history.best in full


# An mSFT run written down by hand: a leaves at tick 2, then nobody, then b at the start.

CURVES = [
    {"a": [0.1, 0.3, 0.5, 0.4, 0.2], "b": [0.0, 0.1, 0.2, 0.3, 0.4]},
    {"a": [0.5, 0.5, 0.4, 0.4, 0.4], "b": [0.2, 0.3, 0.4, 0.5, 0.6]},
    {"a": [0.4, 0.3, 0.3, 0.3, 0.3], "b": [0.6, 0.5, 0.5, 0.5, 0.5]},
]


@pytest.fixture
def by_hand() -> History:
    return scripted("msft", ["a", "b"], lambda index, *_: CURVES[index], compute_budget=1).history


def test_the_stages_of_a_run_by_hand(by_hand: History) -> None:
    summary = summary_of(by_hand)
    assert summary["stages"] == [
        {
            "stage": 0,
            "start": "base",
            "active": ["a", "b"],
            "ticks": 4,
            "peaks": {"a": 0.5, "b": 1.0},
            "excluded": ["a"],
            "rolled_back_to": 0.5,
        },
        {
            "stage": 1,
            "start": "r0-t2",
            "active": ["b"],
            "ticks": 4,
            "peaks": {"b": 1.0},
            "excluded": [],
            "rolled_back_to": None,
        },
        {
            "stage": 2,
            "start": "r1-t4",
            "active": ["b"],
            "ticks": 4,
            "peaks": {"b": 0.0},
            "excluded": ["b"],
            "rolled_back_to": 0.0,
        },
    ]
    assert summary["ended_by"] == "all_excluded"
    assert summary["epochs_trained"] == 3.0


def test_the_best_of_a_run_by_hand(by_hand: History) -> None:
    assert summary_of(by_hand)["best"] == {
        "checkpoint": "r1-t4",
        "epochs": 0.5 + 1.0,
        "candidates": 1 + 3 * 4,
        "average_of": None,
        "path_exclusions": ["a"],
        "validation": {"mean": 0.5, "datasets": {"a": 0.4, "b": 0.6}},
        "test": None,
    }


def test_the_schedule_of_a_run_by_hand(by_hand: History) -> None:
    schedule = schedule_of(by_hand)
    assert schedule["datasets"] == {"a": 0.5, "b": 1.5}
    assert [(list(s["active"]), s["epochs"], s["ticks"]) for s in schedule["stages"]] == [
        (["a", "b"], 0.5, 2),
        (["b"], 1.0, 4),
    ]
    assert json.loads(json.dumps(schedule)) == schedule


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_adds_up_to_the_epochs_of_the_best(name: str, folder: Path) -> None:
    history = CASES[name].run(folder)
    schedule, best = schedule_of(history), summary_of(history)["best"]
    if CASES[name].method != "continual":
        assert sum(stage["epochs"] for stage in schedule["stages"]) == best["epochs"]
    for dataset, epochs in schedule["datasets"].items():
        assert epochs == sum(s["epochs"] for s in schedule["stages"] if dataset in s["active"])


# Folds over events that are written down.


def log_of(
    base: Scores, points: list[Scores], disks: list[Disk], mean_rule: str = "macro"
) -> list[Event]:
    settings = {
        "mean": mean_rule,
        "evals_per_epoch": 2,
        "peaks": {"smooth": 0, "min_delta": 0.0, "include_start": True},
    }
    rows = dict.fromkeys(base, 4)
    return [
        RunEvent("sft", 20, 10, rows, settings, {}),
        RolloutEvent(0, BASE, rows, {}, len(points), {"name": "shuffled"}, "fresh", True),
        ScoresEvent(BASE, "validation", Tokens(evaluation=1), base),
        *(
            PointEvent(checkpoint_id(0, tick), 1, (0.5, 1), Tokens(2, 3, 4), disk, scores)
            for tick, (scores, disk) in enumerate(zip(points, disks, strict=True), start=1)
        ),
    ]


def test_the_use_of_the_disk_is_a_mean_and_a_maximum_over_the_ticks() -> None:
    same = {"a": accuracy(1, 2)}
    events = log_of(same, [same] * 2, [Disk(1, 2, 300), Disk(2, 4, 200)])
    assert disk_of(History(events)) == {"mean_copies": 1.5, "peak_copies": 4, "peak_bytes": 300}
    assert disk_of(History(events[:2])) == {"mean_copies": 0.0, "peak_copies": 0, "peak_bytes": 0}


@pytest.mark.parametrize("name", PLAIN)
def test_the_copies_counted_are_the_copies_on_disk(name: str, folder: Path) -> None:
    """Moments count in bytes, not as copies."""
    history = PLAIN[name].run(folder)
    assert (len(list((folder / "checkpoints").glob("*.weights"))) == 1) or history.best == BASE
    disk = summary_of(history)["disk"]
    assert 0 < disk["mean_copies"] <= disk["peak_copies"]
    weights, moments = 4000, 8000
    assert disk["peak_bytes"] >= disk["peak_copies"] * weights
    assert disk["peak_bytes"] <= disk["peak_copies"] * (weights + moments)


def test_of_equal_means_the_earlier_point_is_the_best() -> None:
    low, high = {"a": accuracy(1, 3)}, {"a": accuracy(2, 3)}
    history = History(log_of(low, [low, high, high], [Disk()] * 3))
    assert summary_of(history)["best"]["checkpoint"] == "r0-t2"


def test_the_mean_of_losses_is_best_where_it_is_lowest() -> None:
    losses: list[Scores] = [{"a": nll(total, 10)} for total in (30.0, 20.0, 25.0)]
    summary = summary_of(History(log_of(losses[0], losses[1:], [Disk()] * 2)))
    assert summary["best"]["checkpoint"] == "r0-t1"
    assert summary["best"]["validation"] == {"mean": 2.0, "datasets": {"a": 2.0}}


def test_mixed_metrics_have_no_mean_on_test_before_the_base_model_has() -> None:
    """`score_test: rollbacks` scores a roll-back on test while the run goes on."""
    base: Scores = {"a": accuracy(1, 4), "b": nll(30.0, 10)}
    better: Scores = {"a": accuracy(3, 4), "b": nll(20.0, 10)}
    events = log_of(base, [better], [Disk()])
    tested = ScoresEvent(checkpoint_id(0, 1), "test", Tokens(evaluation=1), better)
    scores = {"a": 0.75, "b": 2.0}
    found = summary_of(History([*events, tested]))["best"]["test"]
    assert found == {"mean": None, "datasets": scores}
    both = [*events, tested, ScoresEvent(BASE, "test", Tokens(evaluation=1), base)]
    found = summary_of(History(both))["best"]["test"]
    assert found["datasets"] == scores
    assert found["mean"] is not None


@pytest.mark.parametrize(("rule", "best"), [("macro", "r0-t1"), ("pooled", "base")])
def test_the_recipe_says_which_mean(rule: str, best: str) -> None:
    base: Scores = {"few": accuracy(0, 2), "many": accuracy(60, 100)}
    point: Scores = {"few": accuracy(2, 2), "many": accuracy(50, 100)}
    summary = summary_of(History(log_of(base, [point], [Disk()], rule)))
    assert summary["best"]["checkpoint"] == best


# Verdicts.


@pytest.mark.parametrize("name", ["msft", "msft-accounted", "continual-accounted"])
def test_the_verdicts_are_those_of_every_score(name: str, folder: Path) -> None:
    """A tick without a step repeats the scores before it and has no verdicts of its own."""
    history = CASES[name].run(folder)
    idle = {p.checkpoint for stage in history.stages for p in stage.points if not p.steps}
    verdicts = read_verdicts(folder / "verdicts.jsonl")
    scores = {
        (checkpoint, split, dataset): score
        for split, by_checkpoint in history.scores.items()
        for checkpoint, by_dataset in by_checkpoint.items()
        for dataset, score in by_dataset.items()
        if split == "test" or checkpoint not in idle
    }
    assert set(verdicts) == set(scores)
    for key, score in scores.items():
        rows = verdicts[key]
        assert (len(rows), list(rows).count("1")) == (score.count, score.total)


def test_the_last_verdict_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    Verdicts(path).add(BASE, "test", {"a": "10", "b": [0.5, 1.5]})
    Verdicts(path).add(BASE, "test", {"a": "11"})
    assert read_verdicts(path) == {(BASE, "test", "a"): "11", (BASE, "test", "b"): [0.5, 1.5]}
