"""On a GPU: the fast attention says what the plain one says, for every model family.

    PYTHONPATH=src:tests/engine python bench/gpu_check.py

For each family a two-layer random model: row losses with varlen attention in bf16 against padded
attention in fp32, every row poisoned once, and generation in fp32 against the CPU's.
"""

import time

import torch
from families import END, FAMILIES, loaded, model_of, rows_of

from msft.engine.decode.decoder import Decoder
from msft.engine.fast import FastEngine
from msft.engine.optimizer import TrainingSettings
from msft.engine.packing import RowLayout, TrainingRow, layout, packed
from msft.example import Encoded
from msft.search.feeds import Batch

CUDA = torch.device("cuda")


def check(family: str) -> str:
    """One line of findings."""
    rows = rows_of(32, longest=60)
    engines = [
        FastEngine(
            loaded(model_of(family, 1.0).to(CUDA)),
            {"a": rows},
            TrainingSettings(bf16=bf16, learning_rate=1e-3),
        )
        for bf16 in (False, True)
    ]
    batch = Batch(tuple(("a", number) for number in range(32)))
    apart = []
    for _ in range(20):
        plain, fast = (sum(engine.work(batch)[0].rows) / 32 for engine in engines)
        apart.append(fast - plain)
    bias = sum(apart) / len(apart)
    prompts = [row.tokens[: len(row.tokens) // 2] for row in rows]
    said = [
        Decoder(model_of(family).to(device).eval(), [END], 10**6).generate(prompts, [12] * 32)
        for device in (torch.device("cpu"), CUDA)
    ]
    same = sum(a == b for a, b in zip(said[0].rows, said[1].rows, strict=True))
    worst = max(map(abs, apart))
    return (
        f"{family:8} bf16-fp32 loss: mean {bias:+.1e}, worst {worst:.1e}; "
        f"poison {'clean' if poison_is_clean(family) else 'LEAKS'}; generation {same}/32 as on CPU"
    )


def poison_is_clean(family: str) -> bool:
    """Whether a changed row leaves all other rows bitwise equal, in bf16 with varlen attention."""
    model = model_of(family, 1.0).to(CUDA).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    rows = rows_of(8)
    poisoned = [*rows]
    poisoned[3] = Encoded(tuple(96 - token for token in rows[3].tokens), rows[3].answer)
    outputs = []
    for each in (rows, poisoned):
        line, lengths = (
            packed([*map(TrainingRow.of, each)], CUDA),
            [len(row.tokens) for row in each],
        )
        with torch.no_grad(), layout(RowLayout(lengths, CUDA)):
            logits = model(
                input_ids=line.tokens[None], position_ids=line.positions[None], use_cache=False
            ).logits[0]
        outputs.append(logits.split(lengths))
    pairs = zip(*outputs, strict=True)
    return all(torch.equal(a, b) == (number != 3) for number, (a, b) in enumerate(pairs))


def main() -> None:
    """All families."""
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for family in FAMILIES:
        begun = time.perf_counter()
        try:
            print(check(family), f"({time.perf_counter() - begun:.1f} s)", flush=True)
        except Exception as error:  # a family that fails must not hide the others
            print(f"{family:8} FAILED: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
