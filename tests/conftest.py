"""Torch tests share two cores with each other: one thread each. Kernels are interpreted where
there is no GPU, which Triton must know before it is first loaded."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, settings

from mortal import quick_folder
from msft.report import write_report
from warm_python import NO_REPORTS, PINNED, WRITERS, empty_report, warmed

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

for size in ("COLUMNS", "LINES"):  # pytest-xdist sets them, and a user would not
    os.environ.pop(size, None)

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # other work may have most of the machine

torch.set_num_threads(1)
gc.disable()  # until everything is imported; it would look through all of it again and again


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(5_000, 20, 20)  # rather more memory than a tenth of the time


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """A test kills processes, not machines: what is written is there without `fsync`. Tests of what
    a machine without power leaves note its calls themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder in memory, where there is one."""
    with quick_folder() as path:
        yield path


@pytest.fixture
def place(folder: Path) -> Path:
    """As `folder`, where the folders of several runs are made."""
    return folder


@pytest.fixture(scope="session")
def _warm() -> tuple[str, dict[str, str]]:
    return warmed()


@contextmanager
def _in_warm_python(made: tuple[str, dict[str, str]]) -> Iterator[str]:
    executable, before = made
    with pytest.MonkeyPatch.context() as patch:
        for key in PINNED:
            if key in before:
                patch.setenv(key, before[key])
            else:
                patch.delenv(key, raising=False)
        patch.setattr("sys.executable", executable)
        patch.setenv("PATH", str(Path(executable).parent), prepend=os.pathsep)
        yield executable


@pytest.fixture
def warm(_warm: tuple[str, dict[str, str]]) -> Iterator[str]:
    """`sys.executable` has imported everything already; see `warm_python`. Variables are as they
    were then: without a way to the hub, a run in this process sets HF_HUB_OFFLINE for good."""
    with _in_warm_python(_warm) as executable:
        yield executable


@pytest.fixture(scope="module")
def warm_module(_warm: tuple[str, dict[str, str]]) -> Iterator[str]:
    """As `warm`, for what a module makes once."""
    with _in_warm_python(_warm) as executable:
        yield executable


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_HUB_OFFLINE=1 has it from the start: nobody waits for a hub that is not there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def no_reports() -> Iterator[None]:
    """Nobody looks at what runs and audits write as report.html: it is empty, in the warm Python
    too."""
    with pytest.MonkeyPatch.context() as patch:
        for writer in WRITERS:
            patch.setattr(f"{writer}.write_report", empty_report)
        patch.setenv(NO_REPORTS, "1")
        yield


@pytest.fixture
def reports(no_reports: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test of a module with `no_reports` does look at what its runs write."""
    for writer in WRITERS:
        monkeypatch.setattr(f"{writer}.write_report", write_report)
    monkeypatch.delenv(NO_REPORTS)


@pytest.fixture
def plain_bf16() -> Iterator[None]:
    """Some virtual CPUs claim bf16 instructions that they do not have."""
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)


@pytest.fixture
def no_cuda_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps can be recorded where there is no GPU."""
    event = SimpleNamespace(synchronize=lambda: None, record=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.fixture
def plain_kernels(plain_bf16: None, no_cuda_events: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps take attention that works anywhere."""
    from engines import by_rows

    from msft.engine.kernels import OptionalKernel

    monkeypatch.setattr("msft.engine.packing.varlen", lambda: OptionalKernel(by_rows))
    monkeypatch.setattr("msft.engine.packing.short_rows", lambda: OptionalKernel(None))
