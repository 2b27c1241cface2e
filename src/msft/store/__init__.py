"""Checkpoints: which ones are kept, where, and safely.

Read `retention.py` first: it says what must be kept, as a pure function. `store.py` brings that to
its places; `tiers.py` has memory and disk, which a store fills in turn, `manifests.py` the
hashes that a disk's files are checked by, `background_disk.py` a disk that is written beside
training, `ranked_disk.py` one that several processes write together. May import search alone: what
a checkpoint is made of is known to the codec that the engine gives.
"""
