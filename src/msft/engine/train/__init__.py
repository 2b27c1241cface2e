"""The fast trainer: packed rows, AdamW on fp32 masters, recorded steps.

Read `engine.py` first, then `adamw.py`. `recording.py` says which steps are replayed on a GPU:
`step_graphs.py` replays whole ones, `part_graphs.py` lanes and micro-batches.
`moving_average.py` holds what is scored and kept with `ema_decay`, and `pending_losses.py` hands
losses out when somebody looks at them. `vectors.py` has slices rounded as whole tensors are. What a
step is, without any of this, stands in `engine/simple.py`.
It may not import `decode/` or `saving/`, and knows `accel/` by `engine/paths.py` alone.
"""
