"""What `msft train` prints at its end: the result as a table, and what there is to know of it."""

from collections.abc import Mapping
from typing import Any

from msft.layout import WIDTH, table
from msft.report.wording import metric_name
from msft.search.rollout import BASE, CheckpointId, EndedBy, is_average
from msft.search.scores import SELECTION, TEST, Metric
from msft.text import SELECTED_ON_TEST, counted, named_mean, no_test_mean

ENDINGS: dict[EndedBy, str] = {
    "all_excluded": "every sub-dataset has left",
    "no_gain": "a stage excluded no sub-dataset and did not raise the best mean",
    "max_stages": "max_stages was reached",
    "max_epochs": "max_epochs was reached",
    "budget": "all epochs are trained",
}
"""Why a run ended."""


def result_text(
    summary: dict[str, Any],
    report_split: str = "test",
    metrics: Mapping[str, Metric] | None = None,
    width: int = WIDTH,
) -> str:
    """The result as a table; validation selected, and `report_split` says which one reports. Where
    test selected, it is the only one.

    metrics: of each sub-dataset. Where they differ the table has them, and the mean is one of
        gains.
    """
    best, test = summary["best"], summary["best"]["test"]
    metrics = metrics or {}
    mixed = len({*metrics.values()}) > 1
    on_test_alone = summary.get("selection_split") == TEST
    rows: list[tuple[str, ...]] = [("sub-dataset", "validation", "test")]
    for name, score in best["validation"]["datasets"].items():
        on_test = test["datasets"].get(name) if test else None
        rows.append((name, f"{score:.4f}", "-" if on_test is None else f"{on_test:.4f}"))
    without = [name for name, *_ in rows[1:] if test and name not in test["datasets"]]
    mean = named_mean(test["mean"], mixed)[1] or "-" if test else "-"
    rows.append((*named_mean(best["validation"]["mean"], mixed), mean))
    if on_test_alone:
        rows = [(name, number) for name, _, number in rows]
    if mixed:
        found = [metric_name(metrics[name]) for name, *_ in rows[1:-1]]
        rows = [(*row, metric) for row, metric in zip(rows, ("metric", *found, ""), strict=True)]
    ended = ENDINGS[summary["ended_by"]]
    reports = "validation, which also selected" if report_split == "selection" else "test"
    return "\n".join(
        [
            f"{summary['method']}: {_result(best, summary.get('selection_split', SELECTION))}",
            f"ended: {ended}; {counted(summary['epochs_trained'], 'epoch')} trained in all",
            *table(rows, width),
            SELECTED_ON_TEST
            if on_test_alone
            else f"reported on {reports if test else 'validation'}",
            *([f"note: {no_test_mean(without)}"] if without else []),
            *(["of nll, lower is better"] if mixed and "nll" in metrics.values() else []),
            *(f"note: {text}" for text in summary.get("findings", {}).get("text", [])),
        ]
    )


def _result(best: dict[str, Any], selection: str) -> str:
    """Which checkpoint it is, and how it came to be the one."""
    parts = best["average_of"]
    if parts:
        ends = f" from {parts[0]} to {parts[-1]}" if len(parts) > 1 else f", {parts[0]}"
        return (
            f"the result is {checkpoint_in_words(best['checkpoint'])}, the mean of the weights at "
            f"{counted(len(parts), 'checkpoint')}{ends}, of {counted(best['candidates'], 'tick')}"
        )
    return (
        f"the best is {checkpoint_in_words(best['checkpoint'])} after "
        f"{counted(best['epochs'], 'epoch')}, chosen from "
        f"{counted(best['candidates'], 'point')} on {selection}"
    )


def checkpoint_in_words(checkpoint: CheckpointId) -> str:
    """A checkpoint's id with a word beside it."""
    if checkpoint == BASE:
        return "the base model"
    return f"{'average' if is_average(checkpoint) else 'checkpoint'} {checkpoint}"
