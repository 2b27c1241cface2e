"""Checkpoints: which ones are kept, where, and safely.

Read `store.py` first: `retained` says what must be kept, as a pure function, and the store brings
that to its places, memory and disk, which it fills in turn. Files are checked by their hashes.
`ranked.py` has a disk that several processes write together. May import search
alone: what a checkpoint is made of is known to the codec that the engine gives.
"""
