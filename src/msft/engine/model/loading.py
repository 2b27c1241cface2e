"""Model sources: hub name, local folder, adapter folder, `.gguf` file, `smollm2-135m` and `tiny`.

Weights come from safetensors (or GGUF) only, never from a pickle, and always as fp32: at a
learning rate of 1e-5 most updates of a bf16 weight round to nothing. Code from a model's
repository runs only if the recipe says `trust_remote_code: true`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from msft import threads
from msft.engine.attention import NAME as ATTENTION
from msft.engine.model.adapter_folders import base_of, is_adapter
from msft.engine.model.adapter_merging import with_adapter
from msft.engine.model.base_files import refuse_damaged, refuse_other_base
from msft.engine.model.tokenizers import (
    ATTENTION_ERRORS,
    TINY,
    TINY_CONTEXT,
    gguf_header,
    load_tokenizer,
    pretrained,
    unloadable,
)
from msft.engine.model.weights import (
    first_dtype,
    refuse_other_numbers,
    refuse_other_type,
    refuse_other_weights,
)
from msft.errors import Unsuited

TINY_SEED = 0
WEIGHTS = {"dtype": torch.float32, "use_safetensors": True}
CHECKED = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Say what did not fit, all of it; then it is refused."""


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What a result can be written in."""
ENDS = (
    *("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>"),
    *("<|return|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
    *("<EOT>", "</s>", "<eos>", "[EOS]"),
)
"""Names of tokens that end a text or a turn, whatever model they are in."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in fp32 with its tokenizer.

    export_dtype: of the files that are written of it: what it was published in.
    padded: the simple engine may pad rows: each has the loss that it has alone (`isolation.py`).
    """

    model: Any
    tokenizer: Any
    name: str
    export_dtype: torch.dtype = torch.float32
    padded: bool = True

    def exported_in(self, dtype: str) -> "LoadedModel":
        """dtype: a name of `DTYPES`; auto: what it was published in."""
        return replace(self, export_dtype=DTYPES.get(dtype, self.export_dtype))


def load_model(
    name: str,
    device: torch.device,
    trust_remote_code: bool = False,
    tokenizer: Any = None,
    own_attention: bool = False,
) -> LoadedModel:
    """Find and load a model; every failure is a RecipeError that says what to do.

    tokenizer: the model's own, where it is loaded already.
    own_attention: the model computes attention as transformers has it, not as `attention.py` does;
        a model that cannot do without is `Unsuited`.
    """
    tokenizer = tokenizer or load_tokenizer(name, trust_remote_code)
    refuse_damaged(name)
    if is_adapter(name):
        host = torch.device("cpu")
        base = load_model(base_of(name), host, trust_remote_code, tokenizer, own_attention)
        refuse_other_base(Path(name))  # now the base is here, wherever it came from
        merged = with_adapter(base.model, Path(name)).to(device)
        return LoadedModel(merged, tokenizer, name, base.export_dtype)
    attention = {} if own_attention else {"attn_implementation": ATTENTION}
    try:
        if name == TINY:
            model = tiny_model(len(tokenizer), **attention)
        else:
            model = _checked_model(name, trust_remote_code, attention)
    except ATTENTION_ERRORS as error:
        if own_attention:
            raise unloadable(name, error) from error
        raise Unsuited(f"it has an attention of its own ({error})") from error
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config  # GGUF: the weights are plain fp32 now
        model._weight_conversions = None  # it is written as models of its family are
    threads.fit(model.num_parameters(), device.type)
    model = model.to(device=device, dtype=torch.float32)
    return LoadedModel(model, tokenizer, name, published_dtype(name, trust_remote_code, True))


def published_dtype(name: str, trust_remote_code: bool, has_files: bool = False) -> torch.dtype:
    """The dtype that `from_pretrained` takes a model to have: what its config says, else that of
    its first tensor. fp32 where neither says one of `DTYPES`, and for GGUF, whose numbers
    transformers reads as fp32.

    has_files: the weights are here too; else nobody fetches them to look.
    """
    if name == TINY or gguf_header(name):
        return torch.float32
    if is_adapter(name):
        return published_dtype(base_of(name), trust_remote_code, has_files)
    said = pretrained("AutoConfig", name, trust_remote_code, {}).dtype
    if said is None and has_files:
        said = first_dtype(name)
    return DTYPES.get(str(said).rpartition(".")[2], torch.float32)


def _checked_model(name: str, trust: bool, options: dict[str, Any]) -> Any:
    """A model whose weights are all from its file; WrongWeights says which are not."""
    refuse_other_numbers(name, trust)
    model, found = pretrained(
        "AutoModelForCausalLM", name, trust, {**WEIGHTS, **CHECKED, **options}
    )
    refuse_other_type(name, model.config)
    refuse_other_weights(name, model, found)
    return model


def end_tokens(loaded: LoadedModel) -> list[int]:
    """The tokens that end a text: those that tokenizer and model name, and those that models end
    texts and turns with. A chat model may end with the token of its base, and a base with that of a
    template; its answer is over there, and what it says behind is no part of it."""
    ends = {loaded.tokenizer.eos_token_id}
    added = getattr(loaded.tokenizer, "get_added_vocab", dict)  # not every tokenizer has it
    ends |= {token for name, token in added().items() if name in ENDS}
    configured = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends |= set(configured if isinstance(configured, list) else [configured])
    return sorted(end for end in ends if end is not None)


def recompute_activations(model: Any) -> None:
    """Let the model compute its activations again in the backward pass instead of keeping them."""
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.23 and newer
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable()


def tiny_model(vocabulary: int, attn_implementation: str | None = None) -> Any:
    """A random Llama of 410,000 weights, the same on every machine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=TINY_CONTEXT,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    if attn_implementation:
        config._attn_implementation = attn_implementation
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TINY_SEED)
        return LlamaForCausalLM(config)
