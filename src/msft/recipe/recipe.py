"""The recipe: everything a run is asked to do, checked before anything starts.

A recipe is a value. Building one, from a file or from Python, checks every key against its type,
its bounds and the others; a mistake is a `RecipeError` with the file, the line, what was found,
what was expected and what to do.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import SkipValidation

from msft.errors import OptionError, Place, RecipeError, explaining
from msft.files import expanded
from msft.recipe.agreements import check_methods, contradictions, remarks
from msft.recipe.dataset import SPLITS, DatasetSpec, names_files, specs_of
from msft.recipe.foreign_keys import ALIASES, FOREIGN, meant_key, unknown_key
from msft.recipe.mistakes import Mistakes, placed
from msft.recipe.values import (
    ALL_LINEAR,
    Layers,
    Template,
    Text,
    Trackers,
    is_template,
    options_like,
    plain_option,
    template_in,
)
from msft.recipe.yaml import Places, dump, place_of, read_recipe
from msft.search.curves import SELECTION, MeanRule, PeakRule, SelectionSplit
from msft.search.methods import PreparedMethod, prepare
from msft.search.options import Ge, Gt, Interval, checked, refuse_unknown
from msft.search.rollout import LEAN, DiskPolicy, ticks_of
from msft.text import shown

_STAND_INS: dict[str, Any] = {
    "model_name_or_path": "tiny",
    "datasets": [{"name": "x", "train": "x.jsonl", "validation_fraction": 0.1}],
    "method": "sft",
}
"""What stands in for a needed key that an unknown one probably means, or that is missing."""


@dataclass(frozen=True)
class Recipe:
    """A run. Defaults are the paper's; see docs for every key.

    datasets: dicts are taken too, in any sequence; a tuple of specs once it is built.
    compute_budget: epochs of one roll-out (msft, continual).
    num_train_epochs: epochs of the other methods.
    train_batch_size: samples of one optimizer step over all devices.
    max_grad_norm: 0 turns clipping off, as in the paper.
    gradient_checkpointing: auto uses it only if a batch does not fit into memory without it.
    optim: adamw_bf16 keeps the moments in bf16, for models whose fp32 moments do not fit.
    ema_decay: score, keep and return a moving average of the weights over steps.
    torch_compile: fuse a layer's kernels on a GPU. auto does so in runs that are long enough to
        repay the compile time, and never with `deterministic`.
    micro_batch_tokens: the most tokens of one forward pass; by itself if None.
    engine: fast packs rows and has kernels of its own; simple runs any decoder-only model of
        transformers; auto is the fast one where it suits the model.
    use_peft: train a LoRA adapter instead of all weights; the keys after it say how (as in TRL).
    merge_adapter: the result is a plain model folder, not an adapter.
    export_dtype: of the result's weights; auto: what the base was published in.
    lanes: parts of a batch whose gradients are added up; auto: processes at the first start.
    sharding: what several processes divide between them: the optimizer, or the weights too.
    ddp_timeout: seconds that one of several processes waits for the others in a step.
    rendezvous_timeout: the same, until all have started. torchrun's own wait comes before it.
    saving_timeout: the same, while another one loads, compiles, evaluates or saves.
    chat_template: of conversations, instead of the tokenizer's: a .jinja file, or its text.
    completion_only_loss: false trains on prompts too; scores are taken on answers all the same.
    num_fewshot: for benchmarks (None: 5); own data has none unless its sub-dataset says so.
    data_dir: a folder with a folder of each benchmark; without it they come from the hub.
    selection_split: the rows that choose checkpoints; test is the paper's protocol, which selects
        and reports on the same rows, so that its scores are optimistic.
    samples: validation rows per sub-dataset that are kept with their answers; 0 keeps none.
    report_to: trackers that are told of the run: tensorboard, wandb, trackio, mlflow, or a list.
    validation_loss: measure the loss of the references too, beside scores that are no loss.
    push_to_hub: upload the result as `hub_model_id` (None: the name of the run folder).
    evaluation_tokens: those computed, or every row's in full, as the paper counts FLOPs.
    options_by_method: of methods that are run beside this one, and of this one where
        `method_options` does not say otherwise.
    disk_policy: what of the candidates is on disk: as little as a crash allows, or all that the
        paper's Algorithm 4 has there.
    peaks: always complete once the recipe is built, but for a `by` that is `score`.
    notes: what a user should be told about how the recipe was read.
    folder: where relative data files are looked for.
    places: where each key stands, for messages.
    """

    model_name_or_path: Text
    datasets: Annotated[tuple[DatasetSpec, ...] | Any, SkipValidation]
    method: Text = "msft"
    output_dir: Text | None = None
    seed: Annotated[int, Interval(ge=0, le=2**63 - 1)] = 20
    compute_budget: Annotated[float, Gt(0)] = 3
    num_train_epochs: Annotated[float, Gt(0)] = 10
    evals_per_epoch: Annotated[int, Interval(ge=1, le=1000)] = 4
    learning_rate: Annotated[float, Gt(0)] = 1e-5
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Ge(0)] = 0
    train_batch_size: Annotated[int, Ge(1)] = 64
    max_length: Annotated[int, Ge(2)] = 512
    weight_decay: Annotated[float, Ge(0)] = 0.0
    max_grad_norm: Annotated[float, Ge(0)] = 0.0
    bf16: Literal["auto"] | bool = "auto"
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    optim: Literal["adamw", "adamw_bf16"] = "adamw"
    ema_decay: Annotated[float | None, Interval(gt=0, lt=1)] = None
    torch_compile: Literal["auto"] | bool = "auto"
    micro_batch_tokens: Annotated[int | None, Ge(1)] = None
    deterministic: bool = False
    engine: Literal["auto", "fast", "simple"] = "auto"
    use_peft: bool = False
    lora_r: Annotated[int, Interval(ge=1, le=4096)] = 16
    lora_alpha: Annotated[int, Ge(1)] = 32
    lora_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    lora_target_modules: Layers = ALL_LINEAR
    load_in_4bit: bool = False
    use_dora: bool = False
    use_rslora: bool = False
    merge_adapter: bool = False
    export_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    lanes: Literal["auto"] | Annotated[int, Ge(1)] = "auto"
    sharding: Literal["auto", "optimizer", "full"] = "auto"
    ddp_timeout: Annotated[int, Ge(1)] = 600
    rendezvous_timeout: Annotated[int, Ge(1)] = 60
    saving_timeout: Annotated[int, Ge(1)] = 7200
    chat_template: Template = None
    completion_only_loss: bool = True
    num_fewshot: Annotated[int | None, Ge(0)] = None
    prompt_style: Literal["letters", "text"] = "letters"
    choice_norm: Literal["chars", "tokens", "none"] = "chars"
    mean: MeanRule = "macro"
    selection_split: SelectionSplit = SELECTION
    report_split: Literal["test", "selection"] = "test"
    score_test: Literal["best", "rollbacks", "every"] = "best"
    evaluation_tokens: Literal["computed", "every_row"] = "computed"
    validation_loss: bool = False
    samples: Annotated[int, Interval(ge=0, le=100)] = 3
    disk_policy: DiskPolicy = LEAN
    report_to: Trackers = "none"
    push_to_hub: bool = False
    hub_model_id: Text | None = None
    hub_private_repo: bool = True
    trust_remote_code: bool = False
    data_dir: Text | None = None
    peaks: Annotated[Mapping[str, Any], options_like("such as {smooth: 1}")] = field(
        default_factory=dict
    )
    method_options: Annotated[Mapping[str, Any], options_like("such as {patience: 3}")] = field(
        default_factory=dict
    )
    options_by_method: Annotated[
        Mapping[str, Any], options_like("of methods, such as {ies: {track_excluded: false}}")
    ] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)
    folder: Path | None = field(default=None, compare=False)
    places: Mapping[Place, str] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def from_mapping(
        mapping: Any,
        where: str = "",
        places: Places | None = None,
        folder: Path | None = None,
    ) -> "Recipe":
        """A recipe from keys and values; one RecipeError says everything that is wrong with them.

        places: where a key stands (else: in `where`).
        """
        known, mistakes = dict(places or {}), Mistakes()
        if not isinstance(mapping, Mapping):
            raise placed(
                RecipeError(
                    f"found {shown(mapping)}; expected keys and values such as `method: msft`"
                ),
                where,
                known,
            )
        keys, notes = _canonical(mapping, known, mistakes)
        ours, of_datasets = recipe_keys(), [key.name for key in fields(DatasetSpec)]
        for key in [key for key in keys if key not in ours]:
            del keys[key]
            mistakes.note(unknown_key(key, ours, FOREIGN, of_datasets, inside=False))
            meant = meant_key(key, FOREIGN, _STAND_INS)
            if meant:
                keys.setdefault(meant, _STAND_INS[meant])
        if "model_name_or_path" not in keys:
            keys["model_name_or_path"] = _STAND_INS["model_name_or_path"]
            mistakes.note(
                RecipeError(
                    "model_name_or_path is missing; add a hub name, a folder, or `tiny` for the "
                    "embedded model",
                    ("model_name_or_path",),
                )
            )
        try:
            with mistakes.noting():
                made = Recipe(**{"datasets": (), **keys}, folder=folder, places=known)
            mistakes.refuse()
        except RecipeError as error:
            raise placed(error, where, known) from error
        object.__setattr__(made, "notes", (*notes, *remarks(made, keys, known)))
        return made

    def __post_init__(self) -> None:
        mistakes = Mistakes()
        mistakes.fit_fields(self, "")
        object.__setattr__(self, "datasets", specs_of(self.datasets, recipe_keys(), mistakes))
        self._fit_options(mistakes)
        for error in contradictions(self):
            mistakes.note(error)
        check_methods(self, mistakes)
        mistakes.refuse()

    def _fit_options(self, mistakes: Mistakes) -> None:
        """The keys that hold options: `peaks` is completed, the others are copied."""

        def wrong(error: OptionError) -> RecipeError:
            return RecipeError(str(error), ("peaks", *error.place), error.because)

        def rule(options: dict[str, Any]) -> PeakRule:
            return PeakRule(**checked(PeakRule, options, "peaks"))

        def plain(options: Mapping[str, Any], *block: str) -> dict[str, Any]:
            kept = dict[str, Any]()
            for key, value in options.items():
                with mistakes.noting(*block):
                    kept[key] = plain_option(value, key, ".".join(block))
            return kept

        peaks = mistakes.made(self.peaks, rule, wrong) or PeakRule()
        object.__setattr__(self, "peaks", peaks.recorded())
        object.__setattr__(self, "method_options", plain(self.method_options, "method_options"))
        by_method = dict[str, dict[str, Any]]()
        for name, options in self.options_by_method.items():
            with mistakes.noting():
                if not isinstance(options, Mapping):
                    raise RecipeError(
                        f"options_by_method.{name} is {shown(options)}; expected options such as "
                        "{patience: 3}",
                        ("options_by_method", name),
                    )
                by_method[name] = plain(options, "options_by_method", name)
        object.__setattr__(self, "options_by_method", by_method)

    @property
    def peak_rule(self) -> PeakRule:
        return PeakRule(**self.peaks)

    def options_of(self, method: str) -> dict[str, Any]:
        """What the recipe says for a method; `method_options` are of its own."""
        own = self.method_options if method == self.method else {}
        return {**self.options_by_method.get(method, {}), **own}

    def prepared(self) -> PreparedMethod:
        """The method with its options, checked."""
        budget = ticks_of(self.compute_budget, self.evals_per_epoch, "compute_budget")
        return prepare(self.method, self.options_of(self.method), budget, self.peak_rule)

    def fewshot(self, spec: DatasetSpec) -> int:
        """Exemplars before each scored row of a sub-dataset; a loss is measured without any."""
        if spec.metric == "nll":
            return 0
        if spec.num_fewshot is not None:
            return spec.num_fewshot
        if spec.benchmark is None:
            return 0
        return 5 if self.num_fewshot is None else self.num_fewshot

    def model(self) -> str:
        """The model's file or folder, from here or beside the recipe; else it is a name."""
        written = self.model_name_or_path
        path = expanded(written)
        found = self._here_or_beside(path)
        if found is not None:
            return str(found)
        if path.is_absolute() or path.suffix == ".gguf" or written.startswith("."):
            raise RecipeError(
                f"model_name_or_path is {shown(written)}, which does not exist; "
                "expected a folder, a .gguf file, or a hub name such as owner/name",
                ("model_name_or_path",),
            )
        return written

    def data_folder(self) -> Path:
        """The folder `data_dir`, from here or beside the recipe."""
        assert self.data_dir is not None
        found = self._here_or_beside(expanded(self.data_dir))
        if found is None or not found.is_dir():
            raise RecipeError(
                f"data_dir is {shown(self.data_dir)}, and there is no such folder; expected one "
                "with a folder for each benchmark, or leave it out to read the hub",
                ("data_dir",),
            )
        return found

    def template(self) -> str | None:
        """The chat template's text, from its file if it is one; None: the tokenizer's."""
        written = self.chat_template
        if written is None or is_template(written):
            return written
        found = self._here_or_beside(expanded(written))
        at = place_of(("chat_template",), "", self.places)
        if found is None or not found.is_file():
            raise RecipeError(
                f"{at}chat_template is {shown(written)}, and there is no such file; expected a "
                ".jinja file, or the text of a template, which has {{ and {% in it",
                ("chat_template",),
            )
        return template_in(found, at)

    def _here_or_beside(self, path: Path) -> Path | None:
        places = (Path(), *([self.folder] if self.folder else []))
        return next((place / path for place in places if (place / path).exists()), None)

    def to_yaml(self) -> str:
        """Every key as resolved; loads back to an equal recipe, rows in memory apart."""
        keys: dict[str, Any] = {key: getattr(self, key) for key in recipe_keys()}
        specs = [{f.name: getattr(s, f.name) for f in fields(s)} for s in keys.pop("datasets")]
        for spec in specs:
            for split in SPLITS:
                if spec[split] is not None and not names_files(spec[split]):
                    spec[split] = f"<{len(spec[split])} rows in memory>"
                elif isinstance(spec[split], tuple):
                    spec[split] = list(spec[split])
        return dump({**keys, "datasets": specs})


