"""The tests of mutants, run once on the source as it is.

That says what they import, how long each takes and which functions of msft it calls.
"""

import gc
import json
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType

import pytest

from mutant_changes import SOURCE
from mutant_forks import NOTICED, ROOT, SURVIVED, forked

QUIET = (
    *("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=no"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # what is imported before pytest starts
)


@dataclass(frozen=True)
class Known:
    """A test, as the first run found it.

    calls: what it calls in msft, as `file::function`.
    """

    seconds: float
    calls: frozenset[str]


Tests = Mapping[str, Known]
"""By pytest's name of a test."""


def first_run(paths: Sequence[str], held: Path, folder: Path) -> Tests:
    """Run all tests on the source as it is; what they import is imported here too, but for msft.

    held: what was found out before; a file of tests is run again where it or msft is another now.
    """
    document = json.loads(held.read_text()) if held.exists() else {"files": {}, "modules": []}
    files = {name: _digest(name) for path in paths for name in test_files(path)}
    new = [name for name, now in files.items() if document["files"].get(name, [""])[0] != now]
    if new:
        found = folder / "tests.json"
        code, said = forked(lambda: _watch(new, found), folder)
        if code != SURVIVED:
            sys.exit(f"the tests fail without any change: {said}")
        tests, modules = json.loads(found.read_text())
        document["modules"] = [*dict.fromkeys(document["modules"] + modules)]
        for name in new:
            here = {each: tests[each] for each in tests if each.split("::")[0] == name}
            document["files"][name] = files[name], here
        held.write_text(json.dumps(document))
    for name in document["modules"]:
        with suppress(Exception):  # one that cannot be imported alone is imported in each trial
            import_module(name)
    assert "msft" not in sys.modules
    gc.collect()
    gc.freeze()  # the children share these pages
    return {
        name: Known(seconds, frozenset(calls))
        for file in files
        for name, (seconds, calls) in document["files"][file][1].items()
    }


def test_files(path: str) -> list[str]:
    """Of a folder or a file, from the root."""
    inside = sorted((ROOT / path).rglob("test_*.py")) or [ROOT / path]
    return [str(file.relative_to(ROOT)) for file in inside]


def _digest(test_file: str) -> str:
    """Of a file of tests, of what tests share and of msft."""
    shared = [ROOT / "tests" / "conftest.py", ROOT / "tests" / "mortal.py"]
    files = [ROOT / test_file, *shared, *sorted(SOURCE.rglob("*.py"))]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _watch(paths: Sequence[str], found: Path) -> tuple[int, str]:
    watched = Watched()
    with watched.calls_of(""):
        code = pytest.main([*QUIET, *paths], plugins=[watched])
    modules = [
        name
        for name, module in list(sys.modules.items())
        if name.split(".")[0] not in ("msft", "__main__", "__mp_main__")
        and not str(getattr(module, "__file__", None) or "").startswith(str(ROOT))
    ]
    everybody = watched.calls.pop("")  # what msft calls on import may be behind any test
    tests = {n: (watched.seconds[n], sorted(c | everybody)) for n, c in watched.calls.items()}
    found.write_text(json.dumps((tests, modules)))
    return (SURVIVED if code == pytest.ExitCode.OK else NOTICED), watched.failed


class Watched:
    """A plugin: how long each test takes and what it calls in msft."""

    def __init__(self) -> None:
        self.seconds, self.calls, self.failed = dict[str, float](), dict[str, set[str]](), ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        begun = time.process_time()
        with self.calls_of(item.nodeid):
            done = yield
        self.seconds[item.nodeid] = time.process_time() - begun
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    @contextmanager
    def calls_of(self, test: str) -> Iterator[None]:
        calls, seen = self.calls.setdefault(test, set()), dict[int, CodeType]()
        place = f"{SOURCE}/"

        def note(frame: FrameType, event: str, arg: object) -> None:
            code = frame.f_code
            if id(code) not in seen:
                seen[id(code)] = code
                if code.co_filename.startswith(place):
                    calls.add(f"{code.co_filename.removeprefix(place)}::{code.co_qualname}")

        before = sys.gettrace()
        sys.settrace(note)
        threading.settrace(note)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)
