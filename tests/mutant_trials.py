"""A trial of a mutant: its tests, in a process that was forked after everything was imported.

Before the trials all tests run once, in a process of their own. That says what they import, how
long each takes and which functions of msft it calls. A test that does not call the function that
was changed cannot notice the change, so it is left out; the quickest of the others run first.

A change inside a function is tried in a fork of a process that has collected the tests: there the
function gets its new code. A change that works on import is tried in a fork of a process without
msft, which imports the new source. A test that starts a new Python sees the old source there.
"""

import gc
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from mutant_changes import SOURCE, Mutant
from mutant_forks import BROKEN, NOTICED, SURVIVED, forked
from mutant_tests import QUIET, Tests, test_files

LONGEST = 2.0
"""Seconds of a test. What only longer ones would notice, such as simulations of a level, counts as
not noticed: it lacks a test of its value."""


def try_all(
    mutants: Sequence[Mutant],
    paths: Sequence[str],
    tests: Tests,
    folder: Path,
    tell: Callable[[Mutant, str | None], None],
) -> None:
    """Tells of each mutant which test notices it, or what else did; None where nothing does."""
    files = [name for path in paths for name in test_files(path)]
    known = {n: test for n, test in tests.items() if n.split("::")[0] in files}
    known = {n: test for n, test in known.items() if test.seconds <= LONGEST}
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
        code, said = forked(lambda: _collect(session, files), folder)
        if code != SURVIVED:
            sys.exit(f"the tests could not be collected: {said}")
    for mutant in mutants:
        if mutant not in swapped:
            answer(mutant, *forked(partial(_import, mutant, files, limits(mutant)), folder))


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
            self._answer(mutant, *forked(work, self._folder))
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
