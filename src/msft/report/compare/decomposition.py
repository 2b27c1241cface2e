"""Decomposition of the gain of mSFT over SFT (paper, Eq. 4 and Fig. 8), in exact fractions.

    forgetting_i = m_i(best) - m_i(theta(c_min) of the stage in which i left)
    prevention_i = (mSFT_i - SFT_i) - forgetting_i

Scores count upwards, an nll as its negative. Forgetting below 0 is what a sub-dataset lost after
it had left; above 0 it is transfer from the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from msft.run.history import Exclusion, History
from msft.search.rollout import BASE, CheckpointId, place_of
from msft.search.scores import SELECTION, TEST


@dataclass(frozen=True, slots=True)
class Parts:
    """One sub-dataset's gain and its two parts, which add up to it.

    gain: None where one of the two results has no score.
    prevention, forgetting: None where the equation is undefined; `why` says the reason.
    """

    gain: Fraction | None
    prevention: Fraction | None = None
    forgetting: Fraction | None = None
    why: str = ""


def decomposition(sft: History, msft: History, split: str = SELECTION) -> dict[str, Parts]:
    """The parts of every sub-dataset of an mSFT run that the SFT run has too."""
    left = {each.name: each for each in msft.exclusions}
    return {
        name: _parts(sft, msft, name, split, left.get(name))
        for name in msft.start.datasets
        if name in sft.start.datasets
    }


def decomposition_split(sft: History, msft: History) -> str:
    """Test if it has every score that the equation needs, else validation.

    Roll-back points are scored on test only with `score_test: rollbacks` or `every`.
    """
    needed = [(sft, sft.best or BASE), (msft, msft.best or BASE)]
    needed += [(msft, exclusion.checkpoint) for exclusion in msft.exclusions]
    missing = any(run.missing(checkpoint, TEST) for run, checkpoint in needed)
    return SELECTION if missing else TEST


def mean_parts(shares: Sequence[Parts]) -> Parts:
    """The mean of those that are defined; the rest would need parts that nobody knows."""
    defined = [
        (share.prevention, share.forgetting)
        for share in shares
        if share.prevention is not None and share.forgetting is not None
    ]
    if not defined:
        reasons = {share.why for share in shares}
        gains = [share.gain for share in shares if share.gain is not None]
        gain = sum(gains, Fraction(0)) / len(gains) if gains else None
        return Parts(gain, why=reasons.pop() if len(reasons) == 1 else "undefined for all")
    prevention = sum((part for part, _ in defined), Fraction(0)) / len(defined)
    forgetting = sum((part for _, part in defined), Fraction(0)) / len(defined)
    return Parts(prevention + forgetting, prevention, forgetting)


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
        return Parts(gain, why="never left")
    if not _comes_after(msft, best, exclusion):
        return Parts(gain, why="the best checkpoint comes before it left")
    peak = _height(msft, exclusion.checkpoint, name, split)
    if peak is None:
        return Parts(gain, why=f"not scored on {split} where it left")
    forgetting = result - peak
    return Parts(gain, gain - forgetting, forgetting)


def _comes_after(history: History, best: CheckpointId, exclusion: Exclusion) -> bool:
    """Whether the path to the best checkpoint goes on from where the sub-dataset left.

    A best checkpoint from the discarded end of that same stage does not: it was trained on it.
    """
    if best == exclusion.checkpoint:
        return True
    starts = {history.stages[rollout].asked.start for rollout, _ in history.path(best)}
    return place_of(history.reach(best))[0] > exclusion.stage and exclusion.checkpoint in starts


def _height(
    history: History, checkpoint: CheckpointId | None, name: str, split: str
) -> Fraction | None:
    score = history.known(checkpoint or BASE, split).get(name)
    return Fraction(score.height) if score else None
