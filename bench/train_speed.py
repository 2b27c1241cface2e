"""Training: msft's engine against TRL's SFTTrainer and plain loops, on real rows of ten tasks.

    PYTHONPATH=src python bench/train_speed.py --data DIR --peers DIR --out train.jsonl

Same rows, same order, batches of 64 rows, max_length 512. Rows per second are not compared but
real tokens per second: padding does not count. Five steps of warm-up, then three blocks of steps,
of which the median counts. The device is waited for at the ends of blocks only.

--sizes  135M (real SmolLM2 weights if installed), 0.5B, 3B, 8B (random weights), tiny (to try it)
--only   peers whose names contain one of these: msft trl loop liger "trl: padded"
--all    every variant at every size (else, from 0.5B on, those that can be the best)
--card   only so many GB of the GPU's memory, as on a smaller card
--peers  folder of unpacked wheels (trl, datasets, liger-kernel …) behind what is installed

If memory does not hold 64 rows at once, a peer gets micro-batches of 16, then activation
checkpointing, then micro-batches of 4; `how` says so. Dtypes: `bf16` is everything in bf16 (cheap,
but updates of 1e-5 round to nothing); `fp32+amp` is fp32 weights and moments and autocast, which
is what msft's numerics are to be compared with.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

if "--peers" in sys.argv:  # before transformers looks for what is installed
    sys.path.append(str(Path(sys.argv[sys.argv.index("--peers") + 1]).resolve()))

import torch
from common import (
    VARLEN,
    Clock,
    Report,
    Rows,
    Source,
    corpus_of,
    device_of,
    engine_for,
    free,
    parser_of,
    recipe_of,
    smaller_card,
    synchronize,
    training_rows,
    unpatched,
)
from four_bit_model import in_four_bits
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM

from msft.example import Encoded
from msft.search.feeds import Batch

MAX_LENGTH, RATE = 512, 1e-5
BATCH = 64 if torch.cuda.is_available() else 4  # a CPU only tries the script
STEPS = {"135M": 30, "0.5B": 15, "3B": 8, "8B": 5, "tiny": 6}
PLANS = ((BATCH, False), (16, False), (16, True), (4, True))
"""Rows of a micro-batch, and whether activations are recomputed."""


@dataclass(frozen=True)
class Variant:
    """A peer's settings."""

    name: str
    pure: bool = True
    packed: bool = False
    packing: bool = False
    varlen: bool = False
    liger: bool = False
    four_bit: bool = False
    small_only: bool = False
    """Not tried from 0.5B on: it cannot be the best there, or does not fit."""

    @property
    def dtype(self) -> torch.dtype:
        cuda = device_of().type == "cuda"  # many CPUs have no bf16
        return torch.bfloat16 if self.pure and cuda else torch.float32

    @property
    def attention(self) -> str:
        return VARLEN if self.varlen else "sdpa"


TRL = (
    Variant("trl: padded, fp32+amp", pure=False, small_only=True),
    Variant("trl: padded, fp32+amp, Liger", pure=False, liger=True, small_only=True),
    Variant("trl: padded, bf16", small_only=True),
    Variant("trl: padded, bf16, Liger", liger=True),
    Variant("trl: padding-free, sdpa, bf16", packed=True, small_only=True),
    Variant("trl: padding-free, varlen, bf16", packed=True, varlen=True, small_only=True),
    Variant("trl: padding-free, varlen, bf16, Liger", packed=True, varlen=True, liger=True),
    Variant("trl: packing, varlen, bf16", packing=True, varlen=True, small_only=True),
    Variant("trl: packing, varlen, bf16, Liger", packing=True, varlen=True, liger=True),
)
LOOPS = (
    Variant("loop: padded, bf16", small_only=True),
    Variant("loop: packed, fp32+amp", pure=False, packed=True, varlen=True, small_only=True),
    Variant("loop: packed, bf16", packed=True, varlen=True),
    Variant("loop: packed, bf16, Liger", packed=True, varlen=True, liger=True),
)


