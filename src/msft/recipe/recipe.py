"""The recipe: everything a run is asked to do, checked before anything starts.

A recipe is a value. Building one, from a file or from Python, checks every key against its type,
its bounds and the others; a mistake is a `RecipeError` with the file, the line, what was found,
what was expected and what to do.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from math import ceil
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from pydantic import SkipValidation

from msft.errors import KeyPath, OptionError, RecipeError, explaining
from msft.files import expanded
from msft.recipe.dataset import SPLITS, DatasetSpec, names_files, specs_of, weight_in
from msft.recipe.foreign_keys import ALIASES, FOREIGN, meant_key, unknown_key
from msft.recipe.keys import (
    ALL_LINEAR,
    Layers,
    Template,
    Text,
    Trackers,
    WrongKeys,
    is_template,
    mistakes_of,
    options_like,
    plain_options,
    with_places,
)
from msft.recipe.templates import TEMPLATES
from msft.recipe.yaml import Places, dump, on_a_line, place_of, read_recipe
from msft.search.curves import SELECTION, TEST, MeanRule, PeakRule, SelectionSplit
from msft.search.feeds import Mixture
from msft.search.methods import (
    METHODS,
    ROLLING_BACK,
    STOPPING_EARLY,
    FirstRollout,
    PreparedMethod,
    Rehearsal,
    known_options,
    prepare,
    rehearse,
)
from msft.search.options import (
    Ge,
    Gt,
    Interval,
    fit_fields,
    made_of,
    refuse_unknown,
    ticks_of,
    without_wrong,
)
from msft.search.rollout import LEAN, DiskPolicy
from msft.text import listed, shown

_STAND_INS: dict[str, Any] = {
    "model_name_or_path": "tiny",
    "datasets": [{"name": "x", "train": "x.jsonl", "validation_fraction": 0.1}],
    "method": "sft",
}
"""Values for needed keys that are missing, or that an unknown key probably means."""

ADAPTER_KEYS = (
    *("use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
    *("load_in_4bit", "use_dora", "use_rslora"),
)
"""Keys that what is trained depends on."""
LOW_RATE = 5e-5
"""Adapters are usually trained at 1e-4 to 2e-4; below this they hardly move."""
LONGEST_TEMPLATE = 1_000_000
"""Characters of a chat template."""


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """A LoRA adapter as a recipe asks for it.

    targets: names of layers, or None for every linear layer but the head.
    four_bit: the frozen weights are held in NF4 (QLoRA). fp8: they are held in FP8.
    merged: the result is a plain model folder.
    seed: of the first matrices.
    """

    r: int
    alpha: int
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None
    four_bit: bool = False
    fp8: bool = False
    dora: bool = False
    rslora: bool = False
    merged: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """A run. Defaults are the paper's; see docs for every key.

    datasets: dicts are taken too, in any sequence; a tuple of specs once it is built.
    compute_budget: epochs of one roll-out (msft, continual).
    num_train_epochs: epochs of the other methods.
    early_stopping_patience: end after so many evaluations in a row without a better mean.
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
    fp8: hold an adapter's frozen weights in FP8, and multiply with them in FP8.
    merge_adapter: the result is a plain model folder, not an adapter.
    export_dtype: of the result's weights; auto: what the base was published in.
    lanes: parts of a batch whose gradients are added up; auto: processes at the first start.
    sharding: what several processes divide between them: the optimizer, or the weights too.
    ddp_timeout: seconds that one of several processes waits for the others in a step.
    rendezvous_timeout: the same, until all have started. torchrun's own wait comes before it.
    saving_timeout: the same, while another one loads, compiles, evaluates or saves.
    chat_template: of conversations, instead of the tokenizer's: a .jinja file, or its text.
    completion_only_loss: false trains on prompts too; scores are taken on answers all the same.
    prompt_loss_weight: of the loss of a token of the prompt; 1 is completion_only_loss: false.
    num_fewshot: for benchmarks (None: 5); own data has none unless its sub-dataset says so.
    data_dir: a folder with a folder of each benchmark; without it they come from the hub.
    exclude_rows: a file that names train rows by their hashes, which are not trained.
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

    What follows from the keys:
    peak_rule: where a curve peaks, as `peaks` says.
    prepared: the method with its options, checked.
    first_rollout: what a method of ours asks for first.
    adapter: the adapter that is trained; None: all weights are.
    packages: those that the adapter depends on.
    """

    model_name_or_path: Text
    datasets: Annotated[tuple[DatasetSpec, ...] | Any, SkipValidation]
    method: Text = "msft"
    output_dir: Text | None = None
    seed: Annotated[int, Interval(ge=0, le=2**63 - 1)] = 20
    compute_budget: Annotated[float, Gt(0)] = 3
    num_train_epochs: Annotated[float, Gt(0)] = 10
    evals_per_epoch: Annotated[int, Interval(ge=1, le=1000)] = 4
    early_stopping_patience: Annotated[int | None, Ge(1)] = None
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
    fp8: bool = False
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
    prompt_loss_weight: Annotated[float, Interval(ge=0, le=1)] = 0.0
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
    exclude_rows: Text | None = None
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
    places: Mapping[KeyPath, str] = field(default_factory=dict, compare=False, repr=False)
    peak_rule: PeakRule = field(init=False, compare=False, repr=False)
    prepared: PreparedMethod = field(init=False, compare=False, repr=False)
    first_rollout: FirstRollout | None = field(default=None, init=False, compare=False, repr=False)
    adapter: AdapterOptions | None = field(default=None, init=False, compare=False, repr=False)
    packages: tuple[str, ...] = field(default=(), init=False, compare=False, repr=False)

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
        known = dict(places or {})
        if not isinstance(mapping, Mapping):
            said = f"found {shown(mapping)}; expected keys and values such as `method: msft`"
            raise with_places([RecipeError(said)], where, known)
        keys, notes, mistakes = _canonical(mapping, known)
        ours, of_datasets = recipe_keys(), [key.name for key in fields(DatasetSpec)]
        for key in [key for key in keys if key not in ours]:
            del keys[key]
            block, what = block_of_option(key, keys.get("method", Recipe.method))
            if block:
                written = on_a_line({key: mapping[key]})
                said = f"unknown key {key!r}; it is {what}: write {block}: {written}"
                more = f", or --set {quote(f'{block}.{written[1:-1]}'.replace(': ', '=', 1))}"
                mistakes.append(RecipeError(f"{said}{more}", (key,)))
                continue
            mistakes += mistakes_of(unknown_key(key, ours, FOREIGN, of_datasets, inside=False))
            meant = meant_key(key, FOREIGN, _STAND_INS)
            if meant:
                keys.setdefault(meant, _STAND_INS[meant])
        if keys.get("completion_only_loss") is False and "prompt_loss_weight" in keys:
            mistakes += [_two_weights(keys["prompt_loss_weight"])]
        if "model_name_or_path" not in keys:
            keys["model_name_or_path"] = _STAND_INS["model_name_or_path"]
            said = (
                "model_name_or_path is missing; add a hub name, a folder, or `tiny` for the "
                "embedded model"
            )
            mistakes.append(RecipeError(said, ("model_name_or_path",)))
        try:
            made = Recipe(**{"datasets": (), **keys}, folder=folder, places=known)
        except WrongKeys as error:
            raise with_places([*mistakes, *error.mistakes], where, known) from error
        if mistakes:
            raise with_places(mistakes, where, known)
        object.__setattr__(made, "notes", (*notes, *_remarks(made, keys, known)))
        return made

    def __post_init__(self) -> None:
        mistakes = [each for error in fit_fields(self) for each in mistakes_of(error)]
        settle = partial(object.__setattr__, self)  # a recipe is frozen once it is built

        # Options are copied: they are written down with the recipe, so YAML must hold them.
        own, wrong = plain_options(self.method_options, "method_options")
        mistakes += wrong
        by_method = dict[str, dict[str, Any]]()
        for name, options in self.options_by_method.items():
            by_method[name], wrong = plain_options(options, "options_by_method", name)
            mistakes += wrong
        settle("method_options", own)
        settle("options_by_method", by_method)

        specs, wrong = specs_of(self.datasets, recipe_keys())
        mistakes += wrong
        settle("datasets", specs)

        # Lengths in ticks. A wrong one gets its default, so that the method can be prepared.
        ticks = dict[str, int]()
        for key in ("compute_budget", "num_train_epochs"):
            try:
                ticks[key] = ticks_of(getattr(self, key), self.evals_per_epoch, key)
            except OptionError as error:
                mistakes += mistakes_of(error)
                ticks[key] = int(getattr(Recipe, key)) * self.evals_per_epoch
        rule, errors = without_wrong(self.peaks, partial(made_of, PeakRule, what="peaks"))
        mistakes += [each for error in errors for each in mistakes_of(error, "peaks")]
        rule = rule or PeakRule()
        settle("peak_rule", rule)
        settle("peaks", rule.recorded())

        # The method is prepared once. Its rehearsal finds what it has against its own options.
        names = [spec.name for spec in specs if not spec.is_watched] or ["x"]
        mixture = Mixture.of(dict.fromkeys(names, 1))
        how: dict[str, Any] = {"compute_budget": ticks["compute_budget"], "peaks": rule}
        options = {**by_method.get(self.method, {}), **own}
        prepared, errors = without_wrong(options, partial(prepare, self.method, **how))
        settle("prepared", prepared)
        if prepared and self.method in METHODS:
            run = Rehearsal(
                mixture,
                ticks["compute_budget"],
                ticks["num_train_epochs"],
                self.evals_per_epoch,
                self.early_stopping_patience,
            )
            try:
                settle("first_rollout", rehearse(prepared.carry_out, run))
            except OptionError as error:
                errors.append(error)
        mistakes += [self._option_mistake(self.method, error) for error in errors]
        for name in [name for name in by_method if name != self.method]:
            _, errors = without_wrong(by_method[name], partial(prepare, name, **how))
            mistakes += [
                self._option_mistake(name, error)
                for error in errors
                if error.place[0] != "compute_budget"  # this method need not be run
            ]

        mistakes += _contradictions(self)
        if mistakes:
            raise WrongKeys(mistakes)
        if self.use_peft:
            settle("adapter", _adapter_of(self))
            settle("packages", ("peft", "bitsandbytes") if self.load_in_4bit else ("peft",))

    def _option_mistake(self, method: str, error: OptionError) -> RecipeError:
        """What is wrong with an option of a method, with the place where the option stands."""
        own, beside = method == self.method, ("options_by_method", method)
        if own and error.place[0] in self.method_options:
            place: KeyPath = ("method_options", *error.place)
        elif error.place[0] in self.options_by_method.get(method, {}):
            place = (*beside, *error.place)
        else:
            place = error.place if own else beside
        because = ("method", *error.because) if own and place != ("method",) else ()
        said = str(error) if own else f"options_by_method.{method}: {error}"
        return RecipeError(said, place, because)

    def options_of(self, method: str) -> dict[str, Any]:
        """What the recipe says for a method; `method_options` are of its own."""
        own = self.method_options if method == self.method else {}
        return {**self.options_by_method.get(method, {}), **own}

    def model(self) -> str:
        """The model's file or folder, from here or beside the recipe; else it is a name."""
        written = self.model_name_or_path
        found = self._here_or_beside(written)
        if found is not None:
            return str(found)
        if expanded(written).is_absolute() or written.startswith(".") or written.endswith(".gguf"):
            raise RecipeError(
                f"model_name_or_path is {shown(written)}, which does not exist; "
                "expected a folder, a .gguf file, or a hub name such as owner/name",
                ("model_name_or_path",),
            )
        return written

    def data_folder(self) -> Path:
        """The folder `data_dir`, from here or beside the recipe."""
        assert self.data_dir is not None
        found = self._here_or_beside(self.data_dir)
        if found is None or not found.is_dir():
            raise RecipeError(
                f"data_dir is {shown(self.data_dir)}, and there is no such folder; expected one "
                "with a folder for each benchmark, or leave it out to read the hub",
                ("data_dir",),
            )
        return found

    def exclusions_file(self) -> Path:
        """The file `exclude_rows`, from here or beside the recipe."""
        assert self.exclude_rows is not None
        place = ("exclude_rows",)
        found = self._here_or_beside(self.exclude_rows)
        if found is None or not found.is_file():
            raise RecipeError(
                f"{place_of(place, '', self.places)}exclude_rows is {shown(self.exclude_rows)}, "
                "and there is no such file; expected JSON lines with dataset and sha256, such as "
                "the suspects.jsonl of an audit",
                place,
            )
        return found

    def template(self) -> str | None:
        """The chat template's text, from its file if it is one; None: the tokenizer's."""
        return self.template_named(self.chat_template)

    def template_named(self, written: str | None, dataset: str = "") -> str | None:
        """The text of a template that the recipe or this sub-dataset of it names."""
        if written is None or is_template(written):
            return written
        if written in TEMPLATES:
            return TEMPLATES[written]
        place: KeyPath = ("chat_template",)
        if dataset:
            names = [spec.name for spec in self.datasets]
            place = ("datasets", names.index(dataset), *place) if dataset in names else place
        at = place_of(place, "", self.places)
        at = f"{at}sub-dataset {dataset!r}: " if dataset else at
        file = self._here_or_beside(written)
        if file is None or not file.is_file():
            raise RecipeError(
                f"{at}chat_template is {shown(written)}, and there is no such file; expected one "
                f"of ours ({', '.join(TEMPLATES)}), a .jinja file, or the text of a template, "
                "which has {{ and {% in it",
                place,
            )
        try:
            with file.open("rb") as stream:
                text = stream.read(LONGEST_TEMPLATE + 1).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            said = f"{at}{file} cannot be read as a chat template: {error}"
            raise RecipeError(said, place) from error
        if len(text) > LONGEST_TEMPLATE or not is_template(text):
            raise RecipeError(
                f"{at}{file} is no chat template: expected Jinja with {{{{ or {{% in it, and "
                f"{LONGEST_TEMPLATE:,} characters at most",
                place,
            )
        return text

    def _here_or_beside(self, written: str) -> Path | None:
        path = expanded(written) if written.startswith("~") else Path(written)
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
            spec["guard"] = spec["guard"] and asdict(spec["guard"])
        if not self.completion_only_loss:  # which is the weight of prompts
            del keys["prompt_loss_weight"]
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


