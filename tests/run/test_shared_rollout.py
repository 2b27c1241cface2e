"""A first roll-out that several runs share: trained once, and every run as if it had trained."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mortal import (
    LEARNERS,
    STORES,
    Case,
    Killed,
    Left,
    MortalLog,
    files_of,
    left_by,
    quick_folder,
    unseal,
)
from msft.run import sharing
from msft.run.environment import BaseRecord, record_environment
from msft.run.folder import RunFolder
from msft.run.history import History
from msft.run.log import Log, PointEvent, to_line
from msft.run.recorded_run import RecordedRun
from msft.run.rows import Samples, Verdicts
from msft.run.sharing import SharedRollout
from msft.run.worker import EngineWorker
from msft.search.curves import PeakRule
from msft.search.feeds import Batch, Losses, Mixture, Part
from msft.search.methods import prepare
from msft.search.rollout import Settings
from msft.store.store import CheckpointStore, Codec, DiskTier, MemoryTier
from msft.testing import JsonCodec, SimulatedEngine

TAKERS = {
    "sft": Case("sft", score_test="best"),
    "span": Case("soup", score_test="best"),
    "peaks": Case("soup", {"of": "peaks"}, score_test="best"),
    "controls": Case("soup", {"of": ["last", "random", "all"], "k": 2}, score_test="best"),
    "sro": Case("sro", score_test="best"),
    "soft_sro": Case("soft_sro", score_test="best"),
    "every": Case("soup", {"of": "last", "k": 3}, score_test="every"),
    "sft every": Case("sft", score_test="every"),
}
STEPS = 10
"""Of the first roll-out: 40 rows in batches of 8, two epochs."""
MSFT = Case("msft", {}, compute_budget=2, score_test="rollbacks")
SURE = Case("msft", {"exclude": {"confidence": 0.9}}, compute_budget=2, score_test="rollbacks")


class CountingEngine(SimulatedEngine):
    """Counts its steps, and dies at one of them."""

    def __init__(self, last: int = 10**9) -> None:
        super().__init__(LEARNERS)
        self.steps = 0
        self.last = last

    def work(self, batch: Batch) -> tuple[Losses, int]:
        if self.steps == self.last:
            raise Killed
        self.steps += 1
        return super().work(batch)


def run_shared(
    case: Case,
    folder: Path,
    shared: Path,
    memory: int | None = None,
    log: Log | None = None,
    engine: SimulatedEngine | None = None,
    may_lend: bool = True,
    lending: Codec | None = None,
    base: BaseRecord | None = None,
    has_room: Callable[[], bool] = lambda: True,
) -> tuple[History, str | None]:
    """What `Case.run` does, with a folder that runs share; the run it took a roll-out from too."""
    folder.mkdir(parents=True, exist_ok=True)
    rule = PeakRule(**case.peaks)
    budget = round(2 * case.compute_budget)
    method = prepare(case.method, case.options, budget, rule)
    parts = tuple(Part(name, each.rows, each.rows) for name, each in LEARNERS.items())
    settings = Settings(
        mixture=Mixture(parts, method.mixture_options.rehearsal_fraction),
        compute_budget=budget,
        train_ticks=4,
        evals_per_epoch=2,
        peaks=rule,
        score_test=case.score_test,
    )
    engine = engine or SimulatedEngine(LEARNERS)
    score = engine.score if rule.by == "score" else engine.soft_score
    plain = EngineWorker(engine, score, seed=20, batch_size=8, evals_per_epoch=2)
    tiers = [MemoryTier("host", memory)] if memory else []
    disk = DiskTier(folder / "checkpoints", JsonCodec())
    store = CheckpointStore(tiers, disk, engine.num_parameters * 4, 8000)
    log = log or Log(folder / "run.jsonl")
    try:
        samples = Samples(folder / "samples.jsonl")
        joining = SharedRollout(shared, RunFolder(folder), samples, base)
        worker, source = joining.join(
            settings, method, plain, lending or JsonCodec(), log, store, may_lend, has_room
        )
        verdicts = Verdicts(folder / "verdicts.jsonl")
        run = RecordedRun(settings, method, worker, log, store, verdicts, samples=samples)
        return run.carry_out(), source
    finally:
        log.close()


@cache
def alone(name: str, store: str = "disk") -> tuple[Left, bytes]:
    """The files of a run that shares nothing."""
    with quick_folder() as folder:
        left = left_by(TAKERS[name].run(folder, STORES[store]), folder)
        return left, (folder / "verdicts.jsonl").read_bytes()


def left(case: Case, folder: Path, shared: Path, memory: int | None = None) -> Left:
    return left_by(run_shared(case, folder, shared, memory)[0], folder)


def steps_of(history: History) -> int:
    return sum(point.steps for stage in history.stages for point in stage.points)


def donor_for(name: str) -> str:
    every = "every" if name == "sft every" else "sft every"
    return every if TAKERS[name].score_test == "every" else "sft"


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", [name for name in TAKERS if not name.startswith("sft")])
def test_what_was_trained_once_is_the_same_as_if_each_had_trained(
    name: str, store: str, place: Path
) -> None:
    memory, donor = STORES[store], donor_for(name)
    first, taker = CountingEngine(), CountingEngine()
    history, source = run_shared(TAKERS[donor], place / "a", place / "s", memory, engine=first)
    assert (source, first.steps) == (None, steps_of(history))
    got = left_by(history, place / "a"), (place / "a" / "verdicts.jsonl").read_bytes()
    assert got == alone(donor, store)
    history, source = run_shared(TAKERS[name], place / "b", place / "s", memory, engine=taker)
    assert source == "a"
    later = sum(point.steps for stage in history.stages[1:] for point in stage.points)
    assert taker.steps == later  # of the first roll-out, nothing
    got = left_by(history, place / "b"), (place / "b" / "verdicts.jsonl").read_bytes()
    assert got == alone(name, store)


def test_any_run_may_be_the_first_and_three_share(place: Path) -> None:
    steps = []
    for name in ("span", "sft", "peaks"):
        engine = CountingEngine()
        history, _ = run_shared(TAKERS[name], place / name, place / "s", 2, engine=engine)
        steps.append(engine.steps)
        assert left_by(history, place / name) == alone(name, "disk and memory")[0]
    assert steps[0] > 0
    assert steps[1:] == [0, 0]


def test_a_roll_out_of_another_base_is_not_taken_over(place: Path) -> None:
    """Its fingerprint in the log may be the same: that is of samples."""
    bases: list[BaseRecord] = [{"model.safetensors": [9, digest, None]} for digest in "abb"]
    found = []
    for name, base in zip(("sft", "span", "peaks"), bases, strict=True):
        (place / name).mkdir()
        record_environment(place / name / "environment.json", {}, {}, base)
        _, source = run_shared(TAKERS[name], place / name, place / "s", base=base)
        found.append(source)
    assert found == [None, None, "span"]


def test_a_taker_that_has_every_score_still_keeps_its_result(place: Path) -> None:
    """With `score_test: every` nothing is left to be measured: the end must not come too early."""
    run_shared(TAKERS["every"], place / "a", place / "s", 2)
    history, source = run_shared(TAKERS["sft every"], place / "b", place / "s", 2)
    assert source == "a"
    assert left_by(history, place / "b") == alone("sft every", "disk and memory")[0]


def test_a_log_with_other_answers_goes_on_by_itself(place: Path) -> None:
    run_shared(TAKERS["sft"], place / "a", place / "s")
    log = MortalLog(_made(place / "b") / "run.jsonl", 3, written=True)
    with pytest.raises(Killed):
        TAKERS["span"].run(place / "b", None, log)
    log.close()
    first = RunFolder(place / "b").events()[3]
    assert isinstance(first, PointEvent)
    lines = unseal(place / "b" / "run.jsonl").splitlines(keepends=True)
    other = to_line(replace(first, loss=(first.loss[0] / 2, first.loss[1])))
    (place / "b" / "run.jsonl").write_bytes(b"".join([*lines[:3], other]))
    engine = CountingEngine()
    _, source = run_shared(TAKERS["span"], place / "b", place / "s", engine=engine)
    assert source is None
    assert engine.steps > 0


def test_methods_that_roll_back_go_on_from_what_they_took_over(place: Path) -> None:
    expected = left_by(SURE.run(place / "alone", 2), place / "alone")
    run_shared(MSFT, place / "a", place / "s", 2)
    engine = CountingEngine()
    history, source = run_shared(SURE, place / "b", place / "s", 2, engine=engine)
    assert source == "a"
    assert engine.steps == steps_of(history) - STEPS
    assert left_by(history, place / "b") == expected


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["span", "sro", "every", "sft every"])
def test_killed_at_any_event_the_taker_resumes_to_the_same_end(
    name: str, store: str, place: Path
) -> None:
    memory = STORES[store]
    run_shared(TAKERS[donor_for(name)], place / "a", place / "s", memory)
    expected = alone(name, store)[0]
    for last in range(expected.log.count(b"\n")):
        for gone in (False, True):
            folder, shared = place / f"{last}-{gone}", place / f"s-{last}-{gone}"
            shutil.copytree(place / "s", shared)
            folder.mkdir()
            log = MortalLog(folder / "run.jsonl", last, written=last % 2 == 0)
            with pytest.raises(Killed):
                run_shared(TAKERS[name], folder, shared, memory, log)
            if gone:
                shutil.rmtree(shared)
            assert left(TAKERS[name], folder, shared, memory) == expected, (last, gone)


@pytest.mark.parametrize("store", STORES)
def test_killed_at_any_event_the_lender_resumes_and_lends_all(store: str, place: Path) -> None:
    memory, expected = STORES[store], alone("sft", store)[0]
    for last in range(expected.log.count(b"\n")):
        folder, shared = place / f"a{last}", place / f"s{last}"
        folder.mkdir()
        log = MortalLog(folder / "run.jsonl", last, written=last % 2 == 0)
        with pytest.raises(Killed):
            run_shared(TAKERS["sft"], folder, shared, memory, log)
        assert left(TAKERS["sft"], folder, shared, memory) == expected, last
        engine = CountingEngine()
        history, _ = run_shared(TAKERS["span"], place / f"b{last}", shared, memory, engine=engine)
        assert engine.steps == 0
        assert left_by(history, place / f"b{last}") == alone("span", store)[0], last


def test_killed_at_any_step_the_lender_resumes_and_lends_all(place: Path) -> None:
    for last in range(10):
        folder, shared = place / f"a{last}", place / f"s{last}"
        with suppress(Killed):
            run_shared(TAKERS["sft"], folder, shared, 2, engine=CountingEngine(last))
        run_shared(TAKERS["sft"], folder, shared, 2)
        engine = CountingEngine()
        history, _ = run_shared(TAKERS["peaks"], place / f"b{last}", shared, 2, engine=engine)
        assert engine.steps == 0
        assert left_by(history, place / f"b{last}") == alone("peaks", "disk and memory")[0]


def test_a_lender_that_has_not_ended_its_roll_out_is_replaced(place: Path) -> None:
    with suppress(Killed):
        run_shared(TAKERS["sft"], place / "a", place / "s", engine=CountingEngine(6))
    engine = CountingEngine()
    assert run_shared(TAKERS["span"], place / "b", place / "s", engine=engine)[1] is None
    assert engine.steps == STEPS
    engine = CountingEngine()  # what it has of its own is the same, so it takes the rest over
    history, source = run_shared(TAKERS["sft"], place / "a", place / "s", engine=engine)
    assert (source, engine.steps) == ("b", 0)
    assert left_by(history, place / "a") == alone("sft")[0]


def test_a_look_at_a_roll_out_that_goes_on_reads_no_rows(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`msft compare` looks every two seconds, and the rows of a long roll-out take as long."""
    with suppress(Killed):
        run_shared(TAKERS["sft"], place / "a", place / "s", engine=CountingEngine(6))
    for reader in ("verdicts_of", "row_tokens_of", "read_samples"):
        monkeypatch.setattr(sharing, reader, lambda path: pytest.fail("rows are read"))
    assert SharedRollout(place / "s", RunFolder(place / "b")).found() is None


