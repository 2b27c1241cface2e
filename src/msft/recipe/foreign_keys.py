"""Keys of TRL, Axolotl, LLaMA-Factory and their relatives, and what to write here instead.

A key of ours does not stand in these tables. To add one to msft, take it out here.
"""

from collections.abc import Collection, Iterable, Mapping

from msft.checks import refuse_unknown
from msft.errors import OptionError
from msft.recipe.adapter_keys import FOREIGN_ADAPTER_KEYS
from msft.recipe.foreign import Foreign, same, write
from msft.recipe.rare_keys import RARE_KEYS

ALIASES: dict[str, str | None] = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "num_epochs": "num_train_epochs",
    "micro_batch_size": None,
    "gradient_accumulation_steps": None,
}
"""Keys that are read as ours, with a note; None: not needed here."""


_NOT_YET = {
    **same(
        "tensor_parallel_size context_parallel_size sequence_parallel_size",
        "not there yet; leave it out: several devices share a batch (sharding: optimizer or full)",
    ),
}
"""What others have and msft will have. Take a key out when it comes."""

_LENGTH = "a run's length is counted in epochs: write num_train_epochs (msft: compute_budget)"
_ONE_STEP = ": samples of one optimizer step over all devices; micro-batches are chosen for you"
_SAVED = (
    "checkpoints are not saved by steps; leave it out: msft keeps the ticks that may still be "
    "needed, and best/"
)
_SCORED = "scores are taken at fractions of an epoch; write evals_per_epoch"
_CHOSEN = "leave it out: the method chooses the result, by the mean score over sub-datasets"
_RESUMED = "leave it out: the same command on the same folder resumes by itself"
_TRACKED = "leave it out: report_to names the trackers, and their own variables do the rest"
_KERNELS = "leave it out: the engine chooses attention and kernels for the model and the device"
_PRECISION = (
    "leave it out: weights are fp32, and computing is bf16 where the device has it; bf16: false "
    "computes in fp32"
)
_PACKED = "leave it out: the fast engine packs rows by itself, and no row sees another"
_ROWS = "rows are named under datasets: write a list of `- {name: …, train: FILE}`"
_READ = "leave it out: rows are read and tokenized at each start; other columns are ignored"
_HELD_OUT = "write validation_fraction in each sub-dataset, which holds rows out by seed"
_PROMPTS = "write completion_only_loss: false to train on prompts; the default trains answers only"
_TURNS = "not there; leave it out: every turn of the assistant is trained"
_END = "leave it out: the end-of-text token after an answer is always trained"
_TEMPLATE = (
    "leave it out to use the tokenizer's own template, or write chat_template with a .jinja file"
)
_TOKENIZER = "not there; leave it out: the model's own tokenizer is used as it is"
_ADAM = "AdamW's betas and epsilon are the usual ones (0.9, 0.999, 1e-8); leave it out"
_NOISE = "not there; leave it out: the loss is the plain one"
_MIXED = "leave it out: every row is seen once an epoch; weight in a sub-dataset changes that"

_DIVIDED = (
    "write sharding: optimizer (the optimizer is divided) or full (FSDP2), and start several "
    "processes with torchrun"
)
_STARTED = "leave it out: torchrun starts the processes, and each takes a device by itself"

