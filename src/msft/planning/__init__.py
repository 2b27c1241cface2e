"""What a run will cost: `msft plan`, and what `msft train` refuses by.

Read `forecast.py` first: it puts together what `cases.py` (steps and tokens of every method, by a
`counting_run.py`), `evaluation_tokens.py`, `memory.py` and `calibration.py` (speed) each say. The
nouns are told apart at the top of `memory.py`. `side_by_side.py` does it for the runs of a
comparison. Nothing here trains or writes; it may not import `app` or `report`. What checks the plan
against finished runs is `bench/plan_check.py`.
"""
