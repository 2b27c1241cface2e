"""Time left of a run: the speed so far, and how much is still to be trained.

How many stages a search takes is what it finds out. So there are two numbers: about how long, if
one sub-dataset leaves after every stage, and the most that the recipe allows.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

from msft.run.history import History
from msft.search.rollout import ticks_of

RECENT = 4
"""Ticks whose speed is taken for that of the next ones."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A stage that is still to come: rows of its epoch, and ticks."""

    rows: float
    ticks: float


Stages = tuple[Ahead, ...]


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds left of the present stage, and of the whole run.

    about, most: None where the method does not say what follows; `about` also where it is only
        known that it is less than `most`.
    """

    stage: float
    about: float | None
    most: float | None


class Pace:
    """How long a row of training and an evaluation take, from the ticks so far."""

    def __init__(self) -> None:
        self._ticks: list[tuple[int, float, float]] = []
        self.begin()

    def begin(self) -> None:
        """A tick begins now."""
        self._begun = self._trained = time.monotonic()
        self._rows = 0

    def step(self, rows: int) -> None:
        """A step over so many rows is done."""
        self._trained = time.monotonic()
        self._rows += rows

    def end(self) -> None:
        """The tick is trained and scored."""
        training, evaluation = self._trained - self._begun, time.monotonic() - self._trained
        self._ticks = [*self._ticks, (self._rows, training, evaluation)][-RECENT:]

    def seconds(self, ticks: float, rows: float) -> float | None:
        """Of so many ticks over so many rows in all; None before the first tick has ended."""
        if not self._ticks:
            return None
        seen, training, evaluation = map(sum, zip(*self._ticks, strict=True))
        each = training / seen if seen else 0.0
        return rows * each + ticks * evaluation / len(self._ticks)

    @property
    def elapsed(self) -> float:
        """Since the present tick began."""
        return time.monotonic() - self._begun


def time_left(history: History, kept: Collection[str], pace: Pace) -> TimeLeft | None:
    """None before the first tick has ended, and when the run has."""
    if not history.stages or history.ended:
        return None
    stage, per_epoch = history.stages[-1], history.evals_per_epoch
    rows = sum(stage.asked.active.values()) + sum(stage.asked.rehearsed.values())
    left = stage.asked.ticks - stage.ticks if not stage.decisions else 0
    whole, one = (pace.seconds(ticks, ticks * rows / per_epoch) for ticks in (left, 1))
    if whole is None or one is None:
        return None
    present = max(0.0, whole - min(one, pace.elapsed))

    def of_run(stages: Stages | None) -> float | None:
        if stages is None:
            return None
        parts = (pace.seconds(each.ticks, each.ticks * each.rows / per_epoch) for each in stages)
        return present + sum(part or 0.0 for part in parts)

    about, most = stages_ahead(history, kept)
    return TimeLeft(present, of_run(about), of_run(most))


def stages_ahead(
    history: History, kept: Collection[str] = ()
) -> tuple[Stages | None, Stages | None]:
    """About which stages follow the present one, and the most that can; None: not known."""
    stage, opened = history.stages[-1], history.start
    budget, train_ticks = (opened.settings[key] for key in ("compute_budget", "train_ticks"))
    rows = sum(stage.asked.active.values())
    more: Stages
    match opened.method:
        case "sft" | "dynamix" | "ies" | "soup":
            return (), ()
        case "soft_sro":
            more = (Ahead(rows, train_ticks),) if len(history.stages) == 1 else ()
            return more, more
        case "sro":
            trained = sum(each.asked.ticks for each in history.stages[1:])
            return None, (Ahead(rows, max(0, train_ticks - trained)),)
        case "continual":
            names = list(opened.datasets)[len(history.stages) :]
            more = tuple(Ahead(opened.datasets[name], budget) for name in names)
            return more, more
        case "replay":
            rest = opened.settings["method"]["stages"][len(history.stages) :]
            more = tuple(
                Ahead(sum(each["active"].values()), each["epochs"] * history.evals_per_epoch)
                for each in rest
            )
            return more, more
        case "msft":
            return _of_msft(history, kept)
    return None, None


def _of_msft(history: History, kept: Collection[str]) -> tuple[Stages, Stages]:
    """One leaves after each stage, or nobody does until a limit of the method ends the search."""
    stage, start = history.stages[-1], history.start
    options, budget = start.settings["method"], start.settings["compute_budget"]
    gone = {name for name, _ in stage.excluded}
    active = {name: rows for name, rows in stage.asked.active.items() if name not in gone}
    may_leave = [rows for name, rows in active.items() if name not in kept]
    rows, each = sum(active.values()), sum(may_leave) / max(1, len(may_leave))
    first = 0 if stage.decisions else 1
    last = len(may_leave) if len(may_leave) < len(active) else len(may_leave) - 1
    about = tuple(Ahead(rows - each * left, budget) for left in range(first, last + 1))
    allowed = (options.get("max_stages") or 2 * len(start.datasets)) - len(history.stages)
    most = (Ahead(rows, budget),) * (allowed if active else 0)
    if epochs := options.get("max_epochs"):
        trained = sum(each.ticks for each in history.stages[:-1]) + stage.asked.ticks
        ticks = max(0, ticks_of(epochs, history.evals_per_epoch, "max_epochs") - trained)
        return _within(about[:allowed], ticks), _within(most, ticks)
    return about[:allowed], most


def _within(stages: Stages, ticks: float) -> Stages:
    """As many of these stages as so many ticks allow, the last one cut to fit."""
    found: list[Ahead] = []
    for each in stages:
        found.append(Ahead(each.rows, min(each.ticks, ticks)))
        ticks -= found[-1].ticks
    return tuple(each for each in found if each.ticks > 0)


def clock(seconds: float) -> str:
    """4:05, or 1:04:05"""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def time_left_text(left: TimeLeft, stage: int) -> str:
    """In words, with what each number is of."""
    if left.about == left.most == left.stage:
        return f"time left: {clock(left.stage)} of the whole run"
    text = f"time left: {clock(left.stage)} of stage {stage}"
    if left.most is None:
        return f"{text}; how many stages follow is not known"
    if left.about is None:
        return f"{text}, at most {clock(left.most)} of the whole run"
    more = "" if left.about == left.most else f" ({clock(left.most)} at most)"
    return f"{text}, about {clock(left.about)} of the whole run{more}"
