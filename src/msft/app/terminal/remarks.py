"""Remarks while a run goes on: what its findings say, when they become known."""

from pathlib import Path

from msft.report.findings import Findings, Tests, findings_in
from msft.report.findings_in_words import decline_text, departure_texts, growth_text
from msft.report.loss_growth import growth_of
from msft.run.folder import first_loss_of
from msft.run.history import History
from msft.run.log import DecisionEvent, Event, PointEvent
from msft.search.rollout import checkpoint_id


class Remarks:
    """Each is said once. Without the run's folder there are no rows, so no exclusion is judged."""

    def __init__(self, history: History, folder: Path | None) -> None:
        self._history = history
        self._folder = folder
        self._tests = Tests()
        self._found: Findings | None = None
        self._fallen: set[str] = set()

    def after(self, event: Event) -> list[str]:
        """What there is to say after a new event, which the history has."""
        if self._found is None and self._history.exclusions:  # of a run that was resumed
            self._look()
        if isinstance(event, PointEvent):
            return self._growth(event)
        if not isinstance(event, DecisionEvent) or self._folder is None:
            return []
        found = self._look()
        left = [each for each in found.departures if each.name in event.names]
        texts = [f"     {each.name}: {text}" for each in left for text in departure_texts(each)]
        for decline in found.declines:
            if decline.name not in self._fallen:
                self._fallen.add(decline.name)
                texts.append(f"     {decline_text(decline)}")
        return texts

    def is_unsure(self, name: str) -> bool:
        """Whether it left without a sure fall."""
        departures = self._found.departures if self._found else ()
        return any(each.name == name and each.unsure for each in departures)

    def _look(self) -> Findings:
        if self._folder is not None:
            self._found = findings_in(self._folder, self._history, self._tests)
        return self._found or Findings()

    def _growth(self, event: PointEvent) -> list[str]:
        first = first_loss_of(self._folder) if self._folder else None
        found = growth_of(self._history, first)
        if found is None or checkpoint_id(found.stage, found.tick) != event.checkpoint:
            return []
        return [f"note: {growth_text(found)}"]
