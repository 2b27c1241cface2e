"""The scoring: tasks and a predictor in, exact counts out.

Read `evaluation.py` first: each sub-dataset's questions, and what its answers come to.
It asks a predictor of `run/engine.py`. `metrics.py` calls a metric of the user's own.
It may import data and what is left of it: no torch, and no engine.
"""
