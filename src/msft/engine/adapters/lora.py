"""LoRA: a frozen model, a few trained matrices beside its layers, and the plain model they make.

A linear layer computes x·Wᵀ. LoRA (https://arxiv.org/abs/2106.09685) freezes W and adds a product
of two thin matrices: x·(W + s·B·A)ᵀ, where A has r rows, B has r columns, and s is alpha/r. B is
zero at first, so training starts at the base model. Only A and B have gradients and moments, so an
adapter of rank 8 on Llama 8B trains 21 million weights instead of 8 billion. With DoRA the rows of
W + s·B·A also get trained lengths; with `load_in_4bit` W is held in four bits (`four_bit.py`), with
`fp8` in FP8 (`fp8.py`).

peft does all of this in 66,000 lines for more than forty kinds of adapters. Here it gives what
others must agree on: which layers are meant, names of tensors, first values, and the config file.
Training is the engines' own: they train `Adapted.trained` as they train the weights of a whole
model, and `accel/joined_adapters.py` computes the thin products of neighbouring layers at once.

Two models share one set of weights. `Adapted.loaded` has peft's modules and trains.
`Adapted.evaluated` is the plain model, a twin without adapters that shares every weight that no
adapter changes. Before an evaluation `MergedModel` writes W + s·B·A into the twin's other layers,
in memory of their own. The base is never changed in place: in bf16 what was added does not come off
again. Evaluation then runs at the speed of a plain model, on the weights that `merge_adapter` would
write. Where memory does not hold the twin (`merged_bytes`), evaluation goes through the adapter.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.adapters import fp8
from msft.engine.adapters.four_bit import FourBitLinear
from msft.engine.kernels import Layers, layers_of
from msft.engine.memory import merged_bytes
from msft.engine.model.folders import ADAPTER, import_peft
from msft.engine.model.loading import LoadedModel, fingerprint_of
from msft.engine.model.shape import ModelShape, shape_of
from msft.errors import RecipeError
from msft.ranks import ALONE, Ranks, least
from msft.recipe.recipe import AdapterOptions

PackedLinear = FourBitLinear | fp8.Fp8Linear
PREFIX = "base_model.model."
"""The prefix of peft's names of tensors."""
_KEY = ("lora_target_modules",)
_OTHERS = "name other layers, such as lora_target_modules: [q_proj, v_proj]"


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """One layer that has an adapter: peft's module, and its twin in the model that is evaluated.

    name: of the module, as in the plain model.
    """

    name: str
    module: Any
    twin: Any


@dataclass(frozen=True, slots=True)
class Adapted:
    """A model with an adapter.

    loaded: the model with peft's modules in it, which trains.
    evaluated: the plain model, which shares every weight that no adapter changes.
    trained: the adapter's weights by their names in files.
    layers: the layers with an adapter.
    frozen: packed layers of `loaded` without an adapter, each with its layer of `evaluated`.
    config: peft's.
    shape: of the plain model. fingerprint: of its weights as they were loaded.
    """

    loaded: LoadedModel
    evaluated: LoadedModel
    trained: dict[str, nn.Parameter]
    layers: list[AdaptedLayer]
    frozen: list[tuple[PackedLinear, Any]]
    config: Any
    options: AdapterOptions
    shape: ModelShape
    fingerprint: str

    @property
    def in_bf16(self) -> bool:
        """Whether the frozen weights are in bf16, or were when they were packed."""
        return bool(next(self.loaded.model.parameters()).dtype == torch.bfloat16)