def block_of_option(name: str, method: Any) -> tuple[str, str]:
    """The block in which an option stands that somebody gave as a key, and what it is, in words;
    empty where there is no such option."""
    if name in [key.name for key in fields(PeakRule)]:
        return "peaks", "an option of peaks"
    having = [each for each in METHODS if name in known_options(each)]
    if not having or method in having:
        return ("method_options", f"an option of method {method}") if having else ("", "")
    return "method_options", f"an option of {listed(having)}, but method is {method}; with it"


def set_for_flag(flag: str, value: str) -> tuple[str, str]:
    """What `--set` takes in the place of a flag of the command line such as `--learning-rate 1e-4`;
    or else what is told of the flag. Both are empty where nobody knows the flag.

    value: as it was written, or empty.
    """
    name = flag.lstrip("-").replace("-", "_")
    ours, written = ALIASES.get(name, name), value or "true"
    if ours is None:
        return "", "msft chooses micro-batches by itself: set train_batch_size"
    if ours in FOREIGN and FOREIGN[ours].renamed:
        ours = FOREIGN[ours].ours
    if ours in recipe_keys():
        return f"{ours}={written}", ""
    if ours in [key.name for key in fields(DatasetSpec)]:
        return f"datasets.NAME.{ours}={written}", ""
    block, _ = block_of_option(ours, Recipe.method)
    if block:
        return f"{block}.{ours}={written}", ""
    if ours in FOREIGN:
        return "", FOREIGN[ours].answer
    near = get_close_matches(ours, recipe_keys(), n=1)
    return "", f"did you mean --set {near[0]}={written}?" if near else ""


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


