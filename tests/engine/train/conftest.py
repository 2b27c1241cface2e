"""What makes steps, recorded ones too, work on any machine."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from msft.engine.kernels import OptionalKernel


@pytest.fixture
def plain_bf16() -> Iterator[None]:
    """Some virtual CPUs claim bf16 instructions that they do not have."""
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)


@pytest.fixture
def no_cuda_events(monkeypatch: pytest.MonkeyPatch) -> None:
    event = SimpleNamespace(synchronize=lambda: None, record=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.fixture
def plain_kernels(plain_bf16: None, no_cuda_events: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps take attention that works anywhere."""
    monkeypatch.setattr("msft.engine.packing.varlen", lambda: OptionalKernel(by_rows))
    monkeypatch.setattr("msft.engine.packing.short_rows", lambda: OptionalKernel(None))


def by_rows(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """What torch's kernel for packed rows computes, anywhere."""
    cuts = bounds.diff().tolist()
    rows = (torch.split(tensor.transpose(0, 1), cuts, 1) for tensor in (q, k, v))
    how: dict[str, Any] = {"is_causal": True, "scale": options["scale"], "enable_gqa": True}
    parts = [scaled_dot_product_attention(*part, **how) for part in zip(*rows, strict=True)]
    return torch.cat(parts, 1).transpose(0, 1)
