"""Recipe files: strict YAML as plain values with the line of every key, and `--set key=value`.

Anchors, tags, duplicate keys, several documents and deep nesting are refused before anything is
built, so neither a bomb nor an object can come out of a file. Plain scalars are read by YAML 1.2
rules: `1e-5` is a number, `no` is text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

import yaml

from msft.errors import KeyPath, RecipeError, YamlError
from msft.recipe.foreign_keys import ALIASES
from msft.text import shown

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 20

_BREAK = re.compile("[\n\r\x85\u2028\u2029\ufeff]")
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": -float("inf"),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}

Places = dict[KeyPath, str]
"""Where each key stands, for messages: `recipe.yaml, line 3` or `--set seed=x`."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A value and the line (from 1) of every key and item in it."""

    value: Any
    lines: Mapping[KeyPath, int]


def parse(text: str, most: float = inf) -> Marked:
    """The one document in `text`; null if there is none.

    most: keys and values in it.
    """
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"more than {MAX_CHARACTERS:,} characters; a recipe is a short text")
    try:
        loader = _Loader(text)
        loader.most = most
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        if isinstance(error, yaml.composer.ComposerError):  # of an alias it never hears
            raise YamlError("a second YAML document starts here; keep one", line) from error
        said = "; ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(
            f"not valid YAML: {said}; mend the line, or the one before it (indent with blanks, "
            "quote text that has a special character)",
            line,
        ) from error
    except yaml.reader.ReaderError as error:
        raise YamlError(
            f"not valid YAML: character {chr(error.character)!r} is not allowed; remove it",
            text.count("\n", 0, error.position) + 1,
        ) from error
    lines: dict[KeyPath, int] = {}
    return Marked(None if root is None else _value(root, (), lines), lines)


class _Loader(yaml.SafeLoader):
    """Refuses what could do harm as it comes, before a node is made of it."""

    depth = 0
    values = 0
    most = inf

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias or event.anchor is not None:
            raise YamlError(
                f"{'*&'[not is_alias] + event.anchor!r} is a YAML anchor or alias, which is not "
                "read; write the value out (quote it if it is text)",
                _line(event),
            )
        if event.tag is not None:
            raise YamlError(
                f"the YAML tag {event.tag!r} is not read; write a plain value "
                "(quote it if it is text)",
                _line(event),
            )
        if self.depth > MAX_DEPTH:
            raise YamlError(f"nested more than {MAX_DEPTH} levels deep", _line(event))
        self.values += 1
        if self.values > self.most:
            raise YamlError(f"more than {self.most:,} keys and values", _line(event))
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _value(node: yaml.Node, place: KeyPath, lines: dict[KeyPath, int]) -> Any:
    """The value of a node; the line of each key and item in it is added to `lines`."""
    lines.setdefault(place, _line(node))
    if isinstance(node, yaml.ScalarNode):
        return parse_scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*place, number), lines) for number, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise YamlError("a key that is not text; write `key: value`", _line(key))
        inner = (*place, key.value)
        if key.value in values:
            raise YamlError(
                f"{key.value!r} is given twice (first on line {lines[inner]}); remove one of them",
                _line(key),
            )
        lines[inner] = _line(key)
        values[key.value] = _value(value, inner, lines)
    return values


def _line(marked: Any) -> int:
    return int(marked.start_mark.line) + 1


def parse_scalar(text: str) -> Any:
    """What unquoted text means, by YAML 1.2 rules."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 100 else float(text.replace("_", ""))
    return float(text) if _FLOAT.fullmatch(text) else text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(parse_scalar(text), str) else "'"
    if _BREAK.search(text):  # only this style escapes them
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def dump(value: Any) -> str:
    """Text that `parse` reads back as an equal value."""
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, indent=2
    )


def on_a_line(value: Any) -> str:
    """A value as YAML on one line, such as `{seed: 30}`."""
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).strip()


def place_of(place: KeyPath, where: str, places: Mapping[KeyPath, str]) -> str:
    """How a message about this key starts: the nearest place that is known."""
    for end in range(len(place), 0, -1):
        if place[:end] in places:
            return f"{places[place[:end]]}: "
    return f"{where}: " if where else ""


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


def _owner(mapping: dict[str, Any], key: str, at: str) -> tuple[dict[Any, Any], KeyPath]:
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
