"""What the GPU benchmarks share: rows of results, models, peers, clocks.

Every result is one JSON line, printed and written to `--out` at once, so that a run that is cut
off loses nothing; the table of all of them comes at the end.
"""

import argparse
import gc
import inspect
import json
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers

from msft.data.corpus import Corpus, load_corpus
from msft.engine.build import engine_over
from msft.engine.model.loading import LoadedModel, load_model
from msft.example import Encoded
from msft.recipe.recipe import Recipe, load_recipe
from msft.scoring.evaluation import Evaluator

ROOT = Path(__file__).parent.parent
MATRIX_RATE = 790e12
"""bf16 FLOP/s of the H200 as measured; nominal MFU is 6 · |θ| · tok/s over this."""
WARM_UP = 5
BLOCKS = 3
"""Measured steps are timed in so many blocks; the median block counts."""

_LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 0}
_QWEN = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 0}
_QWEN |= {"vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    "135M": _LLAMA  # HuggingFaceTB/SmolLM2-135M
    | {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    | {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}
    | {"max_position_embeddings": 8192, "tie_word_embeddings": True},
    "0.5B": _QWEN  # Qwen/Qwen2.5-0.5B
    | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "num_key_value_heads": 2},
    "3B": _QWEN  # Qwen/Qwen2.5-3B
    | {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36}
    | {"num_attention_heads": 16, "num_key_value_heads": 2},
    "8B": _LLAMA  # meta-llama/Llama-3.1-8B
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    | {"max_position_embeddings": 8192, "tie_word_embeddings": False},
    "tiny": _LLAMA  # to try the scripts on a CPU
    | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 49152}
    | {"max_position_embeddings": 8192, "tie_word_embeddings": True},
}


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps and repeats")
    parser.add_argument("--out", type=Path, help="write each JSON line to the end of this file too")
    parser.add_argument("--data", default="shared/data", help="folder of the benchmarks' rows")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="recipe")
    parser.add_argument("--seconds", type=float, default=60, help="at most, for each peer")
    return parser


class Report:
    """Results: printed and written as they come, and as one table at the end."""

    def __init__(self, bench: str, out: Path | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._bench = bench
        self._out = out
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        print(f"{bench}: {device}, {versions}, {time.strftime('%Y-%m-%d')}", flush=True)
        print(f"  command: python {' '.join(sys.argv)}", flush=True)

    def add(self, **row: Any) -> None:
        row = {key: _rounded(value) for key, value in row.items()}
        self.rows.append(row)
        line = json.dumps({"bench": self._bench, **row})
        print(line, flush=True)
        if self._out is not None:
            with self._out.open("a") as file:
                file.write(line + "\n")

    def attempt(self, seconds: float, work: Callable[[], dict[str, Any] | None], **row: Any) -> Any:
        """A peer's row; if it fails or takes far too long, a row that says why."""
        try:
            with deadline(seconds):
                found = work()
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).split("\n")[0]
            found = {"failed": f"{type(error).__name__}: {reason}"[:200]}
        free()
        if found is not None:
            self.add(**row, **found)
        return found

    def table(self, title: str, columns: Sequence[str], **where: Any) -> None:
        """The rows that are `where` says, with these columns; what failed stands there too."""
        rows = [r for r in self.rows if all(r.get(key) == value for key, value in where.items())]
        if not rows:
            return
        cells = [[_shown(row.get(column, "")) for column in columns] for row in rows]
        wide = [max(map(len, (name, *(c[i] for c in cells)))) for i, name in enumerate(columns)]
        print(f"\n{title}")
        for line in ([*columns], *cells):
            print("  " + "  ".join(f"{text:>{w}}" for text, w in zip(line, wide, strict=True)))
        for row in rows:
            if "failed" in row:
                name = ", ".join(str(row[c]) for c in columns if c in row)
                print(f"  not measured: {name}: {row['failed']}")
        sys.stdout.flush()


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """TimeoutError if what is inside takes longer; the last resort behind a peer's own limit."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took more than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def device_of() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free() -> None:
    """Give back what the last peer held, and measure the next one's peak from here."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gb() -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


def reserved_gb() -> float:
    """With what torch holds back and recorded steps keep: what a card has to have."""
    return torch.cuda.max_memory_reserved() / 1e9 if torch.cuda.is_available() else 0.0


