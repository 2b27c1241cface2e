"""What an audit finds, and what training without its suspects gives, on mixtures whose wrong rows
are known.

    python bench/audit_gain.py --rows noisy-75..79,slightly-75..79,clean-75..79 --data DIR --out DIR
    python bench/audit_gain.py --rows coder-75..77 --data DIR --out DIR --set model_name_or_path=…
    OMP_NUM_THREADS=1 python bench/audit_gain.py --rows demo-200..209 --out DIR

A row is an audit of two rounds, then SFT: on all rows, without the suspects of each round, without
as many random rows, and without all wrong rows (the oracle, which nobody has). `--uses msft-all,
msft-round-2` trains mSFT instead. On a clean mixture there is only the audit, unless somebody is
called spoiled. One JSON line a row in OUT/audit-gain.jsonl, logs in OUT/logs. Each training has its
logs there when it ends, and is not done again; what was cut off is resumed.

`python bench/study_logs.py OUT` adds the rows to docs/runs, and `make study` makes their tables
(docs/results/audit.md).
"""

import argparse
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import ROOT, smaller_card
from study import SharedEngines, claimed
from study_audits import scores_of
from study_logs import AUDIT, AUDITS, keep_logs
from study_rows import VARIANTS

import msft
from msft import training
from msft.app import audit as audits
from msft.app.demo import METHODS, RECIPE
from msft.benchmarks.synthetic import MISLABELLED, splits
from msft.data.exclusions import row_sha256
from msft.data.splits import load_datasets
from msft.engine import build
from msft.engine.model.tokenizers import load_rows
from msft.example import Example
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.folder import RunFolder, read_history
from msft.run.result import Result
from msft.search.draws import sampled

USES = ("all", "round-1", "round-2", "random", "oracle")
TUNED = ["ema_decay=null", "lr_scheduler_type=cosine", "num_train_epochs=3"]
"""The best schedule on the tuning seeds (docs/results/gain-tuning.md)."""
MSFT = [
    *(each.replace("DECAY", "0.99") for each in VARIANTS["msft-sure-ema"]),
    "lr_scheduler_type=constant",
]
"""As in docs/study.md; the recipes have the learning rate."""
ADAPTER = ["use_peft=true", "lora_r=16", "lora_alpha=32"]
SLIGHTLY = ("commonsenseqa", "arc_easy", "ag_news", "trec")
"""The tasks of the mixture with 20 % wrong labels."""
Numbers = Mapping[str, list[int]]


def recipe_of(
    mixture: str, seed: int, data: Path | None, overrides: list[str], msft: bool = False
) -> Recipe:
    """What the audit and every training of SFT, or of mSFT, of a row have."""
    if mixture == "demo":
        variant = METHODS["msft" if msft else "sft-ema"][1]
        return load_recipe(RECIPE, [*variant, f"seed={seed}", *overrides])
    file = "smollm2-learnable-noisy" if mixture in ("noisy", "coder") else "smollm2-learnable"
    given = [f"data_dir={json.dumps(str(data))}"] if data else []
    given += ADAPTER if mixture == "coder" else []
    variant = [*TUNED, *(MSFT if msft else [])]
    made = load_recipe(
        ROOT / "recipes" / f"{file}.yaml", [*variant, f"seed={seed}", *given, *overrides]
    )
    if mixture == "slightly":
        noisy = (
            replace(spec, label_noise=0.2) if spec.name in SLIGHTLY else spec
            for spec in made.datasets
        )
        made = replace(made, datasets=tuple(noisy))
    return made


def wrong_rows(recipe: Recipe) -> Numbers:
    """Numbers of the training rows whose label is wrong, by sub-dataset."""
    if recipe.datasets[0].name in MISLABELLED:
        return {name: _against_the_rule(name, recipe.seed) for name in MISLABELLED}
    clean = replace(
        recipe, datasets=tuple(replace(spec, label_noise=0.0) for spec in recipe.datasets)
    )
    pairs = zip(load_datasets(recipe), load_datasets(clean), strict=True)
    return {
        noisy.spec.name: numbers
        for noisy, right in pairs
        if (
            numbers := [
                number
                for number, (a, b) in enumerate(zip(noisy.train, right.train, strict=True))
                if a.completion != b.completion
            ]
        )
    }


def _against_the_rule(name: str, seed: int) -> list[int]:
    """Of a sub-dataset of the demo; test rows follow the rule."""
    made = splits(name, seed)
    rule = {row.prompt.split()[1]: row.completion for row in made["test"].examples}
    rows = made["train"].examples
    return [n for n, row in enumerate(rows) if row.completion != rule[row.prompt.split()[1]]]


