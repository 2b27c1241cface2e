"""YAML for recipes: plain values with the line each stands on, and nothing that could do harm.

Anchors, tags, duplicate keys, several documents and deep nesting are refused before anything is
built, so neither a bomb nor an object can come out of a file. Plain scalars are read by YAML 1.2
rules: `1e-5` is a number, `no` is text.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from msft.checks import plain
from msft.errors import Place, YamlError

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 20

_BREAK = re.compile("[\n\r\x85\u2028\u2029\ufeff]")


@dataclass(frozen=True, slots=True)
class Marked:
    """A value and the line (from 1) of every key and item in it."""

    value: Any
    lines: Mapping[Place, int]


def parse(text: str) -> Marked:
    """The one document in `text`; null if there is none."""
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"more than {MAX_CHARACTERS:,} characters; a recipe is a short text")
    try:
        return _Builder(text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = "; ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(
            f"not valid YAML: {said}; mend the line, or the one before it (indent with blanks, "
            "quote text that has a special character)",
            mark.line + 1 if mark else None,
        ) from error
    except yaml.reader.ReaderError as error:
        raise YamlError(
            f"not valid YAML: character {chr(error.character)!r} is not allowed; remove it",
            text.count("\n", 0, error.position) + 1,
        ) from error


class _Builder:
    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self._lines: dict[Place, int] = {}

    def document(self) -> Marked:
        next(self._events)  # the stream starts
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            return Marked(None, {})
        value = self._value(next(self._events), ())
        next(self._events)  # the document ends
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise YamlError("a second YAML document starts here; keep one", _line(event))
        return Marked(value, self._lines)

    def _value(self, event: Any, place: Place) -> Any:
        self._refuse(event, place)
        self._lines.setdefault(place, _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return plain(event.value) if event.style is None else event.value
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(place)
        return self._mapping(place)

    def _sequence(self, place: Place) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*place, len(items))))
        return items

    def _mapping(self, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            self._refuse(event, place)
            if not isinstance(event, yaml.ScalarEvent):
                raise YamlError("a key that is not text; write `key: value`", _line(event))
            key = event.value
            if key in values:
                first = self._lines[(*place, key)]
                raise YamlError(
                    f"{key!r} is given twice (first on line {first}); remove one of them",
                    _line(event),
                )
            self._lines[(*place, key)] = _line(event)
            values[key] = self._value(next(self._events), (*place, key))
        return values

    def _refuse(self, event: Any, place: Place) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            found = f"{'*' if isinstance(event, yaml.AliasEvent) else '&'}{event.anchor}"
            raise YamlError(
                f"{found!r} is a YAML anchor or alias, which is not read; write the value out "
                "(quote it if it is text)",
                _line(event),
            )
        if event.tag is not None:
            raise YamlError(
                f"the YAML tag {event.tag!r} is not read; write a plain value "
                "(quote it if it is text)",
                _line(event),
            )
        if len(place) > MAX_DEPTH:
            raise YamlError(f"nested more than {MAX_DEPTH} levels deep", _line(event))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


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


Places = dict[Place, str]
"""Where each key stands, for messages: `recipe.yaml, line 3` or `--set seed=x`."""


def place_of(place: Place, where: str, places: Mapping[Place, str]) -> str:
    """How a message about this key starts: the nearest place that is known."""
    for end in range(len(place), 0, -1):
        if place[:end] in places:
            return f"{places[place[:end]]}: "
    return f"{where}: " if where else ""
