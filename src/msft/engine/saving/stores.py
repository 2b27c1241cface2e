"""The checkpoint store of a run: memory for what is needed at a time, and a disk."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msft.engine.memory import Checkpoints, models_beside, refuse_full_disk
from msft.ranks import Ranks, all_or_fail
from msft.recipe.recipe import Recipe
from msft.run.engine import Engine
from msft.run.folder import RunFolder
from msft.search.methods import PreparedMethod
from msft.search.rollout import LEAN, Settings
from msft.store.ranked import RankedDisk
from msft.store.store import MOST_WAITING, BackgroundDisk, CheckpointStore, DiskTier, Hashes


@dataclass(frozen=True, slots=True)
class RunStore:
    """A checkpoint store.

    prune_ranked: removes from the ranks' disk what no rank needs any more; None: with one lane
        there is one rank, whose store removes by itself.
    disk_bytes: that it may need on the disk. lent_bytes: the same, if every tick were lent to
        others.
    """

    store: CheckpointStore
    prune_ranked: Callable[[], None] | None
    disk_bytes: int
    lent_bytes: int


def store_of(
    recipe: Recipe,
    method: PreparedMethod,
    settings: Settings,
    engine: Engine,
    folder: RunFolder,
    hashes: Hashes,
    notice: Callable[[str], None],
    ranks: Ranks,
    most: int | None,
) -> RunStore:
    """The store of a run: memory for what is needed at a time, and a disk that is written beside
    training.

    Sizes are those of whole checkpoints, whose parts the ranks have between them.

    most: checkpoints that the method needs at a time, as `most_held` says.
    """
    rollback = method.rollout_options.on_rollback
    averaged, datasets = recipe.ema_decay is not None, len(settings.mixture.parts)
    trainable = engine.num_trainable
    links = engine.links and ranks.world == 1  # of parts, a result is written
    models = models_beside(recipe, engine.num_parameters, links, engine.bytes_a_weight)
    how = (averaged, models, recipe.disk_policy)
    needed = Checkpoints.of(trainable, recipe.optim, rollback, datasets, most, *how)
    each, aside = needed.each // ranks.world, needed.aside // ranks.world
    codec: Any = engine.codec()
    tiers, follow = engine.memory(each, aside, needed.in_memory)
    if ranks.world > 1:  # places must be the same in all ranks
        every = ranks.gather("places for checkpoints", {t.name: t.capacity for t in tiers})
        for tier in tiers:
            tier.capacity = min(capacities.get(tier.name, 0) for capacities in every)
    tiers = [tier for tier in tiers if tier.capacity]
    roomy = sum(tier.capacity for tier in tiers) >= needed.in_memory
    ticks = max(settings.train_ticks, settings.compute_budget)
    on_disk = needed.disk(roomy)
    if not folder.log.exists():
        all_or_fail(
            ranks,
            "room on the disk",
            lambda: refuse_full_disk(folder.path, on_disk, lambda: _fewer_copies(method, recipe)),
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    largest = max(needed.weights, needed.moments)
    disk = DiskTier(folder.checkpoints, codec, notice, hashes, largest)
    waiting = MOST_WAITING if roomy else 1  # what waits takes memory
    writer = BackgroundDisk(disk, follow, waiting) if tiers else disk
    bytes_ = on_disk, 2 * on_disk + ticks * needed.weights  # what is there, and as much is free
    sizes = (needed.weights, needed.moments)
    if settings.lanes == 1:
        return RunStore(CheckpointStore(tiers, writer, *sizes), None, *bytes_)
    shared = RankedDisk(folder.checkpoints, disk, writer, codec, ranks)
    store = CheckpointStore(tiers, shared, *sizes, note=ranks.note)
    return RunStore(store, shared.prune, *bytes_)


def _fewer_copies(method: PreparedMethod, recipe: Recipe) -> str:
    """The setting with which a method needs fewer checkpoints at a time."""
    if recipe.disk_policy != LEAN:
        return f"disk_policy: {LEAN}"
    if recipe.merge_adapter:
        return "merge_adapter: false (`msft merge` writes one model at the end)"
    if method.averages and method.options.get("of", "span") not in ("last", "random"):
        return "method_options: {of: last, k: 4}, which holds four ticks"
    return ""
