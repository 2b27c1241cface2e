"""One battery over all methods: a run that is killed and resumed is the run that was not."""

import os
import shutil
from contextlib import suppress
from fractions import Fraction
from functools import cache
from math import floor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mortal import (
    LEARNERS,
    PLAIN,
    STORES,
    VARIED,
    Killed,
    Left,
    MortalEngine,
    files_of,
    kill,
    left_by,
    quick_folder,
)
from msft.run.history import History, flops_of, stage_of, summary_of
from msft.search.feeds import Batch, Losses, RowId
from msft.testing import Learner, SimulatedEngine, simulate

CASES = PLAIN | VARIED


@cache
def uninterrupted(name: str, store: str = "disk") -> Left:
    with quick_folder() as folder:
        return left_by(CASES[name].run(folder, STORES[store]), folder)


def num_events(left: Left) -> int:
    return left.log.count(b"\n")


@pytest.mark.parametrize("name", CASES)
def test_the_same_run_leaves_the_same_bytes(name: str, place: Path) -> None:
    assert left_by(CASES[name].run(place), place) == uninterrupted(name)


@pytest.mark.parametrize("name", CASES)
def test_where_checkpoints_are_kept_changes_only_the_use_of_the_disk(name: str) -> None:
    disk, memory = uninterrupted(name), uninterrupted(name, "disk and memory")
    assert disk.summary | {"disk": None} == memory.summary | {"disk": None}
    assert disk.checkpoints == memory.checkpoints


@pytest.mark.parametrize(
    ("name", "store"), [*((n, "disk") for n in PLAIN), *((n, "disk and memory") for n in CASES)]
)
def test_killed_at_any_event_it_resumes_to_the_same_end(name: str, store: str, place: Path) -> None:
    case, memory, expected = CASES[name], STORES[store], uninterrupted(name, store)
    every = range(num_events(expected))
    moments = [(n, w) for n in every for w in (False, True) if name in PLAIN or w == (n % 2 == 0)]
    for moment, folder in case.killed(place, memory, moments).items():
        assert left_by(case.run(folder, memory), folder) == expected, moment


LAGS = (0, 1, 2, 5, 10**9)
"""Orders that a disk in the background is late: none, some, or all until it is waited for."""


@pytest.mark.parametrize("name", CASES)
def test_what_the_disk_had_not_done_yet_is_done_again_to_the_same_end(
    name: str, place: Path
) -> None:
    """A kill loses every order that was still waiting, wherever it comes."""
    case = CASES[name]
    for store, memory in STORES.items():
        expected = uninterrupted(name, store)
        for number, lag in enumerate(LAGS):
            if store == "memory for all" and lag in LAGS[1:-1]:
                continue  # the disk gets a result and nothing else
            often = 2 if name in PLAIN else len(LAGS)
            lasts = range(number % often, num_events(expected), often)
            moments = [(last, last % 3 == 0) for last in lasts]
            folders = case.killed(place / f"{memory}-{lag}", memory, moments, lag)
            for moment, folder in folders.items():
                again = left_by(case.run(folder, memory, lag=lag), folder)
                assert again == expected, (store, moment, lag)


@pytest.mark.parametrize("lag", [None, 3, 10**9])
@pytest.mark.parametrize("name", CASES)
def test_killed_at_every_event_in_turn_it_ends_the_same(
    name: str, lag: int | None, place: Path
) -> None:
    case, memory, expected = CASES[name], 2, uninterrupted(name, "disk and memory")
    for last in range(num_events(expected)):
        for written in (False, True):
            kill(case, place, memory, last, written, lag)
    assert left_by(case.run(place, memory, lag=lag), place) == expected


