"""What the plan would have said of a finished run, now that its path is known.

The path is who was in each roll-out and for how many ticks, from the log; tokens are counted anew
from recipe and data. Of feeds that look at losses the log has the number of rows only, so their
tokens are that number times the mean row.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msft.run.history import History, Stage
from msft.run.log import Measured, Reached
from msft.search.feeds import Feed, FeedSpec, Losses, Place, Shuffled
from msft.search.methods.dynamix import Dynamix
from msft.search.mixture import Mixture, Part
from msft.search.rollout import Tokens
from msft.search.scores import SELECTION, Score, Scores


def foretold(
    history: History,
    measured: Sequence[Measured],
    train: Mapping[str, Sequence[int]],
    evaluation: Callable[[str, str, Score], int],
    batch_size: int,
) -> Tokens:
    """Tokens of the run by recipe and data.

    measured: its evaluations outside of ticks.
    train: tokens of each training row.
    evaluation: tokens of an evaluation of a sub-dataset's split that came out like this.
    """
    tokens = Tokens()
    for number, stage in enumerate(history.stages):
        place = _place(history, number, stage, train, batch_size)
        tokens += _fed(place, stage, train)
        for point in stage.points:
            if point.steps:
                tokens += _scored(point.scores, SELECTION, evaluation)
    for event in measured:
        tokens += _scored(event.scores, event.split, evaluation)
    return tokens


def _scored(scores: Scores, split: str, evaluation: Callable[[str, str, Score], int]) -> Tokens:
    return Tokens(evaluation=sum(evaluation(n, split, score) for n, score in scores.items()))


def seconds_of(steps: Path) -> float | None:
    """How long a run took, by the clock of its steps; pauses between resumes do not count."""
    if not steps.exists():
        return None
    total = before = 0.0
    for line in steps.read_text().splitlines():
        try:
            now = float(json.loads(line)["seconds"])
        except (ValueError, KeyError, TypeError):
            continue  # the last line may be torn
        total += before if now < before else 0.0
        before = now
    return total + before


def _place(
    history: History,
    number: int,
    stage: Stage,
    train: Mapping[str, Sequence[int]],
    batch_size: int,
) -> Place:
    rows = {**stage.asked.active, **stage.asked.rehearsed}
    parts = tuple(
        Part(name, len(train[name]), rows[name], rehearsed=name in stage.asked.rehearsed)
        for name in train
        if name in rows
    )
    ticks, per_epoch = stage.asked.ticks, history.evals_per_epoch
    return Place(Mixture(parts), ticks, per_epoch, batch_size, history.start.seed, number)


def _fed(place: Place, stage: Stage, train: Mapping[str, Sequence[int]]) -> Tokens:
    settings = dict(stage.asked.feed)
    name = settings.pop("name")
    if name == "shuffled":
        return _drawn(Shuffled().open(place), stage.points, train)
    if name == "dynamix":
        spec: FeedSpec = Dynamix(**settings)
        return _drawn(spec.open(place), stage.points, train)
    return _by_rows(place, stage.points, train, bool(settings.get("track_excluded")))


def _drawn(feed: Feed, points: Sequence[Reached], train: Mapping[str, Sequence[int]]) -> Tokens:
    """Tokens of the rows that a feed draws if no loss ever changes."""
    tokens = Tokens()
    for tick in range(1, len(points) + 1):
        for batch in feed.batches(tick):
            count = sum(train[name][number] for name, number in batch.rows)
            ahead = batch.use == "look_ahead"
            tokens += Tokens(lookahead=count) if ahead else Tokens(train=count)
            still = [1.0] * len(batch.rows)
            feed.observe(batch, Losses(still, still if ahead else ()))
    return tokens


def _by_rows(
    place: Place, points: Sequence[Reached], train: Mapping[str, Sequence[int]], tracked: bool
) -> Tokens:
    """Rows as the log counts them, each of mean length; tracked: the others are looked at."""
    parts = place.mixture.parts
    total = sum(part.rows * sum(train[part.name]) / part.size for part in parts)
    mean = total / place.mixture.rows
    trained = sum(point.loss[1] for point in points)
    epochs = len(points) // place.evals_per_epoch
    whole = points[: epochs * place.evals_per_epoch]
    resting = epochs * place.mixture.rows - sum(point.loss[1] for point in whole)
    return Tokens(round(trained * mean), round(resting * mean) if tracked else 0)
