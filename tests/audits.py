"""Folders of audits written by hand, as the contract says how they look: what the page of an audit
and the terminal are shown in tests."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from mortal import unseal
from msft.testing import Learner, simulate

Found = dict[str, Any]

HTML = "<img src=x onerror=\"document.title='owned'\"><b>bold</b></dd></article><script>1</script>"
HEBREW = "מהי בירת צרפת, ומה כתוב על השלט שבכניסה לתחנת הרכבת?"
ARABIC = "الجواب الصحيح هو باريس"
CONTROLS = "before\x1b[31mred\x07\u202eevil\x00after"
LONG_PROMPT = "Read the passage and answer the question.\n\n" + "\n".join(
    f"{number}. The river rose by {number} cm in the night, and the bridge was closed at noon."
    for number in range(1, 60)
)
LONG_ANSWER = ("the harbour was closed for a week because of the storm, and then " * 7)[:400]

DOUBTS = (7.4, 5.3, 3.689, 3.1, 2.7, 2.2, 1.6, 1.1, 0.7, 0.4, 0.02, 0.0)
"""Of the suspects of a sub-dataset, the worst first: 3.689 is 40 to 1."""


def estimate(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def found(
    verdict: str,
    validation: float,
    train: float,
    half: float,
    share: float | None = None,
    why: str = "",
    rows: int = 180,
    suspects: int = 0,
) -> Found:
    """What `audit.json` says of a sub-dataset; the gap is that of an accuracy."""
    return {
        "verdict": verdict,
        "validation": validation,
        "train": train,
        "gap": estimate(validation - train, half),
        "wrong_share": None if share is None else estimate(share, 1.2 * half),
        "suspects": suspects,
        "rows": rows,
        "why": why,
    }


SURE = "Luck alone would hardly give such a gap."
CLEAN = "Surely less than 25 % of the answers are wrong."
UNLEARNED = (
    "The model does not know this task: 2.1 % of the validation rows are right, hardly more than "
    "by chance."
)
FEW = "200 validation and 20 training rows are too few: about 160 would do."
TEN: Mapping[str, Found] = {
    "colours": found("fine", 0.912, 0.905, 0.03, 0.008, CLEAN),
    "shelves": found("spoiled", 0.883, 0.519, 0.05, 0.412, SURE, suspects=74),
    "weights": found("fine", 0.741, 0.746, 0.04, -0.009, CLEAN),
    "teams": found("spoiled", 0.702, 0.455, 0.06, 0.353, SURE, suspects=64),
    "reversals": found("cannot_tell", 0.021, 0.018, 0.02, None, UNLEARNED),
    "logs": {
        "verdict": "spoiled",
        "validation": 1.204,
        "train": 1.611,
        "gap": estimate(0.407, 0.11),
        "wrong_share": None,
        "suspects": 31,
        "rows": 240,
        "why": "Training rows lose 0.407 nats a token more, and luck alone would hardly give that.",
    },
    "prose": {
        "verdict": "fine",
        "validation": 2.31,
        "train": 2.304,
        "gap": estimate(-0.006, 0.05),
        "wrong_share": None,
        "suspects": 0,
        "rows": 1800,
        "why": "Training rows lose surely less than 0.25 nats a token more.",
    },
    "tiny-one": found("cannot_tell", 0.6, 0.45, 0.33, 0.27, FEW, rows=20),
    "animals": found("fine", 0.651, 0.629, 0.04, 0.041, CLEAN),
    "sums-with-a-rather-long-name": found("fine", 0.433, 0.427, 0.03, 0.02, CLEAN),
}
"""Ten sub-datasets: three spoiled, five fine, two of which the audit cannot tell."""

PROMPTS: Mapping[str, Sequence[str]] = {
    "shelves": (
        "Which shelf holds the red book?\nA. top\nB. middle\nC. bottom\nAnswer:",
        LONG_PROMPT,
        HTML,
        HEBREW,
        CONTROLS,
    ),
    "teams": ("Who plays for the team in green?", LONG_PROMPT, HTML),
    "logs": ("Continue the log of the pump:", "x" * 500),
}
ANSWERS: Mapping[str, Sequence[tuple[str, str]]] = {
    "shelves": ((" C", " A"), (" B", " C"), (" A", " B"), (f" {ARABIC}", " B"), (" B", " A")),
    "teams": (("Ada and Tom", "Nora"), (LONG_ANSWER, "no one"), (HTML, f"{CONTROLS} Nora")),
    "logs": (("pump 3 stopped, 14:07", ""), (LONG_ANSWER, "")),
}


def suspect(dataset: str, rank: int, doubt: float) -> Found:
    """A line of `suspects.jsonl`."""
    prompts, answers = PROMPTS[dataset], ANSWERS[dataset]
    prompt = prompts[(rank - 1) % len(prompts)]
    given, answer = answers[(rank - 1) % len(answers)]
    return {
        "dataset": dataset,
        "row": 7 * rank,
        "where": f"data/{dataset}.train.jsonl, line {7 * rank + 1}",
        "sha256": sha256(f"{dataset} {rank}".encode()).hexdigest(),
        "prompt": prompt,
        "given": given,
        "answer": answer or None,
        "doubt": doubt,
        "rank": rank,
    }


def suspects_of(datasets: Mapping[str, Found]) -> list[Found]:
    """The suspects of the spoiled ones; their last doubts are all alike."""
    return [
        suspect(name, rank, DOUBTS[rank - 1] if rank <= len(DOUBTS) else 0.0)
        for name, each in datasets.items()
        if name in PROMPTS
        for rank in range(1, each["suspects"] + 1)
    ]


def write_lines(path: Path, lines: Sequence[Found]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def audit_folder(
    path: Path,
    datasets: Mapping[str, Found] = TEN,
    metrics: Mapping[str, str] | None = None,
    ended: bool = True,
) -> Path:
    """Write the folder of an audit: of one that has not ended, its log and recipe alone.

    metrics: of the sub-datasets that have another one than accuracy.
    """
    path.mkdir(parents=True, exist_ok=True)
    metrics = {"logs": "nll", "prose": "nll"} if metrics is None else metrics
    learners = {name: Learner(rows=each["rows"]) for name, each in datasets.items()}
    simulate("sft", learners, num_train_epochs=1, evals_per_epoch=2, folder=path)
    log = path / "run.jsonl"
    log.write_bytes(unseal(log).replace(b'"method":"sft"', b'"method":"audit"', 1))
    for name in ("samples.jsonl", "verdicts.jsonl", "summary.json", "schedule.json"):
        (path / name).unlink(missing_ok=True)
    recipe = "model_name_or_path: smollm2-135m\nseed: 20\nlearning_rate: 0.0001\ndatasets:\n"
    for name in datasets:
        recipe += f"  - name: {name}\n    train: data/{name}.train.jsonl\n"
        recipe += f"    validation: data/{name}.valid.jsonl\n"
        recipe += f"    metric: {metrics[name]}\n" if name in metrics else ""
    (path / "recipe.yaml").write_text(recipe)
    if not ended:
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:-1]))
        return path
    (path / "clean.yaml").write_text(recipe + "exclude_rows: suspects.jsonl\n")
    (path / "audit.json").write_text(json.dumps({"rounds": 2, "datasets": datasets}, indent=2))
    write_lines(path / "suspects.jsonl", suspects_of(datasets))
    return path
