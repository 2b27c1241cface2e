"""Keys of TRL, Axolotl, LLaMA-Factory and their relatives, and what to write here instead.

A key of ours does not stand in these tables. To add one to msft, take it out here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from msft.errors import OptionError
from msft.search.options import unknown

ALIASES: dict[str, str | None] = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "num_epochs": "num_train_epochs",
    "micro_batch_size": None,
    "gradient_accumulation_steps": None,
}
"""Keys that are read as ours, with a note; None: not needed here."""

NOT_THERE = "not there;"
"""How the answer begins where msft lacks what a key asks for."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What to do about a key of another tool.

    ours: the key that it corresponds to, if there is one.
    renamed: ours takes the same values.
    """

    answer: str
    ours: str = ""
    renamed: bool = False


def same(keys: str, answer: str, ours: str = "") -> dict[str, Foreign]:
    return dict.fromkeys(keys.split(), Foreign(answer, ours))


def write(keys: str, ours: str, more: str = "") -> dict[str, Foreign]:
    return dict.fromkeys(keys.split(), Foreign(f"write {ours}{more}", ours, renamed=True))


FOREIGN_ADAPTER_KEYS = {
    **same(
        "adapter peft_config lora use_lora qlora use_qlora",
        "write use_peft: true for LoRA, with load_in_4bit for QLoRA",
        "use_peft",
    ),
    **write("lora_rank rank r peft_r", "lora_r"),
    **write("peft_use_dora", "use_dora"),
    **write("peft_use_rslora", "use_rslora"),
    **same(
        "lora_target lora_target_linear",
        "write lora_target_modules: all-linear, or names",
        "lora_target_modules",
    ),
    **same(
        "load_in_8bit",
        "not there; write load_in_4bit: true (NF4, quantised twice), the only quantisation",
        "load_in_4bit",
    ),
    **same(
        "quantization_bit quantization_method bnb_4bit_quant_type double_quantization "
        "bnb_4bit_use_double_quant use_bnb_nested_quant bnb_4bit_compute_dtype quantization_config "
        "bits use_4bit",
        "write load_in_4bit: true (NF4, quantised twice), the only quantisation there is",
        "load_in_4bit",
    ),
    **same(
        "lora_modules_to_save modules_to_save additional_target peft_layers_to_transform "
        "lora_layers_to_transform lora_bias",
        "not there; leave it out: an adapter has the layers of lora_target_modules, in every block",
    ),
    **same(
        "lora_model_dir adapter_name_or_path adapter_path",
        "write model_name_or_path: the adapter's folder, which is merged into its base",
        "model_name_or_path",
    ),
}


RARE_KEYS = {
    "leave it out: the engine chooses kernels and how layers are computed": (
        "plugins liger_rope liger_rms_norm liger_rms_norm_gated liger_glu_activation "
        "liger_layer_norm liger_cross_entropy liger_fused_linear_cross_entropy "
        "liger_kernel_config cut_cross_entropy lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
        "flex_attention flex_attn_compile_kwargs eager_attention s2_attention attention attn "
        "shift_attn flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_qkv "
        "flash_attn_fuse_mlp torch_compile_mode use_unsloth_gc unsloth_cross_entropy_loss "
        "activation_offloading gradient_checkpointing_kwargs torch_empty_cache_steps "
        "use_kernels dispatch_batches pad_to_multiple_of train_sampling_strategy "
        "length_column_name sample_packing_bin_size sample_packing_group_size "
        "sample_packing_eff_est sample_packing_sequentially eval_accumulation_steps "
        "eval_do_concat_batches eval_use_gather_object accelerator_config bf16_full_eval "
        "fp16_full_eval infer_dtype upcast_layernorm upcast_lmhead_output use_scattermoe "
        "use_sonicmoe experts_implementation fused_attn_kernel gemma4_hybrid_attn_impl "
        "use_v1_kernels tiled_mlp "
        "lora_embedding_kernel unsloth_lora_mlp unsloth_lora_qkv unsloth_lora_o unsloth_rms_norm "
        "unsloth_rope batch_flattening flash_optimum llama4_linearized_experts use_reentrant_gc "
        "use_kv_cache gc_steps experimental_skip_move_to_device max_packed_sequence_len "
        "packing_similarity_threshold packing_embedding_model kernel_config liger_swiglu attn_impl "
        "use_kt kt_config kt_cpu_activation use_dsv4_kernels recompute_granularity "
        "overlap_grad_reduce gptq_disable_exllama batching_strategy batching_workers"
    ),
    "not there; leave it out: computing is bf16 or fp32; there is no fp8 and no quantised "
    "training of all weights": (
        "fp8 fp8_enable_fsdp_float8_all_gather fp8_backend qat quantization gptq torchdistx_path "
        "bnb_4bit_quant_storage quantize_moe_experts use_onebitllms quantization_type "
        "quantization_device_map bnb_config_kwargs gptq_groupsize gptq_model_v1"
    ),
    "not there; leave it out: LoRA has the options use_peft, lora_r, lora_alpha, lora_dropout, "
    "lora_target_modules, load_in_4bit, use_dora and use_rslora": (
        "lora_fan_in_fan_out lora_target_parameters lora_task_type lora_on_cpu "
        "loraplus_lr_ratio loraplus_lr_embedding peft_init_lora_weights "
        "peft_layer_replication relora relora_steps lisa_n_layers "
        "create_new_adapter pissa_init pissa_iter pissa_convert "
        "qlora_sharded_model_loading module_dropout oft_rank oft_block_size oft_target "
        "adapter_folder peft peft_layers_pattern peft_trainable_token_indices "
        "peft_ensure_weight_tying peft_autocast_adapter_dtype relora_prune_ratio "
        "relora_prune_method relora_cpu_offload lisa_step_interval lisa_layers_attribute"
    ),
    "leave it out: merge_adapter: true makes the result a plain model folder": (
        "merge_lora merge_method export_dir export_size"
    ),
    "not there; leave it out: AdamW trains all weights (or the adapter), with optim adamw or "
    "adamw_bf16": (
        "use_galore galore_target galore_rank galore_update_interval galore_scale "
        "galore_proj_type galore_layerwise use_apollo apollo_target apollo_rank "
        "apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type "
        "apollo_layerwise apollo_scale_front use_badam badam_mode badam_start_block "
        "badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode "
        "badam_verbose use_muon use_adam_mini optim_target_modules use_llama_pro "
        "freeze_trainable_modules freeze_extra_modules freeze_language_model "
        "freeze_original_embeddings"
    ),
    "not there; leave it out: the loss is the cross-entropy of the answers' tokens": (
        "use_dft_loss use_eaft use_eaft_loss eaft_alpha eaft_k use_asft_loss "
        "ignore_pad_token_for_loss"
    ),
    "leave it out: `torchrun` or `accelerate launch` says how many processes there are, and "
    "lanes and sharding how they share": (
        "local_rank use_ray ray_num_workers ray_run_name resources_per_worker fsdp_version "
        "dp_shard_size tp_size parallelism_config ddp_bucket_cap_mb ddp_broadcast_buffers "
        "ddp_static_graph average_tokens_across_devices sequence_parallel_degree heads_k_stride "
        "low_cpu_mem_usage max_memory gpu_memory_limit use_cpu ignore_bias_buffers "
        "dp_replicate_size fsdp_transformer_layer_cls_to_wrap fsdp_final_state_dict_type "
        "ring_attn_func device devices world_size num_gpus n_gpu nproc_per_node ddp use_mca "
        "dist_config init_config cp_size cp_mode dp_size device_groups "
        "expert_parallel_size mixed_precision ray_storage_path ray_storage_filesystem "
        "placement_strategy ray_init_kwargs offload_folder"
    ),
    "leave it out: log, report and trackers need no settings": (
        "swanlab_experiment_name swanlab_description use_otel_metrics otel_metrics_port "
        "otel_metrics_host "
        "wandb_watch wandb_mode log_level log_level_replica log_on_each_node "
        "logging_nan_inf_filter disable_tqdm project trackio_space_id trackio_bucket_id "
        "trackio_static_space_id include_num_input_tokens_seen include_for_metrics "
        "include_tokens_per_second skip_memory_metrics comet_api_key use_comet "
        "comet_project_name comet_workspace use_tensorboard use_mlflow use_swanlab "
        "swanlab_project swanlab_run_name swanlab_mode profiler_steps eval_table_size "
        "swanlab_workspace swanlab_api_key swanlab_logdir swanlab_lark_webhook_url "
        "swanlab_lark_secret mlflow_run_name hf_mlflow_log_artifacts comet_mode comet_online "
        "comet_experiment_key comet_experiment_config profiler_steps_start "
        "include_effective_tokens_per_second print_param_status gradio_title"
    ),
    "leave it out: a loss that is no number stops the run, and every checkpoint is scored": (
        "loss_watchdog_threshold loss_watchdog_patience batch_eval_metrics prediction_loss_only "
        "eval_causal_lm_metrics label_names do_bench_eval bench_dataset bench_split "
        "eval_on_each_dataset dynamic_checkpoint"
    ),
    "leave it out: rows are read, checked and shuffled by msft, and overlaps are reported": (
        "exact_deduplication dataset_exact_deduplication dataset_kwargs dataset_streaming "
        "dataset_shard_num dataset_shard_idx shuffle_before_merging_datasets "
        "curriculum_sampling skip_prepare_dataset dataset_keep_in_memory pretraining_dataset "
        "data_shared_file_system streaming_multipack_buffer_size dataloader_prefetch_factor "
        "dataloader_in_order dataloader_persistent_workers dataloader_multiprocessing_context "
        "ignore_data_skip preprocessing_batch_size buffer_size min_sample_len "
        "excess_length_strategy truncation_mode media_dir disable_shuffling sortish_sampler "
        "push_dataset_to_hub pretraining_sample_concatenation pretrain_multipack_buffer_size "
        "pretrain_multipack_attn"
    ),
    "leave it out: the model's tokenizer and its template decide": (
        "cache_dir tokenizer_use_mistral_common "
        "eot_tokens tokens is_llama_derived_model "
        "is_falcon_derived_model is_mistral_derived_model tokenizer_use_fast tokenizer_legacy "
        "tokenizer_save_jinja_files split_special_tokens use_fast_tokenizer add_tokens "
        "add_special_tokens enable_thinking resize_token_embeddings_to_32x "
        "mean_resizing_embeddings skip_special_tokens chat_template_kwargs tool_format "
        "reasoning_effort preserve_thinking new_special_tokens_config init_special_tokens "
        "shrink_embeddings embeddings_skip_upcast added_tokens_overrides fix_untrained_tokens"
    ),
    "not there; leave it out: put a turn of the system into the rows": (
        "default_system default_system_prompt system"
    ),
    "not there; leave it out: the model is loaded as its config.json says": (
        "rope_scaling rope_theta overrides_of_model_config overrides_of_model_kwargs "
        "model_init_kwargs noisy_embedding_alpha router_aux_loss_coef moe_aux_loss_coef "
        "cls_model_config train_mm_proj_only freeze_vision_tower freeze_multi_modal_projector "
        "image_max_pixels video_max_pixels mixture_of_depths image_min_pixels "
        "image_do_pan_and_scan crop_to_patches video_min_pixels video_fps video_maxlen "
        "use_audio_in_video audio_sampling_rate processor_type processor_config type_of_model "
        "model_config use_pose pose_split_on_token_ids pose_max_context_len pose_num_chunks "
        "train_from_scratch revision_of_model"
    ),
    "not there; leave it out: one learning rate for all weights, and the plain schedule": (
        "cosine_constant_lr_ratio embedding_lr embedding_lr_scale lr_quadratic_warmup lr_groups "
        "adam_epsilon2 adam_beta3 lr_div_factor"
    ),
    "write max_new_tokens in a sub-dataset whose metric generates": (
        "eval_max_new_tokens generation_max_length generation_num_beams top_k top_p temperature "
        "eval_num_beams generation_config do_sample repetition_penalty length_penalty infer_backend"
    ),
    "leave it out: the result is uploaded once, and the folder has all that a resume needs": (
        "hub_revision restore_callback_states_from_checkpoint enable_jit_checkpoint"
    ),
    "leave it out: set variables in the shell": "env",
    "leave it out: run `hf auth login` or set HF_TOKEN": (
        "hf_hub_token ms_hub_token om_hub_token hf_use_auth_token"
    ),
    "leave it out: it does nothing here": (
        "model_class sample_backend strict debug test_value include_tkps"
    ),
}
"""What to do, and for which keys."""


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
    **same("ddp_find_unused_parameters ddp_backend device_map", _STARTED),
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
    **same(
        "fp16 pure_bf16 torch_dtype dtype compute_type float16 bfloat16 float32", _PRECISION, "bf16"
    ),
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
        "tokenizer tokenizer_name tokenizer_config special_tokens added_tokens eos_token "
        "resize_vocab",
        _TOKENIZER,
    ),
    **same("pad_token", "leave it out: no token of padding is trained"),
    **same("model_type tokenizer_type", "leave it out: the model's own config.json says it"),
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


def unknown_key(
    name: str,
    known: Sequence[str],
    foreign: Mapping[str, Foreign],
    elsewhere: Collection[str],
    inside: bool,
) -> OptionError:
    """What to write instead of a key that is not known, where it belongs, or the nearest known key.

    elsewhere: keys of the other level.
    inside: this is a key of a sub-dataset.
    """
    what = "key of a sub-dataset:" if inside else "key"
    if name in elsewhere and name not in foreign:
        where = "of the recipe; write it" if inside else "of each sub-dataset; write it under"
        more = " outside of datasets" if inside else " datasets"
        return OptionError(f"unknown {what} {name!r}; it is a key {where}{more}", name)
    found = foreign.get(name) or (FOREIGN.get(name) if inside else None)
    if found:
        return OptionError(f"unknown {what} {name!r}; {found.answer}", name)
    return unknown(name, known, what)


def meant_key(name: str, foreign: Mapping[str, Foreign], needed: Collection[str]) -> str:
    """The needed key that an unknown one probably stands for; empty if none."""
    near = [foreign[name].ours] if name in foreign else get_close_matches(str(name), needed, n=1)
    return near[0] if near and near[0] in needed else ""
