"""A recipe file as keys and values with their places: reading it, and `--set key=value`."""

from collections.abc import Sequence
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

from msft.checks import shown
from msft.errors import Place, RecipeError, YamlError
from msft.recipe.foreign_keys import ALIASES
from msft.recipe.strict_yaml import MAX_CHARACTERS, Marked, Places, parse, place_of


def read_recipe(file: Path, overrides: Sequence[str], most: float = inf) -> tuple[Any, Places]:
    """Keys and values of a recipe file after the overrides, nothing checked but the YAML.

    most: keys and values in it.
    """
    marked = _parsed(_text_of(file), str(file), most)
    places = {place: f"{file}, line {line}" for place, line in marked.lines.items()}
    if marked.value is None:
        raise RecipeError(f"{file}: the file is empty; `msft init` writes a recipe to start from")
    if isinstance(marked.value, dict):
        _refuse_inline_rows(marked.value, places)
        for override in overrides:
            _override(marked.value, places, override)
    return marked.value, places


def _text_of(file: Path) -> str:
    if file.is_dir():
        inside = sorted(path.name for path in file.iterdir() if path.suffix in (".yaml", ".yml"))
        hint = f"; did you mean {file / inside[0]}?" if inside else "; expected a .yaml file"
        raise RecipeError(f"{file}: this is a folder{hint}")
    try:
        with file.open("rb") as stream:
            raw = stream.read(4 * MAX_CHARACTERS + 1)
    except FileNotFoundError:
        beside = file.parent.iterdir() if file.parent.is_dir() else ()
        names = sorted(path.name for path in beside)
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


def _parsed(text: str, where: str, most: float = inf) -> Marked:
    try:
        return parse(text, most)
    except YamlError as error:
        at = where if error.line is None else f"{where}, line {error.line}"
        raise RecipeError(f"{at}: {error}") from error


def _refuse_inline_rows(mapping: dict[str, Any], places: Places) -> None:
    specs = mapping.get("datasets")
    for number, spec in enumerate(specs if isinstance(specs, list) else []):
        for split in ("train", "validation", "test"):
            given = spec.get(split) if isinstance(spec, dict) else None
            files = isinstance(given, list) and given and all(isinstance(f, str) for f in given)
            if isinstance(given, list | dict) and not files:
                place = ("datasets", number, split)
                raise RecipeError(
                    f"{place_of(place, '', places)}{split} is {shown(given)}; expected a "
                    "file or a list of files; rows do not stand in a recipe: write them to a "
                    ".jsonl file",
                    place,
                )


def _override(mapping: dict[str, Any], places: Places, override: str) -> None:
    """Set one `key=value`; `datasets.NAME.key` finds a sub-dataset by its name."""
    at = f"--set {override}"
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise RecipeError(f"{at}: expected key=value, e.g. --set seed=30")
    value = value_of(text, at)
    owner, place = _owner(mapping, key, at)
    if not place[:-1]:  # a key replaces its other names
        target = ALIASES.get(key) or key
        for same in [k for k in mapping if k != key and (ALIASES.get(k) or k) == target]:
            del mapping[same]
    owner[place[-1]] = value
    for stale in [known for known in places if known[: len(place)] == place]:
        del places[stale]
    places[place] = at
    for depth in range(1, len(place)):  # what was made to hold it
        places.setdefault(place[:depth], at)


def value_of(text: str, where: str) -> Any:
    """What the text behind `key=` means, by the rules of a recipe."""
    return _parsed(text, where).value


def _owner(mapping: dict[str, Any], key: str, at: str) -> tuple[dict[Any, Any], Place]:
    top, dot, rest = key.partition(".")
    if not dot:
        return mapping, (key,)
    if top in ("peaks", "method_options", "options_by_method"):
        *outer, last = key.split(".")
        owner: Any = mapping
        for step, part in enumerate(outer, start=1):
            if owner.get(part) is None:
                owner[part] = {}
            owner = owner[part]
            if not isinstance(owner, dict):
                inside = ".".join(outer[:step])
                raise RecipeError(f"{at}: {inside} is {shown(owner)}, which has no keys inside")
        return owner, (*outer, last)
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
        "method_options.KEY=value, options_by_method.METHOD.KEY=value or datasets.NAME.KEY=value"
    )
