"""`msft init --from`: a recipe from another tool's config, and what became of each key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msft.app.admission import refuse_unwritable
from msft.checks import shown
from msft.errors import RecipeError, UsageError
from msft.recipe.draft import Draft
from msft.recipe.foreign_configs import drafted, tool_of
from msft.recipe.overrides import read_recipe
from msft.recipe.recipe import Recipe, recipe_keys
from msft.recipe.strict_yaml import dump, parse

_METHOD = """# Does one dataset spoil the model? mSFT takes out a dataset whose scores surely fall
# (docs/choosing.md says when): method: msft, method_options: {exclude: {confidence: 0.95}},
# lr_scheduler_type: constant, and compute_budget for the length of a roll-out."""


def write_import(source: Path, path: Path) -> str:
    """Write the recipe that a config means, and return what became of its keys. Nothing is
    overwritten."""
    if path.exists():
        raise UsageError(f"{path} exists already; give another name, or remove it first")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder; make it first")
    refuse_unwritable(path.parent)
    config, _ = read_recipe(source, ())
    try:
        tool = tool_of(config)
        draft = drafted(config, source.parent, path.parent)
    except RecipeError as error:
        raise RecipeError(f"{source}: {error}") from error
    except (AttributeError, TypeError) as error:
        raise RecipeError(
            f"{source}: a value is of another kind than {tool} takes ({error}); mend it"
        ) from error
    text = recipe_text(draft, tool, source, path)
    try:
        Recipe.from_mapping(parse(text).value, folder=path.parent)
    except RecipeError as error:
        raise RecipeError(
            f"{source} means a recipe that msft refuses, so nothing was written: {error}"
        ) from error
    path.write_text(text, encoding="utf-8")
    return f"wrote {path} from a config of {tool}\n\n{outcome(draft)}\n\nnext: msft validate {path}"


def recipe_text(draft: Draft, tool: str, source: Path, path: Path) -> str:
    """The recipe, with the key of theirs behind each of ours."""
    lines = [
        f"# From {source.name}, a config of {tool}, by msft init --from. Comments have their keys."
    ]
    lines += [f"# msft validate {path.name} --show 2     what the model will see", ""]
    for key in recipe_keys():
        if key == "datasets":
            lines += ["", "datasets:                   # paths are relative to this file"]
            lines += [f"  {line}" for line in dump(draft.datasets).splitlines()] + [""]
        elif key in draft.keys:
            lines += _commented(dump({key: draft.keys[key]}).splitlines(), draft.note_of(key))
    return "\n".join([*lines, "", _METHOD, ""])


def _commented(lines: Sequence[str], note: str) -> list[str]:
    first, *rest = lines
    return [f"{first:<26}  # {note}" if note else first, *rest]


def outcome(draft: Draft) -> str:
    """What was carried over, what was not and why, and what their tool does otherwise."""
    lines = ["carried over (their key → ours):"]
    for each in draft.carried:
        note = f" ({each.note})" if each.note else ""
        lines.append(f"  {each.theirs} → {each.ours}: {_short(each.value)}{note}")
    reasons: dict[str, list[str]] = {}
    for key, why in draft.left.items():
        reasons.setdefault(why, []).append(key)
    missing = [f"  {', '.join(keys)}: {why}" for why, keys in reasons.items()]
    if draft.silent:
        missing.append(f"  {', '.join(draft.silent)}: empty or off")
    if missing:
        lines += ["", "not carried over:", *missing]
    if draft.remarks:
        lines += ["", "different by default:"]
        lines += [f"  {key}: {why}" for key, why in draft.remarks.items()]
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else shown(value)
