"""Jobs as processes, one at a time on each device slot that `--devices` names.

A process of its own gives all memory back at its end and may die without the others.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from msft.app.variants import listed_words
from msft.errors import STOPPED, UsageError
from msft.process import IS_JOB, graceful, held
from msft.text import duration
from msft.threads import for_another

CPU = "cpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """One process at a time computes here.

    name: as a person is told; empty where there is only one slot.
    visible: the CUDA devices that the process sees; None: those that this one sees.
    """

    name: str = ""
    visible: str | None = None


def device_slots(devices: str | Sequence[str | int] | None) -> list[DeviceSlot]:
    """`0,1` as slots, or `cpu,cpu`; by default every CUDA device if there are several.

    Numbers count the devices that this process sees, from 0, as torch does.
    """
    if devices is None:
        seen = _seen()
        every = [DeviceSlot(f"device {number}", name) for number, name in enumerate(seen)]
        return every if len(every) > 1 else [DeviceSlot()]
    listed = devices if isinstance(devices, str) else [str(each) for each in devices]
    words = listed_words(listed, "--devices", "0,1,2 or cpu,cpu", repeated=CPU)
    seen = _seen() if {*words} != {CPU} else []
    return [DeviceSlot("CPU", "") if word == CPU else _gpu(word, seen) for word in words]


def _gpu(word: str, seen: Sequence[str]) -> DeviceSlot:
    if word.startswith(("GPU-", "MIG-")):  # the driver's own names
        return DeviceSlot(f"device {word}", word)
    if not (word.isascii() and word.isdigit()):
        raise UsageError(
            f"--devices has {word!r}; expected numbers of CUDA devices such as 0,1,2, their names "
            "(GPU-…, MIG-…), or cpu for each process on the CPU"
        )
    if int(word) >= len(seen):
        known = f"it sees {len(seen)}, counted from 0" if seen else "it sees no CUDA device"
        limit = os.environ.get(VISIBLE)
        raise UsageError(
            f"--devices has {word}, which this process does not see: {known}"
            + (f" ({VISIBLE} is {limit!r})" if limit is not None else "")
            + "; name devices that are there, or cpu"
        )
    return DeviceSlot(f"device {int(word)}", seen[int(word)])


def _seen() -> list[str]:
    """The CUDA devices that this process sees, as another process is told of them."""
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get(VISIBLE)
    names = visible.split(",") if visible else map(str, range(count))
    return [name.strip() for name in names][:count]


Say = Callable[[str], None]

_LOOK = 2.0
"""Seconds between two looks at what jobs share; it means reading their logs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command, and the file for its output where that is not shown.

    shared: what it has together with others; the first of them makes it.
    """

    name: str
    command: tuple[str, ...]
    output: Path
    shared: Path | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    job: Job
    slot: DeviceSlot
    process: "subprocess.Popen[bytes]"
    begun: float


def carry_out(
    jobs: Sequence[Job],
    slots: Sequence[DeviceSlot],
    say: Say,
    quiet: bool = False,
    after_each: Callable[[], None] = lambda: None,
    is_made: Callable[[Path], bool] = lambda shared: False,
) -> dict[str, int]:
    """Do all jobs, one per slot at a time; the exit codes of those that failed.

    after_each: is called when a job has ended.
    is_made: whether what jobs share is there, so that the others need not wait for the first to
        end.
    A single slot shows a job's own output unless `quiet`; else it goes to the job's file. A
    signal to this process stops every job where it is safe.
    """
    waiting, free = deque(jobs), deque(slots)
    hidden, most = quiet or len(slots) > 1, min(len(jobs), len(slots))
    failed: dict[str, int] = {}
    looked = 0.0
    with graceful(), _stopping(say) as going:
        while waiting or going:
            may_look = bool(free and waiting) and time.monotonic() - looked > _LOOK
            ready = {s for s in _busy(going) if is_made(s)} if may_look else set[Path]()
            looked = time.monotonic() if may_look else looked
            while free and (job := _next(waiting, _busy(going) - ready)) is not None:
                waiting.remove(job)
                slot = free.popleft()
                output = f"; output in {job.output}" if hidden else ""
                say(f"{job.name}: started{_on(slot)}, {len(waiting)} waiting{output}")
                with held():
                    going.append(_started(job, slot, hidden, most))
            done = [each for each in going if each.process.poll() is not None]
            for each in done:
                going.remove(each)
                free.append(each.slot)
                say(_ending(each, hidden))
                if each.process.returncode:
                    failed[each.job.name] = each.process.returncode
                after_each()
            if not done:
                time.sleep(0.2)
    return failed


@contextmanager
def in_background(jobs: Sequence[Job]) -> Iterator[None]:
    """These jobs go on beside the block, all at once, and are waited for at its end."""
    with _stopping(lambda text: None) as going:
        for job in jobs:
            with held():
                going.append(_started(job, DeviceSlot(), hidden=True, most=len(jobs)))
        yield
        for each in going:
            each.process.wait()


def _busy(going: Iterable[_Running]) -> set[Path]:
    return {each.job.shared for each in going if each.job.shared is not None}


def _next(waiting: Iterable[Job], unfinished: set[Path]) -> Job | None:
    """The first that shares nothing that is only being made."""
    return next((job for job in waiting if job.shared not in unfinished), None)


@contextmanager
def _stopping(say: Say) -> Iterator[list[_Running]]:
    """Processes that are told to stop, and waited for, if this one is."""
    going: list[_Running] = []
    try:
        yield going
    finally:
        for each in going:
            each.process.terminate()
        if len(going) > 1:
            say(f"stopping {', '.join(each.job.name for each in going)} where it is safe …")
        for each in going:
            each.process.wait()


def _started(job: Job, slot: DeviceSlot, hidden: bool, most: int) -> _Running:
    """Start a job in a session of its own, so that Ctrl-C reaches it only through this process.

    most: jobs that go on at a time.
    """
    environment = {**for_another(os.environ), IS_JOB: str(most)}
    if slot.visible is not None:
        environment[VISIBLE] = slot.visible
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
    return _Running(job, slot, process, time.monotonic())


def _ending(each: _Running, hidden: bool) -> str:
    name, code = each.job.name, each.process.returncode
    took = f"{_on(each.slot)} after {duration(time.monotonic() - each.begun)}"
    if code == 0:
        return f"{name}: finished{took}"
    text = f"{name}: failed{took}, {exit_in_words(code)}"
    if hidden:
        said = each.job.output.read_text(encoding="utf-8", errors="replace").splitlines()
        text += "".join(f"\n  {line}" for line in said[-5:])
    return text


def _on(slot: DeviceSlot) -> str:
    return f" on {slot.name}" if slot.name else ""


def shell_command(command: Sequence[str]) -> str:
    """A command of ours as a person types it: `msft …` where that is this program."""
    ours = (sys.executable, "-m", "msft")
    installed = shutil.which("msft")
    is_this = installed is not None and Path(installed).parent == Path(sys.executable).parent
    short = ("msft", *command[3:]) if is_this and tuple(command[:3]) == ours else command
    return shlex.join(short)


def exit_in_words(code: int) -> str:
    if code == STOPPED:
        return "stopped by a signal"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
