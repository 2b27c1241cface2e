"""msft against transformers' Trainer on CPU: the same model, rows, order and settings.

    make bench            (python bench/cpu_trainer.py)

Both train the embedded tiny model for 50 steps of 64 rows (lr 1e-3, fp32, AdamW without weight
decay, no clipping, constant rate), three times each, alternating. Prints how far the loss curves
are apart and the seconds per step, warm-up steps left out.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from msft.engine.fast import FastEngine
from msft.engine.model.loading import load_model
from msft.engine.optimizer import TrainingSettings
from msft.example import Encoded
from msft.search.feeds import Batch

BATCH, STEPS, WARM_UP, REPEATS, RATE = 64, 50, 10, 3, 1e-3


def rows_of(count: int, tokenizer: Any) -> list[Encoded]:
    """Rows of 20 to 120 bytes whose last fifth is the answer, as short instruction data has it."""
    random = Random(0)
    rows = []
    for _ in range(count):
        length = random.randrange(20, 120)
        text = "".join(random.choice("abcdefgh ") for _ in range(length))
        tokens = tokenizer.encode(text, add_special_tokens=False)
        tokens = [*tokens, tokenizer.eos_token_id]
        start = int(len(tokens) * 0.8)
        rows.append(Encoded(tuple(tokens), tuple(i >= start for i in range(len(tokens)))))
    return rows


def with_msft(rows: Sequence[Encoded]) -> tuple[list[float], list[float]]:
    """Loss and seconds of every step."""
    loaded = load_model("tiny", torch.device("cpu"))
    settings = TrainingSettings(learning_rate=RATE, micro_batch_tokens=8192)
    engine = FastEngine(loaded, {"a": rows}, settings)
    losses, seconds = [], []
    for step in range(STEPS):
        numbers = range(step * BATCH, (step + 1) * BATCH)
        begun = time.perf_counter()
        result, _ = engine.work(Batch(tuple(("a", number) for number in numbers)))
        seconds.append(time.perf_counter() - begun)
        counts = [rows[number].answer_tokens for number in numbers]
        weighted = sum(loss * n for loss, n in zip(result.rows, counts, strict=True))
        losses.append(weighted / sum(counts))
    return losses, seconds


class _Clock(TrainerCallback):
    """Seconds and loss of every step of a Trainer."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begun)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


class _InOrder(Trainer):
    """A Trainer that takes the rows as they come."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def with_trainer(rows: Sequence[Encoded]) -> tuple[list[float], list[float]]:
    """Loss and seconds of every step."""
    loaded = load_model("tiny", torch.device("cpu"))
    loaded.model.set_attn_implementation("sdpa")
    data = [
        {
            "input_ids": list(row.tokens),
            "labels": [t if a else -100 for t, a in zip(row.tokens, row.answer, strict=True)],
        }
        for row in rows
    ]

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in batch)

        def padded(key: str, fill: int) -> torch.Tensor:
            return torch.tensor([row[key] + [fill] * (longest - len(row[key])) for row in batch])

        mask = [[1] * len(r["input_ids"]) + [0] * (longest - len(r["input_ids"])) for r in batch]
        return {
            "input_ids": padded("input_ids", 1),
            "labels": padded("labels", -100),
            "attention_mask": torch.tensor(mask),
        }

    clock = _Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=0.0,
            optim="adamw_torch_fused",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        )
        trainer = _InOrder(
            model=loaded.model,
            args=arguments,
            train_dataset=data,
            data_collator=collate,
            callbacks=[clock],
        )
        trainer.train()
    return clock.losses, clock.seconds


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file as well")
    options = parser.parse_args()
    rows = rows_of(BATCH * STEPS, load_model("tiny", torch.device("cpu")).tokenizer)
    tokens = sum(len(row.tokens) for row in rows) / STEPS
    seconds: dict[str, list[float]] = {"msft": [], "transformers Trainer": []}
    apart = 0.0
    for _ in range(REPEATS):
        ours, ours_seconds = with_msft(rows)
        theirs, theirs_seconds = with_trainer(rows)
        seconds["msft"].append(median(ours_seconds[WARM_UP:]))
        seconds["transformers Trainer"].append(median(theirs_seconds[WARM_UP:]))
        apart = max(apart, *(abs(a - b) for a, b in zip(ours, theirs, strict=True)))
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{STEPS} steps of {BATCH} rows, {tokens:,.0f} tokens a step; median of {REPEATS} runs")
    for name, runs in seconds.items():
        step = median(runs)
        print(f"  {name:22}{step * 1e3:9.1f} ms a step{tokens / step:12,.0f} tok/s")
    ratio = median(seconds["transformers Trainer"]) / median(seconds["msft"])
    print(f"  msft is {ratio:.2f} times as fast")
    print(f"  largest difference of the loss over {STEPS} steps: {apart:.1e}")
    if options.json:
        with open(options.json, "w") as file:  # noqa: PTH123
            json.dump({"seconds": seconds, "ratio": ratio, "loss_difference": apart}, file)


if __name__ == "__main__":
    main()