@explaining()
def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a YAML file. overrides: `key=value`, as with --set."""
    file = Path(path)
    mapping, places = read_recipe(file, overrides)
    return Recipe.from_mapping(mapping, str(file), places, file.parent)


def recipe_keys() -> list[str]:
    """Every key of a recipe, in the order in which it is written."""
    return [f.name for f in fields(Recipe) if f.compare]


def _canonical(
    mapping: Mapping[str, Any], places: Places, mistakes: Mistakes
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keys with aliases replaced, in `places` too, and a note for each."""
    keys: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in mapping.items():
        target = ALIASES.get(key, key)
        at = place_of((key,), "", places)
        if target is None:
            batch = mapping.get("train_batch_size", Recipe.train_batch_size)
            notes.append(
                f"{at}{key} is ignored: msft chooses micro-batches by itself; a step has "
                f"train_batch_size ({shown(batch)}) samples"
            )
            continue
        if target != key:
            notes.append(f"{at}{key} was read as {target}")
        if target in keys or (target != key and target in mapping):
            mistakes.note(
                RecipeError(f"{key} means {target}, which is given too; keep one", (key,))
            )
            continue
        keys[target] = value
        if (key,) in places:
            places[(target,)] = places[(key,)]
    return keys, tuple(notes)


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """A LoRA adapter as a recipe asks for it.

    targets: names of layers, or None for every linear layer but the head.
    four_bit: the frozen weights are held in NF4 (QLoRA).
    merged: the result is a plain model folder.
    seed: of the first matrices.
    """

    r: int
    alpha: int
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None
    four_bit: bool = False
    dora: bool = False
    rslora: bool = False
    merged: bool = False
    seed: int = 0


