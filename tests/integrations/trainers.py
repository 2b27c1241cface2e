"""Small trainers on the tiny model, and what they trained."""

import hashlib
from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import torch
from peft import LoraConfig
from transformers import Trainer, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import load_tokenizer

Data = dict[str, dict[str, Any]]
TOKENIZER = load_tokenizer("tiny")
NAMES = ("add", "mul")


def answers(name: str, first: int, last: int, digit: int) -> list[dict[str, str]]:
    """Rows that all have one answer."""
    return [
        {"prompt": f"{name} {number} =", "completion": f" {digit}"} for number in range(first, last)
    ]


def mixture() -> Data:
    """`add` trains what is wrong in validation, so it falls as soon as answers look like one."""
    return {
        name: {
            "train": answers(name, 0, 32, trained),
            "validation": answers(name, 100, 108, 2),
        }
        for name, trained in {"add": 7, "mul": 2}.items()
    }


def settings(folder: Path, **changed: Any) -> dict[str, Any]:
    plain = {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "report_to": "none",
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "logging_steps": 4,
    }
    return {**plain, **changed}


def sft_trainer(
    folder: Path,
    lora: bool = False,
    callbacks: Any = None,
    rows: Any = None,
    **changed: Any,
) -> Any:
    """An SFTTrainer as a user makes one; its adapter begins at random, the same each time."""
    torch.manual_seed(0)
    adapter = LoraConfig(r=8, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear")
    return SFTTrainer(
        model=tiny_model(len(TOKENIZER)),
        args=SFTConfig(**{"max_length": 64, **settings(folder, **changed)}),
        train_dataset=datasets.Dataset.from_list(rows or answers("add", 0, 4, 7)),
        processing_class=TOKENIZER,
        peft_config=adapter if lora else None,
        callbacks=callbacks,
    )


def tokenized(rows: list[dict[str, str]]) -> Any:
    """The same rows as a plain Trainer takes them."""
    found = []
    for row in rows:
        prompt = TOKENIZER.encode(row["prompt"], add_special_tokens=False)
        answer = [*TOKENIZER.encode(row["completion"], add_special_tokens=False), 0]
        labels = [-100] * len(prompt) + answer
        found.append({"input_ids": prompt + answer, "labels": labels, "source": "a column"})
    return datasets.Dataset.from_list(found)


def plain_trainer(folder: Path, rows: Any = None, **changed: Any) -> Any:
    from transformers import DataCollatorForSeq2Seq

    return Trainer(
        model=tiny_model(len(TOKENIZER)),
        args=TrainingArguments(**settings(folder, **changed)),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(TOKENIZER, padding=True),
        processing_class=TOKENIZER,
    )


def digest(model: Any) -> str:
    """Of every weight that is trained."""
    found = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found.update(name.encode() + parameter.detach().numpy().tobytes())
    return found.hexdigest()


class Watch(TrainerCallback):
    """A callback of a user's: remembers the weights around every step, and the logs."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []
        self.logs: list[dict[str, Any]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.before.append(digest(more["model"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.after.append(digest(more["model"]))

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.logs.append(dict(more["logs"]))
