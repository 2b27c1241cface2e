"""The rows of the study: mixtures × methods × settings × seeds, by name; no torch.

A row is MIXTURE-VARIANT-SEED, and may name settings before its seed: `clean-sft-lr1e-4-e5-20` has
the learning rate 1e-4 and 5 epochs. SETTINGS says what the letters mean. `70..79` are ten seeds.
A list's name stands for all of its rows (LISTS).
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msft.recipe.recipe import Recipe, load_recipe

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Mixture:
    """What is trained on.

    recipe: a file in recipes/, or one in the data folder if it has a folder in its name.
    settings: set in it before all others, as with --set.
    first: only so many of its sub-datasets; 0 is all.
    """

    recipe: str
    settings: tuple[str, ...] = ()
    first: int = 0

    def file(self, data: Path) -> Path:
        inside = data if "/" in self.recipe else ROOT / "recipes"
        return inside / f"{self.recipe}.yaml"


_AS_LEARNABLE = (
    "model_name_or_path=smollm2-135m", "learning_rate=1e-4", "num_train_epochs=5", "num_fewshot=0",
    "prompt_style=text", "choice_norm=chars", "report_split=test", "evaluation_tokens=computed",
    "options_by_method={}",
)  # fmt: skip
"""The settings of recipes/smollm2-learnable.yaml, for recipes of the paper."""
_ALL_ROWS = ("datasets.medmcqa.validation_rows=null", "datasets.medmcqa.test_rows=null")
_PAPER = ("report_split=test", "evals_per_epoch=2")
_TEN = (
    *("commonsenseqa", "openbookqa", "aqua_rat", "gsm8k", "sciq", "arc_easy", "hellaswag"),
    *("winogrande", "boolq", "medmcqa"),
)
_ALL_TEST_ROWS = ("report_split=test", *(f"datasets.{name}.test_rows=null" for name in _TEN))
_LORA = ("use_peft=true", "lora_r=16", "lora_alpha=32", "learning_rate=1e-4")
MIXTURES = {
    "clean": Mixture("smollm2-learnable"),
    "noisy": Mixture("smollm2-learnable-noisy"),
    "gemma": Mixture("smollm2-learnable"),
    "five": Mixture("smollm2-learnable", first=5),
    "fifteen": Mixture("smollm2-fifteen"),
    "medmcqa": Mixture("medmcqa-groups", (*_AS_LEARNABLE, *_ALL_ROWS)),
    "qwen": Mixture("ten-tasks", _PAPER),
    "qwenlora": Mixture("ten-tasks", (*_PAPER, *_LORA)),
    "qwenpaper": Mixture("ten-tasks", _ALL_TEST_ROWS),
    "bigbench": Mixture("bigbench/recipe"),
}
"""By the first word of a row. `gemma` and those with `qwen` need `--set model_name_or_path=…`, and
`bigbench` the rows of bench/bigbench_rows.py in the data folder."""
KINDS = ("span", "peaks", "last", "all", "random")
"""Averages of one roll-out; the first is the result."""
SURE = "method_options.exclude={confidence: 0.95}"
VARIANTS: dict[str, tuple[str, ...]] = {
    "sft": ("method=sft",),
    "soup": ("method=soup", f"method_options.of=[{', '.join(KINDS)}]"),
    "sft-linear": ("method=sft", "lr_scheduler_type=linear"),
    "sft-cosine": ("method=sft", "lr_scheduler_type=cosine"),
    "sft-cosine-fp": ("method=sft", "lr_scheduler_type=cosine", "fp8=true"),
    "sft-ema": ("method=sft", "ema_decay=DECAY"),
    "msft": ("method=msft",),
    "msft-sure": ("method=msft", SURE),
    "msft-sure-ema": ("method=msft", SURE, "ema_decay=DECAY"),
    "msft-one": ("method=msft", "compute_budget=1"),
    "sro": ("method=sro",),
    "soft-sro": ("method=soft_sro",),
    "ies": ("method=ies",),
    "dynamix": ("method=dynamix",),
    "continual": ("method=continual",),
}
SETTINGS = {
    "lr": "learning_rate",
    "e": "num_train_epochs",
    "c": "compute_budget",
    "m": "method_options.max_epochs",
    "d": "ema_decay",
    "r": "train_rows",
}
"""Letters in a row's name; `r` is of every sub-dataset."""
SETTING = rf"({'|'.join(SETTINGS)})([\d.]+(?:e-\d+)?)"
ROW = re.compile(
    rf"(?P<mixture>{'|'.join(MIXTURES)})-(?P<variant>[a-z]+(?:-[a-z]+)*)"
    rf"(?P<more>(?:-{SETTING})*)-(?P<seed>\d+)"
)
RATES, EPOCHS, DECAYS = ("2e-5", "5e-5", "1e-4"), ("3", "5", "10"), ("0.98", "0.99", "0.995")
TUNING, CONFIRMING, PUBLISHED = (20, 30, 40), range(70, 75), (70, 71, 72)


