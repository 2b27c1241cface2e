"""`msft init`: a recipe that runs as it stands, with example rows, or one from a foreign config."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any

from msft.data.encoding import encoded_examples
from msft.data.sources import Files, sources_of
from msft.data.splits import load_datasets
from msft.engine.model.folders import SMOLLM2, TINY
from msft.engine.model.tokenizers import tokenizer_for
from msft.errors import DataError, Explained, RecipeError, UsageError
from msft.example import Example
from msft.planning.admission import refuse_unwritable
from msft.recipe.dataset import weight_in
from msft.recipe.draft import MOST_VALUES, Draft, Tool
from msft.recipe.importer import drafted, tool_of
from msft.recipe.importer_datasets import LARGEST
from msft.recipe.recipe import Recipe, recipe_keys
from msft.recipe.yaml import dump, parse, read_recipe
from msft.search.draws import sampled
from msft.text import one_line, shown

_METHOD = """# Does one dataset spoil the model? mSFT takes out a dataset whose scores surely fall
# (docs/choosing.md says when): method: msft, method_options: {exclude: {confidence: 0.95}},
# lr_scheduler_type: constant, and compute_budget for the length of a roll-out."""

_SAMPLE = 4000
"""Rows whose tokens are counted, at most."""
_BYTES = 4
"""Bytes of a token of English text: the estimate where the model's tokenizer is not here."""


def write_import(source: Path, path: Path) -> str:
    """Write the recipe that a config means, and return what became of its keys. Nothing is
    overwritten."""
    _refuse_no_place(path)
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


def _refuse_no_place(path: Path) -> None:
    """UsageError where no new file can be written here."""
    if path.exists():
        raise UsageError(f"{path} exists already; give another name, or remove it first")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it first")
    refuse_unwritable(path.parent)


def recipe_text(draft: Draft, tool: Tool, source: Path, path: Path) -> str:
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
            first, *rest = dump({key: draft.keys[key]}).splitlines()
            note = draft.note_of(key)
            lines += [f"{first:<26}  # {one_line(note)}" if note else first, *rest]
    return "\n".join([*lines, "", _METHOD, ""])


def outcome(draft: Draft) -> str:
    """Keys that were carried over, keys that were not and why, and other defaults of the tool."""
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
        sources = [sources_of(s, recipe, hub=False)[0].get("train") for s in recipe.datasets]
        files = [path for source in sources if isinstance(source, Files) for path in source.paths]
        if None in sources or sum(path.stat().st_size for path in files) > LARGEST:
            return None
        found = load_datasets(recipe)
    except (RecipeError, DataError, OSError):
        return None
    drawn = [len(each.train) * weight_in(each.spec.weight, 0) for each in found]
    rows = sum(drawn)
    sample: list[Example] = []
    for each, of_epoch in zip(found, drawn, strict=True):
        train = each.train
        count = ceil(of_epoch * min(1, _SAMPLE / rows))
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


ROWS = "example-rows"
"""The folder of the example rows, beside the recipe. The template names its files."""
SIZES = {"train": 300, "test": 100}

Pair = tuple[str, str]
"""A prompt and its completion."""


def write_starter(path: Path) -> str:
    """Write the recipe and its rows, and return what to do next. Nothing is overwritten."""
    _refuse_no_place(path)
    folder = path.parent / ROWS
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} exists already and is not a folder; rename it first")
    rows = {folder / name: text for name, text in example_files().items()}
    for file, text in rows.items():
        if file.exists() and (not file.is_file() or file.read_bytes() != text.encode()):
            raise UsageError(
                f"{file} exists already and is not the example that msft writes; rename it, or "
                "write the recipe into another folder"
            )
    folder.mkdir(exist_ok=True)
    for file, text in rows.items():
        file.write_text(text)
    path.write_bytes(files("msft.recipe").joinpath("template.yaml").read_bytes())
    return (
        f"wrote {path}, and example rows to {folder}\n"
        f"try it:     msft train {path} --out example\n"
        'your data:  change the three lines marked "yours", then\n'
        f"            msft validate {path} --show 2"
    )


def example_files() -> dict[str, str]:
    """The files of the folder by name: two small tasks, as JSON lines of prompt and completion."""
    made = {}
    for name, (count, row) in TASKS.items():
        drawn = iter(sampled(count, sum(SIZES.values()), 0, name))
        for split, size in SIZES.items():
            rows = (row(next(drawn)) for _ in range(size))
            lines = (json.dumps({"prompt": asked, "completion": said}) for asked, said in rows)
            file = f"{name}.jsonl" if split == "train" else f"{name}.{split}.jsonl"
            made[file] = "".join(line + "\n" for line in lines)
    return made


def _routing(number: int) -> Pair:
    """The letter of a ticket decides where it goes."""
    letter, digits = divmod(number, 1000)
    department = ("billing", "support", "sales", "shipping")[letter % 4]
    return f"Ticket {'ABCDEFGH'[letter]}-{digits:03d} goes to", f" {department}"


def _boxes(number: int) -> Pair:
    """The first digit decides whether a box is large."""
    return f"Box {number + 1000} is", " large" if number >= 4000 else " small"


TASKS: dict[str, tuple[int, Callable[[int], Pair]]] = {
    "routing": (8000, _routing),
    "boxes": (9000, _boxes),
}
"""The number of rows that each task could have, and the function that makes a row of a number."""