@pytest.mark.parametrize("lag", [None, 3])
@pytest.mark.parametrize("name", CASES)
def test_killed_while_it_recovers_it_ends_the_same(name: str, lag: int | None, place: Path) -> None:
    """What was only in memory is trained again; that training is killed too, at any step."""
    case, memory, expected = CASES[name], 2, uninterrupted(name, "disk and memory")
    first, often = (0, 1) if name in PLAIN else (int(lag is None), 2)
    moments = [(last, True) for last in range(first, num_events(expected), often)]
    for (last, _), folder in case.killed(place, memory, moments, lag).items():
        with suppress(Killed):
            case.run(folder, memory, engine=MortalEngine(last % 5, case.learners), lag=lag)
        assert left_by(case.run(folder, memory, lag=lag), folder) == expected, last


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["msft", "sro"])
def test_killed_between_any_two_writes_it_resumes_to_the_same_end(
    name: str, store: str, place: Path
) -> None:
    """A copy of the folder is taken wherever something is made durable; each is resumed."""
    case, memory, expected = CASES[name], STORES[store], uninterrupted(name, store)
    folder, moments = place / "whole", list[Path]()

    def copied(handle: int) -> None:
        moments.append(place / str(len(moments)))
        shutil.copytree(folder, moments[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", copied)
        case.run(folder, memory)
    unfinished = [m for m in moments if any(m.glob("checkpoints/.*.tmp/manifest.json"))]
    assert unfinished, "no moment lies within the writing of a checkpoint"
    for moment in moments[::4]:
        assert left_by(case.run(moment, memory), moment) == expected, moment.name


@pytest.mark.parametrize("checkpoints", ["none", "the last ones"])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_log_cut_anywhere_is_completed_to_the_same_bytes(
    name: str, checkpoints: str, data: st.DataObject
) -> None:
    expected = uninterrupted(name)
    cut = data.draw(st.integers(0, len(expected.log) - 1), label="cut")
    with quick_folder() as folder:
        (folder / "run.jsonl").write_bytes(expected.log[:cut])
        for path, content in expected.checkpoints.items() if checkpoints != "none" else ():
            file = folder / "checkpoints" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        summary = summary_of(CASES[name].run(folder))
        assert (folder / "run.jsonl").read_bytes() == expected.log
        assert files_of(folder / "checkpoints") == expected.checkpoints
    assert summary == expected.summary


@pytest.mark.parametrize("name", CASES)
def test_called_again_a_finished_run_does_nothing(name: str, place: Path) -> None:
    CASES[name].run(place)
    before = files_of(place)
    again = CASES[name].run(place, engine=MortalEngine(0, CASES[name].learners))
    assert left_by(again, place) == uninterrupted(name)
    assert files_of(place) == before


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", CASES)
def test_the_result_and_nothing_else_is_left_on_disk(name: str, store: str) -> None:
    left = uninterrupted(name, store)
    best = left.summary["best"]["checkpoint"]
    folders = {path.split("/")[0] for path in left.checkpoints}
    assert folders == ({f"{best}.weights"} if best != "base" else set())


def test_the_battery_sees_every_kind_of_decision() -> None:
    """Or it would prove little: leaving at a tick and at the start, and going on."""
    stages = uninterrupted("msft").summary["stages"]
    back = [stage["rolled_back_to"] for stage in stages]
    assert None in back
    assert 0 in back
    assert any(back)
    assert {name for stage in stages for name in stage["excluded"]} == set(LEARNERS)


# FLOPs: the formulas of the paper's appendix, on rows of constant length, in its accounting.

TOY = {
    "w": Learner(rows=80, tokens=7, limit=0.4, damage=0.5),
    "x": Learner(rows=80, tokens=7, limit=0.9, damage=0.5),
    "y": Learner(rows=80, tokens=7, limit=1.4, damage=0.5),
    "z": Learner(rows=80, tokens=7, limit=2.0, damage=0.5),
}
THETA, EVALS = SimulatedEngine.num_parameters, 4
T_TRAIN = {name: item.rows * item.tokens for name, item in TOY.items()}
T_PASS = {name: item.validation_rows * item.validation_tokens for name, item in TOY.items()}
T_VALIDATION = EVALS * sum(T_PASS.values())
BASE_EVALUATION = 2 * THETA * sum(T_PASS.values())


def toy(method: str, engine: SimulatedEngine | None = None, **options: object) -> History:
    """16 steps an epoch and sub-dataset, so that every tick is a whole number of steps."""
    return simulate(method, TOY, train_batch_size=5, method_options=options, engine=engine)


def sft_flops(epochs: int) -> int:
    return sum(6 * THETA * sum(T_TRAIN.values()) + 2 * THETA * T_VALIDATION for _ in range(epochs))


def measured(history: History) -> int:
    return flops_of(history).total - BASE_EVALUATION


def peaks_of(history: History) -> dict[str, int]:
    """Of the first roll-out, in ticks; they must differ, or little is tested."""
    peaks = {name: int(peak * EVALS) for name, peak in stage_of(history, 0)["peaks"].items()}
    assert len(set(peaks.values())) > 2
    assert min(peaks.values()) > 0
    return peaks


def test_flops_of_sft() -> None:
    assert measured(toy("sft")) == sft_flops(10)


def test_flops_of_continual() -> None:
    per_unit = [6 * THETA * t + 2 * THETA * T_VALIDATION for t in T_TRAIN.values()]
    assert measured(toy("continual")) == sum(per_unit) * 3


def test_flops_of_dynamix() -> None:
    updates, batch, t_avg = 100, 32, 7
    look_ahead = updates * len(TOY) * 8 * THETA * batch * t_avg
    history = toy("dynamix", lookahead_batch_size=batch)
    assert measured(history) == sft_flops(10) + look_ahead
    assert flops_of(history).lookahead == look_ahead


class WatchedEngine(SimulatedEngine):
    """Notes the loss of every row whenever it is trained."""

    def __init__(self) -> None:
        super().__init__(TOY)
        self.seen: dict[RowId, list[float]] = {}

    def work(self, batch: Batch) -> tuple[Losses, int]:
        losses, tokens = super().work(batch)
        for row, loss in zip(batch.rows, losses.rows, strict=True):
            self.seen.setdefault(row, []).append(loss)
        return losses, tokens


def test_flops_of_ies() -> None:
    engine = WatchedEngine()
    history = toy("ies", engine, track_excluded=False, threshold=0.0008)
    rows_by_epoch = [0] * 10
    for losses in engine.seen.values():
        for epoch in range(10):
            if any(
                abs(losses[t] - 2 * losses[t - 1] + losses[t - 2]) < 0.0008
                for t in range(2, min(epoch, len(losses)))
            ):
                break
            rows_by_epoch[epoch] += 1
    assert rows_by_epoch[2] == 320 > rows_by_epoch[9] > 0
    train = sum(6 * THETA * 7 * rows for rows in rows_by_epoch)
    assert measured(history) == train + 10 * 2 * THETA * T_VALIDATION


def test_flops_of_sro() -> None:
    history = toy("sro")
    peaks = peaks_of(history)
    second = 0
    for tick in range(1, max(peaks.values()) + 1):
        t_train = sum(T_TRAIN[name] for name, peak in peaks.items() if peak >= tick)
        second += (6 * THETA * t_train + 2 * THETA * T_VALIDATION) // EVALS
    assert measured(history) == sft_flops(10) + second


def test_flops_of_soft_sro() -> None:
    history = toy("soft_sro")
    peaks = peaks_of(history)
    mean = Fraction(sum(peaks.values()), len(peaks))
    rows = [floor(peaks[name] / mean * item.rows) for name, item in TOY.items()]
    assert sum(rows) > 310
    second = 6 * THETA * sum(rows) * 7 + 2 * THETA * T_VALIDATION
    assert measured(history) == sft_flops(10) + 10 * second


def test_flops_of_msft() -> None:
    history = toy("msft", score_excluded="rollback")
    excluded, expected = set[str](), 0
    stages = [stage_of(history, number) for number in range(len(history.stages))]
    assert len(stages) >= 4
    assert 0 not in [stage["rolled_back_to"] for stage in stages], "nothing new to score there"
    for stage in stages:
        active = set(TOY) - excluded
        expected += 6 * THETA * 3 * sum(T_TRAIN[name] for name in active)
        expected += 2 * THETA * 3 * EVALS * sum(T_PASS[name] for name in active)
        expected += 2 * THETA * sum(T_PASS[name] for name in excluded)
        excluded |= set(stage["excluded"])
    assert excluded == set(TOY)
    assert measured(history) == expected