def smaller_card(gigabytes: float) -> None:
    """Let this process have no more of the device's memory, and believe that there is no more."""
    context = 650_000_000  # of CUDA and its libraries, which torch does not count
    most = int(gigabytes * 1e9) - context
    torch.cuda.set_per_process_memory_fraction(
        most / torch.cuda.get_device_properties(0).total_memory
    )
    torch.cuda.mem_get_info = lambda device=None: (most - torch.cuda.memory_reserved(), most)


def print_kernels(title: str, work: Callable[[], Any], most: int = 16) -> None:
    """Which kernels the device's time of `work` goes to, and how long the device waits."""
    if not torch.cuda.is_available():
        return
    synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        begun = time.perf_counter()
        work()
        synchronize()
        took = 1000 * (time.perf_counter() - begun)
    found: dict[str, tuple[float, int]] = {}
    for event in profile.events() or []:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent, calls = found.get(event.name, (0.0, 0))
            found[event.name] = (spent + event.device_time / 1000, calls + 1)
    busy = sum(spent for spent, _ in found.values())
    print(f"{title}: {took:.1f} ms, of which kernels {busy:.1f} ms")
    for name, (spent, calls) in sorted(found.items(), key=lambda item: -item[1][0])[:most]:
        print(f"  {spent:8.2f} ms {calls:6}  {name[:110]}")
    sys.stdout.flush()


class Clock:
    """Tokens and seconds of the measured steps, in blocks; `step` is called after every step.

    The device is waited for at the ends of blocks only, so that a peer may run ahead.
    """

    def __init__(self, steps: int, seconds: float, warm_up: int = WARM_UP) -> None:
        self.total = warm_up + steps
        self.how = ""
        ends = [warm_up + round(steps * block / BLOCKS) for block in range(BLOCKS + 1)]
        self._ends = sorted(set(ends))
        self._limit = time.perf_counter() + seconds
        self._done = self._tokens = 0
        self._marks: list[tuple[float, int]] = []

    def step(self, tokens: int) -> bool:
        """Whether to go on."""
        self._done += 1
        self._tokens += tokens
        late = time.perf_counter() > self._limit
        if self._done in self._ends or (late and self._done >= self._ends[0]):
            synchronize()
            self._marks.append((time.perf_counter(), self._tokens))
        enough = self._done >= self.total or (late and len(self._marks) > 1)
        return not enough

    def result(self, parameters: int) -> dict[str, Any]:
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if not pairs:
            raise TimeoutError(f"{self._done} steps in its time, none of them measured")
        rates = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)
        rate = rates[len(rates) // 2]
        found = {"tok/s": rate, "slowest": rates[0], "fastest": rates[-1]}
        found |= {"MFU": 6 * parameters * rate / MATRIX_RATE, "GB": peak_gb()}
        found |= {"reserved GB": reserved_gb()}
        steps = self._done - self._ends[0]
        seconds = self._marks[-1][0] - self._marks[0][0]
        return found | {"steps": steps, "ms/step": 1000 * seconds / max(1, steps)}


# Models and rows.


def random_model(config: Any, dtype: torch.dtype, attention: str) -> Any:
    """Made on the device, where drawing billions of numbers takes no time."""
    torch.manual_seed(0)
    with device_of():
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        )


class Source:
    """Models of one size for one peer after the other; weights are real where there are some."""

    def __init__(self, size: str) -> None:
        self.size = size
        self.tokenizer, self._weights, self._config = _smollm2()
        self.real = size == "135M" and self._weights is not None

    def loaded(self) -> LoadedModel:
        """As msft loads it: fp32."""
        return LoadedModel(self.plain(torch.float32, "msft"), self.tokenizer, self.size)

    def plain(self, dtype: torch.dtype, attention: str) -> Any:
        """The same for a peer."""
        model = random_model(self.config(), dtype, attention)
        if self.real:
            model.load_state_dict(self._weights, strict=False)
            model.tie_weights()
        return model

    def config(self) -> Any:
        return transformers.AutoConfig.for_model(
            **(self._config if self.real else SHAPES[self.size])
        )


_kept: list[tuple[Any, Any, dict[str, Any]]] = []


