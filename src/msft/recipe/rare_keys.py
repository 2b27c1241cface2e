"""Keys that other tools' configs have and recipes hardly ever, with what msft does instead."""

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