@dataclass(frozen=True)
class Row:
    """One run of the study."""

    name: str
    mixture: str
    variant: str
    seed: int
    settings: dict[str, str]

    @staticmethod
    def of(name: str) -> "Row":
        found = ROW.fullmatch(name)
        if found is None or found["variant"] not in VARIANTS:
            sys.exit(f"{name}: expected MIXTURE-VARIANT-SEED with {[*MIXTURES]}, {[*VARIANTS]}")
        settings = dict(re.findall(f"-{SETTING}", found["more"]))
        return Row(name, found["mixture"], found["variant"], int(found["seed"]), settings)

    @property
    def label(self) -> str:
        """The variant with its settings: what is the same in all seeds."""
        return "".join([self.variant, *(f"-{key}{value}" for key, value in self.settings.items())])

    def overrides(self, decay: str) -> list[str]:
        decay = self.settings.get("d", decay)
        found = [each.replace("DECAY", decay) for each in VARIANTS[self.variant]]
        for setting, value in self.settings.items():
            if setting not in "dr":  # a decay is the variant's, rows are the sub-datasets'
                found.append(f"{SETTINGS[setting]}={value}")
        return [f"seed={self.seed}", "ema_decay=null", *found]

    def recipe(self, data: Path, decay: str, asked: Sequence[str]) -> Recipe:
        """The recipe that is trained.

        asked: `--set` of the command; the row's own settings stand above them.
        """
        mixture = MIXTURES[self.mixture]
        overrides = [*mixture.settings, *asked, f"data_dir={data}", *self.overrides(decay)]
        recipe = load_recipe(mixture.file(data), overrides)
        specs = recipe.datasets[: mixture.first or None]
        if rows := self.settings.get("r"):
            specs = tuple(replace(spec, train_rows=int(rows)) for spec in specs)
        return replace(recipe, datasets=specs)


def _tuning() -> list[str]:
    decayed = ("sft-linear", "sft-cosine")
    found = [f"clean-soup-lr{rate}-{seed}" for seed in TUNING for rate in RATES]
    found += [
        f"clean-{v}-lr{r}-e{e}-{s}" for s in TUNING for v in decayed for r in RATES for e in EPOCHS
    ]
    found += [f"clean-sft-ema-lr{r}-d{d}-{s}" for s in TUNING for r in RATES for d in DECAYS]
    return found + [f"clean-msft-sure-ema-{seed}" for seed in TUNING]


def _seeded(mixture: str, *labels: str, seeds: Sequence[int] = PUBLISHED) -> list[str]:
    return [f"{mixture}-{label}-{seed}" for seed in seeds for label in labels]


_TUNED = ("sft-cosine-lr1e-4-e3", "soup-lr1e-4-e5", "sft-ema-lr1e-4-e5-d0.99")
"""What was chosen on the tuning seeds, by the names that the tables know."""
_SURE_EMA = "msft-sure-ema-lr1e-4-d0.99"
LISTS = {
    "tune": _tuning(),
    "clean": [
        *_seeded("clean", _TUNED[1], seeds=range(70, 80)),
        *_seeded(
            *("clean", "sft-linear-lr1e-4-e3", _TUNED[0], _TUNED[2]),
            *("msft-lr1e-4", "msft-sure-lr1e-4", _SURE_EMA),
            seeds=CONFIRMING,
        ),
        *_seeded("clean", "msft-one", "sro", "soft-sro", "ies", "dynamix", "continual"),
    ],
    "noisy": _seeded("noisy", *_TUNED, "msft-lr1e-4", _SURE_EMA, seeds=CONFIRMING),
    "noisy-more": _seeded("noisy", "msft-sure-lr1e-4", "msft-one"),
    "budgets": _seeded("clean", "msft-c2", "msft-c5"),
    "five": _seeded("five", *_TUNED, "msft-lr1e-4", _SURE_EMA),
    "fifteen": _seeded("fifteen", *_TUNED, "msft-lr1e-4", _SURE_EMA),
    "medmcqa": _seeded("medmcqa", *_TUNED, "msft-lr1e-4", _SURE_EMA),
    "qwen": _seeded(
        *("qwen", "sft-cosine-e3", "soup-e5", "sft-ema-e5-d0.99", "msft", "msft-sure-ema-d0.99")
    ),
    "qwenlora": _seeded(
        *("qwenlora", "sft-cosine-e3-r600", "soup-e3-r600", "sft-ema-e3-d0.99-r600"),
        *("msft-c2-r600", "msft-sure-ema-c2-d0.99-r600"),
    ),
    "qwenfp": _seeded("qwenlora", "sft-cosine-fp-e3-r600"),
    "qwenpaper": _seeded("qwenpaper", "sft-e10", "msft", "sft-cosine-e3"),
    "gemma": _seeded(
        *("gemma", "sft-cosine-lr5e-5-e3", "soup-lr5e-5", "sft-ema-lr5e-5-d0.99"),
        *("msft-lr5e-5", "msft-sure-ema-lr5e-5-d0.99"),
    ),
    "bigbench": _seeded(
        *("bigbench", *_TUNED, "sft-cosine-lr1e-4-e5", "sft-cosine-lr1e-4-e10"),
        *(_SURE_EMA, "msft-lr1e-4-m30"),
    ),
}
"""Rows of the pages, seed by seed, so that what is cut off is even."""


def rows_of(written: str) -> list[Row]:
    """The rows that names with commas between them stand for, each once."""
    named = [name for item in written.split(",") for name in LISTS.get(item) or _seeds(item)]
    return [Row.of(name) for name in dict.fromkeys(named)]


def _seeds(item: str) -> Iterator[str]:
    several = re.fullmatch(r"(.*-)(\d+)\.\.(\d+)", item)
    if several is None:
        yield item
    else:
        first, last = int(several[2]), int(several[3])
        yield from (f"{several[1]}{seed}" for seed in range(first, last + 1))
