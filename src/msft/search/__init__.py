"""The search: what the paper says, as pure functions and values.

Read `rollout.py` first, all that a method can see; then `methods/msft.py`, Algorithm 1.
`mixture.py` is D, `peaks.py` says where a curve peaks, `feeds.py` in which order rows are trained,
and `draws.py` is all the randomness there is.
It may import the values beside it (checks, errors): no other room, no torch, no file, no clock.
"""