def _canonical(
    mapping: Mapping[str, Any], places: Places
) -> tuple[dict[str, Any], list[str], list[RecipeError]]:
    """The keys with aliases replaced, in `places` too; a note for each alias, and the mistakes."""
    keys, notes, mistakes = dict[str, Any](), list[str](), list[RecipeError]()
    for key, value in mapping.items():
        target = ALIASES.get(key, key)
        if target is None:
            batch = mapping.get("train_batch_size", Recipe.train_batch_size)
            notes.append(
                f"{place_of((key,), '', places)}{key} is ignored: msft chooses micro-batches by "
                f"itself; a step has train_batch_size ({shown(batch)}) samples"
            )
        elif target in keys or (target != key and target in mapping):
            said = f"{key} means {target}, which is given too; keep one"
            mistakes.append(RecipeError(said, (key,)))
        else:
            keys[target] = value
            if target != key:
                notes.append(f"{place_of((key,), '', places)}{key} was read as {target}")
                if (key,) in places:
                    places[(target,)] = places[(key,)]
    return keys, notes, mistakes


def _adapter_of(recipe: Recipe) -> AdapterOptions:
    named = recipe.lora_target_modules
    return AdapterOptions(
        r=recipe.lora_r,
        alpha=recipe.lora_alpha,
        dropout=recipe.lora_dropout,
        targets=None if named == ALL_LINEAR else tuple(named),
        four_bit=recipe.load_in_4bit,
        fp8=recipe.fp8,
        dora=recipe.use_dora,
        rslora=recipe.use_rslora,
        merged=recipe.merge_adapter,
        seed=recipe.seed,
    )


