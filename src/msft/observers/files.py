"""The files beside the log: `steps.jsonl`, `losses.jsonl` and `summary.json`."""

import time

from msft.observers.observer import Observer, Watched
from msft.run.folder import write_json
from msft.run.history import History, summary_of
from msft.run.log import Event
from msft.run.rows import Losses, LossLines, StepLines
from msft.run.worker import Step


class StepsFile(Observer):
    """`steps.jsonl`: loss, tokens and seconds of every optimizer step."""

    _lines: StepLines | None = None

    def begin(self, run: Watched) -> None:
        self._lines = StepLines(run.folder.steps, run.notice)
        self._begun = time.monotonic()

    def step(self, step: Step) -> None:
        if self._lines is not None:
            self._lines.add(step.line(time.monotonic() - self._begun))

    def event(self, history: History, event: Event, live: bool) -> None:
        if live and self._lines is not None:
            self._lines.flush()

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


class LossesFile(Observer):
    """`losses.jsonl`: the losses of references, where a recipe asks for `validation_loss`."""

    _lines: LossLines | None = None
    _latest: Losses = {}  # noqa: RUF012  never changed, only replaced

    def begin(self, run: Watched) -> None:
        if run.recipe.validation_loss:
            self._lines = LossLines(run.folder.losses, run.notice)

    def scored(self, losses: Losses) -> None:
        if self._lines is not None:
            self._lines.gather(losses)

    def event(self, history: History, event: Event, live: bool) -> None:
        if self._lines is not None:
            self._latest = self._lines.of(event, live)

    def latest(self) -> Losses:
        """The losses that belong to the latest event."""
        return self._latest

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


class SummaryFile(Observer):
    """`summary.json`, as each roll-out begins and after each decision."""

    def begin(self, run: Watched) -> None:
        self._path = run.folder.summary

    def event(self, history: History, event: Event, live: bool) -> None:
        if live and event.event in ("rollout", "decision"):
            write_json(self._path, summary_of(history))
