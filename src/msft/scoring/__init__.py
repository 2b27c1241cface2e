"""The scoring: tasks and a predictor in, exact counts out.

Read `evaluation.py` first: each sub-dataset's questions, and what its answers come to.
It asks a predictor of `run/engine.py`; `metrics.py` says what an answer is worth, and
`early_stop.py` when an answer that is being written is decided already.
It may import data and what is left of it: no torch, and no engine.
"""
