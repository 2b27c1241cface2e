"""What Axolotl, LLaMA-Factory, TRL and ms-swift do where a config says nothing, as far as msft does
something else.

Read in their sources, at the versions of October 2026:

- Axolotl (axolotl-ai-cloud/axolotl): `src/axolotl/utils/schemas/training.py`, `config.py`,
  `peft.py` and `datasets.py` (defaults of keys), `src/axolotl/core/builders/base.py` (warm-up),
  `src/axolotl/utils/config/__init__.py` (`batch_size`), `src/axolotl/loaders/adapter.py`. It fails
  without `learning_rate`, and an adapter without `lora_r`, `lora_alpha` and names of layers.
- LLaMA-Factory (hiyouga/LLaMA-Factory): `src/llamafactory/hparams/finetuning_args.py`,
  `data_args.py`, `model_args.py`; the rest is `TrainingArguments` of transformers.
- TRL (huggingface/trl 1.16): `trl/trainer/sft_config.py`, `trl/trainer/model_config.py`,
  `trl/scripts/utils.py`; the rest is `TrainingArguments` of transformers 5. The layers of an
  adapter are PEFT's (`peft/utils/constants.py`). Alignment Handbook is TRL with a mixture.
- ms-swift (modelscope/ms-swift): `swift/arguments/sft_args.py`, `tuner_args.py`,
  `swift/trainers/arguments.py`. It accumulates up to 16 rows on one device.
- LLaMA-Factory's newer layout: `src/llamafactory/v1/config/`, `v1/core/base_trainer.py`,
  `v1/plugins/model_plugins/peft.py`. AdamW is PyTorch's, and the rate is constant.
"""

from typing import Any

AXOLOTL, FACTORY, TRL, SWIFT = "Axolotl", "LLaMA-Factory", "TRL", "ms-swift"
NEWER = "LLaMA-Factory (newer layout)"

_HF = {"num_train_epochs": 3, "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "seed": 42}
DEFAULTS: dict[str, dict[str, Any]] = {
    AXOLOTL: {
        "num_epochs": 1,
        "sequence_len": 512,
        "lr_scheduler": "cosine",
        "max_grad_norm": 1.0,
        "seed": 42,
    },
    FACTORY: {**_HF, "learning_rate": 5e-5, "cutoff_len": 2048},
    TRL: {**_HF, "learning_rate": 2e-5, "max_length": 1024},
    SWIFT: {**_HF, "lr_scheduler_type": "cosine", "weight_decay": 0.1},
    NEWER: {
        "num_train_epochs": 3,
        "learning_rate": 1e-4,
        "cutoff_len": 2048,
        "max_grad_norm": 1.0,
        "seed": 42,
        "weight_decay": 0.01,
    },
}
BATCH: dict[str, tuple[tuple[str, int], ...]] = {
    AXOLOTL: (("micro_batch_size", 1), ("gradient_accumulation_steps", 1)),
    FACTORY: (("per_device_train_batch_size", 8), ("gradient_accumulation_steps", 1)),
    TRL: (("per_device_train_batch_size", 8), ("gradient_accumulation_steps", 1)),
    SWIFT: (("per_device_train_batch_size", 1), ("gradient_accumulation_steps", 16)),
    NEWER: (("micro_batch_size", 1),),
}
"""The factors of a batch on one device."""
ADAPTER = {AXOLOTL: None, FACTORY: "lora", TRL: False, SWIFT: "lora", NEWER: "full"}
"""What is trained: LLaMA-Factory trains an adapter unless it is told `finetuning_type: full`."""
LORA_DEFAULTS: dict[str, dict[str, Any]] = {
    AXOLOTL: {},
    FACTORY: {"lora_rank": 8},
    TRL: {"lora_dropout": 0.05, "lora_target_modules": ["q_proj", "v_proj"]},
    SWIFT: {"lora_rank": 8, "lora_alpha": 32, "lora_dropout": 0.05},
    NEWER: {"peft_config.r": 8, "peft_config.lora_alpha": 16, "peft_config.lora_dropout": 0.05},
}
"""LLaMA-Factory's `lora_alpha` is twice its rank. The layers of TRL are those of Llama, Qwen,
Mistral and Gemma."""
CUTS_ROWS = (FACTORY, TRL, NEWER)
"""Who cuts rows that are too long; Axolotl and ms-swift leave them out, as msft does."""
RATES = {True: 1e-4, False: 1e-5}
"""ms-swift's rate, of an adapter and of all weights."""
PACKING = {
    AXOLOTL: ("sample_packing",),
    FACTORY: ("packing", "neat_packing"),
    TRL: ("packing",),
    SWIFT: ("packing",),
    NEWER: (),
}
"""Switches with which a batch counts packed sequences. `padding_free` does not change the count."""
MOST_VALUES = 10_000
"""Keys and values of a config. It takes a second to read so many; long ones have 500."""
WARM_UP = (0.03, 100)
"""Axolotl's: this share of the steps, but at most so many."""
TEMPLATED = (
    "they write rows with instruction and output as turns of a conversation, by the model's "
    "template; msft gives those rows Alpaca's prompt: write them as messages for the same text"
)
WHOLE_CONVERSATIONS = (
    "TRL trains on all of a conversation or a text, and on the completion alone where rows have a "
    "prompt and a completion; msft on answers only: completion_only_loss: false adds the prompts"
)
