"""msft's scores against lm-evaluation-harness: the same rows, prompts and weights, fp32, CPU.

    make bench-harness    (.venv-harness/bin/python bench/harness_agreement.py)

Choices: both pick the likeliest choice of each row, by the summed log-likelihood (the harness's
`acc`, our `choice_norm: none`) and by that of a character (`acc_norm`, `chars`). The harness runs
its own task, requests, tokenization and metrics, with transformers' attention instead of ours.

GSM8K: texts that the model wrote, and reference answers. The harness extracts and judges with the
filter `strict-match` of its own gsm8k.yaml; its text goes on to the next question, where ours
stops once the answer is known.

Prints two tables and every difference with its reason.
"""

import argparse
import logging
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lm_eval
import torch
from datasets import Dataset
from lm_eval.api.model import LM
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks._yaml_loader import load_yaml

from msft.benchmarks.grading import NUMBER
from msft.data.corpus import Corpus, Task, load_corpus
from msft.data.encoding import encoded_choices
from msft.engine.decode.decoder import Decoder
from msft.engine.model.loading import LoadedModel, load_model
from msft.example import Encoded, Example
from msft.recipe.recipe import Recipe
from msft.run.engine import Generated, Likelihoods, StopRow
from msft.scoring.evaluation import Answered, Evaluator

SHARES = {
    0: {
        "commonsenseqa": 1.0,
        "openbookqa": 1.0,
        "arc_easy": 1.0,
        "sciq": 1.0,
        "piqa": 1.0,
        "winogrande": 1.0,
        "boolq": 0.25,
        "hellaswag": 0.25,
    },
    2: {"commonsenseqa": 0.25, "arc_easy": 0.25},
}
"""Exemplars → benchmark → rows as a share of `--rows`; long ones and few-shot have fewer."""

MOST_TOKENS = 2048
"""Of one batch: small ones stay in a CPU's cache."""

NEXT_QUESTION = "\nQ:"
INVALID = "[invalid]"
TIE = 1e-4
"""Log-likelihoods that are closer than this are equal in fp32."""


class Remembered:
    """A predictor that asks the model once for what is scored twice, and keeps whole texts."""

    def __init__(self, loaded: LoadedModel) -> None:
        ends = [loaded.tokenizer.eos_token_id]
        self._decoder = Decoder(loaded.model, ends, MOST_TOKENS)
        self._tokenizer = loaded.tokenizer
        self._known: dict[tuple[Encoded, ...], Likelihoods] = {}
        self.texts: list[str] = []

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        key = tuple(rows)
        if key not in self._known:
            self._known[key] = self._decoder.measure(rows, groups)()
        return lambda: self._known[key]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        """What the decoder gives with `leaves`; that cuts here, so that `texts` are whole."""

        def asks(_: int, tokens: Sequence[int], known: int) -> int | None:
            ends = range(known + 1, len(tokens) + 1)
            parts = ((end, self._text(tokens[max(0, end - 8) : end])) for end in ends)
            return next((end for end, text in parts if NEXT_QUESTION in text), None)

        whole = self._decoder.generate(prompts, limits, asks, groups)
        self.texts = [self._text(row) for row in whole.rows]
        cut = [row[: leaves(number, row, 0)] for number, row in enumerate(whole.rows)]
        return Generated(cut, whole.tokens)

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text


