"""YAML for recipes: plain values with the line each stands on, and nothing that could do harm.

Anchors, tags, duplicate keys, several documents and deep nesting are refused before anything is
built, so neither a bomb nor an object can come out of a file. Plain scalars are read by YAML 1.2
rules: `1e-5` is a number, `no` is text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import yaml

from msft.checks import plain
from msft.errors import Place, YamlError

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 20

_BREAK = re.compile("[\n\r\x85\u2028\u2029\ufeff]")


Places = dict[Place, str]
"""Where each key stands, for messages: `recipe.yaml, line 3` or `--set seed=x`."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A value and the line (from 1) of every key and item in it."""

    value: Any
    lines: Mapping[Place, int]


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
    lines: dict[Place, int] = {}
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


def _value(node: yaml.Node, place: Place, lines: dict[Place, int]) -> Any:
    """What a node says; the line of each key and item in it is added to `lines`."""
    lines.setdefault(place, _line(node))
    if isinstance(node, yaml.ScalarNode):
        return plain(node.value) if node.style is None else node.value
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


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(plain(text), str) else "'"
    if _BREAK.search(text):  # only this style escapes them
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def dump(value: Any) -> str:
    """Text that `parse` reads back as an equal value."""
    return yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6, indent=2
    )


def place_of(place: Place, where: str, places: Mapping[Place, str]) -> str:
    """How a message about this key starts: the nearest place that is known."""
    for end in range(len(place), 0, -1):
        if place[:end] in places:
            return f"{places[place[:end]]}: "
    return f"{where}: " if where else ""
