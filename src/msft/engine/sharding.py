"""Which way lanes are computed: in one process, with whole weights in each, or with slices."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from msft.engine.data_parallel import DataParallel, OneLane
from msft.engine.full_sharding import FullSharding
from msft.engine.train.schedule import TrainingSettings
from msft.errors import UsageError
from msft.ranks import ALONE, Ranks


def lanes_over(
    model: Any, parameters: Mapping[str, nn.Parameter], settings: TrainingSettings, ranks: Ranks
) -> OneLane | DataParallel | FullSharding:
    """For the lanes of a recipe, by its `sharding`; one process has nothing to divide.

    UsageError where there is not a tensor for each process to own.
    """
    if ranks.world > len(parameters):
        raise UsageError(
            f"{ranks.world} processes were started, but only {len(parameters)} tensors are "
            f"trained, and each process needs one; start at most {len(parameters)}"
        )
    if settings.full_sharding:
        return FullSharding(model, settings.lanes, ranks, settings.bf16)
    if settings.lanes == 1 and ranks is ALONE:
        return OneLane(model, parameters, settings.bf16)
    return DataParallel(model, parameters, settings.lanes, ranks, settings.bf16)


def everywhere(
    lanes: OneLane | DataParallel | FullSharding, owned: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Whole tensors that ranks own between them, in every rank."""
    return lanes.everywhere(owned) if isinstance(lanes, DataParallel) else owned
