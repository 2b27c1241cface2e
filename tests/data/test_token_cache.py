"""The token cache: found again by content, never believed where it is damaged, and bounded."""

import os
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from msft.data import encoding, token_cache
from msft.data.encoding import encoded_examples
from msft.engine.model.tokenizers import CHAT_TEMPLATE, tiny_tokenizer
from msft.example import Encoded, Example, Message

CHAT = (Message("user", "Hi"), Message("assistant", "Ho"))
ROWS = [Example("one", "1"), Example("", "Ho", CHAT), Example("Grüße", " 世界")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, which keeps small splits too."""
    monkeypatch.setattr(token_cache, "LEAST", 1)
    monkeypatch.setenv(token_cache.PLACE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


def files(place: Path) -> list[Path]:
    return sorted(place.iterdir()) if place.is_dir() else []


def is_encoded(rows: Sequence[Example], tokenizer: Any, most: int | None = None) -> bool:
    """Whether rows had to be encoded; what comes is right in any case."""
    wanted = [encoded_examples([row], tokenizer_like(tokenizer), most)[0] for row in rows]
    calls: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        encode = encoding._encoded

        def counted(*given: Any) -> list[Encoded]:
            calls.append(1)
            return encode(*given)

        patch.setattr(encoding, "_encoded", counted)
        assert encoded_examples(rows, tokenizer, most) == wanted
    return bool(calls)


def tokenizer_like(given: Any) -> Any:
    """One that is never cached: an own class may do anything."""
    made = type("Own", (type(given),), {"encode": lambda self, *a, **k: given.encode(*a, **k)})
    own = copy(given)
    own.__class__ = made
    return own


def test_the_same_rows_are_encoded_once(place: Path) -> None:
    assert is_encoded(ROWS, tiny_tokenizer())
    (file,) = files(place)
    assert not is_encoded(ROWS, tiny_tokenizer())
    assert not is_encoded([replace(row, where="elsewhere") for row in ROWS], tiny_tokenizer())
    assert files(place) == [file]
    assert file.stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700


def test_whatever_tokens_depend_on_is_another_file(place: Path) -> None:
    assert is_encoded(ROWS, tiny_tokenizer())
    other = tiny_tokenizer()
    other.chat_template = "!" + CHAT_TEMPLATE
    assert is_encoded(ROWS, other), "template"
    more = tiny_tokenizer()
    more.add_tokens(["one"])
    assert is_encoded([ROWS[0]], more), "vocabulary"
    assert is_encoded(ROWS, tiny_tokenizer(), 3), "what is too long is not marked"
    assert is_encoded(ROWS[::-1], tiny_tokenizer()), "order"
    for changed in (
        replace(ROWS[0], prompt="onf"),
        replace(ROWS[0], prompt="one1", completion=""),
        replace(ROWS[1], messages=(replace(CHAT[0], role="system"), CHAT[1])),
        replace(ROWS[1], messages=(replace(CHAT[0], more={"name": "x"}), CHAT[1])),
    ):
        assert is_encoded([changed, *ROWS], tiny_tokenizer()), changed
    assert len(files(place)) == 9


def test_a_template_that_asks_for_the_date_is_not_kept(place: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ strftime_now('%Y')[:0] }}" + CHAT_TEMPLATE
    assert is_encoded(ROWS, tokenizer)
    assert is_encoded(ROWS, tokenizer)
    assert not files(place)


def test_nothing_is_kept_where_nobody_wants_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(token_cache.PLACE, "")
    assert is_encoded(ROWS, tiny_tokenizer())
    monkeypatch.setenv(token_cache.PLACE, str(place.parent))
    monkeypatch.setattr(token_cache, "LEAST", 1_000)
    assert is_encoded(ROWS, tiny_tokenizer()), "a few rows"
    assert not place.exists()


@pytest.mark.parametrize("at", [0, 20, 50, 80, 110, 120, -1])
def test_a_damaged_file_is_made_anew(place: Path, at: int) -> None:
    is_encoded(ROWS, tiny_tokenizer())
    (file,) = files(place)
    good = file.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 1
    for damaged in (bytes(bad), good[:at], b"", good + b"\0"):
        file.write_bytes(damaged)
        assert is_encoded(ROWS, tiny_tokenizer())
        assert file.read_bytes() == good
    assert not is_encoded(ROWS, tiny_tokenizer())


def test_a_file_of_other_rows_under_this_name_is_not_read(place: Path) -> None:
    is_encoded(ROWS, tiny_tokenizer())
    (file,) = files(place)
    is_encoded([replace(row, prompt=row.prompt + "!") for row in ROWS], tiny_tokenizer())
    (other,) = [each for each in files(place) if each != file]
    file.write_bytes(other.read_bytes())
    assert is_encoded(ROWS, tiny_tokenizer())


def test_links_are_not_followed(place: Path, tmp_path: Path) -> None:
    is_encoded(ROWS, tiny_tokenizer())
    (file,) = files(place)
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    assert is_encoded(ROWS, tiny_tokenizer())
    assert not file.is_symlink()


def test_a_folder_that_others_may_write_into_is_not_used(place: Path) -> None:
    is_encoded(ROWS, tiny_tokenizer())
    place.chmod(0o777)
    assert is_encoded(ROWS, tiny_tokenizer())
    place.chmod(0o700)
    assert not is_encoded(ROWS, tiny_tokenizer())


def test_a_place_that_cannot_be_written_does_no_harm(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.parent.write_text("a file")
    assert is_encoded(ROWS, tiny_tokenizer())
    monkeypatch.setenv(token_cache.PLACE, "~nobody-of-this-name/x")
    assert is_encoded(ROWS, tiny_tokenizer())
    monkeypatch.setenv(token_cache.PLACE, str(place.parent.parent / "full"))

    def full(*given: Any, **how: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert is_encoded(ROWS, tiny_tokenizer())


def test_what_nobody_reads_goes_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[Example(f"{number}", "x" * 500)] * 2 for number in range(4)]
    made = []
    for number in range(3):
        is_encoded(rows[number], tiny_tokenizer())
        (new,) = {*files(place)} - {*made}
        made.append(new)
        os.utime(new, (number, number))
    assert not is_encoded(rows[0], tiny_tokenizer()), "it is read, so it is the newest"
    size = max(file.stat().st_size for file in made)
    monkeypatch.setattr(token_cache, "MOST", 3 * size + 100)
    is_encoded(rows[3], tiny_tokenizer())
    assert made[1] not in files(place)
    assert {made[0], made[2]} < {*files(place)}
    monkeypatch.setattr(token_cache, "MOST", 100)
    assert is_encoded([Example("large", "y" * 900)], tiny_tokenizer())
    assert len(files(place)) == 3, "what is larger than half of the cache is not kept"


def test_large_vocabularies_and_empty_rows_come_back(place: Path) -> None:
    rows = [Encoded((), ()), Encoded((2**16, 5), (False, True)), Encoded((0,), (True,))]
    place.mkdir(parents=True)
    file = place / f"{'ab' * 32}.tokens"
    for each in (rows, rows[:1], rows[2:], []):
        token_cache.keep(file, each)
        assert token_cache.kept(file, len(each)) == each
    found = token_cache.kept(file, 0)
    assert found == []
    assert token_cache.kept(file, 1) is None


SEVERAL = """
import sys
from msft.data import token_cache
from msft.data.encoding import encoded_examples
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.example import Example

token_cache.LEAST = 1
rows = [Example(f"row {n % 7}", "x" * (n % 50 + 1)) for n in range(2000)]
tokenizer = tiny_tokenizer()
wanted = encoded_examples(rows, tokenizer)
for _ in range(20):
    for place in token_cache._folder().iterdir():
        place.unlink(missing_ok=True)
    assert encoded_examples(rows, tokenizer) == wanted
"""


def test_processes_beside_each_other(place: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SEVERAL],
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for each in started:
        _, said = each.communicate(timeout=120)
        assert each.returncode == 0, said
    assert not [file for file in files(place) if file.suffix != ".tokens"]