def _smollm2() -> tuple[Any, dict[str, torch.Tensor] | None, dict[str, Any]]:
    """Tokenizer, weights on the host and config of SmolLM2-135M, read once."""
    if not _kept:
        try:
            loaded = load_model("smollm2-135m", torch.device("cpu"))
            config = loaded.model.config.to_dict()
            for key in ("_attn_implementation", "attn_implementation", "dtype", "architectures"):
                config.pop(key, None)
            weights = {name: p.detach() for name, p in loaded.model.state_dict().items()}
            _kept.append((loaded.tokenizer, weights, config))
        except Exception as error:
            print(f"no SmolLM2-135M here ({error}); random weights and one token per byte")
            _kept.append((load_model("tiny", torch.device("cpu")).tokenizer, None, {}))
    return _kept[0]


def recipe_of(file: str, data: str, overrides: Sequence[str] = ()) -> Recipe:
    """A shipped recipe. Speeds are of tokens that are computed, whatever the recipe counts."""
    counted = ["evaluation_tokens=computed", "options_by_method={}"]
    return load_recipe(ROOT / "recipes" / file, [f"data_dir={data}", *counted, *overrides])


def corpus_of(recipe: Recipe, tokenizer: Any, config: Any) -> Corpus:
    return load_corpus(recipe, tokenizer, getattr(config, "max_position_embeddings", None))


def engine_for(recipe: Recipe, corpus: Corpus, loaded: LoadedModel) -> Any:
    return engine_over(loaded, True, recipe, corpus, device_of())


def evaluator_for(recipe: Recipe, corpus: Corpus, loaded: LoadedModel, engine: Any) -> Evaluator:
    """Scores of what the engine holds."""
    return Evaluator(corpus.tasks(recipe), engine.predictor(), loaded.tokenizer)


def with_limits(recipe: Recipe, limits: dict[str, int], other: int) -> Recipe:
    """The recipe with `max_new_tokens` of each sub-dataset set."""
    specs = [replace(s, max_new_tokens=limits.get(s.name, other)) for s in recipe.datasets]
    return replace(recipe, datasets=specs)


@dataclass(frozen=True)
class Rows:
    """Training rows in the order in which all peers see them."""

    places: list[tuple[str, int]]
    encoded: list[Encoded]

    def batch(self, number: int, size: int) -> range:
        """The places of a batch; after the last row comes the first one again."""
        start = number * size % max(1, len(self.places) - size + 1)
        return range(start, start + size)


def training_rows(corpus: Corpus) -> Rows:
    places = [(n, i) for n, d in corpus.datasets.items() for i in range(len(d.train.rows))]
    Random(0).shuffle(places)
    return Rows(places, [corpus.datasets[n].train.rows[i] for n, i in places])


# Attention for peers: what flash-attn would give them, from torch itself.

VARLEN = "bench_varlen"


def _varlen(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: Any = None, **how: Any) -> Any:
    """Packed rows by the boundaries that TRL and transformers pass to flash attention."""
    bounds, longest = how["cu_seq_lens_q"], int(how["max_length_q"])
    if not q.is_cuda:  # only to try the scripts
        cuts = bounds.diff().tolist()
        parts = zip(*(t.split(cuts, 2) for t in (q, k, v)), strict=True)
        options = {"is_causal": True, "scale": scaling, "enable_gqa": True}
        attend = torch.nn.functional.scaled_dot_product_attention
        return torch.cat([attend(*p, **options) for p in parts], 2).transpose(1, 2), None
    from torch.nn.attention.varlen import varlen_attn

    half = v.dtype if v.dtype in (torch.bfloat16, torch.float16) else torch.bfloat16
    q, k, v = (t[0].transpose(0, 1).to(half).contiguous() for t in (q, k, v))
    options: dict[str, Any] = {"scale": scaling}
    if q.shape[1] != k.shape[1] and "enable_gqa" in inspect.signature(varlen_attn).parameters:
        options["enable_gqa"] = True
    ends = (bounds, bounds, longest, longest)
    return varlen_attn(q, k, v, *ends, window_size=(-1, 0), **options)[None], None


transformers.AttentionInterface.register(VARLEN, _varlen)


@contextmanager
def unpatched(model: Any) -> Iterator[None]:
    """Undo what Liger changes in the module of the model's class: later peers must not have it."""
    module = sys.modules[type(model).__module__]
    before = dict(vars(module))
    try:
        yield
    finally:
        vars(module).update(before)
