"""The soak notices what is not right, and repeats a trial from its seed."""

from pathlib import Path
from random import Random

import pytest
from program import Ended
from soak import DAMAGES, SPOILS, Soak, _differs, _in_words


@pytest.mark.parametrize("number", [0, 3, 4])
def test_trials_end_as_they_must(number: int, tmp_path: Path) -> None:
    outcome = Soak(tmp_path, seed=1).trial(number)
    assert outcome.wrong == ""
    assert outcome.kind in ("kill", "fault", "input")


def test_a_trial_with_ranks_ends_as_it_must_and_something_is_killed(
    tmp_path: Path, no_reports: None
) -> None:
    soak = Soak(tmp_path, seed=5)
    outcome = soak.trial(0, ranks=True)
    assert (outcome.kind, outcome.wrong) == ("ranks", ""), outcome
    assert soak.kills > 0


def test_a_difference_and_a_traceback_are_not_right() -> None:
    done = Ended(0, "", "", 1.0)
    assert _differs(done, {"run.jsonl": "a"}, {"run.jsonl": "a"}) == ""
    assert _differs(done, {"run.jsonl": "a"}, {"run.jsonl": "b"}) == "differs: run.jsonl"
    assert _differs(done, {"run.jsonl": "a"}, {}) == "differs: run.jsonl"
    assert _differs(Ended(1, "", "why", 1.0), {}, {}) == "exit code 1: why"
    assert _in_words(Ended(2, "", "msft: recipe.yaml, line 3: …", 1.0))
    assert not _in_words(Ended(2, "", "Traceback (most recent call last)", 1.0))
    assert not _in_words(Ended(2, "", " ", 1.0))


@pytest.mark.parametrize("what", DAMAGES)
def test_every_damage_changes_a_file(what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(1, 200)))
    before = path.lstat(), path.read_bytes()
    DAMAGES[what](path, Random(7))
    same_kind = path.is_file() and not path.is_symlink()
    assert not same_kind or path.read_bytes() != before[1]


@pytest.mark.parametrize("what", SPOILS)
def test_every_spoil_changes_a_text(what: str) -> None:
    text = b'{"prompt": "a", "completion": "b"}\n' * 4
    assert SPOILS[what](text, Random(7)) != text
