"""An audit over the log: killed and resumed it leaves the same bytes, and its file of judgments is
made again where it is not the one that the log means."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mortal import Killed, MortalLog, files_of, killed, quick_folder
from msft.errors import Diverged
from msft.run.history import History
from msft.run.log import EndEvent, FoundEvent, JudgedEvent, Log, RolloutEvent, read_log
from msft.run.recorded_run import RecordedRun
from msft.run.rows import Judged, Judgments
from msft.run.worker import EngineWorker
from msft.search.curves import PeakRule
from msft.search.feeds import Batch, Losses, Mixture, Part
from msft.search.judging import JudgedRows
from msft.search.methods import prepared_audit
from msft.search.rollout import CheckpointId, Run, Settings
from msft.store.store import CheckpointStore, DiskTier, MemoryTier
from msft.testing import JsonCodec, Learner, SimulatedEngine

LEARNERS = {"bad": Learner(rows=60), "good": Learner(rows=60, tokens=7)}
WRONG = range(0, 60, 3)
VALIDATION = 100


class Marked(SimulatedEngine):
    """Its weights have a mark of the very rows that were trained, so that no judge is another."""

    def __init__(self) -> None:
        self.mark, self.steps, self.judgments = 0, 0, 0
        super().__init__(LEARNERS)

    def load(self, weights: Any | None) -> None:
        super().load(weights)
        self.mark = weights["mark"] if weights else 0

    def weights(self) -> Any:
        return {**super().weights(), "mark": self.mark}

    def work(self, batch: Batch) -> tuple[Losses, int]:
        for name, number in batch.rows:
            self.mark = (31 * self.mark + number + len(name)) % 99991
        self.steps += 1
        return super().work(batch)

    def judge(self, rows: Mapping[str, Sequence[int]]) -> Judged:
        """Wrong rows are wrong, and how much they are doubted hangs on the mark."""
        self.judgments += 1
        said = {name: self._judged(name, [*rows.get(name, ())]) for name in LEARNERS}
        answers = {name: [f"{self.mark}é\u2028"] * len(each.numbers) for name, each in said.items()}
        return Judged(said, answers, tokens=1000 + self.mark)

    def _judged(self, name: str, numbers: list[int]) -> JudgedRows:
        right = [0.0 if name == "bad" and n in WRONG else 1.0 for n in numbers]
        doubts = [
            0.0 if x else 1 + (n * self.mark % 97) / 97 for n, x in zip(numbers, right, strict=True)
        ]
        return JudgedRows(
            "choices",
            numbers,
            right,
            [1.0] * VALIDATION,
            doubts,
            train_choices=[3] * len(numbers),
            validation_choices=[3] * VALIDATION,
        )


def audited(
    folder: Path,
    log: Log | None = None,
    engine: Marked | None = None,
    rounds: int = 2,
    memory: int = 0,
    method: Callable[[Run], None] | None = None,
) -> History:
    """An audit, begun or gone on with. memory: checkpoints that are lost with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = engine or Marked()
    worker = EngineWorker(engine, engine.score, seed=3, batch_size=16, evals_per_epoch=2)
    disk = DiskTier(folder / "checkpoints", JsonCodec())
    tiers = [MemoryTier("host", memory)] if memory else []
    prepared = prepared_audit(rounds)
    opened = log or Log(folder / "run.jsonl")
    try:
        return RecordedRun(
            Settings(
                mixture=Mixture(
                    tuple(Part(n, each.rows, each.rows) for n, each in LEARNERS.items())
                ),
                compute_budget=2,
                train_ticks=3,
                evals_per_epoch=2,
                seed=3,
                peaks=PeakRule(),
            ),
            replace(prepared, carry_out=method) if method else prepared,
            worker,
            opened,
            CheckpointStore(tiers, disk, 4000, 8000),
            judgments=Judgments(
                folder / "judgments.jsonl",
                judge=engine.judge,
                questions={n: [*map(str, range(each.rows))] for n, each in LEARNERS.items()},
            ),
        ).carry_out()
    finally:
        opened.close()


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """The folder of an audit that was never disturbed; nobody writes into it."""
    with quick_folder() as folder:
        audited(folder)
        yield folder


