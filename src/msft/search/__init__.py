"""The search: what the paper says, as pure functions and values.

Read `rollout.py` first, all that a method can see; then `methods/msft.py`, Algorithm 1.
`feeds.py` has D, the mixture, and the order in which its rows are trained, `curves.py` says where a
curve peaks, and `draws.py` is all the randomness there is.
It may import the files beside the rooms (errors, own_code): no other room, no torch, no file, no
clock.
"""
