"""Snapshots of the real engine: files, tiers, the result folder, orderly stops and full disks."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from toys import recipe_of, write_data

from msft.app.terminal.progress import ShownRun
from msft.data.corpus import Corpus
from msft.engine.build import engine_of
from msft.engine.memory import memory_tiers
from msft.engine.model.folders import WEIGHTS
from msft.engine.model.loading import load_model
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.engine.optimizer import TrainingSettings
from msft.engine.saving.best_folder import BestFolder
from msft.engine.saving.weight_files import MOMENTS, STATE, Copies, TorchCodec
from msft.engine.simple import SimpleEngine
from msft.errors import Stopped, StoreError
from msft.recipe.recipe import Recipe
from msft.run.folder import RunFolder
from msft.run.history import History
from msft.run.log import PointEvent, read_log
from msft.run.worker import Step
from msft.search.rollout import BASE, CheckpointId
from msft.store.store import CheckpointStore, DiskTier, Hashes
from msft.testing import Learner, simulate
from msft.training import train

pytestmark = pytest.mark.usefixtures("no_reports")

CPU = torch.device("cpu")
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))

TENSORS = {
    "matrix": torch.arange(12.0).reshape(3, 4),
    "across": torch.arange(12.0).reshape(3, 4).T,
    "half": torch.tensor([1.5, float("inf"), float("nan")], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "number": torch.tensor(7),
    "nothing": torch.empty(0, 5),
    "large": torch.arange(9_000_000.0),
}


def same(ours: Any, theirs: Any) -> bool:
    """Bit for bit, wherever they are."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, torch.Tensor):
        bits = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs)]
        return (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype) and torch.equal(*bits)
    return bool(ours == theirs)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_weights_are_a_file_that_safetensors_reads(device: str, tmp_path: Path) -> None:
    payload = {name: tensor.to(device) for name, tensor in TENSORS.items()}
    codec = TorchCodec(Copies(torch.device(device)))
    codec.write(payload, tmp_path)
    assert same(load_file(tmp_path / WEIGHTS), TENSORS)
    assert same(codec.read(tmp_path), TENSORS)
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert (tmp_path / WEIGHTS).stat().st_mode & 0o777 == 0o644


