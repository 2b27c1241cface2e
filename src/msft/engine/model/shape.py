"""The sizes of a model that memory and FLOPs depend on, known without its weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from msft.engine.model.folders import TINY
from msft.engine.model.loading import LoadedModel, published_dtype, tiny_model, weightless_model
from msft.engine.model.tokenizers import gguf_header, pretrained, tiny_tokenizer, unloadable
from msft.engine.saving.weight_files import PublishedModel
from msft.errors import RecipeError
from msft.recipe.recipe import AdapterOptions, Recipe


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model's memory depends on.

    keys: numbers in a token's keys and values, over all layers; 0 without attention.
    linears: name, inputs and outputs of every linear layer but the head.
    head: the same of the head. tied: the head's weight is that of the embeddings.
    packs: whether four bits, or FP8, can hold the linear layers.
    assumed: the names of layers are those of most models, since a .gguf has other names.
    published: bytes of a weight in the files of the model.
    in_memory: whether these files have only weights, by the names that they have in memory.
    """

    parameters: int
    layers: int
    hidden: int
    inner: int
    vocabulary: int
    keys: int
    linears: tuple[tuple[str, int, int], ...] = field(default=(), repr=False, compare=False)
    head: tuple[str, int, int] | None = field(default=None, repr=False, compare=False)
    tied: bool = field(default=False, repr=False, compare=False)
    packs: bool = field(default=True, repr=False, compare=False)
    assumed: bool = field(default=False, repr=False, compare=False)
    published: int = field(default=4, repr=False, compare=False)
    in_memory: bool = field(default=True, repr=False, compare=False)

    @property
    def largest(self) -> int:
        """Weights of the largest tensor."""
        return self.hidden * max(self.vocabulary, self.inner)

    def adapter_weights(self, options: AdapterOptions) -> int:
        """Weights of a LoRA adapter on this model."""
        return sum(self.adapter_tensors(options))

    def adapter_tensors(self, options: AdapterOptions) -> list[int]:
        """Weights of each of its tensors: A and B of a layer, and with DoRA the lengths of rows."""
        found = self.linears
        if options.targets is not None:
            every = [*self.linears, *([self.head] if self.head else [])]
            named = [each for each in every if any(_is_named(each[0], t) for t in options.targets)]
            found = tuple(named) or self.linears  # a .gguf may have other names
        return [
            size
            for _, given, made in found
            for size in (options.r * given, options.r * made, *([made] if options.dora else []))
        ]

    def packed_weights(self, multiple: int = 1) -> int:
        """Weights that four bits, or FP8, can hold. multiple: of it are the sizes of a layer."""
        sizes = [(given, made) for _, given, made in self.linears]
        return sum(a * b for a, b in sizes if a % multiple == 0 and b % multiple == 0)

    def refuse_adapter(self, options: AdapterOptions) -> None:
        """RecipeError where a named layer is not there, is no linear layer, or shares its weight;
        or where four bits or FP8 are asked for, which can hold no layer."""
        if (options.four_bit or options.fp8) and not self.packs:
            key = "load_in_4bit" if options.four_bit else "fp8"
            raise RecipeError(
                f"{key} is true, but this model has no plain linear layers; leave it out", (key,)
            )
        key = "lora_target_modules"
        for target in () if self.assumed else options.targets or ():
            at_head = self.head is not None and _is_named(self.head[0], target)
            if at_head and self.tied:
                raise RecipeError(
                    f"{key} has {target!r}, whose weight is that of the embeddings too; leave it "
                    "out",
                    (key,),
                )
            if not at_head and not any(_is_named(name, target) for name, _, _ in self.linears):
                leaves = sorted({name.rpartition(".")[2] for name, _, _ in self.linears})
                raise RecipeError(
                    f"{key} has {target!r}, but this model has no linear layer of that name; "
                    f"expected all-linear, or some of {', '.join(leaves)}",
                    (key,),
                )


