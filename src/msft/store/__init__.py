"""Checkpoints: which ones are kept, where, and safely.

Read `store.py` first: it decides what is dropped. `tiers.py` has memory and disk, which a store
fills in turn, `background_disk.py` a disk that is written beside training. May import search alone:
what a checkpoint is made of is known to the codec that the engine gives.
"""
