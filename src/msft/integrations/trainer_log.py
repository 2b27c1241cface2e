"""What a Trainer and a person are told while a run goes on inside it."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from msft.app.terminal.progress import PlainLines
from msft.run.log import Event, PointEvent, RolloutEvent, RunEvent, ScoresEvent, selection_of
from msft.run.worker import Step
from msft.search.scores import SELECTION, TEST, Score


class TrainerLog:
    """Scores go to the trainer's log, and with it to its callbacks and trackers; lines in words
    go beside its progress bar. The trainer's count of steps never goes back."""

    def __init__(self, trainer: Any, folder: Path, quiet: bool) -> None:
        self._trainer = trainer
        self._lines = None if quiet else PlainLines(_BesideBar(), folder)  # type: ignore[arg-type]
        self._stage = 0
        self._on_test = False

    def event(self, event: Event, live: bool) -> None:
        if self._lines is not None:
            self._lines.event(event, live)
        if isinstance(event, RunEvent):
            self._on_test = selection_of(event) == TEST
        if isinstance(event, RolloutEvent):
            self._stage = event.rollout
        if isinstance(event, PointEvent) and not live:  # done before this process
            self._trainer.state.global_step += event.steps
        if isinstance(event, PointEvent | ScoresEvent) and live:
            ticks = TEST if self._on_test else SELECTION
            split = event.split if isinstance(event, ScoresEvent) else ticks
            kind = "test" if split == TEST else "eval"
            logs = {
                f"{kind}_{name}_{_named(s)}": float(s.value) for name, s in event.scores.items()
            }
            training = self._trainer.model.training
            self._trainer.model.eval()  # by which TRL tells these from logs of training
            self._trainer.log({**logs, "msft_stage": float(self._stage)})
            self._trainer.model.train(training)

    def step(self, step: Step) -> None:
        if self._lines is not None:
            self._lines.step(step)


class _BesideBar:
    """Standard output; a progress bar steps aside for each line."""

    def write(self, text: str) -> int:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        tqdm.write(text, end="", file=sys.stdout)
        return len(text)

    def flush(self) -> None:
        with suppress(ValueError):
            sys.stdout.flush()

    def isatty(self) -> bool:
        return False


def _named(score: Score) -> str:
    return "loss" if score.metric == "nll" else score.metric
