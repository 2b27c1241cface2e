"""A model with a LoRA adapter: peft gives names, first values and config, the rest is ours."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.memory import merged_bytes
from msft.engine.model.adapter_folders import ADAPTER, import_peft
from msft.engine.model.four_bit import FourBitLinear
from msft.engine.model.loading import LoadedModel
from msft.engine.model.shape import ModelShape, shape_of
from msft.engine.saving.model_files import fingerprint_of
from msft.errors import RecipeError
from msft.recipe.recipe import AdapterOptions

PREFIX = "base_model.model."
"""What peft writes before the names of tensors."""
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

    loaded: with peft's modules in it; it trains.
    evaluated: the plain model, which shares every weight that no adapter changes.
    trained: the adapter's weights by their names in files.
    layers: those with an adapter.
    frozen: layers of `evaluated` whose weight is packed in `loaded`, and which have no adapter.
    config: peft's.
    shape: of the plain model. fingerprint: of its weights as they were loaded.
    """

    loaded: LoadedModel
    evaluated: LoadedModel
    trained: dict[str, nn.Parameter]
    layers: list[AdaptedLayer]
    frozen: list[tuple[FourBitLinear, Any]]
    config: Any
    options: AdapterOptions
    shape: ModelShape
    fingerprint: str

    @property
    def in_bf16(self) -> bool:
        """Whether the frozen weights are, or were when they were packed."""
        return bool(next(self.loaded.model.parameters()).dtype == torch.bfloat16)

    def is_merged_for_scores(self) -> bool:
        """Whether the plain model is held beside this one, to be evaluated."""
        weight: Tensor = next(self.loaded.model.parameters())
        return merged_bytes(self.shape, self.in_bf16, weight.device) > 0


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
        fan_in_fan_out=any(_is_transposed(module) for module in model.modules()),
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
    packed = _packed_layers(model, twin, layers, device, dtype) if options.four_bit else []
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
    """The first layer's input has a gradient too, as those of all others have: compiled layers
    share one code then. Nobody reads it, and it costs next to nothing."""
    return embedded.requires_grad_() if torch.is_grad_enabled() else embedded


def _own_parameters(module: Any) -> Iterator[tuple[str, nn.Parameter]]:
    """The trained parameters of an adapted layer, by their names in files."""
    for name, parameter in module.named_parameters():
        if not name.startswith("base_layer."):
            yield name.replace(f".{ADAPTER}", ""), parameter


def _packed_layers(
    model: Any, twin: Any, layers: list[AdaptedLayer], device: torch.device, dtype: torch.dtype
) -> list[tuple[FourBitLinear, Any]]:
    """Pack every linear layer but the head; those without an adapter, with their twins."""
    adapted_names = {layer.name for layer in layers}
    head = model.get_output_embeddings()
    alone = []
    for name, module in list(twin.named_modules()):
        if type(module) is not nn.Linear or name == _name_of(model, head):
            continue
        owner, _, own = name.rpartition(".")
        if name in adapted_names:
            parent, own = model.get_submodule(name), "base_layer"
        else:
            parent = model.get_submodule(owner)
        made = FourBitLinear(getattr(parent, own), device, dtype)
        setattr(parent, own, made)
        if name not in adapted_names:
            alone.append((made, module))
        elif hasattr(parent, "lora_magnitude_vector") and ADAPTER in parent.lora_magnitude_vector:
            magnitude = parent.lora_magnitude_vector[ADAPTER].weight
            magnitude.data = torch.linalg.norm(made.weight.float(), dim=1)
        module.weight = nn.Parameter(torch.empty(0, device=device, dtype=dtype), False)
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


def _name_of(model: Any, module: Any) -> str | None:
    return next((name for name, each in model.named_modules() if each is module), None)


def _is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"
