"""A recipe in the making from another tool's config, and what became of each of its keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msft.recipe.foreign import NOT_THERE
from msft.recipe.foreign_keys import FOREIGN, FOREIGN_OF_DATASETS
from msft.recipe.recipe import recipe_keys

DEFAULT = "their default"
UNKNOWN = "msft has no such key"


@dataclass(frozen=True, slots=True)
class Carried:
    """A key of theirs that became one of ours.

    note: what is different, if something is.
    """

    theirs: str
    ours: str
    value: Any
    note: str = ""


@dataclass(slots=True)
class Draft:
    """What a config says, in our words.

    config: their keys that have a value.
    folder: of their file; data is looked for there, and in the working folder.
    keys: of our recipe; datasets: its sub-datasets.
    carried: key by key; left: why each of the others was not carried over.
    changes: those whose absence changes the run, so that a user has something to decide.
    silent: keys that are empty or off, so that nothing is lost.
    remarks: what their tool does by default, and msft does otherwise.
    """

    config: Mapping[str, Any]
    folder: Path
    tool: str
    keys: dict[str, Any] = field(default_factory=dict)
    datasets: list[dict[str, Any]] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)

    def carry(self, theirs: str, ours: str, value: Any, note: str = "") -> None:
        """Write a key of ours; the first that says it wins."""
        if ours not in recipe_keys():
            self.leave(theirs, f"this msft has no key {ours}")
        elif self.keys.setdefault(ours, value) != value:
            self.leave(theirs, f"{ours} is {self.keys[ours]} already, by another key")
        else:
            self.carried.append(Carried(theirs, ours, value, note))

    def leave(self, theirs: str, why: str = "", changes: bool = False) -> None:
        """Say why a key was not carried over; by default as a recipe with it would be told.

        changes: the run is another one without it. It also is where msft lacks what the key asks.
        """
        *_, name = theirs.split(".")
        table = FOREIGN_OF_DATASETS if "." in theirs and name in FOREIGN_OF_DATASETS else FOREIGN
        known = table[name].answer if name in table else UNKNOWN
        self.left[theirs] = why or known.replace("leave it out: ", "")
        if changes or (not why and known.startswith((NOT_THERE, UNKNOWN))):
            self.changes.append(theirs)

    def take_back(self, ours: str, why: str) -> None:
        """A key of theirs that was carried over does not count, by another one."""
        for each in [each for each in self.carried if each.ours == ours]:
            self.carried.remove(each)
            del self.keys[ours]
            if each.note != DEFAULT:
                self.leave(each.theirs, why)

    def reasons(self, changing: bool) -> list[str]:
        """What was not carried over and why, a line for each reason."""
        found: dict[str, list[str]] = {}
        for key, why in self.left.items():
            if (key in self.changes) is changing:
                found.setdefault(why, []).append(key)
        return [f"  {', '.join(keys)}: {why}" for why, keys in found.items()]

    def note_of(self, ours: str) -> str:
        """What a key of ours is from and what is different, for a comment behind it."""
        for each in self.carried:
            if each.ours == ours:
                name = "" if each.theirs == ours else each.theirs
                return ": ".join(part for part in (name, each.note) if part)
        return ""
