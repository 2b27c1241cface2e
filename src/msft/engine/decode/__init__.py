"""Answers of a model: greedy texts and likelihoods of many rows at once.

Read `decoder.py` first: it chooses the path, and has the plain one, which is exact on every device
and for any attention. The fast path is `plans.py` (what goes through the model), `step.py` (one
decoding step: KV cache, attention over shared prefixes, drafts) and `fast.py` (the loop).
This room may not import the engines or `saving/`, and knows `accel/` by `engine/kernels.py` alone.
"""
