"""The numbers of comparisons: runs beside each other, and how sure their differences are.

Read `runs.py` first (a run that is compared), then `comparison.py` (methods with their runs).
`statistics.py` and `paper.py` have the numbers. Nothing is drawn or set here: no file imports
figures, tables or pages.
"""
