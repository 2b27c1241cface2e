"""Torch tests share two cores with each other: one thread each. Kernels are interpreted where
there is no GPU, which Triton must know before it is first loaded."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from warm_python import warm_python

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

for size in ("COLUMNS", "LINES"):  # pytest-xdist sets them, and a user would not
    os.environ.pop(size, None)

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def _warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with warm_python(tmp_path_factory.mktemp("warm")) as executable:
        yield executable


@pytest.fixture
def warm(_warm: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`sys.executable` has imported everything already; see `warm_python`."""
    monkeypatch.setattr("sys.executable", _warm)
    monkeypatch.setenv("PATH", str(Path(_warm).parent), prepend=os.pathsep)
    return _warm


@pytest.fixture(scope="module")
def no_reports() -> Iterator[None]:
    """Runs write no report.html, which takes as long as a short training; nobody looks at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msft.app.session.write_report", lambda folder: folder)
        yield
