"""LoRA and QLoRA: msft's engine against TRL's SFTTrainer with peft, on one GPU, in one process.

    PYTHONPATH=src python bench/lora_speed.py --data DIR --peers DIR --out lora.jsonl

Random weights in the shapes of SmolLM2-135M, Qwen2.5-3B and Llama-3.1-8B, made on the device; rows
of ten tasks where --data has them, else rows that are made up. Same rows, same order, batches of
64 rows, real tokens per second. Adapters: r 16, alpha 32, every linear layer, no dropout, in bf16.
`GB` is the most that training holds, counted from when the model is there.

--only   cases whose names contain one of these: full lora fp8 qlora trl "trl 4-bit" 135M 3B small
--peers  folder of unpacked wheels (trl, datasets, liger-kernel …) behind what is installed
--small  tokens of a micro-batch of the `small` cases (memory targets: 35 GB and 20 GB at 8B)
--profile  prints where the time of a step of ours goes, kernel by kernel

Cases: `full` at 135M; `lora` at each size, with the memory that is there; `fp8` at 8B, beside
frozen weights in FP8; `lora small`, `fp8 small` and `qlora small` at 8B, in micro-batches; `trl` at
each size, padding-free and packed, with Liger if it is there, and `trl 4-bit` at 8B: the same on a
base in NF4. QLoRA and 4-bit need bitsandbytes.
"""

import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from common import (
    Clock,
    Report,
    Rows,
    Source,
    corpus_of,
    device_of,
    engine_for,
    free,
    parser_of,
    peak_gb,
    print_kernels,
    recipe_of,
    synchronize,
    training_rows,
)
from train_speed import BATCH, Variant, with_trl
from transformers import AutoModelForCausalLM

from msft.engine.model.loading import LoadedModel
from msft.recipe.recipe import Recipe
from msft.search.feeds import Batch

RANK, ALPHA, RATE = 16, 32, 1e-4
STEPS = {"135M": 24, "3B": 9, "8B": 9, "tiny": 4}
WARM_UP = 2


def main() -> None:
    """One table of all cases."""
    warnings.simplefilter("ignore")
    parser = parser_of(__doc__)
    parser.set_defaults(seconds=20)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--sizes", nargs="+", default=["135M", "3B", "8B"], choices=STEPS)
    parser.add_argument(
        "--small", type=int, nargs=2, default=[4608, 3584], metavar=("LORA", "QLORA")
    )
    parser.add_argument("--peers")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    report = Report("lora", options.out)
    recipe = _recipe(options.data, options.set)
    for size in options.sizes:
        source = Source(size)
        source.real = False
        config = source.config()
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        parameters = sum(p.numel() for p in model.parameters())
        rows = training_rows(corpus_of(recipe, source.tokenizer, config))
        for name, work in _cases(size, options.small, options.profile):
            if options.only and not any(part in f"{name} {size}" for part in options.only):
                continue
            clock = partial(Clock, STEPS[size], options.seconds, WARM_UP)
            call = partial(work, source=source, recipe=recipe, rows=rows, clock=clock)
            measured = partial(_measured, call, parameters)
            report.attempt(3 * options.seconds + 60, measured, size=size, case=name)
    columns = ("size", "case", "tok/s", "slowest", "fastest", "GB", "reserved GB", "ms/step", "how")
    report.table(f"batches of {BATCH} rows", columns)