def adapter_of(recipe: "Recipe") -> AdapterOptions | None:
    """The adapter that a recipe asks for; None: all weights are trained."""
    if not recipe.use_peft:
        return None
    named = recipe.lora_target_modules
    return AdapterOptions(
        r=recipe.lora_r,
        alpha=recipe.lora_alpha,
        dropout=recipe.lora_dropout,
        targets=None if named == ALL_LINEAR else tuple(named),
        four_bit=recipe.load_in_4bit,
        dora=recipe.use_dora,
        rslora=recipe.use_rslora,
        merged=recipe.merge_adapter,
        seed=recipe.seed,
    )


def packages_of(recipe: "Recipe") -> tuple[str, ...]:
    """Packages that the adapter of a recipe depends on."""
    if not recipe.use_peft:
        return ()
    return ("peft", "bitsandbytes") if recipe.load_in_4bit else ("peft",)


def with_rows(recipe: Recipe, datasets: Any) -> Recipe:
    """The recipe with these rows in place of the files of its sub-datasets; names that it does not
    have are added at the end.

    datasets: by name, the rows of each split: lists of dicts, a `datasets.Dataset`, or files.
    """
    if not isinstance(datasets, Mapping):
        raise RecipeError(
            f"datasets is {shown(datasets)}; expected names with their rows, such as "
            "{'mine': {'train': rows, 'validation': rows}}"
        )
    specs = {spec.name: spec for spec in recipe.datasets}
    for name, splits in datasets.items():
        if not isinstance(splits, Mapping):
            raise RecipeError(
                f"datasets[{name!r}] is {shown(splits)}; expected its splits, such as "
                "{'train': rows, 'validation': rows}"
            )
        try:
            refuse_unknown(splits, SPLITS, f"split of datasets[{name!r}]:")
        except OptionError as error:
            raise RecipeError(str(error)) from error
        keys: dict[str, Any] = dict(splits)
        if "train" in keys:
            keys["path"] = None
        if "validation" in keys:
            keys["validation_fraction"] = None
        known = specs.get(name)
        specs[name] = replace(known, **keys) if known else DatasetSpec(name=name, **keys)
    return replace(recipe, datasets=list(specs.values()))
