"""A TRL script with ten lines added: each sub-dataset stops where it stops improving.

    pip install -e '.[trl]'         # in the clone of msft
    python examples/trl_sft.py [FOLDER]

It runs offline on a CPU in half a minute: a tiny model and rows that are made here. In a script of
yours the model and the rows are your own, and the lines between the two marks stay as they are.
"""

import sys
from pathlib import Path

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import load_tokenizer


def rows(name: str, first: int, last: int, answer: str) -> Dataset:
    """Questions with one answer."""
    asked = [f"{name} {number} =" for number in range(first, last)]
    return Dataset.from_list([{"prompt": each, "completion": f" {answer}"} for each in asked])


def main(folder: str) -> Path:
    """Train; the folder of the best model. The training rows of `stale` were answered by rules
    that do not hold any more, so it gets worse once the model has learned what answers look like.
    """
    train = {"fresh": rows("fresh", 0, 64, "yes"), "stale": rows("stale", 0, 64, "no")}
    valid = {"fresh": rows("fresh", 70, 86, "yes"), "stale": rows("stale", 70, 86, "yes")}
    tokenizer = load_tokenizer("tiny")
    trainer = SFTTrainer(
        model=tiny_model(len(tokenizer)),
        args=SFTConfig(
            output_dir=folder,
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            per_device_train_batch_size=16,
            max_length=64,
            bf16=False,
            use_cpu=True,
            report_to="none",
        ),
        train_dataset=train["fresh"],
        processing_class=tokenizer,
    )
    # msft: instead of trainer.train()
    from msft.integrations.trainer import train as train_each

    result = train_each(
        trainer,
        {name: {"train": train[name], "validation": valid[name]} for name in train},
        f"{folder}/msft",
        metric="nll",
        compute_budget=1,
        method_options={"max_stages": 2},
    )
    # msft: until here
    for stage in result.summary["stages"]:
        print(f"stage {stage['stage']}: trained {stage['active']}, left {stage['excluded']}")
    best = result.summary["best"]["checkpoint"]
    print(f"best: checkpoint {best}, in {result.best} and in trainer.model")
    return result.best


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "trl-run")
