"""Observers: who watches a run, and changes nothing in it.

Read `observer.py` first. `files.py` writes the files beside the log, `trackers.py` speaks to
TensorBoard and the like, `hub.py` uploads the result. The progress of a terminal is in `app`.
May import search, store, run, recipe and report.
"""
