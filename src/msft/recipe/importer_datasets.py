"""The datasets of another tool's config as sub-datasets of a recipe: where the rows of each are,
which columns they have, and how many there are."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msft.errors import RecipeError, YamlError
from msft.files import expanded
from msft.recipe.draft import (
    AXOLOTL,
    FACTORY,
    MOST_VALUES,
    NEWER,
    TRL,
    Draft,
    refuse_entry,
)
from msft.recipe.yaml import parse
from msft.text import shown

_FILES = (
    *(".jsonl", ".json", ".csv", ".tsv", ".parquet"),
    *(".jsonl.gz", ".json.gz", ".csv.gz", ".tsv.gz"),
)
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
_TEXT = ("completion", "pretrain")
"""Axolotl's types of plain text."""
_CONVERSED = ("chat_template", "chat_template.default", "sharegpt")
"""Axolotl's types of conversations."""
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
    first = files if isinstance(files, str) else files[0] if files else path
    name = called or Path(first).name.split(".")[0] or "data"
    spec: dict[str, Any] = {"name": _free(draft, name)}
    source = _source(draft, path, files, entry.get("name"))
    spec |= source
    note = "" if _found(source, draft.place) else "no such file here yet"
    (ours,) = source
    twins = [each for each in draft.datasets if ours in each]
    listed = " + ".join(f"{where}.{key}" for key in _PLACE if entry.get(key) is not None)
    told = listed if where.endswith("]") else where
    draft.carry_data(told, ours, source[ours], note)
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
            read_split(draft, at, spec, value)
        elif key == "fraction" and draft.tool is TRL:
            draft.leave(at, "a share of TRL's mixture: write train_rows", changes=True)
        elif key in ("weight", "num_samples"):
            _share(draft, at, spec, key, value)
        elif key in _COLUMNS and isinstance(value, str):
            columns[_COLUMNS[key] or field] = value
            draft.carry_data(at, "columns", value)
        elif key == "type" and value in _TEXT:
            columns["text"] = str(entry.get("field") or "text")
            note = "loss on all of it; a text above max_length is left out, not divided"
            draft.carry_data(at, "columns", f"{{text: {columns['text']}}}", note)
        elif key == "field" and type_of in _TEXT:
            draft.silent.append(at)
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
    if "text" in columns or any(ours != theirs for ours, theirs in columns.items()):
        spec["columns"] = _our_fields(columns)
    if type_of in _CONVERSED or {"messages", "conversations"} & columns.keys():
        draft.turns.append(spec["name"])
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
        draft.carry_data(at, "columns", _conversation(entry))
    else:
        draft.leave(at, "a turn has role and content, or from and value: rename them in the rows")


def _our_fields(columns: dict[str, str]) -> dict[str, str]:
    """Fields of one format: a prompt and an answer under names of the user's own are `prompt` and
    `completion`; with an input they are Alpaca's."""
    renamed = {"instruction": "prompt", "output": "completion"}
    if not {*columns} <= {*renamed}:
        return columns
    return {renamed[field]: column for field, column in columns.items()}


def _source(draft: Draft, path: str, files: Any, config: Any) -> dict[str, str | list[str]]:
    """`train` for files, `path` for a folder or the hub."""
    if files is not None:
        several = [files] if isinstance(files, str) else list(files)
        inside = [name if _is_hub(draft, path) else f"{path}/{name}" for name in several]
        named = [_from(draft, name) for name in inside]
        return {"train": named[0] if len(named) == 1 else named}
    if is_file(path):
        return {"train": _from(draft, path)}
    if not _is_hub(draft, path):
        return {"path": _from(draft, path)}
    return {"path": f"{path}:{config}" if config else path}


def is_file(path: str) -> bool:
    return path.endswith(_FILES)


def _is_hub(draft: Draft, path: str) -> bool:
    return not path.startswith((".", "/", "~")) and not (draft.folder / path).is_dir()


def _from(draft: Draft, path: str) -> str:
    """A file of theirs, which is beside their config or in the working folder, seen from ours."""
    written = expanded(path)
    if written.is_absolute():
        return str(written)
    here = next((f / written for f in (draft.folder, Path()) if (f / written).exists()), None)
    return path if here is None else os.path.relpath(here.resolve(), draft.place.resolve())


