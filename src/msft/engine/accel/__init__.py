"""Faster ways to the same numbers; this folder may be deleted, and only rounding changes.

Read `short_rows.py` first (attention over rows in one line), then `adamw_kernel.py`,
`cuda_graphs.py` (recorded work), `joined_linears.py`, `joined_adapters.py`, `gated_layers.py` and
`fused_layers.py`. Nobody but `engine/kernels.py` imports this room. It may not import the engines
or `decode/`.
"""
