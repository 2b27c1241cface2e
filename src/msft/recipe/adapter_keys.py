"""Keys of other tools that concern adapters, and what to write here instead."""

from msft.recipe.foreign import same, write

ADAPTER_KEYS = {
    **same(
        "adapter peft_config",
        "write use_peft: true for LoRA, with load_in_4bit for QLoRA",
        "use_peft",
    ),
    **write("lora_rank", "lora_r"),
    **write("peft_use_dora", "use_dora"),
    **write("peft_use_rslora", "use_rslora"),
    **same(
        "lora_target lora_target_linear",
        "write lora_target_modules: all-linear, or names",
        "lora_target_modules",
    ),
    **same(
        "load_in_8bit quantization_bit quantization_method bnb_4bit_quant_type "
        "bnb_4bit_use_double_quant use_bnb_nested_quant",
        "write load_in_4bit: true (NF4, quantised twice), the only quantisation there is",
        "load_in_4bit",
    ),
    **same(
        "lora_modules_to_save modules_to_save additional_target peft_layers_to_transform",
        "not there; leave it out: an adapter has the layers of lora_target_modules, in every block",
    ),
    **same(
        "lora_model_dir adapter_name_or_path",
        "write model_name_or_path: the adapter's folder, which is merged into its base",
        "model_name_or_path",
    ),
}
