"""One dataset of another tool's config: where its rows are, which columns, and how many."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msft.errors import RecipeError
from msft.files import expanded
from msft.recipe.draft import Carried, Draft
from msft.recipe.foreign_defaults import TRL
from msft.recipe.foreign_refusals import refuse_entry

_FILES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")
_SLICE = re.compile(r"(\w+)\[:(\d+)(%?)\]")
LARGEST = 500_000_000
"""Bytes of a file whose rows are counted."""
_PLACE = ("path", "data_files", "name")
"""Keys that say where rows are."""
_TURNS = ("message_field_role", "message_field_content", "message_property_mappings", "tags")
"""Keys that say how a turn of a conversation is written."""
_WRITTEN = ("format", "no_input_format", "system_prompt", "system_format", "field_system")
"""Keys of a prompt of the user's own, in Axolotl's `type`."""
_PLAIN = ("alpaca", "chat_template", "chat_template.default", "sharegpt")
"""Axolotl's types whose prompts are those that msft writes."""
_COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "messages": "",
    "field_messages": "",
    "field_instruction": "instruction",
    "field_input": "input",
    "field_output": "output",
    "tools": "tools",
}
"""Their names of columns, and our fields; empty: that of a conversation."""


def add_entry(
    draft: Draft,
    place: Path,
    where: str,
    entry: Mapping[str, Any],
    called: str = "",
) -> None:
    """Add one dataset: where its rows are, which columns, and how many.

    where: its place in their config. called: its name, if it has one.
    """
    path, files = entry.get("path"), entry.get("data_files")
    if not isinstance(path, str):
        raise RecipeError(f"{where} has no path; expected a file, a folder or a name on the hub")
    refuse_entry(where, entry)
    spec: dict[str, Any] = {"name": _free(draft, called or _stem(path, files))}
    source = _source(draft, place, path, files, entry.get("name"))
    spec |= source
    note = "" if _found(source, place) else "no such file here yet"
    (ours,) = source
    twins = [each for each in draft.datasets if ours in each]
    listed = " + ".join(f"{where}.{key}" for key in _PLACE if entry.get(key) is not None)
    told = listed if where.endswith("]") else where
    draft.carried.append(Carried(told, f"datasets: {ours}", source[ours], note))
    columns: dict[str, str] = {}
    type_of = entry.get("type")
    more = type_of if isinstance(type_of, Mapping) else {}
    field = _conversation(entry)
    for key, value in sorted({**entry, **more}.items(), key=lambda item: item[0] != "split"):
        at = f"{where}.{key}"
        if key in _PLACE or value in (None, {}):
            continue
        if key in more and key in _WRITTEN:
            why = "prompts are written as the columns say: put this text into the rows"
            draft.leave(at, why, changes=True)
        elif key in _TURNS:
            _read_turns(draft, at, entry)
        elif key == "split":
            read_split(draft, at, spec, value, place)
        elif key == "fraction" and draft.tool == TRL:
            continue  # its shares are read together
        elif key in ("weight", "num_samples"):
            _share(draft, at, spec, key, value, place)
        elif key in _COLUMNS and isinstance(value, str):
            columns[_COLUMNS[key] or field] = value
            draft.carried.append(Carried(at, "datasets: columns", value))
        elif key == "type" and str(value).startswith(("completion", "pretrain")):
            why = "plain text has no prompt and answer: name them under columns"
            draft.leave(at, why, changes=True)
        elif key == "type" and isinstance(value, str) and value not in _PLAIN:
            draft.leave(at, f"rows get no prompt of {value}, but as their columns say", True)
        elif key in ("type", "formatting", "columns", "converter"):
            draft.leave(at, "the format of rows is recognised by their columns")
        elif key == "roles_to_train" and value in (["assistant"], ["gpt"], ["assistant", "gpt"]):
            draft.silent.append(at)
        else:
            draft.leave(at)
    if f"{where}.split" in draft.changes and any(each[ours] == source[ours] for each in twins):
        draft.leave(where, "the same split train as another dataset, so it is named once", True)
        return
    if any(ours != theirs for ours, theirs in columns.items()):
        spec["columns"] = _ours(columns)
    spec["metric"] = "nll"
    draft.datasets.append(spec)


def _conversation(entry: Mapping[str, Any]) -> str:
    """Our field of a conversation: `conversations` has from and value, `messages` role and
    content."""
    role, _ = _names_of_turns(entry)
    return "conversations" if role == "from" or entry.get("type") == "sharegpt" else "messages"


def _names_of_turns(entry: Mapping[str, Any]) -> tuple[Any, Any]:
    """What the two parts of a turn are called; None: as usual. LLaMA-Factory has ShareGPT's."""
    tags = entry.get("tags")
    if isinstance(tags, Mapping):
        return tags.get("role_tag", "from"), tags.get("content_tag", "value")
    mapped = entry.get("message_property_mappings")
    if isinstance(mapped, Mapping):
        return mapped.get("role"), mapped.get("content")
    return entry.get("message_field_role"), entry.get("message_field_content")