FOREIGN: dict[str, Foreign] = {
    **{key: each for answer, keys in RARE_KEYS.items() for key, each in same(keys, answer).items()},
    **_NOT_YET,
    **FOREIGN_ADAPTER_KEYS,
    **same("deepspeed fsdp fsdp_config sharding_strategy", _DIVIDED, "sharding"),
    **same("ddp_find_unused_parameters ddp_timeout ddp_backend device_map", _STARTED),
    **write("lr", "learning_rate"),
    **write(
        "model model_id model_path pretrained_model_name_or_path base_model_config",
        "model_name_or_path",
    ),
    **write("epochs n_epochs", "num_train_epochs"),
    **write("max_seq_length max_seq_len model_max_length block_size", "max_length"),
    **write("random_seed data_seed", "seed"),
    **write("lr_scheduler", "lr_scheduler_type"),
    **write("optimizer optimizer_type", "optim", ": adamw or adamw_bf16"),
    **write("gradient_clipping gradient_clip_val", "max_grad_norm"),
    **write("full_determinism", "deterministic"),
    **write("activation_checkpointing use_gradient_checkpointing", "gradient_checkpointing"),
    **same(
        "disable_gradient_checkpointing",
        "write gradient_checkpointing: false",
        "gradient_checkpointing",
    ),
    **write(
        "batch_size global_batch_size per_device_train_batch_size", "train_batch_size", _ONE_STEP
    ),
    **write("chat_template_path chat_template_jinja", "chat_template"),
    **same("template chat_template_name default_system_message", _TEMPLATE, "chat_template"),
    **same("max_steps num_steps total_steps", _LENGTH, "num_train_epochs"),
    **same(
        "warmup_ratio warmup_epochs",
        "write warmup_steps: a number of steps; `msft plan` says how many an epoch has",
        "warmup_steps",
    ),
    **same(
        "save_steps save_strategy save_total_limit save_only_model save_safetensors "
        "saves_per_epoch save_on_each_node save_first_step",
        _SAVED,
    ),
    **same(
        "eval_steps eval_strategy evaluation_strategy eval_on_start eval_delay do_eval",
        _SCORED,
        "evals_per_epoch",
    ),
    **same("do_train do_predict stage", "leave it out: the command says it, such as `msft train`"),
    **same(
        "load_best_model_at_end metric_for_best_model greater_is_better early_stopping_patience "
        "early_stopping_steps",
        _CHOSEN,
    ),
    **same("resume_from_checkpoint auto_resume_from_checkpoints overwrite_output_dir", _RESUMED),
    **same(
        "predict_with_generate do_causal_lm_eval compute_accuracy",
        "leave it out: metric in a sub-dataset says how it is scored, and accuracy generates",
    ),
    **same(
        "per_device_eval_batch_size eval_batch_size auto_find_batch_size",
        "leave it out: evaluations choose their batches by the memory there is",
    ),
    **write("push_to_hub_model_id", "hub_model_id"),
    **same(
        "hub_strategy hub_always_push",
        "leave it out: push_to_hub uploads the result once, when the run is done",
        "push_to_hub",
    ),
    **same("hub_token", "leave it out: run `hf auth login` or set HF_TOKEN"),
    **same(
        "wandb_project wandb_entity wandb_name wandb_run_id wandb_log_model use_wandb "
        "logging_dir run_name mlflow_tracking_uri mlflow_experiment_name",
        _TRACKED,
        "report_to",
    ),
    **same(
        "logging_steps logging_strategy logging_first_step plot_loss",
        "leave it out: every step is logged, in steps.jsonl and to the trackers of report_to",
    ),
    **same(
        "dataloader_num_workers dataloader_pin_memory dataloader_drop_last group_by_length",
        "leave it out: the rows are in memory, and every row of an epoch is trained",
    ),
    **same(
        "flash_attention flash_attn attn_implementation sdp_attention xformers_attention "
        "use_liger_kernel enable_liger_kernel use_unsloth use_cache torch_compile_backend tf32",
        _KERNELS,
    ),
    **same("fp16 pure_bf16 torch_dtype dtype compute_type", _PRECISION, "bf16"),
    **same(
        "packing sample_packing eval_packing eval_sample_packing neat_packing padding_free "
        "packing_strategy pad_to_sequence_len multipack_real_batches",
        _PACKED,
    ),
    **same("adam_beta1 adam_beta2 adam_epsilon optim_args", _ADAM),
    **same(
        "lr_scheduler_kwargs cosine_min_lr_ratio",
        "not there; leave it out: linear and cosine go down to 0 over num_train_epochs",
    ),
    **same("neftune_noise_alpha label_smoothing_factor loss_type", _NOISE),
    **same(
        "rl reward_model pref_loss dpo_beta process_reward_model num_labels trl vllm "
        "max_prompt_len pref_beta pref_ftx pref_bco_weight dpo_label_smoothing ref_model "
        "ld_alpha orpo_alpha rpo_alpha simpo_gamma cpo_alpha",
        "not there; leave it out: msft does supervised fine-tuning only",
    ),
    **same(
        "dataset dataset_name dataset_dir dataset_path train_file train_data data_path "
        "dataset_config dataset_train_split eval_dataset test_datasets validation_file "
        "dataset_test_split",
        _ROWS,
        "datasets",
    ),
    **same(
        "dataset_prepared_path dataset_num_proc dataset_processes preprocessing_num_workers "
        "overwrite_cache tokenized_path streaming remove_unused_columns",
        _READ,
    ),
    **same("val_set_size val_size", _HELD_OUT),
    **same("max_samples", "write train_rows in a sub-dataset: at most so many rows are drawn"),
    **same(
        "mix_strategy interleave_probs shuffle_merged_datasets shuffle_dataset mixture_weights",
        _MIXED,
    ),
    **same(
        "dataset_text_field",
        "write columns in a sub-dataset, such as {prompt: question, completion: answer}",
    ),
    **same("train_on_inputs train_on_prompt assistant_only_loss", _PROMPTS, "completion_only_loss"),
    **same("mask_history", _TURNS),
    **same("train_on_eos", _END),
    **same(
        "tokenizer tokenizer_name tokenizer_type tokenizer_config special_tokens added_tokens "
        "eos_token pad_token resize_vocab",
        _TOKENIZER,
    ),
    **same("model_type", "leave it out: the model's own config.json says it"),
    **same(
        "model_revision revision",
        "not there; download that revision and give its folder as model_name_or_path",
        "model_name_or_path",
    ),
    **same(
        "finetuning_type freeze_trainable_layers unfrozen_parameters",
        "leave it out: all weights are trained (full fine-tuning), or with use_peft an adapter",
    ),
}
"""Of a recipe."""

