"""The seam between a run and what trains: the verbs of an engine.

`msft.train(recipe, engine=…)` takes any object with the verbs of `Engine`. A run never looks into
weights or moments: it gets them from one verb and hands them to another. Read
`msft/engine/simple.py` for a whole engine on one screen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msft.example import Encoded
from msft.search.feeds import Batch, Losses
from msft.store.disk import Codec, MemoryTier

StopRow = Callable[[int, Sequence[int], int], int | None]
"""leaves(row, tokens so far, how many of them were known before): after how many of them the
row may leave the batch; None: it goes on."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens of each row, and how many went through the model: what greedy decoding needs,
    without drafts and padding rows."""

    rows: list[list[int]]
    tokens: int


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Summed negative log-likelihood of each row's answer, and tokens through the model."""

    rows: list[float]
    tokens: int


class Predictor(Protocol):
    """What an evaluation needs of a model.

    groups: a number for each row; rows of a group may start with the same tokens.
    """

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        """The most likely next tokens of each prompt, up to its limit."""

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        """Begin with likelihoods, which may go on beside a generation until they are called for."""


class Trainer(Protocol):
    """A model with an optimizer. `None` for weights or moments: the base model's, fresh ones.

    num_trainable: weights that are trained; the others never change and are in no checkpoint.
    """

    num_parameters: int
    num_trainable: int

    def load(self, weights: Any | None) -> None: ...

    def load_optimizer(self, moments: Any | None) -> None: ...

    def weights(self) -> Any:
        """The trained weights, as a copy that later training does not touch."""

    def optimizer(self) -> Any:
        """The moments, likewise, and whatever else training goes on with that weights do not say:
        `load(weights)` and then `load_optimizer` of these must stand where they were taken."""

    def average(self, weights: Iterable[Any]) -> Any:
        """The mean of several weights: added up in fp32, in the order given, one at a time. No
        more than the sum and one of them is held. Nothing of what is trained changes."""

    def seed(self, number: int) -> None:
        """Start the engine's own randomness (dropout) anew."""

    def work(self, batch: Batch) -> tuple[Losses, int]:
        """Do with the batch what its `use` says: losses per row, and the tokens of its rows.

        A look-ahead leaves weights, moments and random state bit-identical.
        """


class Engine(Trainer, Protocol):
    """All that a whole run needs."""

    def predictor(self) -> Predictor:
        """What the present weights say. Not one bit of the training state may change."""

    def codec(self) -> Codec:
        """How weights, and moments with the feed's state, become files and back."""

    def export(self, weights: Any | None, folder: Path) -> None:
        """Write a model into an empty folder, as its users load it."""


@runtime_checkable
class LinksWeights(Protocol):
    """An engine whose codec writes weights as its result has them: `best/` needs no copy."""

    def link(self, source: Path, folder: Path) -> None:
        """As `export`, with the weights that the codec wrote into `source`; the folder may hold
        another export already."""


@runtime_checkable
class HoldsCheckpoints(Protocol):
    """An engine that can hold checkpoints in memory beside training."""

    def memory(
        self, each: int, aside: int, most: int
    ) -> tuple[list[MemoryTier], Callable[[Any], Any]]:
        """Tiers for up to `most` checkpoints of `each` bytes that leave `aside` bytes free; and
        what a payload goes through before another thread reads it."""


@runtime_checkable
class SaysHow(Protocol):
    """An engine that can tell how it computes."""

    def how(self) -> str:
        """Which engine it is, and which path each of its parts takes now, for people to read."""


@runtime_checkable
class HasFingerprint(Protocol):
    """An engine that can tell whether its base model is still the same."""

    def fingerprint(self) -> str:
        """Changes when the base model does."""
