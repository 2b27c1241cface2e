"""What reports read of a run folder: its log, and the verdicts if they are there."""

from pathlib import Path

from msft.report.compare.evidence import VerdictsByKey
from msft.run.folder import RunFolder
from msft.run.history import History
from msft.run.log import read_log
from msft.run.verdicts import read_verdicts


def read_history(folder: Path) -> History:
    """The history of a run folder, or an error that says what is wrong with it."""
    log = RunFolder(folder).log
    if not log.is_file():
        raise FileNotFoundError(f"{folder} has no run.jsonl; expected the folder of a run")
    history = History(read_log(log))
    if history.opened is None:
        raise ValueError(f"{log} has no events yet; wait until the run has started")
    return history


def verdicts_of(folder: Path) -> VerdictsByKey:
    """Row verdicts if they are there; a report can do without."""
    try:
        return read_verdicts(RunFolder(folder).verdicts)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
