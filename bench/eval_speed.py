"""Evaluation: msft's evaluator against HF `generate` and a plain padded scoring loop.

    PYTHONPATH=src python bench/eval_speed.py --data DIR --out eval.jsonl

Three parts (`--parts`), all on SmolLM2-135M in bf16, ten tasks x 200 validation rows:

greedy  5-shot generation, style `letters`; at most 200 new tokens for aqua_rat and gsm8k and 16 for
        the others on both sides. HF: left padding, sdpa, rows sorted by length, batches of 64 and
        of 128, stop at the end-of-text token; and once with the stop that msft has (`+ stop`: a row
        is done when its answer is, a batch when all its rows are).
text    style `text`, 0-shot and 5-shot, as recipes/smollm2-ten.yaml: choices by likelihood, GSM8K
        generated. HF: right padding, batches of 64, the whole head, no shared prefix;
        log-softmax at answer tokens only.
fp32    the 5-shot generation in fp32 on both sides: do they say the same, row by row? Rows that
        part where HF's two best logits differ by less than 1e-5 are counted apart.

msft is timed as a run calls it: all tasks in one call, weights loaded anew before each (so that no
cache survives), one call of warm-up, the median of three. HF's first batch is done once before it
is timed. An HF part that takes more than `--seconds` measures the rest on one batch per task and
scales it; the row says so.
"""

import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from common import (
    Report,
    Source,
    corpus_of,
    device_of,
    engine_for,
    evaluator_for,
    free,
    parser_of,
    peak_gb,
    recipe_of,
    synchronize,
    with_limits,
)
from transformers import StoppingCriteria, StoppingCriteriaList

from msft.data.corpus import SLACK, Task
from msft.data.encoding import encoded_choices, encoded_prompts
from msft.engine.build import load_evaluator
from msft.example import Encoded

SPLIT = "validation"
LONG = {"aqua_rat": 200, "gsm8k": 200}
SHORT = 16
TIE = 1e-5


