"""Reports: what runs did, as pages that open offline, from logs alone and without torch.

- One run: `run_report` fills run.html from `results` (in words), `decisions`, `intervals`,
  `reproduction`; its figures are in `timeline`, `search_figures`, `peak_figures`, `cost_figures`,
  over the geometry of `branches`.
- Several runs: a `compared_run` is one of them, an `entrant` is a method with its runs by seed (or
  one run by itself), a `contest` is the entrants on one mixture. `comparison_report` writes the
  page of `msft compare` and of `msft report A B` from `conclusions` (in words), `paper_tables`,
  `certainty_tables` and `figure_sections`, which says which figures these runs have.
- Either: `tables` and `section` are what a page, a file or a terminal shows; `page`, `chart`,
  `bars`, `legend` draw it; `wording` and `units` say how numbers are written.
"""

from msft.report.comparison_page import comparison_text, write_comparison
from msft.report.run_page import write_report

__all__ = [
    "comparison_text",
    "write_comparison",
    "write_report",
]
