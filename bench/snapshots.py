"""Snapshots and roll-backs on the training path, against a plain torch.save with fsync.

    PYTHONPATH=src python bench/snapshots.py [--size 135M] [--folder WHERE]

A snapshot is the weights and both moments, fp32. `returns` is when training goes on, `done` when
the device has done its part too, `safe` when it is on disk. Then the same for the way back, and a
step of training alone and beside a disk that is being written. Median of repeats.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from common import SHAPES, Report, device_of, parser_of, random_model, synchronize
from transformers import AutoConfig

from msft.engine.fast import FastEngine
from msft.engine.memory import on_device
from msft.engine.model.loading import LoadedModel
from msft.engine.optimizer import TrainingSettings
from msft.engine.saving.weight_files import Copies, TorchCodec
from msft.example import Encoded
from msft.search.feeds import Batch
from msft.store.store import BackgroundDisk, DiskTier, MemoryTier

LENGTH, ANSWER = 95, 17
"""Rows as the ten core tasks have them."""
ROWS = 64 if torch.cuda.is_available() else 4


END = SimpleNamespace(eos_token_id=0)
"""All that an engine asks of a tokenizer as it is made."""


def engine_of(size: str) -> FastEngine:
    """A model of random weights that has taken a step."""
    random, device = Random(0), device_of()
    model = random_model(AutoConfig.for_model(**SHAPES[size]), torch.float32, "msft")
    mask = tuple(place >= LENGTH - ANSWER for place in range(LENGTH))
    rows = [Encoded(tuple(random.choices(range(1000), k=LENGTH)), mask) for _ in range(ROWS)]
    settings = TrainingSettings(bf16=device.type == "cuda")
    engine = FastEngine(LoadedModel(model, END, "random"), {"a": rows}, settings)
    step(engine)
    return engine


def step(engine: FastEngine) -> None:
    losses, _ = engine.work(Batch(tuple(("a", number) for number in range(ROWS))))
    assert len(losses.rows) == ROWS


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds until it returns, and until the device is done."""
    synchronize()
    begun = time.perf_counter()
    work()
    returned = time.perf_counter()
    synchronize()
    return 1000 * (returned - begun), 1000 * (time.perf_counter() - begun)


def repeated(times: int, work: Callable[[], object]) -> dict[str, float]:
    pairs = [timed(work) for _ in range(times)]
    returns, done = (median(column) for column in zip(*pairs, strict=True))
    return {"returns ms": returns, "done ms": done}


def parts(engine: FastEngine) -> Iterator[tuple[str, Any]]:
    yield "weights", engine.weights()
    yield "training", {"optimizer": engine.optimizer(), "feed": None}


def snapshot(engine: FastEngine, *tiers: Any) -> None:
    """What a tick does: each part is made once and brought to its places."""
    for key, payload in parts(engine):
        for tier in tiers:
            tier.put(key, payload)


def back(engine: FastEngine, tier: Any) -> None:
    engine.load(tier.get("weights"))
    engine.load_optimizer(tier.get("training")["optimizer"])


def plainly_saved(engine: FastEngine, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(dict(parts(engine)), file)
        file.flush()
        os.fsync(file.fileno())


def plainly_back(engine: FastEngine, path: Path) -> None:
    state = torch.load(path, map_location=engine.device, weights_only=True)
    engine.load(state["weights"])
    engine.load_optimizer(state["training"]["optimizer"])


def measure(engine: FastEngine, folder: Path, report: Report, many: int, few: int) -> None:
    device = engine.device
    copies = Copies(device)
    disk = DiskTier(folder / "disk", TorchCodec(copies))
    behind = BackgroundDisk(DiskTier(folder / "behind", TorchCodec(copies)), copies.follow)
    memory = {"host": MemoryTier("host", 1, copies.to_host, copies.arrive)}
    if device.type == "cuda":
        memory = {"device": MemoryTier("device", 1, lambda p: on_device(p, device)), **memory}
    moved = 3 * 4 * engine.num_parameters / 1e9

    def add(what: str, where: str, **found: float) -> None:
        report.add(what=what, where=where, GB=moved, **found)

    for name, tier in memory.items():
        snapshot(engine, tier)  # the first one allocates
        add("snapshot", name, **repeated(many, lambda tier=tier: snapshot(engine, tier)))
    fastest = next(iter(memory))

    def safe(*tiers: Any) -> dict[str, float]:
        begun = time.perf_counter()
        found = repeated(1, lambda: snapshot(engine, *tiers))
        tiers[-1].flush()
        return found | {"safe ms": 1000 * (time.perf_counter() - begun)}

    add("snapshot", f"{fastest} + disk behind", **safe(memory[fastest], behind))
    add("snapshot", "disk, waited for", **safe(disk))
    plain = repeated(few, lambda: plainly_saved(engine, folder / "plain.pt"))
    add("snapshot", "torch.save + fsync", **plain, **{"safe ms": plain["returns ms"]})
    for name, source in {**memory, "disk": disk}.items():
        times = few if source is disk else many
        add("roll-back", name, **repeated(times, lambda source=source: back(engine, source)))
    plain = repeated(few, lambda: plainly_back(engine, folder / "plain.pt"))
    add("roll-back", "torch.load", **plain)

    report.add(what="step", where="alone", **repeated(few, lambda: step(engine)))
    snapshot(engine, behind)
    writing = threading.Thread(target=behind.flush)
    writing.start()
    beside = [timed(lambda: step(engine))]
    while writing.is_alive():
        beside.append(timed(lambda: step(engine)))
    returns, done = (median(column) for column in zip(*beside, strict=True))
    report.add(
        what="step", where="while the disk is written", **{"returns ms": returns, "done ms": done}
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--size", default="135M", choices=SHAPES)
    parser.add_argument("--folder", type=Path, help="a place on the disk that is to be measured")
    options = parser.parse_args()
    report = Report("snapshots", options.out)
    many, few = (3, 1) if options.quick else (9, 3)
    with TemporaryDirectory(dir=options.folder) as folder:
        engine = engine_of(options.size)
        measure(engine, Path(folder), report, many, few)
    columns = ["what", "where", "GB", "returns ms", "done ms", "safe ms"]
    report.table(f"{options.size}, fp32 weights and moments", columns)


if __name__ == "__main__":
    main()