# What keys have to do with each other


def _contradictions(recipe: Recipe) -> Iterator[RecipeError]:
    """Keys that do not go together."""
    yield from _of_datasets(recipe)
    yield from _of_weights(recipe)
    yield from _of_selection(recipe)
    yield from _of_early_stopping(recipe)
    yield from _of_peaks(recipe)
    yield from _of_adapter(recipe)
    yield from _of_schedule(recipe)
    yield from _of_lanes(recipe)


def _of_datasets(recipe: Recipe) -> Iterator[RecipeError]:
    """Sub-datasets: at least one, each with a name of its own, and metrics that have a mean."""
    if not recipe.datasets:
        yield RecipeError(
            "datasets is empty; expected at least one sub-dataset, e.g. "
            "`- {name: mine, train: mine.jsonl, validation_fraction: 0.1}`",
            ("datasets",),
        )
    seen: dict[str, str] = {}
    for number, spec in enumerate(recipe.datasets):
        other = seen.setdefault(spec.name.casefold(), spec.name)
        if number and len(seen) <= number:
            how = "" if other == spec.name else " (upper and lower case are not told apart)"
            yield RecipeError(
                f"name {spec.name!r} is taken by {other!r} already{how}; choose another",
                ("datasets", number, "name"),
            )
    if recipe.datasets and all(spec.is_watched for spec in recipe.datasets):
        yield RecipeError(
            f"datasets: {listed([spec.name for spec in recipe.datasets])} "
            f"{'is' if len(recipe.datasets) == 1 else 'are'} only watched, so there is nothing to "
            "train; add a sub-dataset with `train: `",
            ("datasets", 0, "train"),
            because=("watch", "validation", "test"),
        )
    metrics = sorted({spec.metric for spec in recipe.datasets if not spec.is_watched})
    if recipe.mean == "pooled" and len(metrics) > 1:
        yield RecipeError(
            f"mean is pooled, but the sub-datasets have the metrics {', '.join(metrics)}, "
            "whose counts cannot be added; use mean: macro",
            ("mean",),
            because=("metric",),
        )


