"""The base models of runs: which runs have the same one, and what each is called."""

from collections.abc import Sequence
from pathlib import PurePath

from msft.report.compare.compared_run import ComparedRun
from msft.text import si


def models_of(runs: Sequence[ComparedRun]) -> list[str | None]:
    """The model of each run by the name in its recipe; one name for the same weights."""
    by_weights: dict[str, str | None] = {}
    found: list[str | None] = []
    for run in runs:
        weights = run.data.get("model")
        name = run.model
        found.append(by_weights.setdefault(weights, name) if weights and name else name)
    return found


def model_labels(runs: Sequence[ComparedRun]) -> list[str]:
    """The model of each run for people: a path by its last two parts, or more where these do not
    tell it apart; where no recipe is there, by its size."""
    names = models_of(runs)
    told = {name: _ends(name) for name in names if name is not None}
    for length in range(2, max([2, *(len(parts) for parts in told.values())]) + 1):
        short = {name: "/".join(parts[-length:]) for name, parts in told.items()}
        if len(set(short.values())) == len(short):
            break
    return [
        f"{si(run.history.start.num_parameters)} parameters" if name is None else short[name]
        for run, name in zip(runs, names, strict=True)
    ]


def _ends(name: str) -> tuple[str, ...]:
    """The parts that a name may be cut to; a name of the hub stays whole."""
    path = PurePath(name)
    is_path = name.startswith((".", "/", "~")) or path.suffix == ".gguf" or len(path.parts) > 2
    return path.parts if is_path else (name,)
