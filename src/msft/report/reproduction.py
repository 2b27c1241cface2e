"""How to get a run again: its settings, the versions it was made with, and the command."""

from collections.abc import Iterator, Mapping, Sequence

from msft.run.environment import Environment
from msft.run.history import History
from msft.text import counted, epochs_in_words, listed


def reproduction_text(has_recipe: bool) -> str:
    if not has_recipe:
        return "This folder has no recipe.yaml; these are the settings that the log recorded."
    return (
        "Save the recipe below as recipe.yaml and run it in a new folder. The seed fixes the order "
        "of rows. With the same versions on a CPU, decisions and weights are the same again."
    )


def setting_rows(history: History, recipe: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of what the log says that the run depends on, but for the keys that a
    recipe has."""
    written = {line.partition(":")[0] for line in recipe.splitlines()}
    for name, value in _all_settings(history):
        if name.partition(".")[0] not in written:
            yield name, value


def _all_settings(history: History) -> Iterator[tuple[str, str]]:
    start = history.start
    sizes = [f"{name} ({rows:,})" for name, rows in start.datasets.items()]
    yield "method", start.method
    yield "seed", str(start.seed)
    yield "parameters", f"{start.num_parameters:,}"
    yield counted(len(sizes), "sub-dataset") + " (rows)", listed(sizes)
    for key, value in start.settings.items():
        if key in ("compute_budget", "train_ticks"):
            name = "num_train_epochs" if key == "train_ticks" else key
            lasts = epochs_in_words(value / history.evals_per_epoch)
            yield name, f"{lasts}, {counted(value, 'tick')}"
        elif isinstance(value, Mapping):
            prefix = {"method": "method_options", "rollout": "method_options"}.get(key, key)
            for option, chosen in value.items():
                yield f"{prefix}.{option}", str(chosen)
        else:
            yield key, str(value)
    for what, digest in start.fingerprint.items():
        yield f"fingerprint of {what}", str(digest)


def versions_of(environments: Sequence[Environment]) -> list[tuple[str, str]]:
    """Names and versions; where a run went on with others, all of them in the order of use."""
    names = dict.fromkeys(name for item in environments for name in item)
    return [
        (name, " → ".join(dict.fromkeys(item.get(name, "none") for item in environments)))
        for name in names
    ]


def command_of(method: str) -> str:
    """What makes such a run, in the folder of its recipe."""
    if method == "replay":
        return "msft replay schedule.json recipe.yaml --out again"
    return "msft train recipe.yaml --out again"
