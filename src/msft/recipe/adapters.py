"""The keys of a LoRA adapter: `use_peft` and what goes with it, named as in TRL."""

from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from msft.errors import RecipeError
from msft.text import shown

if TYPE_CHECKING:
    from msft.recipe.recipe import Recipe

ALL_LINEAR = "all-linear"
"""Every linear layer but the head."""
LOW_RATE = 5e-5
"""Adapters are usually trained at 1e-4 to 2e-4; below this they hardly move."""

ADAPTER_KEYS = (
    *("use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
    *("load_in_4bit", "use_dora", "use_rslora"),
)
"""Keys that what is trained depends on."""


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """A LoRA adapter as a recipe asks for it.

    targets: names of layers, or None for every linear layer but the head.
    four_bit: the frozen weights are held in NF4 (QLoRA).
    merged: the result is a plain model folder.
    seed: of the first matrices.
    """

    r: int
    alpha: int
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None
    four_bit: bool = False
    dora: bool = False
    rslora: bool = False
    merged: bool = False
    seed: int = 0


def adapter_of(recipe: "Recipe") -> AdapterOptions | None:
    """The adapter that a recipe asks for; None: all weights are trained."""
    if not recipe.use_peft:
        return None
    named = recipe.lora_target_modules
    return AdapterOptions(
        r=recipe.lora_r,
        alpha=recipe.lora_alpha,
        dropout=recipe.lora_dropout,
        targets=None if named == ALL_LINEAR else tuple(named),
        four_bit=recipe.load_in_4bit,
        dora=recipe.use_dora,
        rslora=recipe.use_rslora,
        merged=recipe.merge_adapter,
        seed=recipe.seed,
    )


def packages_of(recipe: "Recipe") -> tuple[str, ...]:
    """Packages that the adapter of a recipe depends on."""
    if not recipe.use_peft:
        return ()
    return ("peft", "bitsandbytes") if recipe.load_in_4bit else ("peft",)


def target_names(given: Any) -> str | list[str]:
    """The key `lora_target_modules`, checked: `all-linear`, or a list of different names."""
    key = "lora_target_modules"
    if given in (ALL_LINEAR, [ALL_LINEAR], (ALL_LINEAR,)):  # TRL reads a list of one as its name
        return ALL_LINEAR
    named = isinstance(given, list | tuple) and given and all(isinstance(n, str) for n in given)
    if not named or not all(name.strip() for name in given):
        raise RecipeError(
            f"{key} is {shown(given)}; expected {ALL_LINEAR}, or a list of layers' names such as "
            "[q_proj, v_proj]",
            (key,),
        )
    if len(set(given)) < len(given):
        raise RecipeError(f"{key} is {shown(given)}; name each layer once", (key,))
    return list(given)


def refuse_wrong_adapter(recipe: "Recipe") -> None:
    """Keys of an adapter need `use_peft`."""
    if recipe.use_peft:
        return
    defaults = {f.name: f.default for f in fields(recipe) if f.default is not MISSING}
    for key in (*ADAPTER_KEYS[1:], "merge_adapter"):
        value = getattr(recipe, key)
        if value != defaults[key]:
            raise RecipeError(
                f"{key} is {shown(value)}, but without use_peft all weights are trained; add "
                f"use_peft: true, or leave {key} out",
                (key,),
                because=("use_peft",),
            )


def low_rate(recipe: "Recipe") -> tuple[str, ...]:
    """A note where an adapter would hardly move."""
    if not recipe.use_peft or recipe.learning_rate >= LOW_RATE:
        return ()
    return (
        f"learning_rate is {recipe.learning_rate:g}, which is low for an adapter: usual are 1e-4 "
        "to 2e-4",
    )
