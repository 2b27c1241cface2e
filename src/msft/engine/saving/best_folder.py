"""The result folder `best/`, there during a run too: a model folder, its card and its manifest.

Its weights are a checkpoint's own file under a second name, with the checkpoint's manifest. Where
a model's files have other names, dtypes or parts, they are written from the checkpoint, with a
manifest of all files. Nothing is linked or written unless the store has just said that the
checkpoint is whole.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open

from msft.engine.model.folders import ADAPTER_CONFIG, ADAPTER_WEIGHTS, WEIGHTS
from msft.engine.saving.weight_files import parts_in
from msft.errors import StoreError, explaining
from msft.files import (
    FILE,
    FOLDER,
    kind_of,
    link_or_copy,
    read_bytes,
    remove,
    replace_bytes,
    sync,
)
from msft.ranks import ALONE, Ranks, all_or_fail, from_rank0
from msft.run.engine import Engine
from msft.run.folder import RunFolder, write_text
from msft.run.history import History
from msft.search.rollout import BASE, CheckpointId
from msft.store.store import MANIFEST, CheckpointStore, Digest, Hashes, Manifest

CARD = "README.md"
UNSEALED = (CARD, ADAPTER_CONFIG)
"""Files that may change without harm; they are in no manifest."""
SHARE_OF_TIME = 0.05
"""Of a run's time, what it may take to write the best so far again and again."""


