"""Scoring within a run: what a score leaves beside the log, rows and samples."""

from collections.abc import Sequence

from msft.run.history import History
from msft.run.recovery import Recovery
from msft.run.samples import Samples
from msft.run.score_kinds import alike
from msft.run.verdicts import Verdicts
from msft.run.worker import Scored, Worker, checked
from msft.search.rollout import CheckpointId


class Scoring:
    """Scores what a worker holds; rows and samples are on disk before the log's line."""

    def __init__(
        self, worker: Worker, verdicts: Verdicts, samples: Samples, history: History
    ) -> None:
        self._worker = worker
        self._verdicts = verdicts
        self._history = history
        self.samples = samples

    def score(self, checkpoint: CheckpointId, names: Sequence[str], split: str) -> Scored:
        found = checked(self._worker.score(names, split), names, checkpoint)
        scored = alike(found, self._history.patterns)
        self._verdicts.add(checkpoint, split, scored.verdicts, scored.row_tokens)
        self.samples.add(checkpoint, split, scored.samples)
        return scored

    def leave_samples(self, checkpoints: Sequence[CheckpointId], recovery: Recovery) -> None:
        """Leave the samples of these checkpoints and no others.

        They are at hand from the evaluations. What was lost, such as of a folder that an earlier
        version began, is answered again.
        """
        names = [*self._history.start.datasets]
        for checkpoint in checkpoints:
            lost = self.samples.missing(checkpoint, names)
            if lost:
                recovery.hold(checkpoint)
                found = self._worker.score(lost, self._history.selection).samples
                self.samples.add(checkpoint, self._history.selection, found)
        self.samples.finish(checkpoints, names)
