"""The result folder `best/`, there during a run too: a model folder, its card and its manifest.

Its weights are a checkpoint's own file under a second name. Nothing is linked unless the store has
just said that it is whole, and the checkpoint's manifest comes along, so that the folder can be
checked for itself.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msft.engine.model.adapter_folders import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from msft.engine.model.folders import INDEX, WEIGHTS
from msft.engine.saving.safetensors_codec import parts_in
from msft.files import FILE, FOLDER, kind_of, link_or_copy, read_bytes, remove, replace_bytes
from msft.ranks import ALONE, Ranks, from_first, together
from msft.run.engine import Engine, LinksWeights
from msft.run.folder import write_text
from msft.search.rollout import BASE, CheckpointId
from msft.store.manifests import MANIFEST, Hashes, Manifest


class BestFolder:
    """Keeps a folder equal to one checkpoint of a run.

    is_whole: whether a checkpoint's weights are on disk as they were written.
    folders: where they are: in one folder, or in one of each rank that wrote them.
    ranks: whose first one writes the folder; the others come along.
    """

    def __init__(
        self,
        folder: Path,
        checkpoints: Path,
        engine: Engine,
        is_whole: Callable[[CheckpointId], bool],
        hashes: Hashes,
        notice: Callable[[str], None],
        folders: Callable[[CheckpointId], list[Path]] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._folders = folders or (lambda checkpoint: [self._source(checkpoint)])
        self._ranks = ranks
        self._folder = folder
        self._fresh = folder.with_name(".best.tmp")
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
        if checkpoint != BASE and not self._is_whole(checkpoint):
            from_first(self._ranks, self._take_away_damaged)
            return False
        sources = [] if checkpoint == BASE else self._folders(checkpoint)
        linked = checkpoint != BASE and isinstance(self._engine, LinksWeights)
        if not linked:
            from_first(self._ranks, self._empty)
            weights = together(self._ranks, lambda: self._read(sources))
            self._engine.export(weights, self._fresh)  # each rank has a part of it
        from_first(self._ranks, lambda: self._update(checkpoint, sources if linked else [], card))
        self._holds = checkpoint
        return True

    def _read(self, sources: Sequence[Path]) -> Any:
        """What this rank has of a checkpoint; None: the base."""
        codec: Any = self._engine.codec()
        if not sources:
            return None
        return codec.read(sources[0]) if len(sources) == 1 else codec.collect(sources)

    def _update(self, checkpoint: CheckpointId, sources: Sequence[Path], card: str) -> None:
        """sources: what is linked; without any the fresh folder has its weights already."""
        one = len(sources) == 1 and kind_of(self._folder / INDEX) is None
        if self._holds and one:
            self._link(sources, self._folder)
            self._seal(self._folder, checkpoint)
            self.card(card)
            return
        if sources:
            self._empty()
            self._link(sources, self._fresh)
        self._seal(self._fresh, checkpoint)
        write_text(self._fresh / "README.md", card)
        old = self._folder.with_name(".best.old")
        remove(old)
        if kind_of(self._folder):
            self._folder.rename(old)
        self._fresh.rename(self._folder)
        remove(old)

    def _empty(self) -> None:
        """A folder beside the old one, until it is complete."""
        remove(self._fresh)
        self._fresh.mkdir(parents=True)

    def _link(self, sources: Sequence[Path], folder: Path) -> None:
        """The weights in one file or several, and a manifest of all of them."""
        engine: Any = self._engine
        text = read_bytes(sources[0] / MANIFEST)
        if len(_weights_in(sources)) <= 1:
            engine.link(sources[0], folder)
        else:
            engine.link_parts(sources, folder)
            parts = [Manifest.from_bytes(read_bytes(source / MANIFEST)) for source in sources]
            known = {name: digest for part in parts for name, digest in part.files.items()}
            files = {
                file.name: known.get(file.name) or self._hashes.of(file)
                for file in _weights_in([folder])
            }
            owner = str(parts[0].owner).split(".weights")[0] + ".weights"
            text = Manifest(files, owner).to_bytes()
        replace_bytes(folder / MANIFEST, text)

    def _seal(self, folder: Path, checkpoint: CheckpointId) -> None:
        """Name every file in the manifest, so that who loads the folder can check it. The card is
        written again, and the config of an adapter names a place that may move: its digest without
        that place stands among the adapter's facts."""
        written = folder / MANIFEST
        linked = Manifest.from_bytes(read_bytes(written)).files if kind_of(written) else None
        files = linked or {file.name: self._hashes.of(file) for file in _weights_in([folder])}
        aside = {*files, MANIFEST, "README.md", ADAPTER_CONFIG}
        beside = {
            path.name: self._hashes.of(path)
            for path in sorted(folder.iterdir())
            if kind_of(path) == FILE and path.name not in aside
        }
        replace_bytes(written, Manifest(files, self._source(checkpoint).name, beside).to_bytes())

    def is_damaged(self) -> bool:
        """Whether its weights are not what was put there."""
        if self._holds in (None, BASE) or not isinstance(self._engine, LinksWeights):
            return from_first(self._ranks, lambda: False)
        holds = self._holds
        return from_first(self._ranks, lambda: self._fault(holds) is not None)

    def give_back(self, checkpoint: CheckpointId) -> None:
        """Let a finished run's checkpoint that is gone be the weights of this folder again, if
        they are what was put here. Earlier versions left nothing to check them by."""
        linked = isinstance(self._engine, LinksWeights) and checkpoint != BASE
        there = linked and any(kind_of(folder) for folder in self._folders(checkpoint))
        if linked and not there:
            from_first(self._ranks, lambda: self._give_back(checkpoint))

    def _give_back(self, checkpoint: CheckpointId) -> None:
        target, files = self._source(checkpoint), _weights_in([self._folder])
        if not files or any(kind_of(file) != FILE for file in files):
            return
        if kind_of(self._folder / MANIFEST) is None:
            digests = {file.name: self._hashes.of(file) for file in files}
            text = Manifest(digests, target.name).to_bytes()
            self._notice(
                f"an earlier version wrote {self._folder} without a hash, and its checkpoint is "
                "gone, so its weights cannot be checked; they are left as they are"
            )
        elif self._fault(checkpoint) is None:
            manifest = Manifest.from_bytes(read_bytes(self._folder / MANIFEST))
            text = Manifest(manifest.files, manifest.owner).to_bytes()
        else:
            return
        temporary = target.with_name(f".{target.name}.tmp")
        remove(temporary)
        temporary.mkdir(parents=True)
        for file in files:
            link_or_copy(file, temporary / file.name)
        replace_bytes(temporary / MANIFEST, text)
        temporary.rename(target)

    def card(self, card: str) -> None:
        """Only the model card, when the checkpoint stays the same."""
        write_text(self._folder / "README.md", card)

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


def _weights_in(folders: Sequence[Path]) -> list[Path]:
    """The files with weights: of a model, or of an adapter."""
    return parts_in(folders, WEIGHTS) or parts_in(folders, ADAPTER_WEIGHTS)