def _is_named(name: str, target: str) -> bool:
    """Whether peft adapts the layer `name` for this target: whether the name ends with it, in whole
    parts."""
    return f".{name}".endswith(f".{target}")


def shape_of(model: Any) -> ModelShape:
    """The shape of a model that is loaded, or that is on the meta device."""
    text = model.config.get_text_config()
    hidden, heads = int(text.hidden_size), largest(text, "num_attention_heads") or 0
    dim = largest(text, "head_dim") or hidden // max(1, heads)
    key_heads = largest(text, "num_key_value_heads") or heads
    layers = int(text.num_hidden_layers)
    linears = list(_linears(model))
    head = next((each for each, module in linears if module is model.get_output_embeddings()), None)
    return ModelShape(
        sum(parameter.numel() for parameter in model.parameters()),
        layers,
        hidden,
        largest(text, "intermediate_size") or 4 * hidden,
        int(text.vocab_size),
        int(2 * layers * key_heads * dim),
        tuple(each for each, _ in linears if each is not head),
        head,
        head is not None
        and model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        any(type(module) is nn.Linear for each, module in linears if each is not head),
    )


def largest(config: Any, key: str) -> Any:
    """The value of a key in a config; the largest where each layer has one, in a list (Gemma3n) or
    in a config of its own (Gemma 4). None where there is none."""
    if key in (getattr(config, "per_layer_attributes", None) or ()):
        every = [getattr(layer, key, None) for layer in config.per_layer_config]
    else:
        found = getattr(config, key, None)
        every = found if isinstance(found, list) else [found]
    return max((each for each in every if each is not None), default=None)


def _linears(model: Any) -> Iterator[tuple[tuple[str, int, int], Any]]:
    """Name, inputs and outputs of every linear layer, and the layer."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield (name, module.in_features, module.out_features), module
        elif type(module).__name__ == "Conv1D":
            yield (name, module.nx, module.nf), module


def shape_for(recipe: Recipe, vocabulary: int) -> ModelShape:
    """The shape of a recipe's model; RecipeError where the adapter that it asks for does not fit.

    vocabulary: of its tokenizer.
    """
    shape = named_shape(recipe.model(), recipe.trust_remote_code, vocabulary)
    adapter = recipe.adapter
    if adapter is not None:
        shape.refuse_adapter(adapter)
    return shape


def named_shape(name: str, trust_remote_code: bool = False, vocabulary: int = 1) -> ModelShape:
    """The shape of a model by its name; no weights are read.

    vocabulary: of its tokenizer, for a .gguf that does not say.
    """
    if name == TINY:
        return shape_of(tiny_model(len(tiny_tokenizer())))
    header = gguf_header(name)
    if header:
        return _gguf_shape(*header, vocabulary)
    config = pretrained("AutoConfig", name, trust_remote_code, {})
    try:
        model = weightless_model(config, trust_remote_code)
        dtype = published_dtype(name, trust_remote_code)
        written = PublishedModel(LoadedModel(model, None, name, dtype))
        return replace(shape_of(model), published=dtype.itemsize, in_memory=written.is_in_memory)
    except Exception as error:
        raise unloadable(name, error) from error


def _gguf_shape(scalars: Mapping[str, Any], parameters: int, vocabulary: int) -> ModelShape:
    kind = scalars.get("general.architecture")

    def number(key: str, default: int) -> int:
        return int(scalars.get(f"{kind}.{key}", default))

    hidden, layers = number("embedding_length", 1), number("block_count", 1)
    heads = number("attention.head_count", 1)
    key_heads = number("attention.head_count_kv", heads)
    inner = number("feed_forward_length", 4 * hidden)
    key_width = key_heads * (hidden // heads)
    keys = 2 * layers * key_width
    vocabulary = number("vocab_size", vocabulary)
    block = {
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, key_width),
        "v_proj": (hidden, key_width),
        "o_proj": (hidden, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
    linears = tuple((name, *sizes) for _ in range(layers) for name, sizes in block.items())
    return ModelShape(parameters, layers, hidden, inner, vocabulary, keys, linears, assumed=True)