class Peer:
    """HF on the same prompts, task by task; keeps what it said."""

    def __init__(self, source: Source, dtype: torch.dtype, batch: int, stop: bool = False) -> None:
        self.model = source.plain(dtype, "sdpa").eval()
        self.tokenizer = source.tokenizer
        self.batch = batch
        self.stop = stop
        self.ends = [source.tokenizer.eos_token_id]

    def generated(self, task: Task, limit_s: float) -> tuple[dict[int, list[int]], float, bool]:
        """Tokens of the rows, seconds, and whether these are scaled from one batch."""
        found = task.splits[SPLIT]
        prompts = encoded_prompts(found.examples, self.tokenizer, task.shots)
        order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
        batches = [order[i : i + self.batch] for i in range(0, len(order), self.batch)]
        work = partial(self._generate, prompts, self._limit(task), task)
        return self._timed(batches, work, limit_s)

    def chosen(self, task: Task, limit_s: float) -> tuple[dict[int, int], float, bool]:
        """The likeliest choice of each row, and the same."""
        found = task.splits[SPLIT]
        groups = encoded_choices(found.examples, self.tokenizer, task.shots)
        rows = [(n, c, row) for n, group in enumerate(groups) for c, row in enumerate(group)]
        rows.sort(key=lambda row: len(row[2].tokens))
        batches = [rows[i : i + self.batch] for i in range(0, len(rows), self.batch)]
        sums, seconds, scaled = self._timed(batches, self._likelihoods, limit_s)
        picks = {}
        for n, example in enumerate(found.examples):
            worth = [sums.get((n, c)) for c in range(len(example.choices))]
            if None in worth:
                continue
            long = [len(choice.strip()) or 1 for choice in example.choices]
            normed = [w / size for w, size in zip(worth, long, strict=True)]
            picks[n] = normed.index(max(normed))
        return picks, seconds, scaled

    def _limit(self, task: Task) -> int:
        rows = task.splits[SPLIT].rows
        longest = max(len(row.tokens) - len(row.prompt) for row in rows)
        return task.max_new_tokens or longest + SLACK

    def _timed(
        self, batches: list[Any], work: Callable[[Any], dict[Any, Any]], limit_s: float
    ) -> tuple[dict[Any, Any], float, bool]:
        """All batches; if time is up, only the middle one, scaled."""
        found: dict[Any, Any] = {}
        if limit_s <= 0:
            middle = batches[len(batches) // 2]
            begun = _now()
            found = work(middle)
            return found, (_now() - begun) * sum(map(len, batches)) / len(middle), True
        begun = _now()
        for batch in batches:
            found |= work(batch)
        return found, _now() - begun, False

    @torch.inference_mode()
    def _generate(
        self, prompts: Sequence[Sequence[int]], limit: int, task: Task, numbers: Sequence[int]
    ) -> dict[int, list[int]]:
        longest = max(len(prompts[n]) for n in numbers)
        pad = self.ends[0]
        tokens = [[pad] * (longest - len(prompts[n])) + list(prompts[n]) for n in numbers]
        mask = [[0] * (longest - len(prompts[n])) + [1] * len(prompts[n]) for n in numbers]
        options: dict[str, Any] = {}
        if self.stop and task.grader is not None:
            criterion = _Finished(task, self.tokenizer, longest)
            options["stopping_criteria"] = StoppingCriteriaList([criterion])
        out = self.model.generate(
            input_ids=torch.tensor(tokens, device=self.model.device),
            attention_mask=torch.tensor(mask, device=self.model.device),
            max_new_tokens=limit,
            do_sample=False,
            eos_token_id=self.ends,
            pad_token_id=pad,
            **options,
        )
        said = [self._cut(row) for row in out[:, longest:].tolist()]
        return dict(zip(numbers, said, strict=True))

    def _cut(self, tokens: list[int]) -> list[int]:
        stops = [i for i, token in enumerate(tokens) if token in self.ends]
        return tokens[: stops[0]] if stops else tokens

    @torch.inference_mode()
    def _likelihoods(self, rows: Sequence[tuple[int, int, Encoded]]) -> dict[Any, float]:
        device = self.model.device
        longest = max(len(row.tokens) for _, _, row in rows)

        def filled(lists: list[list[int]]) -> torch.Tensor:
            return torch.tensor([one + [0] * (longest - len(one)) for one in lists], device=device)

        tokens = filled([list(row.tokens) for _, _, row in rows])
        there = filled([[1] * len(row.tokens) for _, _, row in rows])
        answer = filled([list(map(int, row.answer)) for _, _, row in rows])
        logits = self.model(input_ids=tokens, attention_mask=there, use_cache=False).logits
        asked = answer[:, 1:].bool()
        logp = torch.log_softmax(logits[:, :-1][asked].float(), -1)
        logp = logp.gather(1, tokens[:, 1:][asked][:, None]).squeeze(1)
        total = torch.zeros(len(rows), device=device)
        sums = total.index_add_(0, asked.nonzero()[:, 0], logp).tolist()
        return {(n, c): total for (n, c, _), total in zip(rows, sums, strict=True)}


class _Finished(StoppingCriteria):
    """A row is done when its answer is; looked at only after a line's end or a colon."""

    def __init__(self, task: Task, tokenizer: Any, start: int) -> None:
        self._task, self._tokenizer, self._start = task, tokenizer, start
        self._known: dict[int, bool] = {}

    def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        rows = ids[:, self._start :].tolist()
        done = [self._breaks(row[-1]) and self._done(row) for row in rows]
        return torch.tensor(done, device=ids.device)

    def _done(self, tokens: list[int]) -> bool:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return bool(self._task.grader and self._task.grader.finished(text))

    def _breaks(self, token: int) -> bool:
        if token not in self._known:
            text = self._tokenizer.decode([token])
            self._known[token] = "\n" in text or ":" in text
        return self._known[token]


class _Gaps:
    """Records how far the two best logits of each row are apart, step by step."""

    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        best = scores.float().topk(2, -1).values
        self.steps.append(best[:, 0] - best[:, 1])
        return scores


def _now() -> float:
    synchronize()
    return time.perf_counter()


# The parts.


def ours(recipe: Any, source: Source, repeats: int) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """msft's row, its verdicts by task, and the tasks."""
    loaded = source.loaded()
    corpus = corpus_of(recipe, loaded.tokenizer, loaded.model.config)
    engine = engine_for(recipe, corpus, loaded)
    score = evaluator_for(recipe, corpus, loaded, engine)
    names = list(corpus.datasets)
    held = engine.weights()

    def timed(chosen: list[str]) -> tuple[float, Any]:
        engine.load(held)
        begun = _now()
        scored = score(chosen, SPLIT)
        return _now() - begun, scored

    first, _ = timed(names)
    runs = [timed(names) for _ in range(repeats)]
    each = {name: timed([name])[0] for name in names}
    scored = runs[0][1]
    row = {
        "seconds": median(seconds for seconds, _ in runs),
        "first": first,
        "GB": peak_gb(),
        "rows": sum(score.count for score in scored.scores.values()),
        "mean": sum(float(s.value) for s in scored.scores.values()) / len(names),
        "tasks": each,
    }
    return row, dict(scored.verdicts), corpus.tasks(recipe)


def theirs(
    tasks: dict[str, Task], verdicts: dict[str, Any], peer: Peer, seconds: float
) -> dict[str, Any]:
    """HF's row: seconds of each task, and how many verdicts are the same."""
    warm = next(iter(tasks.values()))
    (peer.chosen if _choices(warm) else peer.generated)(warm, 0)
    free()
    each: dict[str, float] = {}
    scaled: list[str] = []
    same = seen = right = 0
    for name, task in tasks.items():
        way = peer.chosen if _choices(task) else peer.generated
        said, each[name], is_scaled = way(task, seconds - sum(each.values()))
        scaled += [name] if is_scaled else []
        for number, answer in said.items():
            worth = _worth(task, number, answer, peer.tokenizer)
            right += worth
            seen += 1
            same += worth == (verdicts[name][number] == "1") if name in verdicts else 0
    found = {"seconds": sum(each.values()), "GB": peak_gb(), "rows": seen, "mean": right / seen}
    found |= {"same verdict": same, "tasks": each}
    return found | ({"scaled": ", ".join(scaled)} if scaled else {})


def _choices(task: Task) -> bool:
    return bool(task.metric == "accuracy" and task.splits[SPLIT].examples[0].choices)


def _worth(task: Task, number: int, answer: Any, tokenizer: Any) -> bool:
    example = task.splits[SPLIT].examples[number]
    if isinstance(answer, int):
        return answer == example.answer
    text = tokenizer.decode(answer, skip_special_tokens=True)
    if task.grader is None:
        return text.strip() == example.completion.strip()
    extracted = task.grader.extracted(text)
    return extracted is not None and extracted == task.grader.extracted(example.completion)


def compared(
    report: Report, part: str, recipe: Any, source: Source, options: Any, peers: dict[str, Any]
) -> None:
    """msft, then the peers, then the table."""
    kept: list[Any] = []

    def first() -> dict[str, Any]:
        row, verdicts, tasks = ours(recipe, source, 1 if options.quick else 3)
        kept.append((verdicts, tasks))
        return row

    limit = 3 * options.seconds + 120
    report.attempt(limit, first, part=part, peer="msft")
    if not kept:  # it failed; the peers still need the tasks
        corpus = corpus_of(recipe, source.tokenizer, source.config())
        kept.append(({}, corpus.tasks(recipe)))
    verdicts, tasks = kept[0]
    for name, made in peers.items():
        if not _wanted(name, options):
            continue

        def work(made: Any = made) -> dict[str, Any]:
            return theirs(tasks, verdicts, made(), options.seconds)

        report.attempt(limit, work, part=part, peer=name)
    rows = [row for row in report.rows if row["part"] == part and "seconds" in row]
    base = next((row["seconds"] for row in rows if row["peer"] == "msft"), None)
    for row in rows:
        row |= {f"{name[:10]}": seconds for name, seconds in row["tasks"].items()}
        if base and row["peer"] != "msft":
            row["msft is"] = f"{row['seconds'] / base:.1f}x"
    columns = ("peer", "seconds", "rows", "mean", "same verdict", "GB", "scaled", "msft is")
    report.table(f"{part}: seconds of ten tasks", columns, part=part)
    report.table(f"{part}: each task alone", ("peer", *(n[:10] for n in tasks)), part=part)


def _wanted(name: str, options: Any) -> bool:
    return not options.only or any(part in name for part in options.only)


def agreement(recipe: Any, source: Source, rows: int) -> dict[str, Any]:
    """Both in fp32: rows that say the same, that part at a tie, and that part elsewhere."""
    torch.backends.cuda.matmul.allow_tf32 = False
    evaluator, _ = load_evaluator(recipe, recipe.model_name_or_path, SPLIT, lambda text: None)
    names = [spec.name for spec in recipe.datasets]
    answers = evaluator.answered(names, SPLIT)
    peer = Peer(source, torch.float32, 64)
    tasks = corpus_of(recipe, source.tokenizer, source.config()).tasks(recipe)
    counts = {"same": 0, "tie": 0, "other": 0}
    wrong: list[str] = []
    for name in names:
        task = tasks[name]
        prompts = encoded_prompts(task.splits[SPLIT].examples, source.tokenizer, task.shots)
        order = sorted(range(len(prompts))[:rows], key=lambda n: len(prompts[n]))
        for start in range(0, len(order), peer.batch):
            numbers = order[start : start + peer.batch]
            gaps = _Gaps()
            hooked = partial(peer.model.generate, logits_processor=[gaps])
            said = _with(peer, hooked, prompts, peer._limit(task), task, numbers)
            apart = torch.stack(gaps.steps).tolist()
            for place, number in enumerate(numbers):
                mine = answers.rows[name][number].prediction
                gap = _parting(said[number], mine, apart, place, source.tokenizer)
                kind = "same" if gap is None else "tie" if gap < TIE else "other"
                counts[kind] += 1
                if kind == "other":
                    wrong.append(f"{name} {number} (gap {gap:.1e})")
    return {**counts, "rows": sum(counts.values()), "which": "; ".join(wrong[:5])}


def _with(peer: Peer, generate: Any, *work: Any) -> dict[int, list[int]]:
    before = peer.model.generate
    peer.model.generate = generate
    try:
        return peer._generate(*work)
    finally:
        peer.model.generate = before


def _parting(
    tokens: list[int], mine: str, apart: list[list[float]], place: int, tokenizer: Any
) -> float | None:
    """Where HF's text leaves ours, the gap of its two best logits; None: it never does.

    msft stops a row when its answer is complete, so HF's text may go on."""
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    if text.startswith(mine):
        return None
    for step in range(len(tokens)):
        if not mine.startswith(tokenizer.decode(tokens[: step + 1], skip_special_tokens=True)):
            return apart[step][place]
    return apart[min(len(tokens), len(apart) - 1)][place]


def main() -> None:
    """A table for each part."""
    warnings.simplefilter("ignore")
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", default=["greedy", "text", "fp32"])
    parser.add_argument("--only", nargs="+", default=[], help="of the peers; msft always runs")
    parser.add_argument("--rows", type=int, default=200, help="of each task")
    parser.add_argument("--fp32-rows", type=int, default=50, help="of each task, in part fp32")
    parser.add_argument("--size", default="135M", help="another shape, with random weights")
    parser.set_defaults(seconds=150)
    options = parser.parse_args()
    report = Report("eval", options.out)
    source = Source(options.size)
    half = torch.bfloat16 if device_of().type == "cuda" else torch.float32
    rows = [f"datasets.{n}.validation_rows={options.rows}" for n in _names(options)]
    if "greedy" in options.parts:
        recipe = recipe_of("ten-tasks.yaml", options.data, [*rows, *options.set])
        peers = {
            "generate, 64": partial(Peer, source, half, 64),
            "generate, 128": partial(Peer, source, half, 128),
            "generate, 128 + stop": partial(Peer, source, half, 128, stop=True),
            "vLLM": _vllm,
        }
        compared(report, "greedy", with_limits(recipe, LONG, SHORT), source, options, peers)
    if "text" in options.parts:
        for shots in (0, 5):
            overrides = [f"num_fewshot={shots}", *rows, *options.set]
            recipe = recipe_of("smollm2-ten.yaml", options.data, overrides)
            peers = {"padded loop, 64": partial(Peer, source, half, 64)}
            compared(report, f"text, {shots} shots", recipe, source, options, peers)
    if "fp32" in options.parts and source.real:
        rows = [f"datasets.{n}.validation_rows={options.fp32_rows}" for n in _names(options)]
        overrides = ["model_name_or_path=smollm2-135m", "bf16=false", *rows, *options.set]
        recipe = with_limits(recipe_of("ten-tasks.yaml", options.data, overrides), LONG, SHORT)
        work = partial(agreement, recipe, source, options.fp32_rows)
        report.attempt(3 * options.seconds, work, part="fp32", peer="generate, 64, fp32")
        columns = ("peer", "rows", "same", "tie", "other", "which")
        report.table("fp32: what they say, row by row", columns, part="fp32")


def _vllm() -> Peer:
    here = importlib.util.find_spec("vllm") is not None
    raise RuntimeError("installed, but this script has no code for it" if here else "not installed")


def _names(options: Any) -> list[str]:
    return [spec.name for spec in recipe_of("ten-tasks.yaml", options.data).datasets]


if __name__ == "__main__":
    main()
