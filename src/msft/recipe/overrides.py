"""A recipe file as keys and values with their places: reading, overrides, other tools' names."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msft.errors import Place, RecipeError, YamlError
from msft.recipe import strict_yaml as yamlfile
from msft.recipe.dataset_spec import checked_text, shown
from msft.search.methods import METHODS
from msft.search.options import checked
from msft.search.peaks import PeakRule

if TYPE_CHECKING:
    from msft.recipe.recipe import Recipe

ROLLING_BACK = ("msft", "continual")
"""Methods whose length is `compute_budget`; that of the other ones is `num_train_epochs`."""

ALIASES: dict[str, str | None] = {
    "base_model": "model_name_or_path",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "num_epochs": "num_train_epochs",
    "micro_batch_size": None,
    "gradient_accumulation_steps": None,
}
"""Keys of Axolotl and LLaMA-Factory, and what they are read as; None: not needed here."""

_ADAPTERS = (
    "adapter use_peft peft_config load_in_4bit load_in_8bit lora_r lora_rank lora_alpha "
    "lora_dropout lora_target lora_target_linear lora_target_modules"
)
FOREIGN = {
    **dict.fromkeys(
        _ADAPTERS.split(),
        "LoRA and quantised training are not there yet; leave it out: all weights are trained",
    ),
    "val_set_size": "did you mean validation_fraction? it is a key of each sub-dataset",
}
"""Keys of other tools that cannot be read as one of ours, and what to do about each."""

TRACKERS = ("tensorboard", "wandb", "trackio")
"""What `report_to` may name."""

Places = dict[Place, str]
"""Where each key stands, for messages: `recipe.yaml, line 3` or `--set seed=x`."""


def read_recipe(file: Path, overrides: Sequence[str]) -> tuple[Any, Places]:
    """Keys and values of a recipe file after the overrides, nothing checked but the YAML."""
    marked = _parsed(_text_of(file), str(file))
    places = {place: f"{file}, line {line}" for place, line in marked.lines.items()}
    if marked.value is None:
        raise RecipeError(f"{file}: the recipe is empty; `msft init` writes one to start from")
    if isinstance(marked.value, dict):
        _refuse_inline_rows(marked.value, places)
        for override in overrides:
            _override(marked.value, places, override)
    return marked.value, places


def canonical(
    mapping: Mapping[str, Any], places: Places, batch: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The keys with aliases replaced, in `places` too, and a note for each.

    batch: `train_batch_size` where the recipe does not give it.
    """
    keys: dict[str, Any] = {}
    notes: list[str] = []
    for key, value in mapping.items():
        if key in FOREIGN:
            raise RecipeError(f"unknown key {key!r}; {FOREIGN[key]}", (key,))
        target = ALIASES.get(key, key)
        at = place_of((key,), "", places)
        if target is None:
            notes.append(
                f"{at}{key} is ignored: msft chooses micro-batches by itself; a step has "
                f"train_batch_size ({shown(mapping.get('train_batch_size', batch))}) samples"
            )
            continue
        if target != key:
            notes.append(f"{at}{key} was read as {target}")
        if target in keys or (target != key and target in mapping):
            raise RecipeError(f"{key} means {target}, which is given too; keep one", (key,))
        keys[target] = value
        if (key,) in places:
            places[(target,)] = places[(key,)]
    return keys, tuple(notes)


def unused_length(
    recipe: "Recipe", keys: Mapping[str, Any], places: Mapping[Place, str]
) -> tuple[str, ...]:
    """A note on the key for a run's length that the method does not use, if it was meant for it.

    keys: those given. Recipes for several methods give both; only a `--set` then means this one.
    """
    used, other = "num_train_epochs", "compute_budget"
    if recipe.method in ROLLING_BACK:
        used, other = other, used
    at = place_of((other,), "", places)
    meant = other in keys and (used not in keys or at.startswith("--set"))
    if not meant or recipe.method not in METHODS:
        return ()
    return (f"{at}{other} is not used by {recipe.method}; {used} ({getattr(recipe, used):g}) is",)


def place_of(place: Place, where: str, places: Mapping[Place, str]) -> str:
    """How a message about this key starts: the nearest place that is known."""
    for end in range(len(place), 0, -1):
        if place[:end] in places:
            return f"{places[place[:end]]}: "
    return f"{where}: " if where else ""


def plain_options(given: Any) -> dict[str, Any]:
    """A copy of `method_options`, which may hold what YAML can hold: it is written down."""
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"method_options is {shown(given)}; expected options such as {{patience: 3}}",
            ("method_options",),
        )
    return {key: _plain(value, ("method_options", key)) for key, value in given.items()}


