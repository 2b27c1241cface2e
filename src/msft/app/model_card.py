"""The model card of a result: what it was trained on, who left when, and how it scored."""

from typing import Any

from msft.report.averages import average_in_words
from msft.report.wording import MEAN_OF_GAINS
from msft.run.history import History
from msft.run.summary import summary_of
from msft.text import counted, named_mean


def card_of(history: History, model: str) -> str:
    """Markdown with the front matter that the hub reads."""
    summary = summary_of(history)
    best = summary["best"]
    lines = [
        "---",
        "library_name: transformers",
        f"base_model: {model}",
        "tags: [msft, sft]",
        "---",
        "",
        f"# {model}, fine-tuned with msft ({summary['method']})",
        "",
        _origin(history, summary),
        "",
        "| sub-dataset | rows | validation | test |",
        "| --- | --- | --- | --- |",
    ]
    for name, rows in history.start.datasets.items():
        scores = (_shown(best["validation"], name), _shown(best["test"], name))
        lines.append(f"| {name} | {rows} | {scores[0]} | {scores[1]} |")
    known = [best[split] and best[split]["mean"] for split in ("validation", "test")]
    means = [named_mean(mean, history.mixed) for mean in known]
    lines.append(f"| **{means[0][0]}** | | {means[0][1]} | {means[1][1]} |")
    if history.mixed:
        lines += ["", MEAN_OF_GAINS]
    left = [(s, n) for s in summary["stages"] for n in s["excluded"]]
    if left:
        lines += ["", "| stage | left | at epoch of that stage |", "| --- | --- | --- |"]
        lines += [f"| {s['stage']} | {n} | {s['rolled_back_to']:g} |" for s, n in left]
    return "\n".join(lines) + "\n"


def _origin(history: History, summary: dict[str, Any]) -> str:
    """Where in the run this model is from."""
    best = summary["best"]
    text = f"Checkpoint `{best['checkpoint']}` of a run with seed {summary['seed']}"
    text += f" ({summary['status']}), "
    if history.average_of:
        return f"{text}{average_in_words(history)}."
    return (
        f"{text}after {counted(best['epochs'], 'epoch')} on the path to it;"
        f" chosen from {counted(best['candidates'], 'scored point')} by the validation mean."
    )


def _shown(scores: dict[str, Any] | None, name: str) -> str:
    return "" if scores is None else f"{scores['datasets'][name]:.4f}"
