"""Reports: what runs did, from their logs, as tables, figures and pages that open offline.

Read `run_page.py` first (one run), then `comparison_page.py` (several). `tables.py` and `page.py`
are the forms that everything takes, `wording.py` says how a number is written; `findings.py` has
what a person should know before believing a run, `compare/` the numbers of comparisons, `figures/`
draws. May import run, store and search: a report sees the log only, and needs neither torch nor
the benchmarks.
"""

from msft.report.comparison_page import comparison_text, write_comparison
from msft.report.run_page import write_report

__all__ = [
    "comparison_text",
    "write_comparison",
    "write_report",
]