def copied(whole: Path, place: Path) -> Path:
    for name, content in files_of(whole).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    return place


def test_an_audit_records_every_question_and_answer(whole: Path) -> None:
    events = read_log(whole / "run.jsonl")
    kinds = [event.event for event in events]
    judge = ["rollout", "point", "point", "point", "judged"]
    assert kinds == ["run", *judge, *judge, "found", *judge, *judge, "found", "end"]
    rollouts = [event for event in events if isinstance(event, RolloutEvent)]
    assert [each.scored for each in rollouts] == [False] * 4
    assert [each.eligible for each in rollouts] == [False] * 4
    assert len({each.among for each in rollouts}) == 4, "every judge has rows of its own"
    assert rollouts[0].active == {"bad": 30, "good": 30}
    taken = sum(each.active["bad"] for each in rollouts[2:])
    assert taken == 60 - len(WRONG), "suspects are not trained in the second round"
    judged = [event for event in events if isinstance(event, JudgedEvent)]
    assert [each.checkpoint for each in judged] == ["r0-t3", "r1-t3", "r2-t3", "r3-t3"]
    assert [dict(each.judged) for each in judged] == [{"bad": 30, "good": 30}] * 4
    assert all(each.tokens.evaluation >= 1000 for each in judged)
    found = [event for event in events if isinstance(event, FoundEvent)]
    assert [each.round for each in found] == [1, 2]
    assert [each.findings["bad"].verdict for each in found] == ["spoiled"] * 2
    assert {*found[-1].findings["bad"].suspects} == {*WRONG}
    assert found[0].findings["bad"].suspects != found[1].findings["bad"].suspects, "ranked anew"
    assert events[-1] == EndEvent("budget", CheckpointId("base"))
    assert not [*(whole / "checkpoints").iterdir()], "judges are no result"


