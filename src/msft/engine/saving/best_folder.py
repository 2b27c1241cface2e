"""The result folder `best/`, there during a run too: a model folder and its card."""

import shutil
from pathlib import Path

from msft.run.engine import Engine, LinksWeights
from msft.run.folder import write_text
from msft.search.rollout import BASE


class BestFolder:
    """Keeps a folder equal to one checkpoint of a run."""

    def __init__(self, folder: Path, checkpoints: Path, engine: Engine) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._engine = engine
        self._made = False

    def update(self, checkpoint: str, card: str) -> bool:
        """Let the folder be this checkpoint; False if the checkpoint is not on disk yet.

        What is the same for all checkpoints is written once.
        """
        source = None if checkpoint == BASE else self._checkpoints / f"{checkpoint}.weights"
        if source is not None and not source.exists():
            return False
        try:
            if self._made and source is not None and isinstance(self._engine, LinksWeights):
                self._engine.link(source, self._folder)
                self.card(card)
            else:
                self._make(source, card)
        except FileNotFoundError:  # it is being written anew just now
            return False
        self._made = True
        return True

    def _make(self, source: Path | None, card: str) -> None:
        """The whole folder, beside the old one until it is complete."""
        fresh = self._folder.with_name(".best.tmp")
        old = self._folder.with_name(".best.old")
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir(parents=True)
        if source is None:
            self._engine.export(None, fresh)
        elif isinstance(self._engine, LinksWeights):
            self._engine.link(source, fresh)
        else:
            self._engine.export(self._engine.codec().read(source), fresh)
        write_text(fresh / "README.md", card)
        if self._folder.exists():
            self._folder.rename(old)
        fresh.rename(self._folder)
        shutil.rmtree(old, ignore_errors=True)

    def card(self, card: str) -> None:
        """Only the model card, when the checkpoint stays the same."""
        write_text(self._folder / "README.md", card)
