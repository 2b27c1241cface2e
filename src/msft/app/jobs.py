"""Jobs as processes: as many at a time as there are places, each with a device of its own.

A process of its own gives all memory back and may die without the others.
"""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from msft.errors import STOPPED
from msft.stopping import IS_JOB, graceful, held

_WAIT = 0.2
"""Seconds between two looks at the processes."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command, and the file for its output where that is not shown.

    shared: what it has together with others; they follow each other.
    """

    name: str
    command: tuple[str, ...]
    output: Path
    shared: Path | None = None


def devices() -> Sequence[str | None]:
    """A place for each job that may go on at a time: every CUDA device if there are several."""
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        return [None]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(count))
    return [name.strip() for name in names][:count]


@dataclass(frozen=True, slots=True)
class _Going:
    job: Job
    device: str | None
    process: "subprocess.Popen[bytes]"
    begun: float


def carry_out(
    jobs: Sequence[Job],
    places: Sequence[str | None],
    say: Callable[[str], None],
    quiet: bool = False,
    after_each: Callable[[], None] = lambda: None,
) -> dict[str, int]:
    """Do all jobs, one per place at a time; the exit codes of those that failed.

    places: CUDA devices; None is whatever there is.
    after_each: is called when a job has ended.
    A single place shows a job's own output unless `quiet`; else it goes to the job's file. A
    signal to this process stops every job where it is safe.
    """
    waiting, free = deque(jobs), deque(places)
    hidden = quiet or len(places) > 1
    failed: dict[str, int] = {}
    with graceful(), _stopping() as going:
        while waiting or going:
            while free and (job := _next(waiting, going)) is not None:
                waiting.remove(job)
                device = free.popleft()
                on = "" if device is None else f" on device {device}"
                say(f"{job.name}: started{on} ({len(waiting)} waiting)")
                with held():
                    going.append(_started(job, device, hidden))
            done = [each for each in going if each.process.poll() is not None]
            for each in done:
                going.remove(each)
                free.append(each.device)
                say(_ending(each, hidden))
                if each.process.returncode:
                    failed[each.job.name] = each.process.returncode
                after_each()
            if not done:
                time.sleep(_WAIT)
    return failed


def _next(waiting: Iterable[Job], going: Iterable[_Going]) -> Job | None:
    """The first that shares nothing with a job that is going on."""
    busy = {each.job.shared for each in going} - {None}
    return next((job for job in waiting if job.shared not in busy), None)


@contextmanager
def _stopping() -> Iterator[list[_Going]]:
    """Processes that are told to stop, and waited for, if this one is."""
    going: list[_Going] = []
    try:
        yield going
    finally:
        for each in going:
            each.process.terminate()
        for each in going:
            each.process.wait()


def _started(job: Job, device: str | None, hidden: bool) -> _Going:
    """In a session of its own, so that Ctrl-C reaches it once, through us."""
    environment = {**os.environ, IS_JOB: "1"}
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = device
    sys.stdout.flush()
    with ExitStack() as stack:
        file = None
        if hidden:
            job.output.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(job.output.open("wb"))
        process = subprocess.Popen(  # noqa: S603  our own command
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT if hidden else None,
            env=environment,
            start_new_session=True,
        )
    return _Going(job, device, process, time.monotonic())


def _ending(each: _Going, hidden: bool) -> str:
    name, code = each.job.name, each.process.returncode
    if code == 0:
        return f"{name}: finished after {time.monotonic() - each.begun:.0f} s"
    text = f"{name}: failed, {exit_in_words(code)}"
    if hidden:
        said = each.job.output.read_text(encoding="utf-8", errors="replace").splitlines()
        text += "".join(f"\n  {line}" for line in said[-5:])
    return text


def exit_in_words(code: int) -> str:
    if code == STOPPED:
        return "stopped by a signal"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
