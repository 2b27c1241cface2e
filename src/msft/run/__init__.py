"""Durable execution: what a method asks is answered, logged and remembered, so that a run resumes.

Read `recorded_run.py` first: a question is answered from the log or by the worker. `log.py` has the
events, `history.py` folds them and tells what was found; `folder.py` names the files of a run. May
import search and store; not the data, the scoring nor the engine, which are behind the protocols of
`engine.py`.
"""