def peak_options(given: Any) -> dict[str, Any]:
    """The block `peaks`, checked and complete."""
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"peaks is {shown(given)}; expected options such as {{smooth: 1}}", ("peaks",)
        )
    for key, value in given.items():
        try:
            PeakRule(**checked(PeakRule, {key: value}, "peaks"))
        except ValueError as error:
            raise RecipeError(str(error), ("peaks", key)) from error
    return asdict(PeakRule(**checked(PeakRule, given, "peaks")))


def tracker_names(given: Any) -> str | list[str]:
    """The key `report_to`, checked: `none`, a tracker, or a list of different ones."""
    several = isinstance(given, list | tuple)
    names = list(given) if several else [given]
    known = TRACKERS if several else ("none", *TRACKERS)
    if any(name not in known for name in names):
        expected = ", ".join(map(repr, known)) + ("" if several else ", or a list of trackers")
        raise RecipeError(f"report_to is {shown(given)}; expected {expected}", ("report_to",))
    if len(set(names)) < len(names):
        raise RecipeError(f"report_to is {shown(given)}; name each tracker once", ("report_to",))
    return names or "none" if several else str(given)


def _plain(value: Any, place: Place) -> Any:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(inner, place) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, place) for inner in value]
    if isinstance(value, str):
        return checked_text(value, ".".join(map(str, place)), *place)
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    raise RecipeError(
        f"{'.'.join(map(str, place))} is {shown(value)}; expected text, a finite number, true, "
        "false, null, or lists and mappings of them",
        place,
    )


def _text_of(file: Path) -> str:
    if file.is_dir():
        inside = sorted(path.name for path in file.iterdir() if path.suffix in (".yaml", ".yml"))
        hint = f"; did you mean {file / inside[0]}?" if inside else "; expected a .yaml file"
        raise RecipeError(f"{file}: this is a folder{hint}")
    try:
        with file.open("rb") as stream:
            raw = stream.read(4 * yamlfile.MAX_CHARACTERS + 1)
    except FileNotFoundError:
        names = [path.name for path in file.parent.iterdir()] if file.parent.is_dir() else []
        near = get_close_matches(file.name, names, n=1)
        hint = f"did you mean {file.parent / near[0]}?" if near else "`msft init` writes one"
        raise RecipeError(f"{file}: there is no such file; {hint}") from None
    except OSError as error:
        raise RecipeError(f"{file}: cannot be read: {error.strerror}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{file}, line {line}: not UTF-8; save the file as UTF-8") from error


def _parsed(text: str, where: str) -> yamlfile.Marked:
    try:
        return yamlfile.parse(text)
    except YamlError as error:
        at = where if error.line is None else f"{where}, line {error.line}"
        raise RecipeError(f"{at}: {error}") from error


def _refuse_inline_rows(mapping: dict[str, Any], places: Places) -> None:
    specs = mapping.get("datasets")
    for number, spec in enumerate(specs if isinstance(specs, list) else []):
        for split in ("train", "validation", "test"):
            if isinstance(spec, dict) and isinstance(spec.get(split), list | dict):
                place = ("datasets", number, split)
                raise RecipeError(
                    f"{place_of(place, '', places)}{split} is {shown(spec[split])}; expected one "
                    "file; rows do not stand in a recipe: write them to a .jsonl file",
                    place,
                )


def _override(mapping: dict[str, Any], places: Places, override: str) -> None:
    """Set one `key=value`; `datasets.NAME.key` finds a sub-dataset by its name."""
    at = f"--set {override}"
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise RecipeError(f"{at}: expected key=value, e.g. --set seed=30")
    value = _parsed(text, at).value
    owner, place = _owner(mapping, key, at)
    if not place[:-1]:  # a key replaces its other names
        target = ALIASES.get(key) or key
        for same in [k for k in mapping if k != key and (ALIASES.get(k) or k) == target]:
            del mapping[same]
    owner[place[-1]] = value
    for stale in [known for known in places if known[: len(place)] == place]:
        del places[stale]
    places[place] = at


def _owner(mapping: dict[str, Any], key: str, at: str) -> tuple[dict[Any, Any], Place]:
    top, dot, rest = key.partition(".")
    if not dot:
        return mapping, (key,)
    if top in ("peaks", "method_options"):
        inner = mapping.get(top)
        if inner is None:
            inner = mapping[top] = {}
        if isinstance(inner, dict):
            return inner, (top, rest)
    if top == "datasets" and "." in rest and isinstance(mapping.get("datasets"), list):
        name, _, last = rest.rpartition(".")
        names = [s.get("name") if isinstance(s, dict) else None for s in mapping["datasets"]]
        if name in names:
            number = names.index(name)
            return mapping["datasets"][number], ("datasets", number, last)
        known = ", ".join(str(found) for found in names)
        raise RecipeError(f"{at}: there is no sub-dataset {name!r} (there are: {known})")
    raise RecipeError(
        f"{at}: {key!r} is no key with keys inside; expected key=value, peaks.KEY=value, "
        "method_options.KEY=value or datasets.NAME.KEY=value"
    )
