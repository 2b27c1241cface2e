"""A trial of a mutant: its tests, in a process that was forked after everything was imported.

Before the trials all tests run once, in a process of their own. That says what they import, how
long each takes and which functions of msft it calls. A test that does not call the function that
was changed cannot notice the change, so it is left out; the quickest of the others run first.

A change inside a function is tried in a fork of a process that has collected the tests: there the
function gets its new code. A change that works on import is tried in a fork of a process without
msft, which imports the new source. A test that starts a new Python sees the old source there.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

from mutant_changes import SOURCE, Mutant

ROOT = SOURCE.parents[1]
MEMORY = 12 * 2**30
"""Bytes of address space; a mutant that grows for ever fails instead of filling the machine."""

PR_SET_PDEATHSIG = 1
"""Of Linux: a child ends with its parent."""

WAIT = 7200
"""Seconds until a child that sleeps is given up; one that works has a limit for each test."""

QUIET = (
    *("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=no"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # what is imported before pytest starts
)
SURVIVED, NOTICED, BROKEN = 0, 1, 2


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
        code, said = _forked(lambda: _watch(new, found), folder)
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


def try_all(
    mutants: Sequence[Mutant],
    paths: Sequence[str],
    tests: Tests,
    folder: Path,
    tell: Callable[[Mutant, str | None], None],
) -> None:
    """Tells of each mutant which test notices it, or what else did; None where nothing does."""
    files = [name for path in paths for name in test_files(path)]
    known = {name: test for name, test in tests.items() if name.split("::")[0] in files}
    at_import = frozenset.intersection(*(test.calls for test in known.values()))

    def limits(mutant: Mutant) -> dict[str, float]:
        calls = {n for n, test in known.items() if mutant.called in test.calls}
        here = calls if mutant.function else {*known}
        order = sorted(here, key=lambda name: known[name].seconds)
        return {name: 5 + 5 * known[name].seconds for name in order}

    def answer(mutant: Mutant, code: int, said: str) -> None:
        if code == BROKEN:
            sys.exit(f"{mutant}: pytest could not run: {said}")
        tell(mutant, None if code == SURVIVED else said or "the time limit")

    swapped = [mutant for mutant in mutants if mutant.function and mutant.called not in at_import]
    if swapped:
        session = Session(swapped, limits, folder, answer)
        code, said = _forked(lambda: _collect(session, files), folder)
        if code != SURVIVED:
            sys.exit(f"the tests could not be collected: {said}")
    for mutant in mutants:
        if mutant not in swapped:
            answer(mutant, *_forked(partial(_import, mutant, files, limits(mutant)), folder))


# In the child.


def _collect(session: "Session", files: Sequence[str]) -> tuple[int, str]:
    code = pytest.main([*QUIET, "--capture=no", *files], plugins=[session])
    return (SURVIVED if code == pytest.ExitCode.OK else BROKEN), str(code)


class Session:
    """A plugin: once the tests are collected, every mutant is tried in a fork."""

    def __init__(
        self,
        mutants: Sequence[Mutant],
        limits: Callable[[Mutant], Mapping[str, float]],
        folder: Path,
        answer: Callable[[Mutant, int, str], None],
    ) -> None:
        self._mutants, self._limits, self._folder, self._answer = mutants, limits, folder, answer

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.collect()
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        for mutant in self._mutants:
            limits = self._limits(mutant)
            work = partial(_swap, mutant, [items[name] for name in limits], Chosen(limits))
            self._answer(mutant, *_forked(work, self._folder))
        return True


def _swap(mutant: Mutant, items: Sequence[pytest.Item], chosen: "Chosen") -> tuple[int, str]:
    """The tests with the function's new code."""
    _change(mutant)
    for item in items:
        if item is items[0]:
            item.config.pluginmanager.register(chosen)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        if chosen.failed:
            return NOTICED, chosen.failed
    return SURVIVED, ""


def _change(mutant: Mutant) -> None:
    assert mutant.function is not None
    outermost = mutant.function.split(".<locals>")[0]
    found: Any = sys.modules[_module(mutant)]
    for name in outermost.split("."):
        found = vars(found)[name]
    found = getattr(found, "fget", None) or getattr(found, "__wrapped__", None) or found
    inside = [compile(mutant.source, str(SOURCE / mutant.file), "exec")]
    while inside[0].co_qualname != outermost:
        code = inside.pop(0)
        inside += [each for each in code.co_consts if isinstance(each, CodeType)]
    found.__code__ = inside[0]


def _module(mutant: Mutant) -> str:
    return "msft." + mutant.file.removesuffix(".py").replace("/", ".")


def _import(mutant: Mutant, files: Sequence[str], limits: Mapping[str, float]) -> tuple[int, str]:
    """The tests with the new source; those of the first file, then the others."""
    sys.meta_path.insert(0, Changed(mutant))
    for some in (files[:1], files[1:]):
        chosen = Chosen({n: s for n, s in limits.items() if n.split("::")[0] in some})
        if not chosen.limits:
            continue
        code = pytest.main([*QUIET, *some], plugins=[chosen])
        if code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
            return NOTICED, chosen.failed or "the import"
        if code != pytest.ExitCode.OK:
            return BROKEN, str(code)
    return SURVIVED, ""


class Changed:
    """Imports one module of msft from the changed source."""

    def __init__(self, mutant: Mutant) -> None:
        self._name, self._source = _module(mutant), mutant.source
        self._path = str(SOURCE / mutant.file)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        loader = ChangedSource(name, self._path)
        loader.changed = self._source
        return spec_from_file_location(name, self._path, loader=loader)


class ChangedSource(SourceFileLoader):
    changed = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.changed, self.path, "exec")


class Chosen:
    """A plugin: these tests in this order, each with its limit of CPU time, after which the process
    ends; remembers the test that failed."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits, self.failed = limits, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order = [*self.limits]
        items[:] = [item for item in items if item.nodeid in self.limits]
        items.sort(key=lambda item: order.index(item.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        signal.setitimer(signal.ITIMER_PROF, self.limits[item.nodeid])
        done = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


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
            threading.settrace(before)  # type: ignore[arg-type]


# Around it.


def _forked(work: Callable[[], tuple[int, str]], folder: Path) -> tuple[int, str]:
    """What the work returns, done in a child; (NOTICED, "") where it ends before it answers."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _alone(work, write, folder)
    os.close(write)
    end = time.monotonic() + WAIT
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):  # with the processes that a test started
            os.killpg(child, signal.SIGKILL)
    os.set_blocking(read, False)
    with suppress(BlockingIOError), os.fdopen(read) as answer:
        code, said = json.loads(answer.read() or f'[{NOTICED}, ""]')
        return code, said
    return NOTICED, ""


def _alone(work: Callable[[], tuple[int, str]], answer: int, folder: Path) -> None:
    """Never returns."""
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(ROOT)
        tempfile.tempdir = str(folder)
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE.parent)}
        sys.path.insert(0, str(SOURCE.parent))
        # Nothing random, nothing remembered, no search for the smallest example.
        phases: Any = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutants", derandomize=True, database=None, deadline=None, phases=phases
        )
        settings.load_profile("mutants")
        os.write(answer, json.dumps(work()).encode())
    finally:
        os._exit(0)
