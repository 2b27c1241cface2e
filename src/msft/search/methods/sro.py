"""SRO SFT: search every peak in one roll-out, then train again and drop each set at its peak.

Algorithm 2 of the paper. Its peaks were found while everybody was in the mixture, so they go
stale with the first exclusion; that is what mSFT repairs (§3.1 of the paper).
"""

from msft.search.rollout import EndedBy, OptimizerStart, Run


def sro(run: Run) -> EndedBy:
    """A peak at the base model means never trained; a set marked `keep` stays to the last one."""
    ticks = run.train_ticks
    search = run.rollout(run.base, run.mixture, ticks, eligible=False, keep="best")  # 1, 2
    peaks = search.peaks()  # 3: c_i* = argmax_c acc(D_i, c)
    last = max(peaks.values())
    stops = {name: peaks[name] if name in run.mixture.droppable else last for name in peaks}

    theta, active, now = run.base, run.mixture, 0  # 4: train from scratch
    while active:  # 5: while D \ E is not empty
        c_next = min(stops[name] for name in active.active)  # 6
        if c_next > now:  # 7, 8: the difference, one continuous run
            optimizer: OptimizerStart = "kept" if now else "fresh"
            theta = run.rollout(theta, active, c_next - now, optimizer=optimizer, keep="best").end
        now = c_next  # 9
        exhausted = tuple(name for name in active.active if stops[name] <= now)
        active = active.without(exhausted)  # 10: E = E + {D_i : c_i* <= c_current}
        run.exclude(exhausted, theta, now)
    return "all_excluded"
