"""`best/` is the best so far while a run goes on, and whole at its end."""

from pathlib import Path

import pytest
from toys import recipe_of, write_data

from msft.observers.observer import Observer, Watched
from msft.run.history import History
from msft.run.log import EndEvent, Event
from msft.training import train

pytestmark = pytest.mark.usefixtures("no_reports")


class Vandal(Observer):
    """Spoils the weights of `best/` as the run ends."""

    def begin(self, watched: Watched) -> None:
        self.weights = watched.folder.best / "model.safetensors"
        self.was_there = False

    def event(self, history: History, event: Event, live: bool) -> None:
        if isinstance(event, EndEvent):
            self.was_there = self.weights.exists()
            self.whole = self.weights.read_bytes()
            self.weights.unlink()  # it may be the very file of a checkpoint
            self.weights.write_bytes(self.whole[:-1] + bytes([self.whole[-1] ^ 1]))


def test_it_is_there_before_the_end_and_mended_at_the_end(tmp_path: Path) -> None:
    write_data(tmp_path)
    vandal = Vandal()
    result = train(recipe_of(tmp_path, method="sft"), tmp_path / "run", observers=[vandal])
    assert vandal.was_there
    assert result.summary["best"]["checkpoint"] != "base"
    assert vandal.weights.read_bytes() == vandal.whole
