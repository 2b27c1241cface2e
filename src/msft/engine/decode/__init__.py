"""Answers of a model: greedy texts and likelihoods of many rows at once.

Read `decoder.py` first, which chooses the way, then `plain.py`, the way that is exact everywhere.
The rest is the fast way: `prefix_lines.py` and `batch_plans.py` say what goes through the model,
`shared_attention.py`, `likelihoods.py`, `step.py` and `draft.py` compute it, `fast.py` joins them.
It may not import `train/` or `saving/`, and knows `accel/` by `engine/paths.py` alone.
"""