@pytest.mark.parametrize("gone", ["r0-t2.weights", "verdicts", "log"])
def test_where_something_is_gone_a_run_trains_by_itself(gone: str, place: Path) -> None:
    run_shared(TAKERS["sft"], place / "a", place / "s")
    if gone == "verdicts":
        (place / "a" / "verdicts.jsonl").unlink()
    elif gone == "log":
        shutil.rmtree(place / "a")
    else:
        shutil.rmtree(place / "s" / "checkpoints" / gone)
    engine = CountingEngine()
    history, source = run_shared(TAKERS["span"], place / "b", place / "s", engine=engine)
    assert (source, engine.steps) == (None, STEPS)
    assert left_by(history, place / "b") == alone("span")[0]


def test_a_damaged_weight_is_trained_again(place: Path) -> None:
    run_shared(TAKERS["sft"], place / "a", place / "s")
    for file in (place / "s" / "checkpoints").rglob("state.json"):
        file.write_text("{}")
    engine = CountingEngine()
    history, source = run_shared(TAKERS["span"], place / "b", place / "s", engine=engine)
    assert source == "a"
    assert engine.steps > 0
    assert (place / "b" / "run.jsonl").read_bytes() == alone("span")[0].log
    assert history.ended is not None


OTHERS = {
    "peaks by": Case("soup", peaks={"by": "probability"}, score_test="best"),
    "score_test": Case("soup", score_test="every"),
    "ticks": Case("msft", compute_budget=1.5, score_test="best"),
    "feed": Case("dynamix", score_test="best"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_question_is_not_answered(name: str, place: Path) -> None:
    run_shared(TAKERS["sft"], place / "a", place / "s")
    engine = CountingEngine()
    history, _ = run_shared(OTHERS[name], place / "b", place / "s", engine=engine)
    trained = sum(point.steps for stage in history.stages for point in stage.points)
    assert engine.steps >= trained > 0


def test_without_room_nothing_is_left_for_others(place: Path) -> None:
    history, _ = run_shared(TAKERS["sft"], place / "a", place / "s", may_lend=False)
    assert left_by(history, place / "a") == alone("sft")[0]
    assert not (place / "s").exists()


class FullDisk(JsonCodec):
    def write(self, payload: Any, folder: Path) -> None:
        raise OSError(28, "No space left on device")


def test_a_disk_that_is_full_does_not_stop_the_lender(place: Path) -> None:
    history, _ = run_shared(TAKERS["sft"], place / "a", place / "s", lending=FullDisk())
    assert left_by(history, place / "a") == alone("sft")[0]
    history, source = run_shared(TAKERS["span"], place / "b", place / "s")
    assert source is None
    assert left_by(history, place / "b") == alone("span")[0]


def test_a_lender_takes_back_what_it_left_where_others_fill_the_disk(place: Path) -> None:
    left_there = list[int]()

    def has_room() -> bool:
        left_there.append(len([*(place / "s" / "checkpoints").iterdir()]))
        return len(left_there) < 3

    lender = place / "a"
    history, _ = run_shared(TAKERS["sft"], lender, place / "s", has_room=has_room)
    assert left_by(history, lender) == alone("sft")[0]
    assert left_there == [0, 1, 2]
    assert not (place / "s").exists()
    history, source = run_shared(TAKERS["span"], place / "b", place / "s")
    assert source is None
    assert left_by(history, place / "b") == alone("span")[0]


def test_a_run_that_began_without_does_not_lend(place: Path) -> None:
    folder = place / "a"
    folder.mkdir()
    log = MortalLog(folder / "run.jsonl", 4, written=True)
    with pytest.raises(Killed):
        TAKERS["sft"].run(folder, None, log)
    run_shared(TAKERS["sft"], folder, place / "s")
    assert not (place / "s").exists()


def test_steps_are_copied_and_weights_are_not(place: Path) -> None:
    run_shared(TAKERS["sft"], place / "a", place / "s")
    lines = [json.dumps({"rollout": rollout, "tick": 1}) + "\n" for rollout in (0, 0, 1)]
    (place / "a" / "steps.jsonl").write_text("".join(lines))
    log = MortalLog(_made(place / "b") / "run.jsonl", 8, written=True)
    with pytest.raises(Killed):
        run_shared(TAKERS["span"], place / "b", place / "s", log=log)
    assert (place / "b" / "steps.jsonl").read_text() == "".join(lines[:2])
    lent, taken = place / "s" / "checkpoints", place / "b" / "checkpoints"
    names = ["r0-t1.weights", "r0-t2.weights", "r0-t3.weights", "r0-t4.weights"]
    assert sorted(path.name for path in lent.iterdir()) == names
    assert {*names} <= {path.name for path in taken.iterdir()}
    for name in names:
        assert (lent / name / "state.json").samefile(taken / name / "state.json")
        assert files_of(lent / name) == files_of(taken / name)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