def _of_weights(recipe: Recipe) -> Iterator[RecipeError]:
    """Weights that change by epoch need a method of one roll-out, every sub-dataset in some epoch
    and somebody in every epoch; prompts have one weight."""
    if recipe.prompt_loss_weight and not recipe.completion_only_loss:
        yield _two_weights(recipe.prompt_loss_weight)
    weights = {n: each.weight for n, each in enumerate(recipe.datasets) if not each.is_watched}
    changing = {n: each for n, each in weights.items() if isinstance(each, Mapping)}
    last = ceil(recipe.num_train_epochs) - 1
    for number, weight in changing.items():
        what, place = f"weight of {recipe.datasets[number].name!r}", ("datasets", number, "weight")
        try:
            refuse_courses(recipe, recipe.method)
        except RecipeError as error:
            yield error
            return
        if not any(each for epoch, each in weight.items() if epoch <= last):
            yield RecipeError(
                f"{what} is 0 in all of the {recipe.num_train_epochs:g} epochs, so it is never "
                "trained; give it a weight above 0 in one of them, or leave the sub-dataset out",
                place,
                because=("num_train_epochs",),
            )
    if len(changing) < len(weights):
        return
    for epoch in sorted({epoch for weight in changing.values() for epoch in weight}):
        if epoch <= last and not any(weight_in(each, epoch) for each in weights.values()):
            yield RecipeError(
                f"in epoch {epoch} every sub-dataset has the weight 0, so there is nothing to "
                "train; give one of them a weight above 0",
                ("datasets",),
                because=("weight",),
            )
            return