def adapted(
    loaded: LoadedModel, options: AdapterOptions, device: torch.device, bf16: bool
) -> Adapted:
    """The model with a fresh adapter, on a device; its own weights are frozen there, in the dtype
    that it computes with. The adapter is in fp32.

    The same seed gives the same adapter on every device.
    """
    peft = import_peft()
    model = loaded.model
    shape, fingerprint = shape_of(model), fingerprint_of(dict(model.named_parameters()))
    shape.refuse_adapter(options)
    twin = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    config = peft.LoraConfig(
        r=options.r,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules="all-linear" if options.targets is None else list(options.targets),
        use_dora=options.dora,
        use_rslora=options.rslora,
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        try:
            peft.inject_adapter_in_model(config, model, ADAPTER)
        except ValueError as error:
            raise RecipeError(f"peft cannot adapt this model: {error}; {_OTHERS}", _KEY) from error
    model.requires_grad_(False)
    _refuse_experts(model)
    layers = [
        AdaptedLayer(name, module, twin.get_submodule(name))
        for name, module in model.named_modules()
        if hasattr(module, "lora_A")
    ]
    trained = {}
    for layer in layers:
        for name, parameter in _own_parameters(layer.module):
            parameter.data = parameter.data.float().to(device)
            parameter.requires_grad_()
            trained[f"{PREFIX}{layer.name}.{name}"] = parameter
    dtype = torch.bfloat16 if bf16 else torch.float32
    packed: list[tuple[PackedLinear, Any]] = []
    if options.four_bit or options.fp8:
        kind: Any = FourBitLinear if options.four_bit else fp8.Fp8Linear
        fits = fp8.fits if options.fp8 else lambda layer: True
        pack = partial(kind, device=device, dtype=dtype)
        packed = _packed_layers(model, twin, layers, pack, fits)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(device=device, dtype=dtype)
    for each in (model, twin):
        each.to(device)  # buffers, in their own dtype
    model.get_input_embeddings().register_forward_hook(_with_gradient)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what held the weights before is free for training
    plain = replace(loaded, model=twin)
    return Adapted(loaded, plain, trained, layers, packed, config, options, shape, fingerprint)


def _with_gradient(module: Any, given: Any, embedded: Tensor) -> Tensor:
    """Let the first layer's input have a gradient, as the inputs of all other layers have: then
    compiled layers share one code. Nobody reads that gradient, and it costs next to nothing."""
    return embedded.requires_grad_() if torch.is_grad_enabled() else embedded


def _own_parameters(module: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """The trained parameters of an adapted layer, by their names in files."""
    for name, parameter in module.named_parameters():
        if not name.startswith("base_layer."):
            yield name.replace(f".{ADAPTER}", ""), parameter


def _packed_layers(
    model: Any,
    twin: Any,
    layers: list[AdaptedLayer],
    pack: Callable[[nn.Linear], PackedLinear],
    fits: Callable[[nn.Linear], bool],
) -> list[tuple[PackedLinear, Any]]:
    """Pack every linear layer but the head, where it fits. The packed layers without an adapter,
    with their twins."""
    adapted_names = {layer.name for layer in layers}
    output = model.get_output_embeddings()
    head = next((name for name, each in model.named_modules() if each is output), None)
    alone = []
    for name, module in list(twin.named_modules()):
        if type(module) is not nn.Linear or name == head or not fits(module):
            continue
        owner, _, own = name.rpartition(".")
        if name in adapted_names:
            parent, own = model.get_submodule(name), "base_layer"
        else:
            parent = model.get_submodule(owner)
        made = pack(getattr(parent, own))
        setattr(parent, own, made)
        if name not in adapted_names:
            alone.append((made, module))
        elif hasattr(parent, "lora_magnitude_vector") and ADAPTER in parent.lora_magnitude_vector:
            magnitude = parent.lora_magnitude_vector[ADAPTER].weight
            magnitude.data = torch.linalg.norm(made.weight.float(), dim=1)
        module.weight = nn.Parameter(module.weight.new_empty(0, dtype=made.dtype), False)
    return alone


def _refuse_experts(model: Any) -> None:
    """RecipeError where peft wraps something else than a linear layer."""
    from peft.tuners.lora import Linear

    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and type(module) is not Linear:
            raise RecipeError(
                f"peft adapts {name} as {type(module).__name__}, not as a linear layer, which msft "
                f"cannot train; {_OTHERS}",
                _KEY,
            )


# The plain model that an adapter makes of its base.

Weights = Mapping[str, Tensor]


def merged_weight(layer: AdaptedLayer, weights: Weights) -> Tensor:
    """A layer's weight with its adapter in it, in fp32.

    weights: the adapter's, by their names in files.
    """
    module, at = layer.module, f"{PREFIX}{layer.name}."
    base: Tensor = module.base_layer.weight.detach().float()
    down, up = (weights[f"{at}lora_{kind}.weight"].to(base.device) for kind in "AB")
    delta = (up @ down) * module.scaling[ADAPTER]
    whole: Tensor = base + (delta.T if module.fan_in_fan_out else delta)
    magnitude = weights.get(f"{at}lora_magnitude_vector.weight")
    if magnitude is None:
        return whole
    rows: Tensor = whole.T if module.fan_in_fan_out else whole
    rows = rows * (magnitude.to(base.device) / torch.linalg.norm(rows, dim=1))[:, None]
    return rows.T if module.fan_in_fan_out else rows


class MergedModel:
    """Keeps the plain model equal to base and adapter: `refresh` writes the merged weights into it.

    kept: returns the adapter's present weights, in fp32.
    layers: of the plain model.
    """

    def __init__(self, adapted: Adapted, kept: Callable[[], Weights], layers: Layers) -> None:
        self._adapted = adapted
        self._kept = kept
        self._layers = layers
        self._made = False
        self._fresh = False

    @property
    def evaluated(self) -> tuple[Any, Layers]:
        """The plain model and its layers."""
        return self._adapted.evaluated.model, self._layers

    def outdate(self) -> None:
        """Say that the adapter has changed, so that the next `refresh` writes."""
        self._fresh = False

    @torch.no_grad()
    def refresh(self) -> None:
        """Write base and adapter into the plain model, whose memory is taken at the first call."""
        if self._fresh:
            return
        if not self._made:
            self._take_memory()
        kept = self._kept()
        for layer in self._adapted.layers:
            layer.twin.weight.copy_(merged_weight(layer, kept))
        self._fresh = True

    def _take_memory(self) -> None:
        """Give every layer of the plain model that differs from the base a weight of its own."""
        for layer in self._adapted.layers:
            base = layer.module.base_layer.weight
            layer.twin.weight = nn.Parameter(torch.empty_like(base), requires_grad=False)
        for packed, twin in self._adapted.frozen:
            twin.weight = nn.Parameter(packed.weight, requires_grad=False)
        for twin in self._beside():
            twin.weight = nn.Parameter(twin.weight.data.clone(), requires_grad=False)
        if next(self._adapted.evaluated.model.parameters()).dtype == torch.bfloat16:
            self._layers.fuse_projections()
        self._made = True

    def _beside(self) -> list[nn.Linear]:
        """Layers without an adapter beside one that has. `fuse_projections` moves the weights of
        both, and those that the trained model shares must stay where they are."""
        model = self._adapted.evaluated.model
        owners = dict.fromkeys(layer.name.rpartition(".")[0] for layer in self._adapted.layers)
        known = {id(layer.twin) for layer in self._adapted.layers}
        known |= {id(twin) for _, twin in self._adapted.frozen}
        children = [each for owner in owners for each in model.get_submodule(owner).children()]
        return [each for each in children if type(each) is nn.Linear and id(each) not in known]


def merged_of(
    adapted: Adapted, kept: Callable[[], Weights], layers: Layers, ranks: Ranks = ALONE
) -> MergedModel | None:
    """The plain model, which is evaluated in place of the model that trains; None: memory does not
    hold it.

    layers: of the model that trains; the plain model's are compiled where these are.
    ranks: all of them decide alike, and meet at `kept`.
    """
    weight: Tensor = next(adapted.loaded.model.parameters())
    fits = merged_bytes(adapted.shape, adapted.in_bf16, weight.device) > 0
    if not least(ranks, "merged for scores", fits):
        return None
    fused = layers.way.path == "fused"
    return MergedModel(adapted, kept, layers_of(adapted.evaluated.model, fused))


def merged_weights(adapted: Adapted, weights: Weights) -> dict[str, Any]:
    """Every weight of the plain model in fp32, with this adapter in it, by its name."""
    at = {id(layer.twin): layer for layer in adapted.layers}
    packed = {id(twin): source for source, twin in adapted.frozen}
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, module in adapted.evaluated.model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:  # tied
                continue
            seen.add(id(parameter))
            if own == "weight" and id(module) in at:
                weight = merged_weight(at[id(module)], weights)
            elif own == "weight" and id(module) in packed:
                weight = packed[id(module)].weight
            else:
                weight = parameter.detach()
            found[f"{name}.{own}" if name else own] = weight.float()
    return found
