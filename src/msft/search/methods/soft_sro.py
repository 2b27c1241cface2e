"""Soft SRO SFT: search every peak in one roll-out, then train again on rows in that proportion.

Algorithm 3 of the paper: nobody is dropped, the early ones are only seen less often.
"""

from collections.abc import Mapping

from msft.search.feeds import Mixture
from msft.search.rollout import Run


def soft_sro(run: Run) -> None:
    """The new mixture is drawn once and has as many rows as the old one, up to rounding down."""
    ticks = run.train_ticks
    search = run.rollout(run.base, run.mixture, ticks, eligible=False, keep="best")  # 1, 2
    mixture = proportioned(run.mixture, search.peaks())  # 3 to 17
    run.rollout(run.base, mixture, ticks, keep="best")  # 18


def proportioned(mixture: Mixture, peaks: Mapping[str, int]) -> Mixture:
    """D' of Algorithm 3.

    r_i = (sum_j |D_j|) · c_i*·|D_i| / Z with Z = sum_j c_j*·|D_j|, where |D_i| counts the rows of
    an epoch, so that a weight of the recipe keeps its effect. Whole copies while r >= |D_i|
    and then floor(rest) sampled rows are floor(r_i) rows in all. If nobody learned anything
    (Z = 0) the mixture stays as it is; a set marked `keep` counts as peaking at tick 1 at least.
    """
    weights = {
        part.name: max(peaks[part.name], 1 if part.keep else 0) * part.rows
        for part in mixture.parts
    }
    z = sum(weights.values())
    if z == 0:
        return mixture
    return mixture.resized({name: mixture.rows * weight // z for name, weight in weights.items()})