_MAPPED = "write columns, such as {prompt: question, completion: answer}"
_RECOGNISED = "leave it out: the format of rows is recognised by their fields; columns renames them"

FOREIGN_OF_DATASETS: dict[str, Foreign] = {
    **same("type ds_type formatting format file_type", _RECOGNISED),
    **same(
        "field field_messages field_instruction field_input field_output field_human field_model "
        "field_system prompt_column response_column text_column message_property_mappings",
        _MAPPED,
        "columns",
    ),
    **write("data_files file_name file files", "train", ": a file, a list of files, or a glob"),
    **write("eval eval_file val dev valid", "validation"),
    **same("split", "write path: owner/name; its train, validation and test splits are read"),
    **same("subset config", "write path: owner/name:configuration", "path"),
    **write("hf_hub_url dataset_name hub", "path", ": owner/name"),
    **same("num_samples max_samples max_rows limit", "write train_rows", "train_rows"),
    **same(
        "fraction proportion sampling_ratio repeat upsample",
        "write weight: rows per epoch, where 1 is every row once",
        "weight",
    ),
    **same("train_on_inputs", _PROMPTS),
    **same("roles_to_train", _TURNS),
    **same("train_on_eos", _END),
    **same(
        "system history images videos audios kto_tag conversation roles message_field_training "
        "message_field_training_detail drop_system_message preprocessing data_dir",
        "leave it out: a prompt and an answer, or a conversation, is read from each row",
    ),
    **same("shards shards_idx preprocess_shards", "leave it out: rows are read at once"),
}
"""Of a sub-dataset."""


def refuse_keys(
    names: Iterable[str],
    known: Collection[str],
    foreign: Mapping[str, Foreign],
    elsewhere: Collection[str],
    inside: bool,
) -> None:
    """OptionError for the first key that is not known: what to write instead, where it belongs, or
    the nearest known key.

    elsewhere: keys of the other level.
    inside: these are keys of a sub-dataset.
    """
    what = "key of a sub-dataset:" if inside else "key"
    for name in names:
        if name in known:
            continue
        if name in foreign:
            raise OptionError(f"unknown {what} {name!r}; {foreign[name].answer}", name)
        if name in elsewhere:
            where = "of the recipe; write it" if inside else "of each sub-dataset; write it under"
            more = " outside of datasets" if inside else " datasets"
            raise OptionError(f"unknown {what} {name!r}; it is a key {where}{more}", name)
        if inside and name in FOREIGN:
            raise OptionError(f"unknown {what} {name!r}; {FOREIGN[name].answer}", name)
        refuse_unknown([name], known, what)
