"""The result of a finished run, as `msft.train` returns it and a notebook shows it."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    summary: the content of summary.json.
    best: the folder of the best model; it loads in transformers.
    schedule: the content of schedule.json, which `msft replay` can train again.
    folder: the run folder.
    was_finished: the run had ended before; nothing was trained.
    scores: a pandas table of the scores.
    """

    summary: dict[str, Any]
    best: Path
    schedule: dict[str, Any]
    folder: Path
    was_finished: bool = False

    @property
    def scores(self) -> "DataFrame":
        """The scores of the best checkpoint: a row for each sub-dataset and one for the mean, a
        column for each split."""
        from pandas import DataFrame

        best = self.summary["best"]
        splits = {split: best[split] for split in ("validation", "test") if best[split]}
        return DataFrame(
            {name: {**each["datasets"], "mean": each["mean"]} for name, each in splits.items()},
            index=[*splits["validation"]["datasets"], "mean"],
            dtype=float,
        )

    def __repr__(self) -> str:
        return f"<msft.Result: {self._story()}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<p>{escape(self._story())}</p>\n{self.scores.to_html(na_rep='–')}"

    def _story(self) -> str:
        best = self.summary["best"]
        splits = {split: best[split] for split in ("validation", "test") if best[split]}
        means = [
            f"{name} {each['mean']:.4f}"
            for name, each in splits.items()
            if each["mean"] is not None
        ]
        return (
            f"{self.summary['method']}, the best is {best['checkpoint']} after "
            f"{best['epochs']:g} epochs; mean on {', '.join(means)}; model in {self.best}"
        )