def main() -> None:
    """One table for each size."""
    warnings.simplefilter("ignore")
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", nargs="+", default=["135M", "0.5B", "3B", "8B"], choices=STEPS)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--peers")
    parser.add_argument("--card", type=float, metavar="GB")
    options = parser.parse_args()
    if options.card:
        smaller_card(options.card)
    report = Report("train", options.out)
    for size in options.sizes:
        source = Source(size)
        steps = max(3, STEPS[size] // (3 if options.quick else 1))
        recipe = recipe_of("ten-tasks.yaml", options.data, ["num_fewshot=0", *options.set])
        rows, parameters = None, 0
        for name, work in _peers(size, options.all):
            if options.only and not any(part in name for part in options.only):
                continue
            if rows is None:
                rows, parameters = _prepared(recipe, source)
            clock = partial(Clock, steps, options.seconds)
            call = partial(work, source=source, recipe=recipe, rows=rows, clock=clock)
            limit = 3 * options.seconds + 60
            where = {"size": size, "weights": "real" if source.real else "random", "peer": name}
            report.attempt(limit, partial(_measured, call, parameters), **where)
        _with_ratios(report, size)
        title = f"{size}, {parameters / 1e6:,.0f} M weights, batches of {BATCH} rows"
        columns = ("peer", "tok/s", "slowest", "fastest", "MFU", "GB", "reserved GB", "ms/step")
        columns = (*columns, "how", "msft is")
        report.table(title, columns, size=size)


def _peers(size: str, everything: bool) -> list[tuple[str, Callable[..., Any]]]:
    small = size in ("135M", "tiny") or everything
    chosen = [v for v in (*TRL, *LOOPS) if small or not v.small_only]
    return [
        ("msft", with_msft),
        *((v.name, partial(with_trl if v in TRL else with_loop, v)) for v in chosen),
    ]


def _prepared(recipe: Any, source: Source) -> tuple[Rows, int]:
    """The rows, which msft's corpus has for all, and the number of weights."""
    config = source.config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    count = sum(p.numel() for p in model.parameters())
    return training_rows(corpus_of(recipe, source.tokenizer, config)), count


def _measured(work: Callable[..., Clock], parameters: int) -> dict[str, Any]:
    clock = work()
    return {**clock.result(parameters), "how": clock.how}


def _with_ratios(report: Report, size: str) -> None:
    rows = [row for row in report.rows if row["size"] == size and "tok/s" in row]
    ours = next((row["tok/s"] for row in rows if row["peer"] == "msft"), None)
    for row in rows:
        if ours and row["peer"] != "msft":
            row["msft is"] = f"{ours / row['tok/s']:.1f}x"


def with_msft(source: Source, recipe: Any, rows: Rows, clock: Callable[[], Clock]) -> Clock:
    """Every batch once before the clock starts, so that all shapes are recorded and compiled."""
    if source.size == "8B":
        recipe = replace(recipe, optim="adamw_bf16")
    loaded = source.loaded()
    engine = engine_for(recipe, corpus_of(recipe, loaded.tokenizer, loaded.model.config), loaded)
    batches = [
        Batch(tuple(rows.places[i] for i in rows.batch(number, BATCH)), use="train")
        for number in range(clock().total)
    ]
    begun = time.perf_counter()
    for batch in batches:
        engine.work(batch)
    synchronize()
    prepared = time.perf_counter() - begun
    timing = clock()  # the peak stays: replayed steps use what was taken as they were recorded
    timing.how = f"{recipe.optim}, prepared in {prepared:.0f} s"
    for batch in batches:
        if not timing.step(engine.work(batch)[1]):
            break
    return timing


# Plain loops.


def with_loop(
    variant: Variant, source: Source, recipe: Any, rows: Rows, clock: Callable[[], Clock]
) -> Clock:
    """The model as transformers has it, AdamW fused, and nothing else."""
    return _fitting(partial(_loop, variant, source, rows, clock))


def _fitting(work: Callable[[int, bool], Clock]) -> Clock:
    """Try with more and more thrift until memory holds it."""
    for micro, recompute in PLANS:
        timing = None
        try:
            timing = work(micro, recompute)
        except torch.OutOfMemoryError:
            print(f"  {micro} rows at once do not fit", flush=True)
        if timing is not None:
            timing.how = f"{micro} rows at once{', recomputed' if recompute else ''}"
            return timing
        free()
    raise torch.OutOfMemoryError("even 4 rows at once with recomputed activations do not fit")


def _loop(
    variant: Variant,
    source: Source,
    rows: Rows,
    clock: Callable[[], Clock],
    micro: int,
    recompute: bool,
) -> Clock:
    model = source.plain(variant.dtype, variant.attention)
    if recompute:
        model.gradient_checkpointing_enable()
    with unpatched(model):
        if variant.liger:
            from liger_kernel.transformers import _apply_liger_kernel_to_instance

            _apply_liger_kernel_to_instance(model=model)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0, fused=True)
        device, timing, number = device_of(), clock(), 0
        amp = not variant.pure and device.type == "cuda"
        mixed = torch.autocast("cuda", torch.bfloat16) if amp else nullcontext()
        joined = _packed if variant.packed else _padded
        while True:
            chosen = [rows.encoded[i] for i in rows.batch(number, BATCH)]
            number += 1
            targets = sum(row.answer_tokens for row in chosen)
            for start in range(0, BATCH, micro):
                inputs = joined(chosen[start : start + micro], device)
                with mixed:
                    model(**inputs, use_cache=False, num_items_in_batch=targets).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if not timing.step(sum(len(row.tokens) for row in chosen)):
                return timing


