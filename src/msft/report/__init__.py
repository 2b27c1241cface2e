"""Reports: what runs did, as pages that open offline, from logs alone and without torch."""

from msft.report.comparison import ComparisonRow, comparison_rows, comparison_text
from msft.report.comparison_report import write_comparison
from msft.report.run_report import write_report

__all__ = [
    "ComparisonRow",
    "comparison_rows",
    "comparison_text",
    "write_comparison",
    "write_report",
]