class Replayed(LM):
    """A model of the harness that says what was said before, up to the task's stop words."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self._texts = texts

    def generate_until(self, requests: list[Any]) -> list[str]:  # type: ignore[override]
        said = []
        for request in requests:
            text = self._texts[request.doc_id]
            for stop in request.args[1]["until"]:
                text = text.split(stop)[0]
            said.append(text)
        return said

    def loglikelihood(self, requests: list[Any]) -> Any:  # type: ignore[override]
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Any]) -> Any:  # type: ignore[override]
        raise NotImplementedError


def harness_task(config: dict[str, Any], docs: list[dict[str, Any]]) -> ConfigurableTask:
    """A task of the harness whose rows are ours."""

    def rows(**_: Any) -> dict[str, Dataset]:
        return {"test": Dataset.from_list(docs)}

    own = {"test_split": "test", "num_fewshot": 0, "doc_to_text": "prompt", "custom_dataset": rows}
    return ConfigurableTask(config={**config, **own})


def asked(lm: LM, task: ConfigurableTask) -> list[dict[str, Any]]:
    """Each row as the harness logs it: its requests, responses and metrics."""
    name = task.config.task
    found = evaluate(lm=lm, task_dict={"tasks": {name: task}, "groups": {}}, bootstrap_iters=0)
    assert found is not None
    samples: list[dict[str, Any]] = found["samples"][name]
    return sorted(samples, key=lambda sample: sample["doc_id"])


@dataclass
class Agreement:
    """One line of the table of choices.

    apart: the largest difference of a log-likelihood.
    """

    name: str
    rows: int = 0
    same: dict[str, int] = field(default_factory=lambda: {"none": 0, "chars": 0})
    same_tokens: int = 0
    apart: float = 0.0
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        same = f"{self.same_tokens} | {self.same['none']} | {self.same['chars']}"
        return f"| {self.name} | {self.rows} | {same} | {self.apart:.1e} |"


def total(lines: Sequence[Agreement]) -> Agreement:
    return Agreement(
        "all",
        sum(line.rows for line in lines),
        {norm: sum(line.same[norm] for line in lines) for norm in ("none", "chars")},
        sum(line.same_tokens for line in lines),
        max(line.apart for line in lines),
    )


def recipe_of(
    options: argparse.Namespace, shots: int, rows: dict[str, int], train: int = 200
) -> Recipe:
    """Rows of test to score, and a few of train for exemplars."""
    few = {"train_rows": train, "validation_rows": 20, "max_new_tokens": options.max_new_tokens}
    return Recipe(
        model_name_or_path=options.model,
        datasets=[{"name": n, "benchmark": n, "test_rows": m, **few} for n, m in rows.items()],
        data_dir=str(options.data),
        prompt_style="text",
        num_fewshot=shots,
        bf16=False,
    )


def corpus_of(recipe: Recipe, loaded: LoadedModel) -> Corpus:
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    return load_corpus(recipe, loaded.tokenizer, context)


def compared_choices(
    options: argparse.Namespace, loaded: LoadedModel, predictor: Remembered, lm: HFLM
) -> Iterator[Agreement]:
    """Both sides' picks on every row of every task."""
    for shots, shares in SHARES.items():
        rows = {name: max(1, round(options.rows * share)) for name, share in shares.items()}
        recipe = recipe_of(options, shots, rows)
        corpus = corpus_of(recipe, loaded)
        tasks = {
            norm: corpus.tasks(replace(recipe, choice_norm=norm)) for norm in ("none", "chars")
        }
        for name in rows:
            ours = {
                norm: Evaluator(t, predictor, loaded.tokenizer).answered([name], "test").rows[name]
                for norm, t in tasks.items()
            }
            title = f"{name}, {shots}-shot" if shots else name
            yield agreement(title, tasks["none"][name], ours, loaded.tokenizer, lm)


def agreement(
    title: str, task: Task, ours: dict[str, list[Answered]], tokenizer: Any, lm: HFLM
) -> Agreement:
    examples = task.splits["test"].examples
    docs = [
        {
            "prompt": task.shots + example.prompt,
            "choices": [choice.removeprefix(" ") for choice in example.choices],
            "answer": example.answer,
        }
        for example in examples
    ]
    config = {
        "task": task.name,
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": " ",
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in ("acc", "acc_norm")
        ],
    }
    theirs = harness_task(config, docs)
    line = Agreement(title)
    encoded = encoded_choices(examples, tokenizer, task.shots)
    for number, sample in enumerate(asked(lm, theirs)):
        results = [response for (response,) in sample["resps"]]
        plain = ours["none"][number].likelihoods
        line.rows += 1
        line.apart = max(
            line.apart, *(abs(a - b) for a, (b, _) in zip(plain, results, strict=True))
        )
        same_tokens = [_halves(row) for row in encoded[number]] == [
            lm._encode_pair(*pair) for pair in sample["arguments"]
        ]
        line.same_tokens += same_tokens
        for norm, metric in (("none", "acc"), ("chars", "acc_norm")):
            likelihoods = ours[norm][number].likelihoods
            pick = likelihoods.index(max(likelihoods))
            other = harness_pick(theirs, docs[number], results, metric)
            line.same[norm] += pick == other
            if pick != other:
                reason = why_picked(examples[number], likelihoods, pick, other, same_tokens)
                line.differences.append(
                    f"{title}, {examples[number].where}, {metric}: msft {pick}, harness {other}: "
                    f"{reason}"
                )
    return line


def _halves(row: Encoded) -> tuple[list[int], list[int]]:
    """Tokens before the border of prompt and choice, and after it."""
    return list(row.prompt), list(row.tokens[len(row.prompt) :])


def harness_pick(
    task: ConfigurableTask, doc: dict[str, Any], results: list[Any], metric: str
) -> int:
    """The choice that the harness takes: the one that is right if it is the answer."""
    choices = range(len(doc["choices"]))
    (pick,) = (
        n for n in choices if task.process_results({**doc, "answer": n}, results)[metric] == 1
    )
    return pick


def why_picked(
    example: Example, likelihoods: Sequence[float], pick: int, other: int, same_tokens: bool
) -> str:
    if example.choices[pick] == example.choices[other]:
        return "the same text twice"
    if not same_tokens:
        return "the tokenizer merges across the border of prompt and choice"
    gap = likelihoods[pick] - likelihoods[other]
    return f"a tie ({gap:.1e} apart)" if gap < TIE else f"NOT EXPLAINED ({gap:.1e} apart)"


