"""The journal: the log read from the top while it lasts, and written where it ends."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from msft.errors import Diverged
from msft.run.history import History
from msft.run.log import (
    Averaged,
    Event,
    Log,
    Measured,
    Opened,
    Reached,
    Tested,
    to_json,
    to_line,
)
from msft.search.rollout import CheckpointId

Answer = TypeVar("Answer", Reached, Averaged, Measured, Tested)
Watch = Callable[[Event, bool], None]
"""Called with every event, and whether it is new or was read from the log."""

CHANGED = (
    "recipe, data or code changed under a started run: undo the change, or start in another folder"
)


class Journal:
    """Steps through the log; once past its end, the run is live and every event is appended."""

    def __init__(self, log: Log, history: History, watch: Watch, on_live: Callable[[], None]):
        self._log = log
        self._history = history
        self._watch = watch
        self._on_live = on_live
        self._recorded = iter(list(log.events))
        self._next: Event | None = next(self._recorded, None)
        self._live = False

    @property
    def is_live(self) -> bool:
        return self._live

    def live(self) -> bool:
        """Whether the log has no more answers."""
        if self._next is None and not self._live:
            self._live = True
            self._on_live()
        return self._live

    def ask(self, event: Event) -> None:
        """A question or a decision: the log must have the same one, or none yet."""
        if isinstance(event, Opened) and isinstance(self._next, Opened):
            event = _as_old(event, self._next)
        if self.live():
            self._log.append(event)
        elif self._next is not None and to_line(self._next) != to_line(event):
            if isinstance(event, Opened):
                raise Diverged(f"{_changes(to_json(self._next), to_json(event))}; {CHANGED}")
            raise self._diverged(_difference(self._next, event))
        self.take(event)

    def answer(self, kind: type[Answer], checkpoint: CheckpointId) -> Answer | None:
        """What the log answers, or None where it ends."""
        if self.live():
            return None
        event = self._next
        if not isinstance(event, kind) or event.checkpoint != checkpoint:
            raise self._diverged(f"a {kind.event!r} event of {checkpoint}")
        return event

    def record(self, event: Event) -> None:
        """Write an answer that was worked out; when this returns, it is on disk."""
        self._log.append(event)

    def take(self, event: Event) -> None:
        """Add an event to the history and step on."""
        self._history.add(event)
        self._watch(event, self._live)
        self._next = next(self._recorded, None)

    def finish(self) -> None:
        if self._next is not None:
            raise self._diverged("over")
        self.live()

    def _diverged(self, now: str) -> Diverged:
        then = "nothing more" if self._next is None else _shown(self._next)
        return Diverged(f"the log goes on with {then}, but now it would be {now}; {CHANGED}")


def _as_old(now: Opened, then: Opened) -> Opened:
    """Without the digests that the log is too old to have."""
    kept = {what: digest for what, digest in now.fingerprint.items() if what in then.fingerprint}
    return replace(now, fingerprint=kept)


def _difference(then: Event, now: Event) -> str:
    """The event that would come now; of one of the same kind, what is different in it."""
    if then.event != now.event:
        return _shown(now)
    before, after = to_json(then), to_json(now)
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return f"the same with {json.dumps(changed, separators=(',', ':'))[:300]}"


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What a run began with and would begin with now, as far as it differs."""
    before, after = dict(_leaves(then)), dict(_leaves(now))
    changed = [
        f"{key} was {_brief(before.get(key))}, now it is {_brief(after.get(key))}"
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    ]
    more = f" ({len(changed) - 3} more changes)" if len(changed) > 3 else ""
    texts = changed[:3] or ["the sub-datasets were in another order"]
    return "this folder holds another run: " + ", ".join(texts) + more


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested keys with dots, and what they hold."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _shown(event: Event) -> str:
    line = to_line(event).decode().strip()
    return line if len(line) <= 300 else line[:300] + "…"
