"""A model with small windows: the same weights, but short rows outgrow every window that it has.

What a layer does may depend on how long a row is: a sliding window, a chunk, the keys that an index
picks, a rate of compression, the places that positions were trained for. A proof on short rows does
not come as far, and rows of thousands of tokens would take long. So these numbers are made small
for a while, wherever the model has them.

Which numbers they are is not a list of names. Every whole number of a config that no weight depends
on is one: two models without weights are built, one of them with the small number, and compared.
What differs in their modules is set in the loaded model, too. What cannot be made small (a weight
for every place of a block, say) is outgrown by a longer row.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SMALL = 3
"""What windows, chunks and indices are made. Short rows outgrow it, and its square."""
SIZES = re.compile(
    r"(^|_)(hidden|intermediate|vocab|embd|embedding|dims?|ranks?|heads?|layers?|experts?|tok|ids?|"
    r"ff|ffn|dff|channels|width|conv|kernel|state|mult)(_|$)|"
    r"^(max_position_embeddings|n_positions|n_inner|d_model|d_rel|n_groups?|topk_group)$"
)
"""Names of numbers that are no length for sure. This list only saves time."""
LONG = 1024
"""Tokens of the longest row that is tried because a number cannot be made small."""
_MODULE = frozenset(vars(nn.Module()))


@dataclass(frozen=True, slots=True)
class Sight:
    """What a row may outgrow.

    names: of numbers that are small.
    others: of those that cannot be made small; rows longer than `long` outgrow them.
    """

    names: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    long: int = 0


@contextmanager
def short_sight(
    model: Any, runs: Callable[[Any], Any], longest: int | None = None
) -> Iterator[Sight]:
    """The model with small windows inside.

    runs: raises where the model cannot run.
    longest: tokens of the longest row there will be. A number of twice that or more stays, since no
        row outgrows it (a window may look to both sides). None: rows may be of any length.
    """
    most = float("inf") if longest is None else 2 * longest
    held = [(module, _plain(module), dict(module._buffers)) for module in model.modules()]
    configs = [(config, dict(vars(config))) for config in _configs(model)]

    def restore() -> None:
        for module, values, buffers in held:
            vars(module).update(values)
            module._buffers.update(buffers)
        for config, values in configs:
            vars(config).update(values)

    def made_small(names: Collection[str]) -> bool:
        """Whether the model runs with these numbers small; if not, it is as it was."""
        changes = _changes(model, names, most)
        if changes is None:
            return False
        modules = dict(model.named_modules())
        for place, values in changes.items():
            modules[place].__dict__.update(values)
        for config, _ in configs:
            vars(config).update(_smaller(config, names, most))
        try:
            runs(model)
        except torch.OutOfMemoryError:
            restore()
            raise
        except Exception:  # numbers that do not fit each other; the model itself runs
            restore()
            return False
        return True

    names = sorted({name for config, _ in configs for name in _lengths(vars(config), most)})
    chosen = tuple(names)
    if names and not made_small(names):
        chosen = ()
        for name in names:
            if made_small((*chosen, name)):
                chosen = (*chosen, name)
        if chosen:
            made_small(chosen)
    others = {name for name in names if name not in chosen}
    stays = [n for config, _ in configs for n in _numbers(vars(config), others, most)]
    try:
        yield Sight(chosen, tuple(sorted(others)), max((n for n in stays if n < LONG), default=0))
    finally:
        restore()


def _changes(model: Any, names: Collection[str], most: float) -> dict[str, dict[str, Any]] | None:
    """What small numbers change in the modules of a model; None: they change its weights."""
    config = deepcopy(model.config)
    try:
        before = _skeleton(type(model), config)
        for each in _inner(config):
            vars(each).update(_smaller(each, names, most))
        after = _skeleton(type(model), config)
    except Exception:  # no such model can be built
        return None
    if _structure(before) != _structure(after):
        return None
    here = dict(model.named_modules())
    changes: dict[str, dict[str, Any]] = {}
    for (place, one), other in zip(before.named_modules(), after.modules(), strict=True):
        now = _plain(other)
        found = {key: now[key] for key, old in _plain(one).items() if now.get(key, old) != old}
        if found and place in here:
            changes[place] = found
    return changes


def _skeleton(kind: Any, config: Any) -> Any:
    with torch.device("meta"):
        return kind(deepcopy(config))


def _structure(model: Any) -> list[Any]:
    """Modules and tensors: what two models have in common that can hold each other's weights."""
    modules = [(name, type(module).__name__) for name, module in model.named_modules()]
    tensors = (*model.named_parameters(), *model.named_buffers())
    return [*modules, *((name, tuple(tensor.shape)) for name, tensor in tensors)]


def _configs(model: Any) -> list[Any]:
    """The config of a model, those in it, and copies that modules have."""
    found = {id(config): config for config in _inner(model.config)}
    for module in model.modules():
        for value in vars(module).values():
            if _is_config(value):
                found |= {id(config): config for config in _inner(value)}
    return list(found.values())


def _inner(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if _is_config(value):
            yield from _inner(value)


def _is_config(value: Any) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)


def _lengths(values: Mapping[Any, Any], most: float) -> Iterator[str]:
    """Names of numbers that may be lengths, those in inner objects too."""
    for key, value in values.items():
        name = str(key)
        if name.startswith("_") or SIZES.search(name) or _is_config(value):
            continue
        if isinstance(value, Mapping):
            yield from _lengths(value, most)
        elif _small(value, most) != value:
            yield name


def _numbers(values: Mapping[Any, Any], names: Collection[str], most: float) -> Iterator[int]:
    """The numbers of these names that could be made small."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, names, most)
        elif str(key) in names:
            every = value if isinstance(value, list | tuple) else [value]
            yield from (each for each in every if _small(each, most) != each)


def _smaller(config: Any, names: Collection[str], most: float) -> dict[str, Any]:
    """The values of a config that are others where these numbers are small."""

    def of(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: of(str(key), each) for key, each in value.items()}
        return _small(value, most) if name in names else value

    plain = {key: value for key, value in vars(config).items() if not key.startswith("_")}
    changed = {key: of(key, value) for key, value in plain.items() if not _is_config(value)}
    return {key: value for key, value in changed.items() if value != plain[key]}


def _small(value: Any, most: float) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return SMALL if SMALL < value < most else value
    if isinstance(value, list | tuple):
        return type(value)(_small(each, most) for each in value)
    return value


def _plain(module: nn.Module) -> dict[str, Any]:
    """A module's own numbers and words."""
    own = {key: value for key, value in vars(module).items() if key not in _MODULE}
    return {key: value for key, value in own.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, int | float | str)
