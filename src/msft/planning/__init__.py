"""What a run will cost: `msft plan`, and what `msft train` refuses by.

Read `forecast.py` first: it puts together what `counting.py` (steps and tokens of every method),
`memory.py`, `devices.py` (several GPUs) and `calibration.py` (speed) each say. The nouns are told
apart at the top of `memory.py`. Nothing here trains or writes; it may not import `app` or `report`.
What checks the plan against finished runs is `bench/plan_check.py`.
"""
