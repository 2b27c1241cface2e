"""Decomposition of the gain of mSFT over SFT (paper, Eq. 4 and Fig. 8), in exact fractions.

    forgetting_i = m_i(best) - m_i(theta(c_min) of the stage in which i left)
    prevention_i = (mSFT_i - SFT_i) - forgetting_i

Scores count upwards, an nll as its negative. Forgetting below 0 is what a sub-dataset lost after
it had left; above 0 it is transfer from the others. As in the paper, this holds for everybody who
left, also where the best checkpoint comes before: then it is what lies between the two. Who never
left has no c_min, so its gain stays whole, as the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from msft.run.history import Exclusion, History
from msft.search.rollout import BASE, CheckpointId
from msft.search.scores import TEST
from msft.text import listed


@dataclass(frozen=True, slots=True)
class Parts:
    """A gain and its parts, which add up to it.

    gain: None where one of the results has no score.
    prevention, forgetting: None where the equation is undefined; `why` says the reason.
    rest: the gain that the equation says nothing about; of a mean, the share of those for whom it
        is undefined.
    """

    gain: Fraction | None
    prevention: Fraction | None = None
    forgetting: Fraction | None = None
    rest: Fraction = Fraction(0)
    why: str = ""


def decomposition(sft: History, msft: History, split: str | None = None) -> dict[str, Parts]:
    """The parts of every sub-dataset of an mSFT run that the SFT run has too, on the split that
    selects or on another."""
    split = split or msft.selection
    left = {each.name: each for each in msft.exclusions}
    return {
        name: _parts(sft, msft, name, split, left.get(name))
        for name in msft.start.datasets
        if name in sft.start.datasets
    }


def decomposition_split(sft: History, msft: History) -> str:
    """Test if it has every score that the equation needs, else the split that selects.

    Roll-back points are scored on test only with `score_test: rollbacks` or `every`.
    """
    needed = [(sft, sft.best or BASE), (msft, msft.best or BASE)]
    needed += [(msft, exclusion.checkpoint) for exclusion in msft.exclusions]
    missing = any(run.missing(checkpoint, TEST) for run, checkpoint in needed)
    return msft.selection if missing else TEST


def mean_parts(shares: Sequence[Parts]) -> Parts:
    """The mean of all; where the equation is undefined, the gain goes into the rest."""
    gains = [share.gain for share in shares if share.gain is not None]
    reasons = listed(dict.fromkeys(share.why for share in shares if share.why))
    if not gains or len(gains) < len(shares):
        return Parts(None, why=reasons)
    prevention, forgetting, rest = (
        sum((getattr(share, part) or Fraction(0) for share in shares), Fraction(0)) / len(shares)
        for part in ("prevention", "forgetting", "rest")
    )
    gain = sum(gains, Fraction(0)) / len(shares)
    if all(share.prevention is None for share in shares):
        return Parts(gain, rest=rest, why=reasons)
    return Parts(gain, prevention, forgetting, rest, reasons)


def mean_decomposition(pairs: Sequence[Mapping[str, Parts]]) -> dict[str, Parts]:
    """The mean over several pairs of runs (seeds, models), by sub-dataset."""
    names = dict.fromkeys(name for pair in pairs for name in pair)
    return {name: mean_parts([pair[name] for pair in pairs if name in pair]) for name in names}


def _parts(
    sft: History, msft: History, name: str, split: str, exclusion: Exclusion | None
) -> Parts:
    best = msft.best or BASE
    result, reference = _height(msft, best, name, split), _height(sft, sft.best, name, split)
    if result is None or reference is None:
        return Parts(None, why=f"not scored on {split}")
    gain = result - reference
    if exclusion is None:
        return Parts(gain, rest=gain, why="never left")
    peak = _height(msft, exclusion.checkpoint, name, split)
    if peak is None:
        return Parts(gain, rest=gain, why=f"not scored on {split} where it left")
    forgetting = result - peak
    return Parts(gain, gain - forgetting, forgetting)


def _height(
    history: History, checkpoint: CheckpointId | None, name: str, split: str
) -> Fraction | None:
    score = history.known(checkpoint or BASE, split).get(name)
    return Fraction(score.height) if score else None
