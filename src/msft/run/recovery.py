"""Where the worker stands, and how it gets somewhere else.

A checkpoint that was lost (it was only in memory when the process died, or its file is damaged)
is trained again from the nearest one that is still there; an average is made again from its parts.
Training is a pure function of the recipe, so the log's answers stand.
"""

from collections.abc import Sequence
from typing import Any

from msft.errors import NotReproducible, StoreError
from msft.run.history import History
from msft.run.worker import Question, Worker
from msft.search.rollout import BASE, CheckpointId, checkpoint_id, is_average, place_of
from msft.store.store import PARTS, WEIGHTS, CheckpointStore


class Recovery:
    """Moves the worker between ticks of roll-outs."""

    def __init__(self, worker: Worker, store: CheckpointStore, history: History) -> None:
        self._worker = worker
        self._store = store
        self._history = history
        self._questions: list[tuple[Question, bool]] = []
        self._place: tuple[int, int] | None = None

    def ask(self, question: Question, kept: bool) -> None:
        """Learn of a roll-out, and whether it goes on with its start's optimizer."""
        self._questions.append((question, kept))

    def ensure(self, checkpoint: CheckpointId, kept: bool) -> None:
        """Have a checkpoint in the store again if it was lost."""
        if is_average(checkpoint):
            if not self._store.has(checkpoint, "weights"):
                self.average(checkpoint, self._history.averages[checkpoint].of)
            return
        parts = PARTS if kept else WEIGHTS
        if checkpoint != BASE and not all(self._store.has(checkpoint, part) for part in parts):
            self.go(*place_of(checkpoint))

    def secure(self, result: CheckpointId) -> None:
        """Have a result on disk as it was made: what is damaged there is made again."""
        for _ in range(2):
            self.ensure(result, kept=False)
            self._store.secure(result)
            self._store.flush()
            if result == BASE or self._store.is_whole(result):
                return
        raise StoreError(
            f"the disk does not give checkpoint {result} back as it was written, twice in a row; "
            "look after the disk, then run the same command again to go on"
        )

    def hold(self, checkpoint: CheckpointId) -> None:
        """Hold a checkpoint's weights, to score them."""
        if is_average(checkpoint):
            self.ensure(checkpoint, kept=False)
            self._worker.load(self._store.get(checkpoint, "weights"))
            self._place = None
            return
        place = place_of(checkpoint)
        if self._place == place or (checkpoint == BASE and self._at_base()):
            return
        weights = None if checkpoint == BASE else self._store.get(checkpoint, "weights")
        if weights is None and checkpoint != BASE:
            self.go(*place)
            return
        self._worker.load(weights)
        self._place = None

    def average(self, checkpoint: CheckpointId, parts: Sequence[CheckpointId]) -> None:
        """Bring the mean of these checkpoints to its places in the store.

        What memory lost is trained again beforehand, so that no training goes on beside the sum.
        """
        for part in sorted({*parts}, key=place_of):
            if self._store.lacks(part):
                self.go(*place_of(part))
        weights = self._worker.average(self._weights(part) for part in parts)
        self._store.put(checkpoint, lambda: weights, dict)

    def _weights(self, checkpoint: CheckpointId) -> Any:
        weights = None if checkpoint == BASE else self._store.get(checkpoint, "weights")
        if weights is None:  # the base model, one that was dropped, or a file that is damaged
            self.hold(checkpoint)
            weights = self._worker.weights()
        return weights

    def advanced(self, rollout: int, tick: int) -> None:
        """The worker was moved on by one tick."""
        self._place = (rollout, tick)

    def go(self, rollout: int, tick: int) -> None:
        """Stand at a tick of a roll-out, training again whatever is not there any more."""
        if self._place == (rollout, tick):
            return
        here, self._place = self._place, None
        if here is not None and here[0] == rollout and here[1] < tick:
            self._again(rollout, here[1], tick)
            self._place = (rollout, tick)
            return
        legs = [(rollout, tick)]
        opened = self._open_nearest(*legs[0], here)
        while opened is None:
            legs.append(place_of(self._questions[legs[-1][0]][0].start))
            opened = self._open_nearest(*legs[-1])
        for number, (leg, target) in enumerate(reversed(legs)):
            if number:
                question, kept = self._questions[leg]
                state = self._worker.weights(), self._worker.training()
                self._worker.open(question, 0, state[0], state[1] if kept else None)
                opened = 0
            self._again(leg, opened, target)
        self._place = (rollout, tick)

    def _open_nearest(
        self, rollout: int, tick: int, here: tuple[int, int] | None = None
    ) -> int | None:
        """Open the latest tick up to this one that the store still has; None if there is none.

        here: where the worker stands and can go on from.
        """
        question, kept = self._questions[rollout]
        for earlier in range(tick, 0, -1):
            if here == (rollout, earlier):
                return earlier
            state = self._stored(checkpoint_id(rollout, earlier), True)
            if state is not None:
                self._worker.open(question, earlier, *state)
                return earlier
        state = (None, None) if question.start == BASE else self._stored(question.start, kept)
        if state is None:
            return None
        self._worker.open(question, 0, state[0], state[1] if kept else None)
        return 0

    def _stored(self, checkpoint: CheckpointId, training: bool) -> tuple[Any, Any] | None:
        moments = self._store.get(checkpoint, "training") if training else None
        if training and moments is None:
            return None
        weights = self._store.get(checkpoint, "weights")
        return None if weights is None else (weights, moments)

    def _again(self, rollout: int, first: int, last: int) -> None:
        for tick in range(first + 1, last + 1):
            work = self._worker.advance(tick)
            point = self._history.stages[rollout].points[tick - 1]
            if (work.steps, work.tokens.train) != (point.steps, point.tokens.train):
                raise NotReproducible(
                    f"checkpoint {point.checkpoint} was lost and trained again, but with "
                    f"{work.steps} steps and {work.tokens.train} tokens where the log has "
                    f"{point.steps} and {point.tokens.train}; the data or the code has changed, "
                    "so this run cannot go on: start again in another folder"
                )
            if tick == last or self._store.lacks(point.checkpoint):  # others that were lost too
                self._store.put(point.checkpoint, self._worker.weights, self._worker.training)

    def _at_base(self) -> bool:
        if self._place is None:
            return False
        rollout, tick = self._place
        return tick == 0 and self._questions[rollout][0].start == BASE
