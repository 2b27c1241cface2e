"""A recipe in the making from another tool's config, and what is known of the tools: their defaults
where a config says nothing, and the trainings that msft refuses.

The defaults were read in the tools' sources, at the versions of October 2026:

- Axolotl (axolotl-ai-cloud/axolotl): `src/axolotl/utils/schemas/training.py`, `config.py`,
  `peft.py` and `datasets.py` (defaults of keys), `src/axolotl/core/builders/base.py` (warm-up),
  `src/axolotl/utils/config/__init__.py` (`batch_size`), `src/axolotl/loaders/adapter.py`. It fails
  without `learning_rate`, and an adapter without `lora_r`, `lora_alpha` and names of layers.
- LLaMA-Factory (hiyouga/LLaMA-Factory): `src/llamafactory/hparams/finetuning_args.py`,
  `data_args.py`, `model_args.py`; the rest is `TrainingArguments` of transformers.
- TRL (huggingface/trl 1.16): `trl/trainer/sft_config.py`, `trl/trainer/model_config.py`,
  `trl/scripts/utils.py`; the rest is `TrainingArguments` of transformers 5. The layers of an
  adapter are PEFT's (`peft/utils/constants.py`). Alignment Handbook is TRL with a mixture.
- LLaMA-Factory's newer layout: `src/llamafactory/v1/config/`, `v1/core/base_trainer.py`,
  `v1/plugins/model_plugins/peft.py`. AdamW is PyTorch's, and the rate is constant.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msft.errors import RecipeError
from msft.recipe.foreign_keys import FOREIGN, FOREIGN_OF_DATASETS, NOT_THERE
from msft.recipe.recipe import recipe_keys
from msft.text import shown


@dataclass(frozen=True, slots=True)
class Tool:
    """Another tool, with the defaults of its config.

    defaults: of keys.
    batch: the factors of a batch on one device, each with its default.
    total: the key that says the whole batch.
    packing: switches with which a batch counts packed sequences; `padding_free` is none.
    cuts_rows: rows that are too long are cut; the others leave them out, as msft does.
    switch: the key that says whether an adapter is trained.
    adapter: what that key is by default.
    adapter_names: our names of keys of an adapter that have another name here.
    adapter_defaults: of keys of an adapter.
    """

    name: str
    defaults: Mapping[str, Any]
    batch: tuple[tuple[str, int], ...]
    switch: str
    total: str = ""
    packing: tuple[str, ...] = ("packing",)
    cuts_rows: bool = False
    adapter: Any = None
    adapter_names: Mapping[str, str] = field(default_factory=dict)
    adapter_defaults: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


_HF = {"num_train_epochs": 3, "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "seed": 42}
_ON_A_DEVICE = "per_device_train_batch_size"
AXOLOTL = Tool(
    "Axolotl",
    defaults={
        "num_epochs": 1,
        "sequence_len": 512,
        "lr_scheduler": "cosine",
        "max_grad_norm": 1.0,
        "seed": 42,
    },
    batch=(("micro_batch_size", 1), ("gradient_accumulation_steps", 1)),
    total="batch_size",
    packing=("sample_packing",),
    switch="adapter",
    adapter_names={"peft_use_dora": "use_dora", "peft_use_rslora": "use_rslora"},
)
FACTORY = Tool(
    "LLaMA-Factory",
    defaults={**_HF, "learning_rate": 5e-5, "cutoff_len": 2048},
    batch=((_ON_A_DEVICE, 8), ("gradient_accumulation_steps", 1)),
    packing=("packing", "neat_packing"),
    cuts_rows=True,
    switch="finetuning_type",
    adapter="lora",
    adapter_names={"lora_rank": "lora_r"},
    adapter_defaults={"lora_rank": 8},  # lora_alpha is twice the rank
)
TRL = Tool(
    "TRL",
    defaults={**_HF, "learning_rate": 2e-5, "max_length": 1024},
    batch=((_ON_A_DEVICE, 8), ("gradient_accumulation_steps", 1)),
    cuts_rows=True,
    switch="use_peft",
    adapter=False,  # the layers are those of Llama, Qwen, Mistral and Gemma
    adapter_defaults={"lora_dropout": 0.05, "lora_target_modules": ["q_proj", "v_proj"]},
)
_PEFT = {"r": "lora_r", **{k: k for k in ("lora_alpha", "lora_dropout", "use_dora", "use_rslora")}}
NEWER = Tool(
    "LLaMA-Factory (newer layout)",
    defaults={
        "num_train_epochs": 3,
        "learning_rate": 1e-4,
        "cutoff_len": 2048,
        "max_grad_norm": 1.0,
        "seed": 42,
        "weight_decay": 0.01,
    },
    batch=(("micro_batch_size", 1),),
    total="global_batch_size",
    packing=(),
    cuts_rows=True,
    switch="peft_config.name",
    adapter="full",
    adapter_names={f"peft_config.{key}": ours for key, ours in _PEFT.items()},
    adapter_defaults={
        "peft_config.r": 8,
        "peft_config.lora_alpha": 16,
        "peft_config.lora_dropout": 0.05,
    },
)
TOOLS = (AXOLOTL, FACTORY, TRL, NEWER)
MOST_VALUES = 10_000
"""Keys and values of a config. It takes a second to read so many; long ones have 500."""

_KEYS_OF_TRAINERS = {
    "DPO": "precompute_ref_log_probs precompute_ref_batch_size reference_free use_weighting "
    "f_divergence_type f_alpha_divergence_coef discopop_tau rpo_alpha ld_alpha loss_weights "
    "ref_model_init_kwargs pref_loss pref_beta dpo_beta",
    "KTO": "desirable_weight undesirable_weight",
    "BCO": "prompt_sample_size min_density_ratio max_density_ratio",
    "CPO or SimPO": "cpo_alpha simpo_gamma",
    "GRPO or RLOO": "num_generations num_generations_eval reward_funcs reward_weights "
    "reward_model_name_or_path num_iterations epsilon epsilon_high scale_rewards "
    "importance_sampling_level mask_truncated_completions steps_per_generation "
    "generation_batch_size normalize_advantages reward_clip_range cosine_max_len",
    "online training": "use_vllm vllm_mode vllm_server_host vllm_gpu_memory_utilization judge "
    "missing_eos_penalty mixture_coef log_completions",
    "distillation": "teacher_model_name_or_path teacher_model lmbda seq_kd use_uld_loss "
    "kd_temperature kd_trainer",
    "a reward model": "center_rewards_coefficient reward_model process_reward_model num_labels "
    "step_separator train_on_last_step_only",
    "PPO": "reward_model_path sft_model_path num_ppo_epochs kl_coef cliprange vf_coef "
    "total_episodes response_length",
    "preference training (DPO, ORPO, KTO, …)": "beta max_prompt_length max_completion_length "
    "disable_dropout sync_ref_model generate_during_eval label_smoothing orpo_alpha",
    "pre-training on plain text": "pretraining_dataset",
}
"""Keys that only these trainers have. Read in TRL 1.16, where every trainer has a config of its
own and no config says whose it is; some are Axolotl's."""
_TRAINERS = {key: name for name, keys in _KEYS_OF_TRAINERS.items() for key in keys.split()}
_LOSSES = ("nll", "dft", "chunked_nll")
"""Of TRL's SFT. Another value of `loss_type` is another trainer's."""
_PLUGINS = {"diffusion": "a diffusion model", "kd": "distillation", "nemo_gym": "GRPO"}
_HEADS = ("SequenceClassification", "TokenClassification")
_IDLE = ("do_predict", "export_dir", "infer_backend")