def test_tokens_of_judging_count_as_evaluation(whole: Path) -> None:
    events = read_log(whole / "run.jsonl")
    judged = sum(each.tokens.evaluation for each in events if isinstance(each, JudgedEvent))
    history = History(events)
    assert history.tokens.evaluation == judged > 0
    for stage in history.stages:
        whole_epoch = -(-sum(stage.asked.active.values()) // 16)
        assert sum(p.steps for p in stage.points) == whole_epoch + -(-whole_epoch // 2)


@pytest.mark.parametrize("memory", [0, 99])
def test_killed_at_any_event_an_audit_resumes_to_the_same_bytes(
    memory: int, place: Path, whole: Path
) -> None:
    expected = files_of(whole)
    every = range(expected["run.jsonl"].count(b"\n"))
    moments = [(last, written) for last in every for written in (False, True)]
    folders = killed(place, lambda folder, log: audited(folder, log, memory=memory), moments)
    for moment, folder in folders.items():
        audited(folder, memory=memory)
        found = files_of(folder)
        for name in ("run.jsonl", "judgments.jsonl"):
            assert promised(found[name]) == promised(expected[name]), (moment, name)


def promised(content: bytes) -> list[Any]:
    """The lines, without what follows free memory."""
    lines = [json.loads(line) for line in content.splitlines()]
    return [{k: v for k, v in line.items() if k not in ("disk", "crc")} for line in lines]


def test_killed_between_the_judgments_and_their_event_they_are_made_once_more(place: Path) -> None:
    engine = Marked()
    with pytest.raises(Killed):
        audited(place, MortalLog(place / "run.jsonl", 5, written=False), engine)
    assert engine.judgments == 1
    assert (place / "judgments.jsonl").stat().st_size, "on disk before the log says so"


def test_a_finished_audit_is_neither_trained_nor_judged_again(whole: Path, place: Path) -> None:
    engine = Marked()
    before = files_of(copied(whole, place))
    audited(place, engine=engine)
    assert (engine.steps, engine.judgments) == (0, 0)
    assert files_of(place) == before


def cut(lines: list[bytes]) -> bytes:
    return b"".join(lines)[:-40]


def changed(lines: list[bytes]) -> bytes:
    """One digit of one doubt."""
    first = lines[0]
    at = first.index(b'"doubts":[') + len(b'"doubts":[')
    return b"".join([first[:at] + b"9" + first[at + 1 :], *lines[1:]])


def swapped(lines: list[bytes]) -> bytes:
    """What two judges said is said by the other one."""
    names = (b'"checkpoint":"r0-t3"', b'"checkpoint":"r1-t3"', b'"checkpoint":"r9-t9"')
    text = b"".join(lines)
    for old, new in ((0, 2), (1, 0), (2, 1)):
        text = text.replace(names[old], names[new])
    return text


HARM: dict[str, tuple[Callable[[list[bytes]], bytes | None], int]] = {
    "lost": (lambda lines: None, 4),
    "empty": (lambda lines: b"", 4),
    "torn": (cut, 1),
    "one byte": (changed, 1),
    "swapped between judges": (swapped, 2),
    "a line twice": (lambda lines: b"".join([*lines, lines[0]]), 1),
    "other lines between": (lambda lines: b'[1]\n"x"\n{}\nnull\n' + b"".join(lines), 0),
    "no text": (lambda lines: b"\xff\xfe" + b"".join(lines), 4),
}


@pytest.mark.parametrize("harm", HARM)
def test_judgments_that_the_log_does_not_mean_are_made_again(
    harm: str, whole: Path, place: Path
) -> None:
    how, again = HARM[harm]
    expected = files_of(whole)
    file = copied(whole, place) / "judgments.jsonl"
    left = how(expected["judgments.jsonl"].splitlines(keepends=True))
    file.unlink() if left is None else file.write_bytes(left)
    engine = Marked()
    history = audited(place, engine=engine)
    assert engine.judgments == again
    found = files_of(place)
    assert found["run.jsonl"] == expected["run.jsonl"]
    if again:
        lines = sorted(found["judgments.jsonl"].splitlines())
        assert lines == sorted(expected["judgments.jsonl"].splitlines())
    assert history.found[-1].findings["bad"].suspects


@pytest.mark.parametrize("ended", [True, False])
def test_other_rounds_are_refused_on_a_started_audit(ended: bool, whole: Path, place: Path) -> None:
    copied(whole, place)
    if not ended:
        log = place / "run.jsonl"
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:8]))
    before = files_of(place)
    with pytest.raises(Diverged, match=r"settings\.method\.rounds was 2, now it is 3"):
        audited(place, rounds=3)
    assert files_of(place) == before


def test_other_folds_are_refused_where_the_first_roll_out_is_asked_for(
    whole: Path, place: Path
) -> None:
    """As after a change of the code: `among` says whose rows they were."""

    def method(run: Run) -> None:
        rows = {name: [*range(0, 60, 2)] for name in LEARNERS}
        run.rollout(run.base, run.mixture.among(rows), 3, eligible=False, keep="best", scored=False)

    copied(whole, place)
    with pytest.raises(Diverged, match=r'the same with \{"among":"'):
        audited(place, method=method)


def test_only_a_checkpoint_that_is_held_can_judge(place: Path) -> None:
    def method(run: Run) -> None:
        rows = {"bad": [0, 1]}
        run.rollout(run.base, run.mixture.among(rows), 2, eligible=False, keep="best", scored=False)
        run.judge(CheckpointId("r0-t1"), rows)

    with pytest.raises(ValueError, match="a judgment from r0-t1 was asked for, which is not kept"):
        audited(place, method=method)
