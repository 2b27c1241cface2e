"""`msft init --from`: a recipe from another tool's config, and what became of each key."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from msft.app.admission import refuse_unwritable
from msft.data.encoding import encoded_examples
from msft.data.loading import load_datasets
from msft.data.sources import Files, own_sources
from msft.engine.model.tokenizers import SMOLLM2, TINY, tokenizer_for
from msft.errors import DataError, Explained, RecipeError, UsageError
from msft.example import Example
from msft.recipe.draft import MOST_VALUES, Draft
from msft.recipe.importer import drafted, tool_of
from msft.recipe.importer_datasets import LARGEST
from msft.recipe.recipe import Recipe, recipe_keys
from msft.recipe.yaml import dump, parse, read_recipe
from msft.text import one_line, shown

_METHOD = """# Does one dataset spoil the model? mSFT takes out a dataset whose scores surely fall
# (docs/choosing.md says when): method: msft, method_options: {exclude: {confidence: 0.95}},
# lr_scheduler_type: constant, and compute_budget for the length of a roll-out."""

_SAMPLE = 4000
"""Rows whose tokens are counted, at most."""
_BYTES = 4
"""Of a token, where the model's tokenizer is not here: of English text."""


def write_import(source: Path, path: Path) -> str:
    """Write the recipe that a config means, and return what became of its keys. Nothing is
    overwritten."""
    if path.exists():
        raise UsageError(f"{path} exists already; give another name, or remove it first")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it first")
    refuse_unwritable(path.parent)
    config, _ = read_recipe(source, (), MOST_VALUES)
    try:
        tool = tool_of(config)
        draft = drafted(config, source.parent, path.parent, partial(_lengths, path.parent))
    except RecipeError as error:
        raise RecipeError(f"{source}: {error}") from error
    except (AttributeError, TypeError) as error:
        raise RecipeError(
            f"{source}: a value is of another kind than {tool} takes ({error}); mend it"
        ) from error
    text = recipe_text(draft, tool, source, path)
    written = parse(text).value
    assert written == {**draft.keys, "datasets": draft.datasets}, "a note became a key"
    try:
        Recipe.from_mapping(written, folder=path.parent)
    except RecipeError as error:
        raise RecipeError(
            f"{source} means a recipe that msft refuses, so nothing was written: {error}"
        ) from error
    path.write_text(text, encoding="utf-8")
    return f"wrote {path} from a config of {tool}\n\n{outcome(draft)}\n\nnext: msft validate {path}"


def recipe_text(draft: Draft, tool: str, source: Path, path: Path) -> str:
    """The recipe, with the key of theirs behind each of ours."""
    lines = [
        f"# From {source.name}, a config of {tool}, by msft init --from. Comments have their keys.",
        f"# msft validate {path.name} --show 2     what the model will see",
    ]
    apart = [*draft.reasons(True), *(f"  {key}: {why}" for key, why in draft.remarks.items())]
    if apart:
        lines += ["#", "# Not as in their run, until you settle it:", *(f"# {a}" for a in apart)]
    lines = [*map(one_line, lines), ""]
    for key in recipe_keys():
        if key == "datasets":
            lines += ["", "datasets:                   # paths are relative to this file"]
            lines += [f"  {line}" for line in dump(draft.datasets).splitlines()] + [""]
        elif key in draft.keys:
            lines += _commented(dump({key: draft.keys[key]}).splitlines(), draft.note_of(key))
    return "\n".join([*lines, "", _METHOD, ""])


def _commented(lines: Sequence[str], note: str) -> list[str]:
    first, *rest = lines
    return [f"{first:<26}  # {one_line(note)}" if note else first, *rest]


def outcome(draft: Draft) -> str:
    """What was carried over, what was not and why, and what their tool does otherwise."""
    lines = ["carried over (their key → ours):"]
    for each in draft.carried:
        note = f" ({each.note})" if each.note else ""
        lines.append(f"  {each.theirs} → {each.ours}: {_short(each.value)}{note}")
    changing, missing = draft.reasons(True), draft.reasons(False)
    if changing:
        lines += ["", "not carried over, and it changes the run (the recipe has this list, too):"]
        lines += changing
    if draft.silent:
        missing.append(f"  {', '.join(draft.silent)}: empty or off")
    if missing:
        lines += ["", "not carried over:", *missing]
    if draft.remarks:
        lines += ["", "different by default:"]
        lines += [f"  {key}: {why}" for key, why in draft.remarks.items()]
    return "\n".join(map(one_line, lines))


def _lengths(place: Path, draft: Draft) -> tuple[list[int], str] | None:
    """Tokens of training rows of a draft, as many of each sub-dataset as it has of the mixture.

    place: the recipe's folder. The hub is not asked: neither for rows nor for a tokenizer.
    """
    try:
        recipe = Recipe.from_mapping({**draft.keys, "datasets": draft.datasets}, folder=place)
        sources = [own_sources(spec, place, hub=False).get("train") for spec in recipe.datasets]
        files = [path for source in sources if isinstance(source, Files) for path in source.paths]
        if None in sources or sum(path.stat().st_size for path in files) > LARGEST:
            return None
        found = load_datasets(recipe)
    except (RecipeError, DataError, OSError):
        return None
    rows = sum(len(each.loaded.train) * each.spec.weight for each in found)
    sample: list[Example] = []
    for each in found:
        train = each.loaded.train
        count = ceil(len(train) * each.spec.weight * min(1, _SAMPLE / rows))
        sample += [train[number * len(train) // count] for number in range(count)]
    try:
        tokenizer = tokenizer_for(replace(recipe, trust_remote_code=False), _model_here(recipe))
        rows_of_tokens = encoded_examples(sample, tokenizer, 0)
        return [len(row.tokens) for row in rows_of_tokens], "by the model's tokenizer"
    except Explained:
        texts = ["".join(m.text for m in e.messages) or e.prompt + e.completion for e in sample]
        estimated = [len(text.encode()) // _BYTES + 1 for text in texts]
        return estimated, f"estimated at {_BYTES} bytes a token"


def _model_here(recipe: Recipe) -> str:
    """The model's folder or file on this machine; RecipeError where there is none."""
    from huggingface_hub import try_to_load_from_cache

    name = recipe.model()
    if name in (TINY, SMOLLM2) or Path(name).exists():
        return name
    try:
        file = try_to_load_from_cache(name, "tokenizer.json")
    except ValueError:
        file = None
    if not isinstance(file, str):
        raise RecipeError(f"{name} is not here")
    return str(Path(file).parent)


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else shown(value)
