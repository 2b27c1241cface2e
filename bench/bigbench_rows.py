"""Rows of 39 tasks of BIG-bench and a recipe over them, from the package `bigbench` 1.0.0.

    pip download --no-deps bigbench==1.0.0
    python bench/bigbench_rows.py bigbench-1.0.0.tar.gz DATA/bigbench

writes NAME.train.jsonl, NAME.validation.jsonl and NAME.test.jsonl of every task (600, 100 and 150
rows, drawn with seed 20), and recipe.yaml. Then: msft validate DATA/bigbench/recipe.yaml --show 1.
"""

import argparse
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

TASKS = (
    "abstract_narrative_understanding/4_distractors", "arithmetic/2_digit_addition",
    "arithmetic/2_digit_subtraction", "arithmetic/3_digit_addition",
    "bbq_lite_json/gender_identity_disambig", "bbq_lite_json/race_ethnicity_ambig", "color/rgb",
    "contextual_parametric_knowledge_conflicts", "cs_algorithms/valid_parentheses",
    "elementary_math_qa/question_only", "epistemic_reasoning", "fact_checker/fever",
    "formal_fallacies_syllogisms_negation", "goal_step_wikihow/goal_inference",
    "goal_step_wikihow/step_inference", "goal_step_wikihow/step_ordering", "hyperbaton",
    "language_identification", "logical_fallacy_detection", "movie_dialog_same_or_different",
    "multiemo/all_sentence_en", "navigate", "parsinlu_qa", "play_dialog_same_or_different",
    "question_selection", "salient_translation_error_detection", "social_iqa", "social_support",
    "sports_understanding", "strategyqa", "temporal_sequences", "timedial",
    "tracking_shuffled_objects/five_objects", "tracking_shuffled_objects/seven_objects",
    "unit_conversion/novel_systems", "unit_conversion/si_conversion",
    "unit_conversion/unit_identification", "vitaminc_fact_verification", "winowhy",
)  # fmt: skip
"""Every task with enough rows that have one right choice of at most MOST_CHOICES and are short.

Of a task with parts some parts are taken, and none that asks again what another part asks: hints,
translations, the same colours in other numbers. Images as text are left out.
"""
SPLITS = {"train": 600, "validation": 100, "test": 150}
SEED = 20
MOST_CHOICES, MOST_BYTES = 12, 1200
RECIPE = """\
# msft train recipe.yaml --out runs/bigbench
#
# 39 tasks of BIG-bench, made by bench/bigbench_rows.py with the settings of
# recipes/smollm2-learnable.yaml. Prompts are those of BIG-bench, without examples.

model_name_or_path: smollm2-135m
method: sft
ema_decay: 0.99
seed: 20
compute_budget: 3
num_train_epochs: 5
evals_per_epoch: 4
learning_rate: 1.0e-4
lr_scheduler_type: constant
train_batch_size: 64
max_length: 512
choice_norm: chars
datasets:
"""


def rows_of(task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a task that can be used, each question once, in the task's order."""
    random, seen = Random(SEED), set()
    for example in task["examples"]:
        scores = example.get("target_scores") or {}
        asked = " ".join(example["input"].lower().split())
        right = [choice for choice, score in scores.items() if score == 1]
        size = len((example["input"] + "".join(scores)).encode())
        judged = len(right) == 1 and set(scores.values()) == {0, 1}
        if not judged or len(scores) > MOST_CHOICES or size > MOST_BYTES or asked in seen:
            continue
        seen.add(asked)
        choices = random.sample(sorted(scores), len(scores))  # some tasks have the right one first
        prompt = prompt_of(task, example["input"], choices)
        answers = [f" {choice.strip()}" for choice in choices]
        if len(set(answers)) == len(answers) and " " not in answers:
            yield {"prompt": prompt, "choices": answers, "answer": choices.index(right[0])}


def prompt_of(task: Mapping[str, Any], asked: str, choices: list[str]) -> str:
    """As BIG-bench writes it; it ends before the blank, which the answers begin with."""
    told = task.get("append_choices_to_input", True) not in (False, "false")
    before = task.get("task_prefix", "") + task.get("example_input_prefix", "\nQ: ")
    choice = task.get("example_choice_prefix", "\n  choice: ")
    listed = "".join(choice + each for each in choices) if told else ""
    return (before + asked + listed + task.get("example_output_prefix", "\nA: ")).strip()


def packed_tasks(package: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tasks of TASKS that the package has, by name."""
    with tarfile.open(package) as archive:
        for member in archive:
            _, _, inside = member.name.partition("/benchmark_tasks/")
            name = inside.removesuffix("/task.json")
            if name != inside and name in TASKS:
                file = archive.extractfile(member)
                assert file is not None
                yield name, json.load(file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path, help="bigbench-1.0.0.tar.gz")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    written = set()
    for task, found in packed_tasks(options.package):
        rows = list(rows_of(found))
        if len(rows) < sum(SPLITS.values()):
            sys.exit(f"{task}: {len(rows)} rows can be used; expected {sum(SPLITS.values())}")
        drawn = iter(Random(SEED).sample(rows, sum(SPLITS.values())))
        for split, count in SPLITS.items():
            lines = [json.dumps(next(drawn), ensure_ascii=False) + "\n" for _ in range(count)]
            (options.out / f"{_name(task)}.{split}.jsonl").write_text("".join(lines))
        written.add(task)
        print(f"{_name(task)}: {len(rows)} rows can be used", flush=True)
    if missing := [task for task in TASKS if task not in written]:
        sys.exit(f"{options.package} has no {', '.join(missing)}")
    specs = [
        f"  - {{name: {name}, "
        + ", ".join(f"{split}: {name}.{split}.jsonl" for split in SPLITS)
        + "}\n"
        for name in map(_name, TASKS)
    ]
    (options.out / "recipe.yaml").write_text(RECIPE + "".join(specs))


def _name(task: str) -> str:
    return task.replace("/", "_")


if __name__ == "__main__":
    main()
