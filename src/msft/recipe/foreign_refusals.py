"""Configs that ask for another training than msft's: each is refused, and what it asks for is
named."""

import re
from collections.abc import Mapping
from typing import Any

from msft.checks import shown
from msft.errors import RecipeError
from msft.recipe.foreign_defaults import SWIFT, TRL

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
_IDLE = ("do_predict", "export_dir", "infer_backend", "sampler_type", "sampler_engine")
_MEGATRON = ("no_save_optim", "lr_warmup_fraction", "expert_model_parallel_size", "finetune")

_IMAGES = re.compile(
    r"(image|video|audio)_\w+|processor_(type|config)|is_multimodal|mm_\w+|use_audio_in_video"
    r"|freeze_(vision_tower|multi_modal_projector|mm_modules|vit|aligner)|train_mm_proj_only"
    r"|crop_to_patches|media_dir|(max|min|video_max|video_min)_pixels|fps_max_frames"
    r"|vit_(lr|gradient_checkpointing)|aligner_lr|norm_bbox",
    re.IGNORECASE,
)
_IMAGE_NAMES = re.compile(r"(.*/)?(mllm_|.*multimodal|llava).*", re.IGNORECASE)
_IMAGE_COLUMNS = ("images", "image", "videos", "audios", "image_column")
_IMAGE_TEMPLATES = re.compile(r".*(_vl\b|_vl_|vision|llava|pixtral|_omni|_audio|minicpm_[vo]).*")


def refuse_other_training(config: Mapping[str, Any], tool: str) -> None:
    """RecipeError for a config of another trainer than SFT, or of one that sees images."""
    asked = _asked(config, tool)
    if asked:
        raise RecipeError(
            f"it asks for {asked}, but msft does supervised fine-tuning only (stage: sft)"
        )
    if tool == SWIFT and any(key in config for key in _MEGATRON):
        raise RecipeError("it is a config of Megatron-SWIFT, which msft does not read")
    idle = [key for key in _IDLE if config.get(key)]
    if idle and not config.get("do_train"):
        raise RecipeError(
            f"it trains nothing ({idle[0]} without do_train); `msft eval MODEL RECIPE` scores a "
            "model on the sub-datasets of a recipe, `msft merge` merges an adapter"
        )
    environment = config.get("ENV")
    for key in (*config, *(environment if isinstance(environment, Mapping) else ())):
        if _IMAGES.fullmatch(key) and config.get(key, True):
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


def _asked(config: Mapping[str, Any], tool: str) -> str:
    """What a config asks for that is not supervised fine-tuning of a text model."""
    for key, usual in (("rl", ""), ("stage", "sft"), ("rlhf_type", ""), ("task_type", "causal_lm")):
        if config.get(key, usual) not in (usual, None, False, "", "CAUSAL_LM"):
            return shown(config[key])
    if tool == TRL and config.get("loss_type", "nll") not in _LOSSES:
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
