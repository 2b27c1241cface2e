"""Results: what `msft train` prints at its end, and the scoreboard of `msft eval`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

from msft.report.compare.statistics import Z95, Interval, wilson
from msft.report.wording import metric_name
from msft.scoring.evaluation import Answered, Answers
from msft.search.curves import SELECTION, TEST, MeanRule, Metric, Score, Scores, mean
from msft.search.rollout import BASE, CheckpointId, EndedBy, is_average
from msft.text import SELECTED_ON_TEST, WIDTH, counted, named_mean, no_test_mean, table

ENDINGS: dict[EndedBy, str] = {
    "all_excluded": "every sub-dataset has left",
    "no_gain": "a stage excluded no sub-dataset and did not raise the best mean",
    "max_stages": "max_stages was reached",
    "max_epochs": "max_epochs was reached",
    "budget": "all epochs are trained",
    "early_stopping": "the mean had stopped rising (early_stopping_patience)",
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
            *_watched_lines(summary, width),
            SELECTED_ON_TEST
            if on_test_alone
            else f"reported on {reports if test else 'validation'}",
            *([f"note: {no_test_mean(without)}"] if without else []),
            *(["of nll, lower is better"] if mixed and "nll" in metrics.values() else []),
            *(f"note: {text}" for text in summary.get("findings", {}).get("text", [])),
        ]
    )


def _watched_lines(summary: Mapping[str, Any], width: int) -> list[str]:
    """A table of the watched sub-datasets, and the guards of others."""
    watched, guards = summary.get("watched", {}), summary.get("guards", {})
    rows: list[tuple[str, ...]] = [("watched", "base", "best", "change", "guard")]
    for name, found in watched.items():
        base, best = found["base"], found["best"]
        said = _guard(found["guard"]) if found["guard"] else ""
        rows.append((name, f"{base:.4f}", f"{best:.4f}", f"{best - base:+.4f}", said))
    lines = table(rows, width) if watched else []
    others = {name: guard for name, guard in guards.items() if name not in watched}
    return [*lines, *(f"guard of {name}: {_guard(guard)}" for name, guard in others.items())]


def _guard(guard: Mapping[str, Any]) -> str:
    kept = "kept" if guard["kept"] else "NOT KEPT"
    return f"{kept} (max_drop {guard['max_drop']:g})"


def choice_text(content: Mapping[str, Any], width: int = WIDTH) -> str:
    """The scores of training with and without the suspects of an audit, and the choice."""
    shown = {"all": "on all rows", "clean": f"without {content['suspects']:,} suspects"}
    rows: list[tuple[str, ...]] = [("training", "validation", "test")]
    for what, score in content["validation"].items():
        test = content["test"].get(what)
        rows.append((shown[what], f"{score:.4f}", "-" if test is None else f"{test:.4f}"))
    return "\n".join([*table(rows, width), f"chosen: {content['chosen']}. {content['why']}."])


def _result(best: dict[str, Any], selection: str) -> str:
    """The checkpoint of the result, and the points that it was chosen from."""
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


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """A score of `rows` rows and its 95 % interval."""

    value: float
    interval: Interval
    rows: int


@dataclass(frozen=True, slots=True)
class Scoreboard:
    """The scores of an evaluation.

    groups: means over the benchmarks of a group, where there are two groups or more.
    mean: None where metrics are mixed, and where all are only watched.
    watched: in no mean.
    """

    metrics: Mapping[str, str]
    datasets: Mapping[str, ScoreLine]
    groups: Mapping[str, ScoreLine]
    mean: ScoreLine | None
    watched: tuple[str, ...] = ()

    def text(self, width: int = WIDTH) -> str:
        """The table, and why there is no mean where there is none; sentences are not wrapped."""
        rows = [("sub-dataset", "score", "95 % interval", "rows", "metric")]
        lines = {name: (name, *_cells(line)) for name, line in self.datasets.items()}
        trained = [name for name in lines if name not in self.watched]
        rows += [(*lines[name], self.metrics[name]) for name in trained]
        rows += [(f"[{name}]", *_cells(line), "mean") for name, line in self.groups.items()]
        if self.mean is not None:
            rows.append(("mean", *_cells(self.mean), ""))
        rows += [(*lines[name], f"{self.metrics[name]}, watched") for name in self.watched]
        if self.mean is not None or not trained:
            return "\n".join(table(rows, width))
        metrics = sorted({self.metrics[name] for name in trained})
        why = (
            f"no mean: metrics differ ({', '.join(metrics)}), and a mean "
            "of gains would need the base model's scores, which one evaluation does not have"
        )
        return "\n".join([*table(rows, width), why])

    def content(self) -> dict[str, Any]:
        """For a JSON file."""
        return {
            "mean": None if self.mean is None else self.mean.value,
            "datasets": {name: line.value for name, line in self.datasets.items()},
            "mean_interval": None if self.mean is None else list(self.mean.interval),
            "intervals": {name: list(line.interval) for name, line in self.datasets.items()},
            "rows": {name: line.rows for name, line in self.datasets.items()},
            "groups": {name: line.value for name, line in self.groups.items()},
            **({"watched": [*self.watched]} if self.watched else {}),
        }


def scoreboard(
    answers: Answers,
    scores: Scores,
    groups: Mapping[str, str],
    rule: MeanRule = "macro",
    watched: tuple[str, ...] = (),
) -> Scoreboard:
    """The scores of answers; `groups` says to which group each sub-dataset belongs.

    watched: those that are in no mean.
    """
    lines = {name: _line(scores[name], answers.rows[name]) for name in scores}
    metrics = {name: score.metric for name, score in scores.items()}
    scores = {name: score for name, score in scores.items() if name not in watched}
    members: dict[str, list[str]] = {}
    for name in scores:
        members.setdefault(groups.get(name, ""), []).append(name)
    grouped = {
        group: _mean({n: scores[n] for n in names}, lines, rule)
        for group, names in members.items()
        if group and len(members) > 1
    }
    return Scoreboard(
        metrics,
        lines,
        {group: line for group, line in grouped.items() if line is not None},
        _mean(scores, lines, rule),
        watched,
    )


def answer_lines(answers: Answers) -> Iterator[dict[str, Any]]:
    """Every prompt, answer and verdict, one mapping a row."""
    for name, rows in answers.rows.items():
        for number, row in enumerate(rows):
            line = {"dataset": name, "row": number, "prompt": row.prompt}
            line |= {"prediction": row.prediction, "reference": row.reference}
            if row.extracted is not None:
                line["extracted"] = row.extracted
            if row.likelihoods:
                line["likelihoods"] = list(row.likelihoods)
            yield {**line, "score": row.worth}


def _cells(line: ScoreLine) -> tuple[str, str, str]:
    low, high = line.interval
    return f"{line.value:.4f}", f"{low:.4f} to {high:.4f}", f"{line.rows:,}"


def _line(score: Score, rows: list[Answered]) -> ScoreLine:
    number = float(score.value)
    if score.metric == "accuracy":
        return ScoreLine(number, wilson(int(score.total), score.count), len(rows))
    half = Z95 * _spread(rows, number)
    return ScoreLine(number, (number - half, number + half), len(rows))


def _spread(rows: list[Answered], ratio: float) -> float:
    """Standard error of summed worth over summed weight (a plain mean where weights are 1)."""
    weight = sum(row.weight for row in rows)
    square = fsum((float(row.worth) - ratio * row.weight) ** 2 for row in rows)
    return sqrt(square * len(rows) / max(1, len(rows) - 1)) / weight


def _mean(scores: Scores, lines: Mapping[str, ScoreLine], rule: MeanRule) -> ScoreLine | None:
    """Sub-datasets are independent, so variances of their shares add up."""
    if len({score.metric for score in scores.values()}) != 1:
        return None
    if len(scores) == 1:
        return lines[next(iter(scores))]
    number = float(mean(scores, rule))
    counts = {name: score.count if rule == "pooled" else 1 for name, score in scores.items()}
    parts = {name: count / sum(counts.values()) for name, count in counts.items()}
    errors = ((lines[n].interval[1] - lines[n].interval[0]) / 2 * parts[n] for n in scores)
    half = sqrt(fsum(error**2 for error in errors))
    low, high = number - half, number + half
    if all(score.metric == "accuracy" for score in scores.values()):
        low, high = max(0.0, low), min(1.0, high)
    return ScoreLine(number, (low, high), sum(lines[n].rows for n in scores))
