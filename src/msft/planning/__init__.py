"""What a run will cost: `msft plan`, and what `msft train` refuses by.

Read `forecast.py` first: it puts together what `counting.py` (steps and tokens of every method),
`engine/memory.py`, `devices.py` (several GPUs) and `calibration.py` (speed) each say.
`admission.py` is the first stage of a run: `admit` refuses what cannot work before anything heavy
is loaded.
Nothing here trains or writes. It may import the engine, the observers and the report, and what is
left of them; not `training.py` nor `app`. `bench/plan_check.py` checks the plan against runs.
"""