def refuse_courses(recipe: Recipe, method: str) -> None:
    """RecipeError where a weight changes by epoch, and a method has no epochs one after the
    other."""
    for number, spec in enumerate(recipe.datasets):
        if isinstance(spec.weight, Mapping) and method not in ("sft", "soup"):
            raise RecipeError(
                f"weight of {spec.name!r} changes by epoch, but method {method} does not train the "
                "epochs of all sub-datasets one after the other; use method: sft or soup, or one "
                "number as weight",
                ("datasets", number, "weight"),
                because=("method",),
            )


def _two_weights(weight: float) -> RecipeError:
    return RecipeError(
        f"prompt_loss_weight is {weight:g}, but completion_only_loss: false gives prompts the "
        "weight 1; keep one of them",
        ("prompt_loss_weight",),
        because=("completion_only_loss",),
    )


def _of_selection(recipe: Recipe) -> Iterator[RecipeError]:
    """Every sub-dataset needs rows that choose a checkpoint; where test rows do, keys that are
    about validation rows, or about test rows that do not choose, contradict it."""
    on_test = recipe.selection_split == TEST
    for number, spec in enumerate(recipe.datasets):
        if on_test and spec.guard is not None:
            yield RecipeError(
                f"sub-dataset {spec.name!r}: guard, but selection_split is test, and a guard looks "
                "at validation rows; leave one of them out",
                ("datasets", number, "guard"),
                because=("selection_split",),
            )
        if spec.benchmark is not None or spec.path is not None:
            continue
        if on_test and spec.test is None:
            yield RecipeError(
                f"sub-dataset {spec.name!r}: no test, but selection_split is test, so checkpoints "
                "are chosen on test rows; add `test: ` with a file, or leave selection_split out",
                ("datasets", number, "test"),
                because=("selection_split",),
            )
        if spec.is_watched:
            continue
        if not on_test and spec.validation is None and spec.validation_fraction is None:
            yield RecipeError(
                f"sub-dataset {spec.name!r}: neither validation nor validation_fraction, but a "
                "checkpoint can only be chosen on rows that were not trained; add one, e.g. "
                "`validation_fraction: 0.1`",
                ("datasets", number, "validation"),
                because=("validation_fraction",),
            )
    for key, why in _IDLE_ON_TEST.items() if on_test else ():
        value = getattr(recipe, key)
        if value != getattr(Recipe, key):
            yield RecipeError(
                f"{key} is {str(value).lower()}, but selection_split is test, {why}",
                (key,),
                because=("selection_split",),
            )


