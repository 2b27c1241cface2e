"""The scoring: tasks and a predictor in, exact counts out.

Read `evaluation.py` first: each sub-dataset's questions, and how its answers are counted.
`predictor.py` is all that it wants of an engine, `metrics.py` says what an answer is worth,
`early_stop.py` when an answer that is being written is decided already.
It may import data and what is left of it: no torch, and no engine.
"""
