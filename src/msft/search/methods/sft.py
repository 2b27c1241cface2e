"""SFT: every sub-dataset gets the same number of epochs; the best checkpoint is reported."""

from msft.search.rollout import Run


def sft(run: Run) -> None:
    """One roll-out on the whole mixture."""
    run.rollout(run.base, run.mixture, run.train_ticks, keep="best")
