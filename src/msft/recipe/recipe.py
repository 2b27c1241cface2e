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

from msft.checks import (
    Above,
    AtLeast,
    Between,
    Inside,
    Within,
    fit_fields,
    option_names,
    recipe_place,
    refuse_unknown,
)
from msft.errors import OptionError, Place, RecipeError
from msft.files import expanded
from msft.recipe.adapters import ALL_LINEAR, low_rate, refuse_wrong_adapter, target_names
from msft.recipe.agreements import (
    refuse_no_selection,
    refuse_wrong_lanes,
    refuse_wrong_method,
    refuse_wrong_names,
    refuse_wrong_schedule,
)
from msft.recipe.blocks import (
    is_template,
    options_of_methods,
    peak_options,
    plain_options,
    refuse_no_choices,
    refuse_wrong_template,
    template_in,
    tracker_names,
)
from msft.recipe.dataset import DatasetSpec, names_files, specs_of
from msft.recipe.foreign_keys import FOREIGN, refuse_keys
from msft.recipe.mistakes import all_at_once
from msft.recipe.notes import canonical, only_one, unused_length, unusual
from msft.recipe.yaml import dump, place_of, read_recipe
from msft.search.methods import PreparedMethod, prepare
from msft.search.peaks import PeakRule
from msft.search.rollout import LEAN, DiskPolicy, ticks_of
from msft.search.scores import SELECTION, MeanRule, SelectionSplit
from msft.system_errors import explaining
from msft.text import shown

_NOT_KEYS = ("notes", "folder", "places")


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

    model_name_or_path: str
    datasets: tuple[DatasetSpec, ...] | Any
    method: str = "msft"
    output_dir: str | None = None
    seed: Annotated[int, Between(0, 2**63 - 1)] = 20
    compute_budget: Annotated[float, Above(0)] = 3
    num_train_epochs: Annotated[float, Above(0)] = 10
    evals_per_epoch: Annotated[int, Between(1, 1000)] = 4
    learning_rate: Annotated[float, Above(0)] = 1e-5
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, AtLeast(0)] = 0
    train_batch_size: Annotated[int, AtLeast(1)] = 64
    max_length: Annotated[int, AtLeast(2)] = 512
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    max_grad_norm: Annotated[float, AtLeast(0)] = 0.0
    bf16: Literal["auto"] | bool = "auto"
    gradient_checkpointing: Literal["auto"] | bool = "auto"
    optim: Literal["adamw", "adamw_bf16"] = "adamw"
    ema_decay: Annotated[float | None, Inside(0, 1)] = None
    torch_compile: Literal["auto"] | bool = "auto"
    micro_batch_tokens: Annotated[int | None, AtLeast(1)] = None
    deterministic: bool = False
    engine: Literal["auto", "fast", "simple"] = "auto"
    use_peft: bool = False
    lora_r: Annotated[int, Between(1, 4096)] = 16
    lora_alpha: Annotated[int, AtLeast(1)] = 32
    lora_dropout: Annotated[float, Within(0, 1)] = 0.0
    lora_target_modules: str | Sequence[str] = ALL_LINEAR
    load_in_4bit: bool = False
    use_dora: bool = False
    use_rslora: bool = False
    merge_adapter: bool = False
    export_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    lanes: Annotated[Literal["auto"] | int, AtLeast(1)] = "auto"
    sharding: Literal["auto", "optimizer", "full"] = "auto"
    ddp_timeout: Annotated[int, AtLeast(1)] = 600
    rendezvous_timeout: Annotated[int, AtLeast(1)] = 60
    saving_timeout: Annotated[int, AtLeast(1)] = 7200
    chat_template: str | None = None
    completion_only_loss: bool = True
    num_fewshot: Annotated[int | None, AtLeast(0)] = None
    prompt_style: Literal["letters", "text"] = "letters"
    choice_norm: Literal["chars", "tokens", "none"] = "chars"
    mean: MeanRule = "macro"
    selection_split: SelectionSplit = SELECTION
    report_split: Literal["test", "selection"] = "test"
    score_test: Literal["best", "rollbacks", "every"] = "best"
    evaluation_tokens: Literal["computed", "every_row"] = "computed"
    validation_loss: bool = False
    samples: Annotated[int, Between(0, 100)] = 3
    disk_policy: DiskPolicy = LEAN
    report_to: str | Sequence[str] = "none"
    push_to_hub: bool = False
    hub_model_id: str | None = None
    hub_private_repo: bool = True
    trust_remote_code: bool = False
    data_dir: str | None = None
    peaks: Mapping[str, Any] = field(default_factory=dict)
    method_options: Mapping[str, Any] = field(default_factory=dict)
    options_by_method: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)
    folder: Path | None = field(default=None, compare=False)
    places: Mapping[Place, str] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def from_mapping(
        mapping: Any,
        where: str = "",
        places: Mapping[Place, str] | None = None,
        folder: Path | None = None,
    ) -> "Recipe":
        """A recipe from keys and values; one RecipeError says everything that is wrong with them.

        places: where a key stands (else: in `where`).
        """
        known = dict(places or {})

        def build(given: Mapping[str, Any]) -> Recipe:
            if not isinstance(given, Mapping):
                raise RecipeError(
                    f"found {shown(given)}; expected keys and values such as `method: msft`"
                )
            keys, notes = canonical(given, known, Recipe.train_batch_size)
            refuse_keys(keys, recipe_keys(), FOREIGN, option_names(DatasetSpec), inside=False)
            if "model_name_or_path" not in keys:
                raise RecipeError(
                    "model_name_or_path is missing; add a hub name, a folder, or `tiny` for the "
                    "embedded model",
                    ("model_name_or_path",),
                )
            made = Recipe(**{"datasets": (), **keys}, notes=notes, folder=folder, places=known)
            told = (*notes, *unused_length(made, keys, known), *only_one(made), *unusual(made))
            object.__setattr__(made, "notes", (*told, *low_rate(made)))
            return made

        return all_at_once(build, mapping, where, known)

    def __post_init__(self) -> None:
        object.__setattr__(self, "datasets", specs_of(self.datasets, recipe_keys()))
        options = ("method_options", "options_by_method")
        lists = ("report_to", "lora_target_modules")
        apart = ("datasets", "peaks", *options, *lists, "chat_template", *_NOT_KEYS)
        fit_fields(self, "", except_for=apart)
        refuse_wrong_template(self.chat_template)
        refuse_wrong_names(self)
        refuse_no_selection(self)
        object.__setattr__(self, "peaks", peak_options(self.peaks))
        refuse_no_choices(self.peak_rule, {s.name: s.metric for s in self.datasets})
        object.__setattr__(self, "method_options", plain_options(self.method_options))
        by_method = options_of_methods(self.options_by_method)
        object.__setattr__(self, "options_by_method", by_method)
        object.__setattr__(self, "report_to", tracker_names(self.report_to))
        object.__setattr__(self, "lora_target_modules", target_names(self.lora_target_modules))
        refuse_wrong_adapter(self)
        refuse_wrong_schedule(self)
        refuse_wrong_lanes(self)
        with recipe_place():
            refuse_wrong_method(self)

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
            for split in ("train", "validation", "test"):
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
    return [f.name for f in fields(Recipe) if f.name not in _NOT_KEYS]


SPLITS = ("train", "validation", "test")


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