def measured(
    recipe: Recipe, msft_recipe: Recipe, uses: list[str], folder: Path, logs: Path
) -> dict[str, Any]:
    """An audit and the trainings after it; those whose logs are there are not done again."""
    begun = time.perf_counter()
    audited = audits.audit(recipe, folder / "audit", rounds=2)
    seconds = {"audit": time.perf_counter() - begun}
    keep_logs(audited.folder, logs / "audit", AUDIT)
    history = read_history(audited.folder)
    rounds: list[dict[str, list[int]]] = [
        {name: [*finding.suspects] for name, finding in event.findings.items()}
        for event in history.found
    ]
    trained_rows = {n: d.train for n, d in load_rows(recipe).corpus.datasets.items()}
    rows = {name: each.examples for name, each in trained_rows.items()}
    wrong = {
        name: [place for place, number in enumerate(trained_rows[name].numbers) if number in {*bad}]
        for name, bad in wrong_rows(recipe).items()
    }
    suspected = {name: len(numbers) for name, numbers in rounds[-1].items()}
    if not any(suspected.values()):
        left = ("all", "oracle", "msft-all", "msft-oracle")  # the others are as on all rows
        uses = [use for use in uses if use in left] if wrong else []
    leaving: dict[str, Numbers] = {
        "all": {},
        "round-1": rounds[0],
        "round-2": rounds[-1],
        "random": {
            name: sampled(len(rows[name]), count, recipe.seed, "random", name)
            for name, count in suspected.items()
        },
        "oracle": wrong,
    }
    scores = {}
    for use in uses:
        if not (logs / use / "recipe.yaml").exists():  # the last of its files
            begun = time.perf_counter()
            asked = msft_recipe if use.startswith("msft-") else recipe
            trained(asked, rows, leaving[use.removeprefix("msft-")], folder / use)
            seconds[use] = time.perf_counter() - begun
            keep_logs(folder / use, logs / use)
        for weights in (RunFolder(folder / use).best, RunFolder(folder / use).checkpoints):
            shutil.rmtree(weights, ignore_errors=True)
        scores[use] = scores_of(logs / use)
        print(f"{folder.name}, {use}: test {100 * scores[use]['test']['mean']:.2f}", flush=True)
    found = {
        name: {
            **{key: content[key] for key in ("verdict", "gap", "wrong_share", "rows")},
            "truth": len(wrong.get(name, ())) / content["rows"],
            "suspects": [len(each[name]) for each in rounds],
            "hits": [len({*each[name]} & {*wrong.get(name, ())}) for each in rounds],
        }
        for name, content in audited.content["datasets"].items()
    }
    tokens = {"train": history.tokens.train, "evaluation": history.tokens.evaluation}
    return {"found": found, "scores": scores, "seconds": seconds, "audit_tokens": tokens}


def trained(
    recipe: Recipe, rows: Mapping[str, tuple[Example, ...]], leaving: Numbers, folder: Path
) -> Result:
    """SFT without these rows."""
    lines = [
        {"dataset": name, "sha256": row_sha256(rows[name][number])}
        for name, numbers in leaving.items()
        for number in numbers
    ]
    if lines:
        file = folder.with_suffix(".jsonl")
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        recipe = replace(recipe, exclude_rows=str(file.resolve()))
    return msft.train(recipe, folder, quiet=True)


def rows_of(text: str) -> list[tuple[str, int]]:
    """`noisy-75..79,demo-200` as mixtures and seeds."""
    found = []
    for word in text.split(","):
        mixture, _, seeds = word.rpartition("-")
        first, _, last = seeds.partition("..")
        found += [(mixture, seed) for seed in range(int(first), int(last or first) + 1)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", required=True, type=rows_of, help="such as noisy-75..79,demo-200")
    every = ",".join(USES)
    parser.add_argument("--uses", default=every, help="trainings (%(default)s), or msft-USE")
    parser.add_argument("--data", type=Path, help="folder of the benchmarks' rows")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all")
    parser.add_argument("--gb", type=float, help="of the GPU's memory; by itself all of it")
    options = parser.parse_args()
    if options.gb is not None:
        smaller_card(options.gb)
    options.out.mkdir(parents=True, exist_ok=True)
    compiled = ["torch_compile=true"] if torch.cuda.is_available() else []
    if torch.cuda.is_available():
        build.engine_of = SharedEngines(build.engine_of)  # type: ignore[assignment]
    nothing: Any = lambda folder: folder  # noqa: E731  `msft report` makes reports from the logs
    training.write_report = audits.write_report = nothing
    for mixture, seed in options.rows:
        name = f"{mixture}-{seed}"
        with claimed(name, options.out, AUDITS) as mine:
            if not mine:
                print(f"{name}: there already, or another process is at it", flush=True)
                continue
            asked = (mixture, seed, options.data, [*compiled, *options.set])
            uses, logs = options.uses.split(","), options.out / "logs" / name
            line: dict[str, Any] = {"name": name, "mixture": mixture, "seed": seed}
            recipes = (recipe_of(*asked), recipe_of(*asked, msft=True))
            line |= measured(*recipes, uses, options.out / name, logs)
        with (options.out / AUDITS).open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(said(line), flush=True)


def said(line: dict[str, Any]) -> str:
    """One line for who watches."""
    spoiled = [n for n, each in line["found"].items() if each["verdict"] == "spoiled"]
    scores = {use: round(100 * each["test"]["mean"], 2) for use, each in line["scores"].items()}
    return f"{line['name']}: spoiled {' '.join(spoiled) or 'nobody'}; test {scores}"


if __name__ == "__main__":
    main()
