"""Torch tests share two cores with each other: one thread each. Kernels are interpreted where
there is no GPU, which Triton must know before it is first loaded."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from warm_python import PINNED, pinned, warm_python

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

for size in ("COLUMNS", "LINES"):  # pytest-xdist sets them, and a user would not
    os.environ.pop(size, None)

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def _warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    with warm_python(tmp_path_factory.mktemp("warm")) as executable:
        yield executable, pinned()


@pytest.fixture
def warm(_warm: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> str:
    """`sys.executable` has imported everything already; see `warm_python`. Variables are as they
    were then: without a way to the hub, a run in this process sets HF_HUB_OFFLINE for good."""
    executable, before = _warm
    for key in PINNED:
        if key in before:
            monkeypatch.setenv(key, before[key])
        else:
            monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr("sys.executable", executable)
    monkeypatch.setenv("PATH", str(Path(executable).parent), prepend=os.pathsep)
    return executable


@pytest.fixture(scope="module")
def no_reports() -> Iterator[None]:
    """Runs write no report.html, which takes as long as a short training; nobody looks at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msft.app.session.write_report", lambda folder: folder)
        yield
