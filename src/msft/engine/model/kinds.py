"""Kinds of models by their config: what is no decoder-only text model is refused by its name.

Nothing here imports torch.
"""

from typing import Any

OTHER_SENSES = ("vision", "audio", "image", "video", "speech", "vq")
"""Words in the names of configs inside a config, for what is not text."""
ONLY_TEXT = "msft trains text-only decoder models, such as Llama, Qwen or Mamba"


def wrong_kind(config: Any) -> str | None:
    """Why msft does not train models of a config, in words; None: it may be a decoder-only text
    model."""
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return f"{kind} is an encoder-decoder; {ONLY_TEXT}"
    if _is_multimodal(config):
        return f"{kind} is a multimodal model; {ONLY_TEXT}{_counterpart(config)}"
    if getattr(config, "auto_map", None) or kind in _names("MODEL_FOR_CAUSAL_LM"):
        return None
    if hasattr(config, "vocab_size"):
        return None  # AutoModelForCausalLM says what it does not know
    return f"{kind} is no decoder-only text model; {ONLY_TEXT}"


def wrong_class(model: Any) -> str | None:
    """Why msft does not train a model that is there already, in words."""
    kind = type(model).__name__
    found = wrong_kind(model.config)
    if found is not None:
        return f"the model is a {kind}: {found}"
    if kind in _names("MODEL_FOR_CAUSAL_LM").values() or getattr(model.config, "auto_map", None):
        return None
    if kind not in _other_classes() and model.get_output_embeddings() is not None:
        return None
    return (
        f"the model is a {kind}, which is no causal language model; load it with "
        "AutoModelForCausalLM, and let rows have a prompt and a completion (of a classifier: the "
        "name of the class)"
    )


def largest(config: Any, key: str) -> Any:
    """What a config says under a key; the largest where its layers have one each, in a list
    (Gemma3n) or in configs of their own (Gemma 4). None where it says nothing."""
    if key in (getattr(config, "per_layer_attributes", None) or ()):
        every = [getattr(layer, key, None) for layer in config.per_layer_config]
    else:
        found = getattr(config, key, None)
        every = found if isinstance(found, list) else [found]
    return max((each for each in every if each is not None), default=None)


def _is_multimodal(config: Any) -> bool:
    if any(config.model_type in _names(f"MODEL_FOR_{task}") for task in _MULTIMODAL):
        return True
    inner = [key for key, value in vars(config).items() if hasattr(value, "model_type")]
    return any(word in key for key in inner for word in OTHER_SENSES)


_MULTIMODAL = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "VISION_2_SEQ")
"""Tasks by which transformers knows multimodal models; not every version has all of them."""


def _counterpart(config: Any) -> str:
    """The model of its text alone, where transformers has one."""
    kind = str(getattr(getattr(config, "text_config", None), "model_type", ""))
    classes = _names("MODEL_FOR_CAUSAL_LM").get(kind)
    if classes is None or kind == config.model_type:
        return ""
    found = classes if isinstance(classes, str) else classes[0]
    return f"; its text part is a {kind} model: give a folder or hub name of a {found}"


def _names(task: str) -> dict[str, Any]:
    """Model types and their classes for a task."""
    from transformers.models.auto import modeling_auto

    return dict(getattr(modeling_auto, f"{task}_MAPPING_NAMES", {}))


def _other_classes() -> set[str]:
    """Classes that transformers has for other tasks."""
    from transformers.models.auto import modeling_auto

    every = [name for name in vars(modeling_auto) if name.endswith("_MAPPING_NAMES")]
    tasks = [name.removesuffix("_MAPPING_NAMES") for name in every]
    found: set[str] = set()
    for task in tasks:
        if task not in ("MODEL_FOR_CAUSAL_LM", "MODEL_FOR_PRETRAINING"):
            for classes in _names(task).values():
                found |= {classes} if isinstance(classes, str) else set(classes)
    return found
