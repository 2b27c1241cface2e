"""Keys of other tools that concern adapters, and what to write here instead."""

from msft.recipe.foreign import same, write

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