def _read_turns(draft: Draft, at: str, entry: Mapping[str, Any]) -> None:
    names = _names_of_turns(entry)
    if names[0] in (None, "role", "from") and names[1] in (None, "content", "value"):
        draft.carried.append(Carried(at, "datasets: columns", _conversation(entry)))
    else:
        draft.leave(at, "a turn has role and content, or from and value: rename them in the rows")


def _ours(columns: dict[str, str]) -> dict[str, str]:
    """Fields of one format: a prompt and an answer under names of the user's own are `prompt` and
    `completion`; with an input they are Alpaca's."""
    renamed = {"instruction": "prompt", "output": "completion"}
    if not {*columns} <= {*renamed}:
        return columns
    return {renamed[field]: column for field, column in columns.items()}


def _source(
    draft: Draft, place: Path, path: str, files: Any, config: Any
) -> dict[str, str | list[str]]:
    """`train` for files, `path` for a folder or the hub."""
    if files is not None:
        several = [files] if isinstance(files, str) else list(files)
        inside = [name if _is_hub(draft, path) else f"{path}/{name}" for name in several]
        named = [_from(draft, place, name) for name in inside]
        return {"train": named[0] if len(named) == 1 else named}
    if is_file(path):
        return {"train": _from(draft, place, path)}
    if not _is_hub(draft, path):
        return {"path": _from(draft, place, path)}
    return {"path": f"{path}:{config}" if config else path}


def is_file(path: str) -> bool:
    return path.endswith(_FILES)


def _is_hub(draft: Draft, path: str) -> bool:
    return not path.startswith((".", "/", "~")) and not (draft.folder / path).is_dir()


def _from(draft: Draft, place: Path, path: str) -> str:
    """A file of theirs, which is beside their config or in the working folder, seen from ours."""
    written = expanded(path)
    if written.is_absolute():
        return str(written)
    here = next((f / written for f in (draft.folder, Path()) if (f / written).exists()), None)
    return path if here is None else os.path.relpath(here.resolve(), place.resolve())


def _found(source: Mapping[str, Any], place: Path) -> bool:
    named = source.get("train", ())
    return all((place / name).exists() for name in ([named] if isinstance(named, str) else named))


def _stem(path: str, files: Any) -> str:
    first = files if isinstance(files, str) else files[0] if files else path
    return Path(first).name.split(".")[0] or "data"


def _free(draft: Draft, name: str) -> str:
    """A name for a sub-dataset that no other one has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:90] or "data"
    taken = {spec["name"].casefold() for spec in draft.datasets}
    numbered = (plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 3)))
    return next(each for each in numbered if each.casefold() not in taken)


def read_split(draft: Draft, at: str, spec: dict[str, Any], value: Any, place: Path) -> None:
    """`train`, or the first rows or percent of it where they can be counted."""
    cut = _SLICE.fullmatch(str(value))
    rows = int(cut[2]) if cut and cut[1] == "train" else None
    if rows is not None and cut and cut[3]:
        every = rows_in(spec, place)
        rows = None if every is None else max(1, round(every * rows / 100))
    if value == "train":
        draft.carried.append(
            Carried(at, f"datasets: {'path' if 'path' in spec else 'train'}", value)
        )
    elif rows is not None:
        spec["train_rows"] = rows
        draft.carried.append(Carried(at, "datasets: train_rows", rows, "drawn by seed"))
    else:
        draft.leave(
            at,
            f"msft reads the split train, whole, and not {value}; train_rows takes fewer",
            changes=True,
        )


def _share(draft: Draft, at: str, spec: dict[str, Any], key: str, value: Any, place: Path) -> None:
    """A share of the rows, drawn once: so many `train_rows`, where they can be counted."""
    if key == "num_samples":
        spec["train_rows"] = value
        draft.carried.append(Carried(at, "datasets: train_rows", value))
        return
    rows = used_in(spec, place)
    if value == 1:
        draft.silent.append(at)
    elif rows is not None and value < 1:
        spec["train_rows"] = max(1, round(value * rows))
        draft.carried.append(
            Carried(at, "datasets: train_rows", spec["train_rows"], f"of {rows:,}")
        )
    else:
        spec["weight"] = value
        draft.carried.append(Carried(at, "datasets: weight", value, "drawn anew in each epoch"))


def rows_in(spec: Mapping[str, Any], place: Path) -> int | None:
    """The rows of a sub-dataset's file; None where they cannot be counted quickly."""
    named = spec.get("train")
    file = place / named if isinstance(named, str) else None
    if file is None or not file.is_file() or file.stat().st_size > LARGEST:
        return None
    try:
        if file.suffix == ".jsonl":
            with file.open("rb") as lines:
                return sum(1 for line in lines if line.strip())
        if file.suffix == ".json":
            return len(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    return None


def used_in(spec: Mapping[str, Any], place: Path) -> int | None:
    """Those of them that `train_rows` leaves."""
    rows = rows_in(spec, place)
    return None if rows is None else min(rows, spec.get("train_rows", rows))


def trained_in(spec: Mapping[str, Any], place: Path) -> float | None:
    """About as many rows as a sub-dataset has to train; None where they cannot be counted."""
    rows = rows_in(spec, place)
    if rows is None:
        return None
    kept: float = min(rows * (1 - spec["validation_fraction"]), spec.get("train_rows", rows))
    return kept