_IDLE_ON_TEST = {
    "early_stopping_patience": "and training may not end by test scores; leave one of them out",
    "score_test": "so every point is scored on test already; leave score_test out",
    "validation_loss": "so no validation rows are read; leave validation_loss out",
}
"""Keys that contradict `selection_split: test`, and why."""


_ENDS_OTHERWISE = {
    "msft": "a roll-out of it ends after compute_budget, or by method_options: {patience: …}",
    "continual": "a roll-out of it ends after compute_budget, or by method_options: {patience: …}",
    "sro": "it needs the peak of every sub-dataset",
    "soft_sro": "it needs the peak of every sub-dataset",
}


def _of_early_stopping(recipe: Recipe) -> Iterator[RecipeError]:
    """Only methods of one roll-out may end before it does."""
    if recipe.early_stopping_patience is None or recipe.method in STOPPING_EARLY:
        return
    why = _ENDS_OTHERWISE.get(recipe.method, "a method of your own says itself when it ends")
    yield RecipeError(
        f"early_stopping_patience is {recipe.early_stopping_patience}, but method {recipe.method} "
        f"does not take it: {why}; leave it out, or use {', '.join(STOPPING_EARLY[:-1])} or "
        f"{STOPPING_EARLY[-1]}",
        ("early_stopping_patience",),
        because=("method",),
    )


def _of_schedule(recipe: Recipe) -> Iterator[RecipeError]:
    """The learning rate's course must suit the method, and the warm-up the course."""
    kind = recipe.lr_scheduler_type
    if recipe.method in ROLLING_BACK and kind != "constant":
        yield RecipeError(
            f"lr_scheduler_type is {kind}, but method {recipe.method} rolls back, and what a "
            "changing learning rate should return to then is not defined; use constant",
            ("lr_scheduler_type",),
            because=("method",),
        )
    if kind == "constant" and recipe.warmup_steps:
        cure = "0" if recipe.method in ROLLING_BACK else "0, or constant_with_warmup"
        yield RecipeError(
            f"warmup_steps is {recipe.warmup_steps}, but lr_scheduler_type constant has no "
            f"warm-up; use {cure}",
            ("warmup_steps",),
            because=("lr_scheduler_type", "method"),
        )


def _of_lanes(recipe: Recipe) -> Iterator[RecipeError]:
    """Every lane needs a row, and an engine that sums over lanes; an adapter is not sliced."""
    if recipe.use_peft and recipe.sharding == "full":
        yield RecipeError(
            "sharding is full, but an adapter (use_peft) needs its whole frozen model in every "
            "process; use sharding: optimizer, with load_in_4bit: true if memory is short",
            ("sharding",),
            because=("use_peft",),
        )
    if recipe.lanes == "auto" or recipe.lanes == 1:
        return
    if recipe.lanes > recipe.train_batch_size:
        yield RecipeError(
            f"lanes is {recipe.lanes}, but a step has train_batch_size ({recipe.train_batch_size}) "
            "rows, and every lane needs one; use fewer lanes, or a larger train_batch_size",
            ("lanes",),
            because=("train_batch_size",),
        )
    if recipe.engine == "simple":
        yield RecipeError(
            f"lanes is {recipe.lanes}, but engine simple has one; leave one of them out",
            ("lanes",),
            because=("engine",),
        )


def _of_peaks(recipe: Recipe) -> Iterator[RecipeError]:
    """Peaks by probability need choices, which are compared where the metric is accuracy; whether
    rows have some is seen when they are read."""
    for spec in recipe.datasets:
        chooses = recipe.peak_rule.by == "probability" and not spec.is_watched
        if chooses and spec.metric != "accuracy":
            yield RecipeError(
                f"peaks.by is probability, but sub-dataset {spec.name!r} has the metric "
                f"{spec.metric}, which compares no choices; use peaks.by: score, or metric: "
                "accuracy",
                ("peaks", "by"),
                because=("metric",),
            )