def test_the_training_state_comes_back_as_it_was(tmp_path: Path) -> None:
    payload = {"optimizer": {"steps": 3, "tensors": TENSORS}, "feed": {"taken": [1, 2]}}
    TorchCodec().write(payload, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {MOMENTS, STATE}
    assert same(TorchCodec().read(tmp_path), payload)


def test_moments_that_are_not_there_yet_are_an_empty_file(tmp_path: Path) -> None:
    payload = {"optimizer": {"steps": 0, "tensors": {}}, "feed": None}
    TorchCodec().write(payload, tmp_path)
    assert TorchCodec().read(tmp_path) == payload


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_memory_gives_back_what_it_was_given(device: str, tmp_path: Path) -> None:
    where = torch.device(device)
    copies = Copies(where)
    payload = {"optimizer": {"steps": 1, "tensors": {n: t.to(where) for n, t in TENSORS.items()}}}
    tiers = memory_tiers(10**8, 0, 10**6, where, copies)
    assert [tier.name for tier in tiers] == (["host"] if device == "cpu" else ["device", "host"])
    for tier in tiers:
        tier.put("key", payload)
        assert same(tier.get("key"), payload)
        disk = DiskTier(tmp_path / tier.name, TorchCodec(copies))
        disk.put("key", {"feed": None} | (tier.lend("key") or {}))
        assert same(disk.get("key"), {**payload, "feed": None})


def test_there_is_no_tier_where_nothing_fits() -> None:
    assert memory_tiers(10**15, 0, 5, CPU, Copies()) == []
    assert memory_tiers(1, 10**15, 5, CPU, Copies()) == []
    assert [tier.capacity for tier in memory_tiers(1, 0, 5, CPU, Copies())] == [5]


def test_the_result_follows_the_best_checkpoint_that_is_on_disk(tmp_path: Path) -> None:
    loaded = load_model("tiny", CPU)
    engine = SimpleEngine(loaded, {}, TrainingSettings())
    base = engine.weights()
    best, disk = tmp_path / "best", DiskTier(tmp_path / "checkpoints", TorchCodec())
    said = list[str]()
    store = CheckpointStore(disk=disk)
    result = BestFolder(RunFolder(tmp_path), engine, store, Hashes(), said.append, card_of=str)
    assert not result.update(CheckpointId("r0-t1"), "one")
    assert not best.exists()
    for number in (1, 2):
        disk.put(f"r0-t{number}.weights", {n: t + number for n, t in base.items()})
        assert result.update(CheckpointId(f"r0-t{number}"), f"card {number}")
        assert same(load_file(best / WEIGHTS), {n: t + number for n, t in base.items()})
        assert (best / "README.md").read_text() == f"card {number}"
        files = {path.name for path in best.iterdir()}
        assert {"config.json", "tokenizer.json", WEIGHTS, "README.md"} <= files
        disk.drop(f"r0-t{number}.weights")
    assert not any(name.startswith(".") for name in files)
    assert not result.is_damaged()
    assert not result.update(CheckpointId("r0-t3"), "three"), "which is not there"
    disk.put("r0-t3.weights", base)
    (tmp_path / "checkpoints/r0-t3.weights" / WEIGHTS).write_bytes(b"damaged")
    assert not result.update(CheckpointId("r0-t3"), "three"), "which is not whole"
    assert (best / "README.md").read_text() == "card 2"
    (best / WEIGHTS).write_bytes(b"not what was put there")
    assert result.is_damaged()
    assert not result.update(CheckpointId("r0-t3"), "three")
    assert not best.exists(), "nor is anything else handed out"
    assert [f"{best} was damaged" in text for text in said] == [True]
    assert result.update(CheckpointId("base"), "base")
    assert same(load_file(best / WEIGHTS), base)


def test_a_damaged_result_is_made_again_or_said_to_be_damaged(tmp_path: Path) -> None:
    engine = SimpleEngine(load_model("tiny", CPU), {}, TrainingSettings())
    disk, history = (
        DiskTier(tmp_path / "checkpoints", TorchCodec()),
        simulate("sft", {"a": Learner()}),
    )
    store = CheckpointStore(disk=disk)
    result = BestFolder(RunFolder(tmp_path), engine, store, Hashes(), print, lambda history: "card")
    result.follow(History())
    result.follow(history)
    assert not (tmp_path / "best").exists(), "nothing is the best, then it is not on disk"
    assert history.best != BASE
    disk.put(f"{history.best}.weights", engine.weights())
    result.follow(history)
    file = tmp_path / "best" / WEIGHTS
    file.unlink()
    file.write_bytes(b"another file")
    result.verify(history)
    assert same(load_file(file), engine.weights())
    file.write_bytes(b"the checkpoint's file too")
    with pytest.raises(StoreError, match="was damaged as it was made"):
        result.verify(history)


def test_a_result_that_takes_long_to_write_is_written_for_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 a result is no checkpoint's file. The best so far may take 5 % of the time."""
    engine = SimpleEngine(load_model("tiny", CPU).exported_in("bfloat16"), {}, TrainingSettings())
    base, disk = engine.weights(), DiskTier(tmp_path / "checkpoints", TorchCodec())
    clock = [0.0]
    monkeypatch.setattr("msft.engine.saving.best_folder.time.monotonic", lambda: clock[0])
    export = engine.export

    def slow(weights: object, folder: Path) -> None:
        clock[0] += 2
        export(weights, folder)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "export", slow)
    store, silent = CheckpointStore(disk=disk), lambda text: None
    result = BestFolder(RunFolder(tmp_path), engine, store, Hashes(), silent, card_of=str)

    def update(number: int, last: bool = False) -> bool:
        disk.put(f"r0-t{number}.weights", {n: t + number for n, t in base.items()})
        return result.update(CheckpointId(f"r0-t{number}"), f"card {number}", last)

    def holds(number: int) -> bool:
        said = (tmp_path / "best" / "README.md").read_text() == f"card {number}"
        expected = {n: (t + number).bfloat16() for n, t in base.items()}
        return said and same(load_file(tmp_path / "best" / WEIGHTS), expected)

    assert update(1)
    assert holds(1), "the first one at once"
    clock[0] += 39
    assert not update(2)
    assert holds(1), "2 s are more than 5 % of 41 s"
    clock[0] += 1
    assert update(2)
    assert holds(2)
    assert not update(3)
    assert update(3, last=True)
    assert holds(3)
    assert not result.is_damaged()
    disk.drop("r0-t3.weights")
    assert result.update(CheckpointId("r0-t3"), "card 3"), "what is there need not be written"


