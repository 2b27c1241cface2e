"""The numbers of comparisons: runs beside each other, and how sure their differences are.

Read `comparison.py` first. `statistics.py`, `headroom.py` and `paper.py` have the numbers. Nothing
is drawn or set here: no file imports figures, tables or pages.
"""
