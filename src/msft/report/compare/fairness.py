"""What makes a comparison less than it seems: missing seeds, data or models that differ."""

from collections.abc import Sequence

from msft.report.compare.entrant import Entrant
from msft.text import listed


def common_seeds(entrants: Sequence[Entrant], warnings: list[str]) -> tuple[int, ...]:
    """The seeds that means are over: those that all entrants have, or all if none is common."""
    every = sorted({seed for entrant in entrants for seed in entrant.runs})
    common = tuple(seed for seed in every if all(seed in entrant.runs for entrant in entrants))
    if len(common) == len(every):
        return common
    lacking = [
        f"{entrant.label} {listed(str(seed) for seed in every if seed not in entrant.runs)}"
        for entrant in entrants
        if len(entrant.runs) < len(every)
    ]
    if not common:
        warnings.append(
            f"No seed was finished by every method (missing: {'; '.join(lacking)}), so each mean "
            "is over the seeds that its method has, and they cannot be compared row by row."
        )
        return tuple(every)
    warnings.append(
        f"Means are over the seeds that every method has finished, {listed(map(str, common))}; "
        f"missing: {'; '.join(lacking)}."
    )
    return common


def unlike(entrants: Sequence[Entrant]) -> list[str]:
    """Runs under one seed that did not have the same data, model or own metric."""
    found: list[str] = []
    for seed in sorted({seed for entrant in entrants for seed in entrant.runs}):
        runs = [entrant.runs[seed] for entrant in entrants if seed in entrant.runs]
        prints = {tuple(sorted(run.data.items())) for run in runs}
        if len(prints) > 1:
            labels = listed(run.label for run in runs)
            found.append(f"{labels} did not have the same data or base model: fingerprints differ.")
        for metric in dict.fromkeys(metric for run in runs for metric in run.metrics):
            having = [run for run in runs if metric in run.metrics]
            if len({run.metrics[metric] for run in having}) > 1:
                labels = listed(run.label for run in having)
                found.append(f"The code of {metric} changed between {labels}.")
    sizes = {run.history.start.num_parameters for e in entrants for run in e.runs.values()}
    return [*found, "The models differ in size."] if len(sizes) > 1 else found