_IMAGES = re.compile(
    r"(image|video|audio)_\w+|processor_(type|config)|is_multimodal|mm_\w+|use_audio_in_video"
    r"|freeze_(vision_tower|multi_modal_projector|mm_modules)|train_mm_proj_only"
    r"|crop_to_patches|media_dir|(max|min|video_max|video_min)_pixels",
    re.IGNORECASE,
)
_IMAGE_NAMES = re.compile(r"(.*/)?(mllm_|.*multimodal|llava).*", re.IGNORECASE)
_IMAGE_COLUMNS = ("images", "image", "videos", "audios", "image_column")
_IMAGE_TEMPLATES = re.compile(r".*(_vl\b|_vl_|vision|llava|pixtral|_omni|_audio|minicpm_[vo]).*")


def refuse_other_training(config: Mapping[str, Any], tool: Tool) -> None:
    """RecipeError for a config of another trainer than SFT, or of one that sees images."""
    asked = _asked(config, tool)
    if asked:
        raise RecipeError(
            f"it asks for {asked}, but msft does supervised fine-tuning only (stage: sft)"
        )
    idle = [key for key in _IDLE if config.get(key)]
    if idle and not config.get("do_train"):
        raise RecipeError(
            f"it trains nothing ({idle[0]} without do_train); `msft eval MODEL RECIPE` scores a "
            "model on the sub-datasets of a recipe, `msft merge` merges an adapter"
        )
    for key in config:
        if _IMAGES.fullmatch(key) and config[key]:
            refuse_images(key)
    for key in ("template", "chat_template"):
        if _IMAGE_TEMPLATES.fullmatch(str(config.get(key, ""))[:80]):
            refuse_images(f"{key}: {config[key]}")


def refuse_images(found: str) -> None:
    raise RecipeError(
        f"it is for images, video or sound ({found}), but msft trains text models on text only"
    )