class Stopping:
    """Somebody who watches and sends a signal at a step."""

    def __init__(self, last: int) -> None:
        self.left = last

    def event(self, event: object, live: bool) -> None:
        pass

    def step(self, step: Step) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped("SIGTERM")


def steps_of(folder: Path) -> list[str]:
    """The checkpoint before which each step was taken, repeated ones too."""
    lines = (folder / "steps.jsonl").read_text().splitlines()
    return [f"r{line['rollout']}-t{line['tick']}" for line in map(json.loads, lines)]


def points_of(folder: Path) -> set[str]:
    return {e.checkpoint for e in read_log(folder / "run.jsonl") if isinstance(e, PointEvent)}


@pytest.mark.parametrize("options", [{}, {"on_rollback": "restore"}])
def test_a_stopped_run_goes_on_where_it_stopped(options: dict[str, Any], tmp_path: Path) -> None:
    """Nothing but the unfinished tick is trained again, wherever the checkpoints were."""
    write_data(tmp_path, train=24, held_out=8)
    sizes = {"train_batch_size": 8, "compute_budget": 2}
    recipe = recipe_of(tmp_path, method="msft", method_options=options, **sizes)
    alone, out = tmp_path / "alone", tmp_path / "stopped"
    train(recipe, alone)
    train_on = len(steps_of(alone))
    for last in (8, 6, 11, 13, 17):
        known = points_of(out) if out.exists() else set()
        before = len(steps_of(out)) if out.exists() else 0
        with pytest.raises(Stopped):
            train(recipe, out, [ShownRun(progress=Stopping(last))])
        assert not set(steps_of(out)[before:]) & known
        assert points_of(out) > known
        summary = json.loads((out / "summary.json").read_text())
        assert (out / "best" / WEIGHTS).exists() or summary["best"]["checkpoint"] == "base"
    assert summary["best"]["checkpoint"] != "base"
    assert len(summary["stages"]) > 2
    known, before = points_of(out), len(steps_of(out))
    train(recipe, out)
    assert not set(steps_of(out)[before:]) & known
    assert len(steps_of(out)) < train_on + 5 * max(Counter(steps_of(alone)).values())
    for name in ("run.jsonl", "summary.json", f"best/{WEIGHTS}"):
        assert (out / name).read_bytes() == (alone / name).read_bytes(), name


class FullDisk:
    """A codec whose disk takes so many payloads."""

    def __init__(self, codec: TorchCodec, room: int) -> None:
        self.read = codec.read
        self.tries: list[Path] = []
        self._codec = codec
        self._room = room

    def write(self, payload: Any, folder: Path) -> None:
        self.tries.append(folder)
        if len(self.tries) > self._room:
            raise OSError(28, "No space left on device")
        self._codec.write(payload, folder)


class WithCodec:
    """An engine with another codec."""

    def __init__(self, engine: Any, room: int) -> None:
        self._engine = engine
        self.disk = FullDisk(engine.codec(), room)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def codec(self) -> FullDisk:
        return self.disk


def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    write_data(tmp_path, train=24, held_out=8)
    recipe = recipe_of(tmp_path, method="msft", train_batch_size=8)
    disks: list[FullDisk] = []

    def with_room(room: int) -> Any:
        def make(recipe: Recipe, corpus: Corpus) -> WithCodec:
            engine = WithCodec(engine_of(recipe, corpus, tiny_tokenizer(), CPU), room)
            disks.append(engine.disk)
            return engine

        return make

    train(recipe, tmp_path / "alone", engine=with_room(10**6))
    with pytest.raises(OSError, match="No space left"):
        train(recipe, tmp_path / "full", engine=with_room(5))
    written = disks[1].tries
    assert len(written) == 6, "nothing was tried after it"
    assert not list((tmp_path / "full/checkpoints").glob(".*"))
    summary = json.loads((tmp_path / "full/summary.json").read_text())
    assert summary["status"] == "stopped"
    train(recipe, tmp_path / "full", engine=with_room(10**6))
    for name in ("run.jsonl", f"best/{WEIGHTS}"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
