"""Engines over toy models, and a recorder of steps that needs no GPU."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from families import loaded, model_of
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from msft.engine.adapters.lora import adapted
from msft.engine.fast import FastEngine
from msft.engine.optimizer import TrainingSettings
from msft.engine.simple import SimpleEngine
from msft.example import Encoded
from msft.ranks import ALONE
from msft.recipe.recipe import AdapterOptions

CPU = torch.device("cpu")
Engine = FastEngine | SimpleEngine


def settings_of(**settings: Any) -> TrainingSettings:
    return TrainingSettings(**{"learning_rate": 1e-3, **settings})


def fast(
    rows: Sequence[Encoded],
    family: str = "llama",
    adapter: AdapterOptions | None = None,
    recorder: Any = None,
    ranks: Any = ALONE,
    **settings: Any,
) -> FastEngine:
    model, how = loaded(model_of(family, 1.0)), settings_of(**settings)
    made = None if adapter is None else adapted(model, adapter, CPU, how.bf16)
    kept = made.loaded if made else model
    return FastEngine(kept, {"a": rows}, how, recorder=recorder, adapted=made, ranks=ranks)


def simple(
    rows: Sequence[Encoded],
    family: str = "llama",
    adapter: AdapterOptions | None = None,
    **settings: Any,
) -> SimpleEngine:
    own = model_of(family, 1.0)
    own.set_attn_implementation("eager")
    model, how = loaded(own), settings_of(**settings)
    made = None if adapter is None else adapted(model, adapter, CPU, how.bf16)
    return SimpleEngine(made.loaded if made else model, {"a": rows}, how, made)


BOTH: dict[str, Callable[..., Engine]] = {"fast": fast, "simple": simple}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two sets of tensors have the same bits."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


class Direct:
    """Records a step by remembering it."""

    stream = None

    def renew(self) -> None: ...

    def rehearsing(self) -> Any:
        return nullcontext()

    def recorded(self, work: Any) -> Any:
        return SimpleNamespace(replay=work)


def by_rows(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *sizes: Any, **options: Any) -> Tensor:
    """What torch's kernel for packed rows computes, anywhere."""
    cuts = bounds.diff().tolist()
    rows = (torch.split(tensor.transpose(0, 1), cuts, 1) for tensor in (q, k, v))
    how: dict[str, Any] = {"is_causal": True, "scale": options["scale"], "enable_gqa": True}
    parts = [scaled_dot_product_attention(*part, **how) for part in zip(*rows, strict=True)]
    return torch.cat(parts, 1).transpose(0, 1)