def refuse_entry(where: str, entry: Mapping[str, Any]) -> None:
    """RecipeError for a dataset with images, or with pairs of answers."""
    columns = entry.get("columns")
    named = {*entry, *(columns if isinstance(columns, list | Mapping) else ())}
    seen = [key for key in _IMAGE_COLUMNS if key in named and entry.get(key, True)]
    if seen:
        refuse_images(f"{where}: {seen[0]}")
    for name in (str(entry.get("path"))[:200], where.rpartition(".")[2]):
        if _IMAGE_NAMES.fullmatch(name):
            refuse_images(f"the dataset {name}")
    pairs = {"chosen", "rejected"} & named or entry.get("ranking") is True
    if pairs or entry.get("converter") == "pair" or entry.get("kto_tag"):
        raise RecipeError(f"{where} has pairs of answers to rank; msft trains on one answer")


def _asked(config: Mapping[str, Any], tool: Tool) -> str:
    """What a config asks for that is not supervised fine-tuning of a text model."""
    for key, usual in (("rl", ""), ("stage", "sft")):
        if config.get(key, usual) not in (usual, None, False, ""):
            return shown(config[key])
    if tool is TRL and config.get("loss_type", "nll") not in _LOSSES:
        return f"the loss_type {shown(config['loss_type'])} of DPO or another trainer"
    for key, value in config.items():
        if key in _TRAINERS and value not in (None, False, "", 0):
            return f"{key!r}, a key of {_TRAINERS[key]}"
    plugins = config.get("plugins")
    for plugin in plugins if isinstance(plugins, list) else [plugins]:
        for name, what in _PLUGINS.items():
            if f".{name}." in str(plugin):
                return what
    if str(config.get("model_type")).endswith(_HEADS):
        return f"{config['model_type']}, a classifier"
    if str(config.get("lora_task_type", "CAUSAL_LM")) != "CAUSAL_LM":
        return f"lora_task_type {shown(config['lora_task_type'])}"
    return ""


DEFAULT = "their default"
UNKNOWN = "msft has no such key"


@dataclass(frozen=True, slots=True)
class Carried:
    """A key of the other tool that became a key of ours.

    note: what is different, if something is.
    """

    theirs: str
    ours: str
    value: Any
    note: str = ""


@dataclass(slots=True)
class Draft:
    """The recipe in the making.

    config: their keys that have a value.
    folder: of their file; data is looked for there, and in the working folder.
    place: of the recipe, from which data files are named.
    keys: of our recipe; datasets: its sub-datasets; turns: names of those with conversations.
    carried: key by key; left: why each of the others was not carried over.
    changes: those whose absence changes the run, so that a user has something to decide.
    silent: keys that are empty or off, so that nothing is lost.
    remarks: what their tool does by default, and msft does otherwise.
    """

    config: Mapping[str, Any]
    folder: Path
    place: Path
    tool: Tool
    keys: dict[str, Any] = field(default_factory=dict)
    datasets: list[dict[str, Any]] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)

    def carry(self, theirs: str, ours: str, value: Any, note: str = "") -> None:
        """Write a key of ours; the first that says it wins."""
        if ours not in recipe_keys():
            self.leave(theirs, f"this msft has no key {ours}")
        elif self.keys.setdefault(ours, value) != value:
            self.leave(theirs, f"{ours} is {self.keys[ours]} already, by another key")
        else:
            self.carried.append(Carried(theirs, ours, value, note))

    def carry_data(self, theirs: str, ours: str, value: Any, note: str = "") -> None:
        """Tell of a key of theirs that became one of the sub-datasets."""
        self.carried.append(
            Carried(theirs, f"datasets: {ours}" if ours else "datasets", value, note)
        )

    def leave(self, theirs: str, why: str = "", changes: bool = False) -> None:
        """Say why a key was not carried over; by default as a recipe with it would be told.

        changes: the run is another one without it. It also is where msft lacks what the key asks.
        """
        *_, name = theirs.split(".")
        table = FOREIGN_OF_DATASETS if "." in theirs and name in FOREIGN_OF_DATASETS else FOREIGN
        known = table[name].answer if name in table else UNKNOWN
        self.left[theirs] = why or known.replace("leave it out: ", "")
        if changes or (not why and known.startswith((NOT_THERE, UNKNOWN))):
            self.changes.append(theirs)

    def reasons(self, changing: bool) -> list[str]:
        """What was not carried over and why, a line for each reason."""
        found: dict[str, list[str]] = {}
        for key, why in self.left.items():
            if (key in self.changes) is changing:
                found.setdefault(why, []).append(key)
        return [f"  {', '.join(keys)}: {why}" for why, keys in found.items()]

    def note_of(self, ours: str) -> str:
        """What a key of ours is from and what is different, for a comment behind it."""
        for each in self.carried:
            if each.ours == ours:
                name = "" if each.theirs == ours else each.theirs
                return ": ".join(part for part in (name, each.note) if part)
        return ""
