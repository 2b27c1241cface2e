"""mSFT: roll out, exclude the sub-dataset that overfits first, roll back to there, go on.

Algorithm 1 of the paper, line by line. Algorithm 4 adds which checkpoint is returned, which the
log decides for every method (`History._consider`), and which ones may be deleted, which the store
decides (`store.retained`). What the paper leaves open is decided elsewhere: where a curve peaks in
`curves.PeakRule`, when a roll-out ends early and what the optimizer starts from in
`options.RolloutOptions`, what remains of an excluded sub-dataset in `feeds.Mixture`.

We add options. `max_stages` is on by default, since the paper's loop may never end. With `exclude`
only sub-datasets whose fall is statistically sure (`falls.falls`) may leave; of those the one with
the earliest peak leaves, as in the paper.
"""

from typing import Annotated, Literal

from msft.search.options import Ge, Gt, SureExclusion, ticks_of
from msft.search.rollout import EndedBy, Run


def msft(
    run: Run,
    *,
    drop_ties: Literal["one", "all"] = "one",
    max_stages: Annotated[int | None, Ge(1)] = None,
    max_epochs: Annotated[float | None, Gt(0)] = None,
    exclude: SureExclusion | None = None,
) -> EndedBy:
    """The paper's search.

    drop_ties: of several sub-datasets that peak first together, drop the first in recipe order
        or all of them.
    max_stages: end after this many roll-outs (default: twice the number of sub-datasets).
    max_epochs: end when this many epochs were trained, discarded ones included; the last
        roll-out is cut to fit (default: no limit).
    exclude: only those leave that fall for sure, with this confidence; end when a roll-out
        neither excludes anybody nor raises the best mean (default: the paper's rule).
    """
    stages_left = max_stages or 2 * len(run.mixture.active)
    ticks_left = ticks_of(max_epochs, run.evals_per_epoch, "max_epochs") if max_epochs else None

    theta, active = run.base, run.mixture  # 1: E = {}, theta^ = theta_0
    while active:  # 2: while D \ E is not empty
        if stages_left == 0:
            return "max_stages"
        if ticks_left == 0:
            return "max_epochs"
        budget = min(run.compute_budget, ticks_left or run.compute_budget)
        best_before = run.best or run.base

        rollout = run.rollout(theta, active, budget)  # 3: roll out theta^ on D \ E for C
        peaks = rollout.peaks()  # 4: c_i* = argmax_c acc(D_i, c)
        may_leave = active.candidates
        if exclude:
            falls = run.falls(rollout, exclude.confidence)
            may_leave = tuple(name for name in may_leave if falls[name].leaves)
        # 5: c_min, and D_exclude in `leaving`; if nobody may leave, as if all had peaked at C
        c_min = min((peaks[name] for name in may_leave), default=rollout.last)
        first = tuple(name for name in may_leave if peaks[name] == c_min)
        leaving = first if drop_ties == "all" else first[:1]

        if c_min >= rollout.last:  # 6: c_min = C: a tick after the last step is the same model
            theta = rollout.end  # 7: theta^ = theta(C)
            run.go_on(theta)
            if exclude and run.best == best_before:
                return "no_gain"
        elif not active.droppable:  # all that are left are marked `keep`
            return "all_excluded"
        else:  # 8: roll back
            theta = rollout.at(c_min)  # 10: theta^ = theta(c_min)
            active = active.without(leaving)  # 9: E = E + {D_exclude}
            run.exclude(leaving, theta, c_min)

        stages_left -= 1
        ticks_left = None if ticks_left is None else ticks_left - rollout.ticks
    return "all_excluded"
