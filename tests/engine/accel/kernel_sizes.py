"""Compiles our kernels for a GPU that need not be there: bytes of shared memory that each takes.

A program of its own, since Triton interprets in the tests: `python kernel_sizes.py DIM CAPABILITY`.
"""

import json
import sys
from typing import Any

import torch
from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from msft.engine.accel import adamw_kernel, short_rows
from msft.engine.decode.step import tokens_ahead
from msft.engine.optimizer import AdamW

KINDS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}


class Compiler:
    """Stands where a kernel does, and compiles it instead of running it."""

    def __init__(self, kernel: Any, capability: int, sizes: dict[str, int]) -> None:
        self._kernel = kernel
        self._target = GPUTarget("cuda", capability, 32)
        self._sizes = sizes

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *args: Any, num_stages: int = 3, num_warps: int = 4, **named: Any) -> None:
        names = self._kernel.arg_names
        given = dict(zip(names, args, strict=False)) | named
        fixed = {p.name: given[p.name] for p in self._kernel.params if p.is_constexpr}
        signature = {name: "constexpr" if name in fixed else kind_of(given[name]) for name in names}
        even = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if name not in fixed and not isinstance(given[name], float)
        }
        source = ASTSource(
            self._kernel, signature, {(names.index(n),): v for n, v in fixed.items()}, even
        )
        options = {"num_stages": num_stages, "num_warps": num_warps}
        made = compiled(source, target=self._target, options=options)
        largest = max(made.metadata.shared, self._sizes.get(self._kernel.__name__, 0))
        self._sizes[self._kernel.__name__] = largest


def kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return KINDS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def main(dim: int, capability: int) -> None:
    sizes: dict[str, int] = {}
    kernels = {
        short_rows: ("forward", "backward_dq", "backward_dkdv", "decode"),
        adamw_kernel: ("update",),
    }
    for module, names in kernels.items():
        for name in names:
            setattr(module, name, Compiler(getattr(module, name), capability, sizes))
    q = torch.zeros(4, 64, dim, dtype=torch.bfloat16, requires_grad=True)
    k = torch.zeros(2, 64, dim, dtype=torch.bfloat16)
    sight = short_rows.Sight.of(torch.tensor([0, 64], dtype=torch.int32), 64)
    out, _ = short_rows.line_attention(q, k, k, sight)
    out.sum().backward()  # type: ignore[no-untyped-call]
    store = torch.zeros(99, 2, dim, dtype=torch.bfloat16)
    places = torch.ones(64, dtype=torch.long)
    with torch.no_grad():
        stems = short_rows.Sight(sight.starts, None, (sight.starts, sight.starts))
        short_rows.line_attention(q, k, k, stems)
        for heads, ahead in ((4, 1), (4, 8), (32, 8), (96, 2)):
            asks, rows = torch.zeros(heads, 64, dim, dtype=torch.bfloat16), places[: 64 // ahead]
            assert ahead == tokens_ahead(len(rows), 64, heads // 2)
            short_rows.step_attention(asks, k, k, (store, store), rows, rows)
    for halved in (False, True):
        weight = torch.nn.Parameter(torch.zeros(64, dim))
        adamw = AdamW({"w": weight}, mixed=True, halved=halved, kernel=True)
        weight.grad = torch.zeros(64, dim, dtype=torch.bfloat16)
        adamw.begin_step(0.1)
        adamw.step(0.0)
    print(json.dumps(sizes))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
