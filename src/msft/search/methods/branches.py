"""The two branches of the paper's section 3.1, as methods: run with all, and without the first.

Training is split where the first sub-dataset overfits. Both runs train the same trunk on the same
rows in the same order, so they part only at the fork. The moments go on too, if the recipe's
`on_rollback` is `restore`.
"""

from typing import Any

from msft.search.rollout import EndedBy, Run


def with_everybody(run: Run) -> EndedBy | None:
    """Roll out as mSFT does until somebody peaks before the end; from that peak go on with all."""
    theta, trained = run.base, 0
    while trained < run.train_ticks:
        ticks = min(run.compute_budget, run.train_ticks - trained)
        rollout = run.rollout(theta, run.mixture, ticks)
        peaks = rollout.peaks()
        first = min(peaks[name] for name in run.mixture.candidates)
        if first < rollout.last:
            theta = rollout.at(first)
            run.go_on(theta)
            run.rollout(theta, run.mixture, _rest(run, trained + first), keep="best")
            return None
        theta = rollout.end
        run.go_on(theta)
        trained += rollout.ticks
    return "max_epochs"


def without_first(run: Run, *, excluded: str, legs: Any) -> None:
    """The same trunk, and from its end on without one sub-dataset.

    legs: ticks of each roll-out of the trunk; the last one ends at the fork, and may be 0.
    """
    theta = run.base
    for ticks in legs:  # a roll-out is trained even to tick 0, so that the branches' rows agree
        theta = run.rollout(theta, run.mixture, max(1, ticks)).at(ticks)
    run.exclude((excluded,), theta, legs[-1])
    mixture = run.mixture.without((excluded,))
    run.rollout(theta, mixture, _rest(run, sum(legs)), keep="best")


def _rest(run: Run, trained: int) -> int:
    """What is left of `num_train_epochs`, and at least one roll-out of mSFT."""
    return max(run.compute_budget, run.train_ticks - trained)