def _cases(size: str, small: list[int], profile: bool) -> list[tuple[str, Callable[..., Any]]]:
    adapter: dict[str, Any] = {"use_peft": True, "lora_r": RANK, "lora_alpha": ALPHA}
    adapter["learning_rate"] = RATE
    ours = {"full": {}} if size in ("135M", "tiny") else {}
    ours["lora"] = adapter
    if size in ("8B", "tiny"):
        packed = {**adapter, "load_in_4bit": True}
        ours["lora small"] = {**adapter, "micro_batch_tokens": small[0]}
        ours["fp8"] = {**adapter, "fp8": True}
        ours["fp8 small"] = {**adapter, "fp8": True, "micro_batch_tokens": small[0]}
        ours["qlora"] = packed
        ours["qlora small"] = {**packed, "micro_batch_tokens": small[1]}
    cases: list[tuple[str, Callable[..., Any]]] = [
        (name, partial(with_msft, keys=keys, profile=profile)) for name, keys in ours.items()
    ]
    liger = importlib.util.find_spec("liger_kernel") is not None
    more = ", Liger" if liger else ""
    for four_bit in (False, True) if size in ("8B", "tiny") else (False,):
        for how in ("padding-free", "packing"):
            name = f"trl{' 4-bit' if four_bit else ''}: {how}{more}"
            plain = {"packed": how == "padding-free", "packing": how == "packing"}
            variant = Variant(name, varlen=True, liger=liger, four_bit=four_bit, **plain)
            cases.append((name, partial(with_trl_lora, variant)))
    variant = Variant("trl: padding-free, sdpa", packed=True)
    return [*cases, (variant.name, partial(with_trl_lora, variant))] if size != "8B" else cases


def _measured(work: Callable[..., Clock], parameters: int) -> dict[str, Any]:
    clock = work()
    return {**clock.result(parameters), "how": clock.how}


def with_msft(
    source: Source,
    recipe: Recipe,
    rows: Rows,
    clock: Callable[[], Clock],
    keys: dict[str, Any],
    profile: bool,
) -> Clock:
    """Every batch once before the clock starts, so that all shapes are recorded and compiled."""
    recipe = replace(recipe, **keys)
    cuda = device_of().type == "cuda"
    frozen = torch.bfloat16 if recipe.use_peft and cuda else torch.float32
    loaded = LoadedModel(source.plain(frozen, "msft"), source.tokenizer, source.size)
    engine = engine_for(recipe, corpus_of(recipe, source.tokenizer, loaded.model.config), loaded)
    free()
    held = torch.cuda.memory_allocated() / 1e9 if cuda else 0.0
    batches = [
        Batch(tuple(rows.places[i] for i in rows.batch(number, BATCH)), use="train")
        for number in range(clock().total)
    ]
    begun = time.perf_counter()
    for batch in batches:
        engine.work(batch)[0].rows[0]
    synchronize()
    prepared = time.perf_counter() - begun
    timing = clock()
    for batch in batches:
        if not timing.step(engine.work(batch)[1]):
            break
    synchronize()
    if profile:
        print_kernels(f"{source.size} {keys}", lambda: engine.work(batches[-1]))
    trained = engine.num_trainable
    timing.how = (
        f"{trained / 1e6:.1f} M trained, {held:.1f} GB before a step, {peak_gb():.1f} GB at the "
        f"peak, prepared in {prepared:.0f} s; {engine.how()}"
    )
    return timing


def with_trl_lora(
    variant: Variant, source: Source, recipe: Recipe, rows: Rows, clock: Callable[[], Clock]
) -> Clock:
    """SFTTrainer with peft's adapter on the same layers."""
    from peft import LoraConfig

    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return with_trl(variant, source, recipe, rows, clock, config)


def _recipe(data: str, overrides: list[str]) -> Recipe:
    """Ten tasks where their rows are there, else made-up rows of about the same lengths."""
    if Path(data).is_dir():
        recipe = recipe_of("ten-tasks.yaml", data, ["num_fewshot=0", *overrides])
        return replace(recipe, torch_compile=True)
    print(f"{data} is not there: rows are made up", flush=True)
    random = Random(0)

    def words(least: int, most: int) -> str:
        letters = "abcdefghijklmnopqrstuvwxyz"
        count = random.randint(least, most)
        return " ".join("".join(random.choices(letters, k=4)) for _ in range(count))

    rows = [{"prompt": words(10, 40), "completion": " " + words(1, 8)} for _ in range(4000)]
    spec = {"name": "made-up", "train": rows[8:], "validation": rows[:8], "metric": "nll"}
    return Recipe(
        "tiny", [spec], method="sft", train_batch_size=BATCH, max_length=512, torch_compile=True
    )


if __name__ == "__main__":
    main()
