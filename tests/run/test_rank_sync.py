"""Where ranks meet: lines of the log are compared, and what one refuses, all refuse."""

from pathlib import Path

import pytest
from thread_ranks import ThreadRanks, in_threads

from msft.errors import FAILED, WRONG, LogError, RankFailed, RanksDisagree, UsageError
from msft.ranks import all_or_fail, from_rank0
from msft.run.log import DecisionEvent, Log, RankSync, read_log
from msft.search.rollout import CheckpointId


def decision(tick: int) -> DecisionEvent:
    return DecisionEvent("go_on", CheckpointId(f"r1-t{tick}"))


def test_a_line_that_differs_between_ranks_is_not_written(tmp_path: Path) -> None:
    path, settled = tmp_path / "run.jsonl", list[int]()

    def work(ranks: ThreadRanks) -> list[str]:
        meetings = RankSync(ranks, lambda: settled.append(ranks.rank))
        log = meetings.log(path)
        log.append(decision(2))
        with pytest.raises((RanksDisagree, RankFailed)) as error:
            log.append(decision(3 + (ranks.rank == 2)))
        log.close()
        code = error.value.exit_code
        return [type(error.value).__name__, str(error.value).split(":")[0], str(code)]

    first, *others = in_threads(3, work)
    assert first == ["RanksDisagree", "ranks disagree at r1-t3", str(FAILED)]
    assert [each[0] for each in others] == ["RankFailed"] * 2, "rank 0 says it"
    assert read_log(path) == [decision(2)]
    assert sorted(settled) == [0, 1, 2]


def test_every_rank_has_the_events_that_rank_0_has_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    log = Log(path)
    log.append(decision(1))
    log.close()

    def work(ranks: ThreadRanks) -> tuple[int, bool]:
        found = RankSync(ranks, lambda: None).log(path)
        events, writes = len(found.events), found.path is not None
        found.close()
        return events, writes

    assert in_threads(2, work) == [(1, True), (1, False)]


def test_a_log_that_is_in_use_is_refused_in_all_ranks(tmp_path: Path) -> None:
    held = Log(tmp_path / "run.jsonl")

    def work(ranks: ThreadRanks) -> str:
        with pytest.raises((LogError, RankFailed)) as error:
            RankSync(ranks, lambda: None).log(tmp_path / "run.jsonl")
        return str(error.value)

    said = in_threads(2, work)
    held.close()
    assert all("is in use by" in text for text in said)


def test_what_fails_in_one_rank_fails_in_all_with_its_exit_code() -> None:
    def fail(ranks: ThreadRanks) -> int:
        if ranks.rank == 1:
            raise UsageError("no such file")
        return ranks.rank

    def work(ranks: ThreadRanks) -> tuple[str, int, bool]:
        with pytest.raises(RankFailed) as error:
            all_or_fail(ranks, "work", lambda: fail(ranks))
        return str(error.value), error.value.exit_code, error.value.said

    message = "rank 1: no such file"
    assert in_threads(3, work) == [
        (message, WRONG, False),
        (message, WRONG, True),
        (message, WRONG, True),
    ]


def test_rank_0_works_for_all() -> None:
    found = in_threads(2, lambda ranks: from_rank0(ranks, "work", lambda: {"by": [ranks.rank]}))
    assert found == [{"by": [0]}] * 2
