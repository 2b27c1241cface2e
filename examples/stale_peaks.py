"""Why SRO's peaks go stale and mSFT's do not: §3.1 of the paper, in simulation.

    python examples/stale_peaks.py

Over many mixtures: how far the tick at which mSFT lets a sub-dataset leave lies from the peak
that SRO's single search found for it, and what both score. The first row is the control: where
sub-datasets do not influence each other, there is nothing to go stale.
"""

from random import Random
from statistics import mean

from msft.run.history import History
from msft.testing import Learner, SimulatedEngine, simulate

WORLDS = {
    "nobody influences anybody": {"forget": 0.0, "dilution": 0.0},
    "others dilute memorising": {"forget": 0.0, "dilution": 0.5},
    "others make it forget": {"forget": 0.01, "dilution": 0.0},
    "both": {"forget": 0.01, "dilution": 0.5},
}


def mixture(seed: int, count: int = 8) -> dict[str, Learner]:
    """Sub-datasets that learn, memorise and suffer from it at different speeds."""
    draw = Random(seed).uniform
    return {
        f"set{number}": Learner(
            512, passes=draw(0.3, 2), limit=draw(0.1, 2.5), damage=draw(0.2, 0.6)
        )
        for number in range(count)
    }


def left_after(history: History) -> dict[str, float]:
    """Epochs from the base model after which each sub-dataset left."""
    epochs: dict[str, float] = {}
    for stage in history.stages:
        for decision in stage.decisions:
            ticks = sum(ticks for _, ticks in history.path(decision.checkpoint))
            epochs |= dict.fromkeys(decision.names, ticks / history.evals_per_epoch)
    return epochs


def points(history: History) -> float:
    """The reported mean score, in points."""
    assert history.best is not None
    return 100 * float(history.mean(history.best))


def main(mixtures: int = 40) -> None:
    """Print one row per world."""
    print(
        f"{mixtures} mixtures of 8{'SFT':>17}{'SRO':>8}{'mSFT':>8}{'mSFT ahead':>14}{'shift':>13}"
    )
    for world, effects in WORLDS.items():
        rows, shifts = [], []
        for seed in range(mixtures):
            sets = mixture(seed)
            sft, sro, msft = (
                simulate(
                    method, sets, train_batch_size=512, engine=SimulatedEngine(sets, **effects)
                )
                for method in ("sft", "sro", "msft")
            )
            rows.append((points(sft), points(sro), points(msft)))
            before, after = left_after(sro), left_after(msft)
            shifts.append(mean(abs(after[name] - before[name]) for name in before))
        means = "".join(f"{mean(column):8.2f}" for column in zip(*rows, strict=True))
        ahead = sum(msft > sro for _, sro, msft in rows)
        print(f"{world:26}{means}{ahead:10}/{mixtures}{mean(shifts):6.2f} epochs")


if __name__ == "__main__":
    main()