def _of_adapter(recipe: Recipe) -> Iterator[RecipeError]:
    """Keys of an adapter need `use_peft`; its frozen weights are held in one way."""
    if recipe.use_peft:
        yield from _of_fp8(recipe)
        return
    defaults = {f.name: f.default for f in fields(recipe) if f.default is not MISSING}
    for key in (*ADAPTER_KEYS[1:], "fp8", "merge_adapter"):
        value = getattr(recipe, key)
        if value != defaults[key]:
            why = "FP8 is for frozen weights, and " if key == "fp8" else ""
            yield RecipeError(
                f"{key} is {shown(value)}, but {why}without use_peft all weights are trained; add "
                f"use_peft: true, or leave {key} out",
                (key,),
                because=("use_peft",),
            )


def _of_fp8(recipe: Recipe) -> Iterator[RecipeError]:
    """FP8 goes with bf16, and is one of two ways to hold frozen weights."""
    against = {
        "load_in_4bit": (recipe.load_in_4bit, "hold the frozen weights in one way"),
        "bf16": (recipe.bf16 is False, "products in FP8 give bf16"),
    }
    for key, (meets, why) in against.items() if recipe.fp8 else ():
        if meets:
            yield RecipeError(
                f"fp8 is true and {key} is {shown(getattr(recipe, key))}: {why}; leave one of them "
                "out",
                ("fp8",),
                because=(key,),
            )


def _remarks(
    recipe: Recipe, keys: Mapping[str, Any], places: Mapping[KeyPath, str]
) -> Iterator[str]:
    """What a user should be told about the keys of a recipe.

    keys: those given.
    """
    ours = recipe.method in METHODS
    # Recipes for several methods give both lengths; only a --set then means this method's.
    used, other = "num_train_epochs", "compute_budget"
    if recipe.method in ROLLING_BACK:
        used, other = other, used
    meant = used not in keys or places.get((other,), "").startswith("--set")
    if ours and other in keys and meant:
        at, length = place_of((other,), "", places), getattr(recipe, used)
        yield f"{at}{other} is not used by {recipe.method}; {used} ({length:g}) is"
    trained = [spec for spec in recipe.datasets if not spec.is_watched]
    alone = len(trained) == 1 and trained[0].split_by is None
    if alone and ours and recipe.method not in ("sft", "soup"):
        yield (
            f"there is one sub-dataset only, so {recipe.method} has nothing to weigh against it; "
            "method: sft gives the best checkpoint too, and costs less"
        )
    for spec in recipe.datasets:
        if spec.is_watched and not spec.watch:
            yield (
                f"{spec.name}: no train rows are named, so it is scored and never trained (watch: "
                "true says so, too)"
            )
    guarded = [spec.name for spec in recipe.datasets if spec.guard is not None]
    if guarded and recipe.method in ("continual", "soup"):
        yield (
            f"guard of {listed(guarded)}: {recipe.method} does not choose its result by scores, so "
            "guards are reported and refuse no checkpoint"
        )
    for spec in recipe.datasets:
        last = ceil(recipe.num_train_epochs) - 1
        weight = spec.weight if isinstance(spec.weight, Mapping) else {}
        if late := [epoch for epoch in weight if epoch > last]:
            yield (
                f"weight of {spec.name}: epoch {late[0]} is never reached, since "
                f"num_train_epochs is {recipe.num_train_epochs:g} and the first epoch is 0"
            )
    if recipe.selection_split == TEST:
        unused = {
            key: [spec.name for spec in recipe.datasets if getattr(spec, key) is not None]
            for key in ("validation", "validation_fraction", "validation_rows")
        }
        unused = {key: names for key, names in unused.items() if names}
        if unused:
            who = dict.fromkeys(name for names in unused.values() for name in names)
            yield (
                f"{listed(unused)} of {listed(who)} {'is' if len(unused) == 1 else 'are'} not "
                "used: selection_split is test, so no validation rows are read or held out"
            )
    if recipe.use_peft and recipe.learning_rate < LOW_RATE:
        yield (
            f"learning_rate is {recipe.learning_rate:g}, which is low for an adapter: usual are "
            "1e-4 to 2e-4"
        )
