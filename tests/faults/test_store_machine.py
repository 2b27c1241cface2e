"""The store against a dict, while somebody damages what is on its disk."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mortal import LateDisk, quick_folder
from msft.search.rollout import CheckpointId, checkpoint_id
from msft.store.store import CheckpointStore, DiskTier, MemoryTier, Retained
from msft.testing import JsonCodec


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("x")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flipped,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "gone": lambda path: path.unlink(),
    "a folder": lambda path: replaced(path, Path.mkdir),
    "a link": lambda path: replaced(path, lambda p: p.symlink_to("/etc/hostname")),
    "a pipe": lambda path: replaced(path, os.mkfifo),
    "no manifest": lambda path: path.with_name("manifest.json").unlink(),
    "another's": lambda path: path.parent.rename(path.parent.with_name("r9-t9.weights")),
    "no folder": lambda path: shutil.rmtree(path.parent),
    "a file": lambda path: a_file(path.parent),
}


class DamagedStore(RuleBasedStateMachine):
    """Nothing is ever given out but what was put in; what is gone can be put in again."""

    @initialize(memory=st.integers(0, 2), lag=st.integers(0, 3))
    def open(self, memory: int, lag: int) -> None:
        self.place = ExitStack()
        self.folder = self.place.enter_context(quick_folder())
        self.memory, self.lag = memory, lag
        self.calls: list[tuple[str, CheckpointId | Retained]] = []
        self.model: dict[CheckpointId, int] = {}
        self.safe: set[CheckpointId] = set()
        self.tick = 0
        self.store = self.opened()
        self.store.go_live()

    def opened(self) -> CheckpointStore:
        memory = [MemoryTier("host", self.memory)] if self.memory else []
        return CheckpointStore(memory, LateDisk(self.folder, self.lag))

    @rule()
    def save(self) -> None:
        self.tick += 1
        checkpoint = checkpoint_id(0, self.tick)
        self.store.enter(checkpoint)
        self.put(checkpoint, self.tick)
        self.calls.append(("enter", checkpoint))
        self.model[checkpoint] = self.tick

    def put(self, checkpoint: CheckpointId, content: int) -> None:
        self.store.put(checkpoint, lambda: content, lambda: {"moments": content})
        self.safe.add(checkpoint)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        self.store.flush()
        there = sorted(path.parent.name for path in self.folder.glob("r0-*.weights/state.json"))
        if there:
            key = data.draw(st.sampled_from(there))
            DAMAGE[data.draw(st.sampled_from(sorted(DAMAGE)))](self.folder / key / "state.json")
            self.safe -= {checkpoint_id(0, int(key.removeprefix("r0-t").split(".")[0]))}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def secure(self, data: st.DataObject) -> None:
        """A result that memory still holds ends up whole on disk, whatever was there."""
        checkpoint = data.draw(st.sampled_from(sorted(self.model)))
        held = self.store.get(checkpoint, "weights")
        self.store.secure(checkpoint)
        self.calls.append(("secure", checkpoint))
        self.store.flush()
        if held is not None and not self.store.is_whole(checkpoint):
            self.store.flush()
            assert self.store.is_whole(checkpoint)
        if held is not None:
            disk = DiskTier(self.folder, JsonCodec())
            assert disk.get(f"{checkpoint}.weights") == self.model[checkpoint]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        weights = data.draw(st.frozensets(st.sampled_from(sorted(self.model))))
        needed = Retained(weights, weights, frozenset(), moved=data.draw(st.booleans()))
        self.store.keep(needed)
        self.calls.append(("keep", needed))
        self.model = {checkpoint: self.model[checkpoint] for checkpoint in weights}
        self.safe &= weights

    @precondition(lambda self: self.model)
    @rule()
    def make_again(self) -> None:
        for checkpoint, content in self.model.items():
            if self.store.get(checkpoint, "weights") is None:
                assert self.store.lacks(checkpoint)
                self.put(checkpoint, content)
                assert self.store.get(checkpoint, "weights") == content

    @rule()
    def crash(self) -> None:
        self.store.park()
        self.store = self.opened()
        for call, what in self.calls:
            getattr(self.store, call)(what)
        self.store.go_live()

    @invariant()
    def what_is_given_is_what_was_put(self) -> None:
        assert self.store.held == set(self.model)
        for checkpoint, content in self.model.items():
            found = self.store.get(checkpoint, "weights")
            assert found in (content, None)
            assert found == content or checkpoint not in self.safe
            assert self.store.get(checkpoint, "training") in (None, {"moments": content})

    def teardown(self) -> None:
        if hasattr(self, "place"):
            self.place.close()


TestDamagedStore = DamagedStore.TestCase
TestDamagedStore.settings = settings(
    max_examples=80, stateful_step_count=12, deadline=None, derandomize=True
)
