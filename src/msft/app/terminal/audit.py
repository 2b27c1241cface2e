"""What `msft audit` prints at its end: the numbers, what they mean, the files and what to do."""

from pathlib import Path

from msft.report.audit_page import (
    VERDICTS,
    Audit,
    excluded_file,
    result_in_words,
    unclear_in_words,
)
from msft.report.wording import NOTHING, difference, number
from msft.run.folder import RunFolder
from msft.search.judging import Estimate
from msft.text import WIDTH, counted, table


def audit_text(audit: Audit, folder: Path, width: int = WIDTH) -> str:
    """A line for each sub-dataset, the worst first, and below them what to do; sentences are not
    wrapped."""
    rows = [("sub-dataset", "validation", "training", "gap", "wrong, %", "verdict")]
    rows += [
        (
            each.name,
            number(each.validation, each.unit),
            number(each.train, each.unit),
            difference(each.gap.value if each.gap else None, each.unit),
            _share(each.wrong_share),
            VERDICTS[each.verdict],
        )
        for each in audit.worst_first
    ]
    losses = ["of nll, lower is better"] if any(e.unit == "nll" for e in audit.datasets) else []
    lines = [*table(rows, width), *losses, result_in_words(audit), *unclear_in_words(audit)]
    return "\n".join([*lines, *_next(audit, folder)])


def _share(share: Estimate | None) -> str:
    if share is None:
        return NOTHING
    value, low, high = (f"{100 * each:.0f}" for each in (share.value, share.low, share.high))
    return f"{value} ({low} to {high})".replace("-", "−")


def _next(audit: Audit, folder: Path) -> list[str]:
    files = RunFolder(folder)
    if not audit.of("spoiled"):
        return ["next: train the recipe as it is; there are no rows to leave out"]
    suspects = counted(sum(each.suspects for each in audit.datasets), "suspect")
    file = excluded_file(folder)
    return [
        f"next: read the {suspects} in {files.report.name} or {files.suspects.name}, delete the "
        f"lines of right rows from {file}, then",
        f"  msft train {files.clean} --out {folder.parent / 'clean'}",
    ]