class BestFolder:
    """Keeps a folder equal to one checkpoint of a run: the best so far.

    card_of: makes the model card of the best so far.
    ranks: rank 0 writes the folder; the others meet it at each step of the work.
    """

    def __init__(
        self,
        run: RunFolder,
        engine: Engine,
        store: CheckpointStore,
        hashes: Hashes,
        notice: Callable[[str], None],
        card_of: Callable[[History], str],
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._folder = run.best
        self._fresh = run.best.with_name(".best.tmp")
        self._checkpoints = run.checkpoints
        self._engine = engine
        self._store = store
        self._card_of = card_of
        self._hashes = hashes
        self._notice = notice
        self._holds: CheckpointId | None = None
        self._next_write = 0.0

    def follow(self, history: History, now: bool = False) -> None:
        """Let the folder be the best so far, as soon as that is on disk. While the run goes on, the
        base model is not written.

        now: at once, however long it takes.
        """
        best, ended = history.best, history.ended is not None
        if best is None or best == self._holds or history.missing(best):
            return
        if best != BASE or ended:
            with self._ranks.busy("best/"):
                self.update(best, self._card_of(history), last=now or ended)

    def verify(self, history: History) -> None:
        """Write the folder again if it is damaged; StoreError if it is not the best even then."""
        if self.is_damaged():
            self._holds = None
        self.follow(history, now=True)
        if self._holds != history.best:
            raise StoreError(
                f"{self._folder} was damaged as it was made; run the same command again to make it "
                "anew"
            )

    def update(self, checkpoint: CheckpointId, card: str, last: bool = True) -> bool:
        """Let the folder be this checkpoint. False: the checkpoint is not whole on disk (yet); then
        the folder is removed if it is damaged too.

        last: no better checkpoint will come. Before that, a folder that takes long to write is not
            written for every best so far; then False says that it is left for later.
        """
        if self.has_export(checkpoint):
            from_rank0(self._ranks, "the card of best/", lambda: self.card(card))
            self._holds = checkpoint
            return True
        if checkpoint != BASE and not self._store.is_whole(checkpoint):
            from_rank0(self._ranks, "best/ as it is", self._take_away_damaged)
            return False
        sources = [] if checkpoint == BASE else self._store.folders(checkpoint)
        if len(_weights_in(sources)) == 1 and self._engine.links:
            from_rank0(self._ranks, f"best/ of {checkpoint}", lambda: self._link(sources[0], card))
        elif last or from_rank0(
            self._ranks, "time for best/", lambda: time.monotonic() >= self._next_write
        ):
            self._write(checkpoint, sources, card)
        else:
            return False
        self._holds = checkpoint
        return True

    def _write(self, checkpoint: CheckpointId, sources: Sequence[Path], card: str) -> None:
        began = time.monotonic()
        from_rank0(self._ranks, "an empty best/", self._empty)
        weights = all_or_fail(self._ranks, "weights of best/", lambda: self._read(sources))
        size = sum(path.stat().st_size for path in _weights_in(sources))
        with explaining(self._fresh / WEIGHTS, size):
            self._engine.export(weights, self._fresh)  # each rank has a part of it
        from_rank0(self._ranks, f"best/ of {checkpoint}", lambda: self._finish(checkpoint, card))
        now = time.monotonic()
        self._next_write = now + (now - began) / SHARE_OF_TIME

    def _finish(self, checkpoint: CheckpointId, card: str) -> None:
        """Sync what was written, add a manifest, and put it in the folder's place."""
        files = [path for path in sorted(self._fresh.iterdir()) if kind_of(path) == FILE]
        for path in files:
            sync(path)
        written = {path.name: self._hashes.of(path) for path in files if path.name not in UNSEALED}
        self._seal(self._fresh, written, _export_of(checkpoint))
        self._swap(card)

    def _read(self, sources: Sequence[Path]) -> Any:
        """This rank's weights of a checkpoint; None: the base."""
        codec: Any = self._engine.codec()
        if not sources:
            return None
        return codec.read(sources[0]) if len(sources) == 1 else codec.collect(sources)

    def _link(self, source: Path, card: str) -> None:
        """Link a checkpoint's weights; files that are the same for all checkpoints are written
        once."""
        again = self._holds is not None and self._owner() == self._source(self._holds).name
        if not again:
            self._empty()
        folder = self._folder if again else self._fresh
        self._engine.link(source, folder)
        linked = Manifest.from_bytes(read_bytes(source / MANIFEST)).files
        self._seal(folder, linked, source.name)
        if again:
            self.card(card)
        else:
            self._swap(card)

    def _swap(self, card: str) -> None:
        """The fresh folder takes the place of the old one."""
        write_text(self._fresh / CARD, card)
        sync(self._fresh)
        old = self._folder.with_name(".best.old")
        remove(old)
        if kind_of(self._folder):
            self._folder.rename(old)
        self._fresh.rename(self._folder)
        sync(self._folder.parent)
        remove(old)

    def _empty(self) -> None:
        """A folder beside the old one, until it is complete."""
        remove(self._fresh)
        self._fresh.mkdir()

    def _seal(self, folder: Path, files: Mapping[str, Digest], owner: str) -> None:
        """Write the manifest, by which a reader of the folder checks its files. Two are not in it:
        the card is written again, and the config of an adapter names the folder of its base, which
        may move (the adapter's facts have the config's digest without that folder).

        files: those of the checkpoint.
        """
        aside = {*files, MANIFEST, *UNSEALED}
        beside = {
            path.name: self._hashes.of(path)
            for path in sorted(folder.iterdir())
            if kind_of(path) == FILE and path.name not in aside
        }
        replace_bytes(folder / MANIFEST, Manifest(files, owner, beside).to_bytes())

    def is_damaged(self) -> bool:
        """Whether the folder is not what was put there."""

        def differs() -> bool:
            if self._holds is None:
                return False
            written, linked = _export_of(self._holds), self._source(self._holds).name
            name = written if self._owner() == written else linked
            return self._hashes.fault(self._folder, name, others=True) is not None

        return from_rank0(self._ranks, "best/ is damaged", differs)

    def has_export(self, checkpoint: CheckpointId) -> bool:
        """Whether the folder is what was written of a checkpoint, which itself may be gone."""
        name = _export_of(checkpoint)
        return from_rank0(
            self._ranks,
            f"best/ is {checkpoint}",
            lambda: (
                self._owner() == name
                and self._hashes.fault(self._folder, name, others=True) is None
            ),
        )

    def give_back(self, checkpoint: CheckpointId) -> None:
        """Restore the checkpoint of a finished run, where it is gone, from the weights of this
        folder, if they are whole. Earlier versions left no manifest to check them by."""
        if checkpoint != BASE and not any(
            kind_of(each) for each in self._store.folders(checkpoint)
        ):
            from_rank0(self._ranks, "best/ given back", lambda: self._give_back(checkpoint))

    def _give_back(self, checkpoint: CheckpointId) -> None:
        target, files = self._source(checkpoint), _weights_in([self._folder])
        if not files or any(kind_of(file) != FILE for file in files):
            return
        if kind_of(self._folder / MANIFEST) is None:
            if not self._are_trained(files):
                return
            digests = {file.name: self._hashes.of(file) for file in files}
            text = Manifest(digests, target.name).to_bytes()
            self._notice(
                f"an earlier version wrote {self._folder} without a hash, and its checkpoint is "
                "gone, so its weights cannot be checked; they are left as they are"
            )
        elif self._hashes.fault(self._folder, target.name, others=True) is None:
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

    def _are_trained(self, files: Sequence[Path]) -> bool:
        """Whether files have the tensors of a checkpoint. Those of a merged model, or of a model
        with its published names, have not."""
        if self._ranks.world > 1:
            return self._engine.links
        held: dict[str, str] = {}
        for file in files:
            with safe_open(file, "pt") as tensors:
                names = tensors.keys()
                held |= {name: tensors.get_slice(name).get_dtype() for name in names}
        return held == dict.fromkeys(self._engine.weights(), "F32")

    def card(self, card: str) -> None:
        """Write only the model card, since the checkpoint stays the same."""
        write_text(self._folder / CARD, card)

    def _take_away_damaged(self) -> None:
        """Remove the folder where its weights are not those of its manifest."""
        if kind_of(self._folder) != FOLDER or kind_of(self._folder / MANIFEST) is None:
            return
        fault = self._hashes.fault(self._folder, self._owner() or "", others=True)
        if fault is not None:
            remove(self._folder)
            self._holds = None
            self._notice(f"{self._folder} was damaged ({fault}) and is taken away until it is made")

    def _owner(self) -> str | None:
        """The owner of the folder's files, as its manifest says."""
        try:
            return Manifest.from_bytes(read_bytes(self._folder / MANIFEST)).owner
        except (OSError, ValueError):
            return None

    def _source(self, checkpoint: CheckpointId) -> Path:
        return self._checkpoints / f"{checkpoint}.weights"


def _weights_in(folders: Sequence[Path]) -> list[Path]:
    """The files with weights: of a model, or of an adapter."""
    return parts_in(folders, WEIGHTS) or parts_in(folders, ADAPTER_WEIGHTS)


def _export_of(checkpoint: CheckpointId) -> str:
    """The owner, in a manifest, of files that were written of a checkpoint."""
    return f"{checkpoint}.export"