@dataclass
class Extraction:
    """One line of the table of GSM8K."""

    name: str
    texts: int = 0
    marked: int = 0
    same: int = 0
    same_verdict: int = 0
    differences: list[str] = field(default_factory=list)


def compared_numbers(
    options: argparse.Namespace, loaded: LoadedModel, predictor: Remembered
) -> list[Extraction]:
    """Extracted answers and verdicts of both sides."""
    recipe = recipe_of(options, 2, {"gsm8k": options.texts}, train=500)
    corpus = corpus_of(recipe, loaded)
    tasks = corpus.tasks(recipe)
    answers = Evaluator(tasks, predictor, loaded.tokenizer).answered(["gsm8k"], "test")
    written = extraction(
        "written by the model",
        predictor.texts,
        [(a.extracted, bool(a.worth)) for a in answers.rows["gsm8k"]],
        [example.completion for example in tasks["gsm8k"].splits["test"].examples],
    )
    references = [example.completion for example in corpus.datasets["gsm8k"].train.examples]
    right = [(NUMBER.extracted(text), True) for text in references]
    return [written, extraction("references of train", references, right, references)]


def extraction(
    title: str,
    texts: Sequence[str],
    ours: Sequence[tuple[str | None, bool]],
    references: Sequence[str],
) -> Extraction:
    config = load_yaml(Path(lm_eval.__file__).parent / "tasks/gsm8k/gsm8k.yaml")
    for key in ("tag", "dataset_path", "dataset_name", "training_split", "fewshot_split"):
        config.pop(key, None)
    config["generation_kwargs"]["until"] = [NEXT_QUESTION]
    ignored = config["metric_list"][0]["regexes_to_ignore"]
    docs = [{"prompt": "unused", "answer": reference} for reference in references]
    samples = asked(Replayed(texts), harness_task(config, docs))
    strict = [sample for sample in samples if sample["filter"] == "strict-match"]
    line = Extraction(title)
    for text, (answer, right), sample in zip(texts, ours, strict, strict=True):
        (other,) = sample["filtered_resps"]
        for pattern in ignored:
            other = re.sub(pattern, "", other)
        line.texts += 1
        line.marked += other != INVALID
        line.same += (answer or INVALID) == other
        line.same_verdict += right == (sample["exact_match"] == 1)
        if (answer or INVALID) != other:
            line.differences.append(
                f"{title}, text {sample['doc_id']}: msft {answer}, harness {other}: "
                f"{why_extracted(text, answer, other)}"
            )
    return line


def why_extracted(text: str, ours: str | None, theirs: str) -> str:
    """In the words of `msft.benchmarks.grading.number`."""
    _, _, after = text.partition("####")
    line = after.split("\n")[0]
    shown = f"`####{line}`"
    if ours is None and not re.search("[0-9]", line):
        return f"{shown}: no number after the first mark; the harness looks at later ones"
    if ours is None:
        return f"{shown}: not one plain number; the harness takes what comes first"
    if theirs == INVALID:
        return f"{shown}: signs around the number, which the harness does not know"
    if float(ours) == float(theirs):
        return f"{shown}: the same number, spelled as one"
    return f"{shown}: NOT EXPLAINED"


def main() -> None:
    """Print two tables and the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", type=Path, default=here.parent / "shared" / "data")
    parser.add_argument("--rows", type=int, default=80, help="rows of a benchmark")
    parser.add_argument("--texts", type=int, default=200, help="GSM8K texts to generate")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    options = parser.parse_args()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)

    loaded = load_model(options.model, torch.device("cpu"))
    predictor = Remembered(loaded)
    other = load_model(options.model, torch.device("cpu"))
    other.model.set_attn_implementation("sdpa")
    lm = HFLM(pretrained=other.model, tokenizer=other.tokenizer, batch_size=16)

    packages = ", ".join(f"{p} {version(p)}" for p in ("lm_eval", "transformers", "torch"))
    print(f"{options.model}, {platform.machine()}, {os.cpu_count()} cores, {packages}\n")
    print("| task | rows | same tokens | same `acc` pick | same `acc_norm` pick | apart |")
    print("|---|---|---|---|---|---|", flush=True)
    choices = []
    for line in compared_choices(options, loaded, predictor, lm):
        choices.append(line)
        print(line, flush=True)
    print(f"{total(choices)}\n")
    print("| GSM8K texts | texts | with an answer | same answer | same verdict |")
    print("|---|---|---|---|---|")
    numbers = compared_numbers(options, loaded, predictor)
    for e in numbers:
        print(f"| {e.name} | {e.texts} | {e.marked} | {e.same} | {e.same_verdict} |")
    differences = [d for line in (*choices, *numbers) for d in line.differences]
    print("\nDifferences:" if differences else "\nNo differences.")
    for difference in differences:
        print(f"- {difference}")


if __name__ == "__main__":
    main()
