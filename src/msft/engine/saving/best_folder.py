"""The result folder `best/`, there during a run too: a model folder, its card and its manifest.

Its weights are a checkpoint's own file under a second name. Nothing is linked unless the store has
just said that it is whole, and the checkpoint's manifest comes along, so that the folder can be
checked for itself.
"""

from collections.abc import Callable
from pathlib import Path

from msft.engine.model.adapter_folders import ADAPTER_WEIGHTS
from msft.engine.saving.safetensors_codec import WEIGHTS
from msft.files import FILE, FOLDER, kind_of, link_or_copy, read_bytes, remove, replace_bytes
from msft.run.engine import Engine, LinksWeights
from msft.run.folder import write_text
from msft.search.rollout import BASE, CheckpointId
from msft.store.manifests import MANIFEST, Hashes, Manifest


class BestFolder:
    """Keeps a folder equal to one checkpoint of a run.

    is_whole: whether a checkpoint's weights are on disk as they were written.
    """

    def __init__(
        self,
        folder: Path,
        checkpoints: Path,
        engine: Engine,
        is_whole: Callable[[CheckpointId], bool],
        hashes: Hashes,
        notice: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._engine = engine
        self._is_whole = is_whole
        self._hashes = hashes
        self._notice = notice
        self._holds: CheckpointId | None = None

    def update(self, checkpoint: CheckpointId, card: str) -> bool:
        """Let the folder be this checkpoint; False if that is not whole on disk (yet). Then what
        the folder holds of it is taken away if it is damaged too.

        What is the same for all checkpoints is written once.
        """
        source = None if checkpoint == BASE else self._source(checkpoint)
        if source is not None and not self._is_whole(checkpoint):
            self._take_away_damaged()
            return False
        if self._holds and source is not None and isinstance(self._engine, LinksWeights):
            self._engine.link(source, self._folder)
            replace_bytes(self._folder / MANIFEST, read_bytes(source / MANIFEST))
            self.card(card)
        else:
            self._make(source, card)
        self._holds = checkpoint
        return True

    def is_damaged(self) -> bool:
        """Whether its weights are not what was put there."""
        if self._holds in (None, BASE) or not isinstance(self._engine, LinksWeights):
            return False
        return self._fault(self._holds) is not None

    def give_back(self, checkpoint: CheckpointId) -> None:
        """Let a finished run's checkpoint that is gone be the weights of this folder again, if
        they are what was put here. Earlier versions left nothing to check them by."""
        target = self._source(checkpoint)
        linked = isinstance(self._engine, LinksWeights) and checkpoint != BASE
        names = [n for n in (WEIGHTS, ADAPTER_WEIGHTS) if kind_of(self._folder / n) == FILE]
        if not linked or kind_of(target) or not names:
            return
        weights = names[0]
        if kind_of(self._folder / MANIFEST) is None:
            digest = self._hashes.of(self._folder / weights)
            text = Manifest({weights: digest}, target.name).to_bytes()
            self._notice(
                f"an earlier version wrote {self._folder} without a hash, and its checkpoint is "
                "gone, so its weights cannot be checked; they are left as they are"
            )
        elif self._fault(checkpoint) is None:
            text = read_bytes(self._folder / MANIFEST)
        else:
            return
        temporary = target.with_name(f".{target.name}.tmp")
        remove(temporary)
        temporary.mkdir(parents=True)
        link_or_copy(self._folder / weights, temporary / weights)
        replace_bytes(temporary / MANIFEST, text)
        temporary.rename(target)

    def card(self, card: str) -> None:
        """Only the model card, when the checkpoint stays the same."""
        write_text(self._folder / "README.md", card)

    def _make(self, source: Path | None, card: str) -> None:
        """The whole folder, beside the old one until it is complete."""
        fresh = self._folder.with_name(".best.tmp")
        old = self._folder.with_name(".best.old")
        for leftover in (fresh, old):
            remove(leftover)
        fresh.mkdir(parents=True)
        if source is None:
            self._engine.export(None, fresh)
        elif isinstance(self._engine, LinksWeights):
            self._engine.link(source, fresh)
            replace_bytes(fresh / MANIFEST, read_bytes(source / MANIFEST))
        else:
            self._engine.export(self._engine.codec().read(source), fresh)
        write_text(fresh / "README.md", card)
        if kind_of(self._folder):
            self._folder.rename(old)
        fresh.rename(self._folder)
        remove(old)

    def _take_away_damaged(self) -> None:
        """A folder whose weights are not those of its manifest is nobody's result."""
        if kind_of(self._folder) != FOLDER or kind_of(self._folder / MANIFEST) is None:
            return
        try:
            owner = Manifest.from_bytes(read_bytes(self._folder / MANIFEST)).owner
        except (OSError, ValueError):
            owner = None
        fault = self._hashes.fault(self._folder, owner or "", others=True)
        if fault is not None:
            remove(self._folder)
            self._holds = None
            self._notice(f"{self._folder} was damaged ({fault}) and is taken away until it is made")

    def _fault(self, checkpoint: CheckpointId) -> str | None:
        return self._hashes.fault(self._folder, self._source(checkpoint).name, others=True)

    def _source(self, checkpoint: CheckpointId) -> Path:
        return self._checkpoints / f"{checkpoint}.weights"
