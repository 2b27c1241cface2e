"""The numbers of comparisons: runs beside each other, and how sure their differences are.

Read `contest.py` first: a contest is entrants on one mixture, an entrant is a method with its runs
by seed, a compared run is one log under a name. Statistics, intervals and the paper's
decompositions follow. Nothing is drawn or set here: no file imports figures, tables or pages.
"""
