"""Faster ways to the same numbers; this folder may be deleted, and only rounding changes.

Read `short_rows.py` and `triton_attention.py` first (attention over rows in one line), then
`adamw_kernel.py`, `cuda_graphs.py` (recorded work), `joined_linears.py`, `gated_layers.py` and
`fused_layers.py`.
Nobody but `engine/kernels.py` imports this room. It may import `paths.py` and `packing.py`, not
`train/` or `decode/`.
"""