def _found(source: Mapping[str, Any], place: Path) -> bool:
    named = source.get("train", ())
    return all((place / name).exists() for name in ([named] if isinstance(named, str) else named))


def _free(draft: Draft, name: str) -> str:
    """A name for a sub-dataset that no other one has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:90] or "data"
    taken = {spec["name"].casefold() for spec in draft.datasets}
    numbered = (plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 3)))
    return next(each for each in numbered if each.casefold() not in taken)


def read_split(draft: Draft, at: str, spec: dict[str, Any], value: Any) -> None:
    """`train`, or the first rows or percent of it where they can be counted."""
    cut = _SLICE.fullmatch(str(value))
    rows = int(cut[2]) if cut and cut[1] == "train" else None
    if rows is not None and cut and cut[3]:
        every = rows_in(spec, draft.place)
        rows = None if every is None else max(1, round(every * rows / 100))
    if value == "train":
        draft.carry_data(at, "path" if "path" in spec else "train", value)
    elif rows is not None:
        spec["train_rows"] = rows
        draft.carry_data(at, "train_rows", rows, "drawn by seed")
    else:
        draft.leave(
            at,
            f"msft reads the split train, whole, and not {value}; train_rows takes fewer",
            changes=True,
        )


def _share(draft: Draft, at: str, spec: dict[str, Any], key: str, value: Any) -> None:
    """A share of the rows, drawn once: so many `train_rows`, where they can be counted."""
    if key == "num_samples":
        spec["train_rows"] = value
        draft.carry_data(at, "train_rows", value)
        return
    rows = trained_in(spec, draft.place)
    if value == 1:
        draft.silent.append(at)
    elif rows is not None and value < 1:
        spec["train_rows"] = max(1, round(value * rows))
        draft.carry_data(at, "train_rows", spec["train_rows"], f"of {rows:,}")
    else:
        spec["weight"] = value
        draft.carry_data(at, "weight", value, "drawn anew in each epoch")


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


def trained_in(spec: Mapping[str, Any], place: Path) -> float | None:
    """About as many rows as a sub-dataset has to train, as far as its keys are known; None where
    they cannot be counted."""
    rows = rows_in(spec, place)
    if rows is None:
        return None
    kept = rows * (1 - spec.get("validation_fraction", 0))
    trained: float = min(kept, spec.get("train_rows", rows))
    return trained


DATASETS_OF = (
    *("datasets", "test_datasets", "val_set_size", "test_split_size"),
    *("dataset", "dataset_dir", "eval_dataset", "val_size", "max_samples"),
    *("mix_strategy", "interleave_probs"),
    *("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split"),
    *("dataset_mixture", "dataset_mixer", "train_dataset"),
)
"""The keys that the readers of datasets read."""

INFO = "dataset_info.json"
HELD_OUT = 0.1
"""The share of rows that is held out where their config holds out none: msft chooses by it."""


def axolotl_datasets(draft: Draft) -> None:
    """`datasets: [{path, type, …}]` with `val_set_size`."""
    _listed(draft)
    _held_out(draft, "val_set_size")
    _evaluated(draft, "test_datasets")


def trl_datasets(draft: Draft) -> None:
    """`dataset_name`, or a mixture under `datasets`."""
    config = draft.config
    single = ("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split")
    for key in ("dataset_mixture", "dataset_mixer"):
        if key in config:
            _mixed(draft, key)
            return
    if "datasets" in config:
        _listed(draft)
        for key in single:
            if key in config:
                draft.leave(key, "TRL does not read it either where datasets is given")
        _held_out(draft, "test_split_size")
        return
    name, subset, train, test = single
    if name not in config:
        raise RecipeError(
            "dataset_name is missing; write it into the config, if it stands on the command line"
        )
    add_entry(draft, name, {"path": config[name], "name": config.get(subset)})
    if subset in config:
        draft.carry_data(subset, "path", config[subset])
    if train in config:
        read_split(draft, train, draft.datasets[0], config[train])
    if test in config:
        draft.leave(test, "msft reports on the split test, and chooses on rows held out")
    _held_out(draft, "")


def _mixed(draft: Draft, key: str) -> None:
    """Alignment Handbook's `{datasets: [{id, config, split, weight}], test_split_size}`, and the
    `{id: weight}` of its older versions."""
    mixture = draft.config[key]
    if not isinstance(mixture, Mapping):
        raise RecipeError(f"{key} is {shown(mixture)}; expected datasets")
    listed = mixture.get("datasets")
    if key == "dataset_mixer":
        listed = [{"id": name, "weight": weight} for name, weight in mixture.items()]
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise RecipeError(f"{key} is {shown(mixture)}; expected a list of datasets with id")
    names = {"id": "path", "config": "name"}
    for number, entry in enumerate(listed):
        renamed = {names.get(name, name): value for name, value in entry.items()}
        add_entry(draft, f"{key}[{number}]", renamed)
    if "seed" in mixture and key == "dataset_mixture":
        draft.leave(f"{key}.seed", "seed of the recipe draws rows, too")
    size = mixture.get("test_split_size") if key == "dataset_mixture" else None
    _held_out(draft, f"{key}.test_split_size", size)
    for split in [each for each in ("dataset_splits", "dataset_configs") if each in draft.config]:
        why = f"msft reads the split train, whole, and not {shown(draft.config[split])}"
        draft.leave(split, why, changes=True)


def newer_datasets(draft: Draft) -> None:
    """`train_dataset: FILE`, a YAML file of datasets, or a file or name itself."""
    named = draft.config.get("train_dataset")
    if not isinstance(named, str):
        raise RecipeError(f"train_dataset is {shown(named)}; expected a file or a name")
    entries: Any = {Path(named).name.split(".")[0]: {"path": named}}
    folders = (Path(), draft.folder, *draft.folder.resolve().parents)
    if named.endswith((".yaml", ".yml")):
        file = next((f / named for f in folders if (f / named).is_file()), None)
        if file is None:
            raise RecipeError(
                f"train_dataset is {shown(named)}, and there is no such file here or beside the "
                "config; its datasets are needed"
            )
        entries = _listed_in(file)
    for name, entry in entries.items():
        where = f"train_dataset.{name}"
        if not isinstance(entry, Mapping):
            raise RecipeError(f"{where} is {shown(entry)}; expected path")
        apart = ("source", "size", "streaming")
        rest = {key: value for key, value in entry.items() if key not in apart}
        path = str(rest.get("path", ""))
        near = [f / path for f in folders if (f / path).exists()]
        above = near and not any((f / path).exists() for f in folders[:2])
        rest |= {"path": str(near[0]) if above else path, "num_samples": entry.get("size")}
        add_entry(draft, where, rest, str(name))
    draft.carry_data("train_dataset", "", named)
    _held_out(draft, "")
    _evaluated(draft, "eval_dataset")


def _listed_in(file: Path) -> Any:
    try:
        found = parse(file.read_text(encoding="utf-8"), MOST_VALUES).value
    except (OSError, ValueError, YamlError) as error:
        raise RecipeError(f"{file} cannot be read: {error}; mend it") from error
    if not isinstance(found, Mapping):
        raise RecipeError(f"{file} has {shown(found)}; expected names of datasets, each with path")
    return found


def _listed(draft: Draft) -> None:
    listed = draft.config.get("datasets")
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise RecipeError(f"datasets is {shown(listed)}; expected a list of entries with path")
    for number, entry in enumerate(listed):
        name = entry.get("name")
        for each in name if isinstance(name, list) else [name]:
            add_entry(draft, f"datasets[{number}]", {**entry, "name": each})


def factory_datasets(draft: Draft) -> None:
    """`dataset: a,b` by `dataset_info.json`."""
    config = draft.config
    names = _names(config.get("dataset"))
    if not names:
        raise RecipeError("dataset is missing; expected names between commas, such as a,b")
    info, folder = _dataset_info(draft)
    for name in names:
        entry = info.get(name, {"file_name": name if is_file(name) else f"{name}.json"})
        if not isinstance(entry, Mapping):
            raise RecipeError(f"{folder / INFO}: {name} is {shown(entry)}; expected file_name")
        apart = ("hf_hub_url", "file_name", "ms_hub_url", "om_hub_url", "columns", "subset")
        rest = {key: value for key, value in entry.items() if key not in apart}
        rest["path"] = entry.get("hf_hub_url") or str(folder / entry.get("file_name", name))
        rest |= {"name": entry.get("subset"), **entry.get("columns", {})}
        rest.setdefault("tags", {})
        add_entry(draft, f"dataset.{name}", rest, name)
        if name not in info and not is_file(name):
            draft.leave(f"dataset.{name}", f"{folder / INFO} does not name it: mend its train")
    for key in ("dataset_dir", "dataset"):
        if key in config:
            draft.carry_data(key, "", config[key])
    _held_out(draft, "val_size")
    if "max_samples" in config:
        for spec in draft.datasets:
            spec["train_rows"] = min(config["max_samples"], spec.get("train_rows", 10**12))
        draft.carry_data("max_samples", "train_rows", config["max_samples"])
    _interleaved(draft)
    _evaluated(draft, "eval_dataset")


def _held_out(draft: Draft, key: str, size: Any = None) -> None:
    """Rows for validation: their share or number of each, or a tenth."""
    size = draft.config.get(key, size)
    told = {"validation_fraction": HELD_OUT}
    if isinstance(size, float | int) and 0 < size < 1:
        told = {"validation_fraction": size}
    elif isinstance(size, int) and size > 1:
        told |= {"validation_rows": size}
    waiting = [spec for spec in draft.datasets if "validation_fraction" not in spec]
    for spec in waiting:
        spec |= told
        rows = rows_in(spec, draft.place)
        if "validation_rows" in told and rows:  # what is held out beyond them is lost
            spec["validation_fraction"] = min(HELD_OUT, round(told["validation_rows"] / rows, 6))
    if waiting or size is not None:
        why = (
            ""
            if told["validation_fraction"] == size
            else "msft chooses checkpoints by held-out rows"
        )
        ours = f"validation_fraction {told['validation_fraction']}"
        if "validation_rows" in told:
            ours = f"validation_rows {size} of each, a tenth of its rows at most"
        theirs = key if size is not None else "no held-out rows"
        draft.carry_data(theirs, "validation", ours, why)


def _evaluated(draft: Draft, key: str) -> None:
    if key in draft.config:
        draft.leave(key, "write validation: FILE in the sub-dataset that it belongs to")


def _names(given: Any) -> list[str]:
    listed = given.split(",") if isinstance(given, str) else given or []
    return [str(name).strip() for name in listed if str(name).strip()]


def _dataset_info(draft: Draft) -> tuple[dict[str, Any], Path]:
    """The content of dataset_info.json and its folder, looked for as their tool and its examples
    would have it."""
    named = Path(draft.config.get("dataset_dir", "data"))
    tried = [each / named for each in (Path(), draft.folder, *draft.folder.resolve().parents)]
    for folder in (*tried, draft.folder):
        file = folder / INFO
        if file.is_file():
            try:
                found = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise RecipeError(f"{file} is no JSON: {error}; mend it") from error
            return (found if isinstance(found, dict) else {}), folder
    return {}, named


def _interleaved(draft: Draft) -> None:
    """Probabilities as rows per epoch, where the rows can be counted."""
    strategy = draft.config.get("mix_strategy", "concat")
    given = _names(draft.config.get("interleave_probs"))
    keys = [key for key in ("mix_strategy", "interleave_probs") if key in draft.config]
    if strategy == "concat":
        for key in keys:
            draft.carry_data(key, "", draft.config[key], "every row once an epoch")
        return
    counts = [trained_in(spec, draft.place) for spec in draft.datasets]
    known = [count for count in counts if count]
    are_numbers = all(re.fullmatch(r"\d*\.?\d+", share) for share in given)
    shares = [float(share) for share in given] if are_numbers else []
    counted = len(shares) == len(known) == len(counts)
    if not counted or not all(share > 0 for share in shares):
        for key in keys:
            draft.leave(key)
        return
    choose = max if strategy == "interleave_over" else min
    rows = choose(count / share for count, share in zip(known, shares, strict=True))
    for spec, count, share in zip(draft.datasets, known, shares, strict=True):
        spec["weight"] = round(rows * share / count, 4)
    for key in keys:
        draft.carry_data(key, "weight", draft.config[key], "rows per epoch")


READERS = {
    AXOLOTL.name: axolotl_datasets,
    FACTORY.name: factory_datasets,
    TRL.name: trl_datasets,
    NEWER.name: newer_datasets,
}