def _labels(row: Encoded) -> list[int]:
    """As transformers wants them: it shifts by one itself."""
    return [t if a else -100 for t, a in zip(row.tokens, row.answer, strict=True)]


def _packed(rows: Sequence[Encoded], device: torch.device) -> dict[str, Any]:
    lengths = torch.tensor([0, *(len(row.tokens) for row in rows)], dtype=torch.int32)
    bounds = lengths.cumsum(0, dtype=torch.int32).to(device)
    longest = int(lengths.max())
    lists = {
        "input_ids": [token for row in rows for token in row.tokens],
        "position_ids": [place for row in rows for place in range(len(row.tokens))],
        "labels": [label for row in rows for label in (-100, *_labels(row)[1:])],
    }
    inputs: dict[str, Any] = {k: torch.tensor([v]).to(device) for k, v in lists.items()}
    inputs |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    return inputs | {"max_length_q": longest, "max_length_k": longest}


def _padded(rows: Sequence[Encoded], device: torch.device) -> dict[str, Any]:
    longest = max(len(row.tokens) for row in rows)

    def filled(lists: list[list[int]], fill: int) -> torch.Tensor:
        return torch.tensor([one + [fill] * (longest - len(one)) for one in lists]).to(device)

    return {
        "input_ids": filled([list(row.tokens) for row in rows], 0),
        "labels": filled([_labels(row) for row in rows], -100),
        "attention_mask": filled([[1] * len(row.tokens) for row in rows], 0),
    }


# TRL.


def with_trl(
    variant: Variant,
    source: Source,
    recipe: Any,
    rows: Rows,
    clock: Callable[[], Clock],
    adapter: Any = None,
) -> Clock:
    """SFTTrainer on rows that are encoded already, in our order; adapter: a config of peft's."""
    return _fitting(partial(_trl, variant, source, rows, clock, adapter))


def _trl(
    variant: Variant,
    source: Source,
    rows: Rows,
    clock: Callable[[], Clock],
    adapter: Any,
    micro: int,
    recompute: bool,
) -> Clock:
    import datasets
    from transformers import PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    timing = clock()
    chosen = [i for n in range(timing.total) for i in rows.batch(n, BATCH)]
    lengths = [len(rows.encoded[i].tokens) for i in chosen]
    columns = {
        "input_ids": [list(rows.encoded[i].tokens) for i in chosen],
        "labels": [_labels(rows.encoded[i]) for i in chosen],
    }
    mean = sum(lengths) / len(lengths)
    lines = round(BATCH * mean / MAX_LENGTH) if variant.packing else BATCH
    at_once = max(1, min(micro, lines) if not variant.packing else lines * micro // BATCH)
    accumulated = max(1, lines // at_once)

    class Timed(SFTTrainer):  # type: ignore[misc, valid-type]
        """Takes the rows as they come, and knows how many tokens it was given."""

        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if variant.packed or variant.packing:
                given[0] += inputs["input_ids"].numel()
            return super().training_step(model, inputs, *args, **kwargs)

    class Ticks(TrainerCallback):
        """Tells the clock of each optimizer step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            done = state.global_step
            tokens = given[0] or sum(lengths[(done - 1) * BATCH : done * BATCH])
            given[0] = 0
            if not timing.step(tokens):
                control.should_training_stop = True

    given = [0]
    model = source.plain(variant.dtype, variant.attention)
    if variant.four_bit:
        model = in_four_bits(model)
    with unpatched(model), tempfile.TemporaryDirectory() as folder:
        cuda = device_of().type == "cuda"
        config = SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=accumulated,
            max_steps=timing.total,
            max_length=None if variant.packed else MAX_LENGTH,
            padding_free=variant.packed,
            packing=variant.packing,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=0.0,
            optim="adamw_torch_fused",
            bf16=cuda,
            use_liger_kernel=variant.liger,
            gradient_checkpointing=recompute,
            dataloader_num_workers=4 if cuda else 0,
            dataloader_persistent_workers=cuda,
            dataloader_pin_memory=cuda,
            logging_steps=10**6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not cuda,
        )
        trainer = Timed(
            model=model,
            args=config,
            train_dataset=datasets.Dataset.from_dict(columns),
            processing_class=source.tokenizer,
            callbacks=[Ticks()],
            peft_config=adapter,
        )
        trainer.remove_callback(PrinterCallback)
        try:
            trainer.train()
        finally:
            trainer.model = trainer.model_wrapped = trainer.optimizer = None
            trainer.accelerator.free_memory()
    return timing


if __name__ == "__main__":
    main()
