"""The seam between a run and what trains: the verbs of an engine.

`Engine` is the base class: what an engine must do is abstract, what it may leave out has a default.
A run never looks into weights or moments: it gets them from one verb and hands them to another.
`msft.train(recipe, engine=…)` also takes an object that does not inherit from `Engine` and has its
verbs. Read `msft/engine/simple.py` for a whole engine on one screen.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from msft.errors import UsageError
from msft.example import Encoded
from msft.search.feeds import Batch, Losses
from msft.store.store import Codec, MemoryTier

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
    """The verbs of an engine that training needs; see `Engine`, which has all of them."""

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_trainable(self) -> int: ...
    def load(self, weights: Any | None) -> None: ...
    def load_optimizer(self, moments: Any | None) -> None: ...
    def weights(self) -> Any: ...
    def optimizer(self) -> Any: ...
    def average(self, weights: Iterable[Any]) -> Any: ...
    def seed(self, number: int) -> None: ...
    def work(self, batch: Batch) -> tuple[Losses, int]: ...


class HasVerbs(Trainer, Protocol):
    """An engine that does not inherit from `Engine`, and has its verbs."""

    def predictor(self) -> Predictor: ...
    def codec(self) -> Codec: ...
    def export(self, weights: Any | None, folder: Path) -> None: ...


class Engine(ABC):
    """A model with an optimizer.

    Weights that are `None` are those of the base model; moments that are `None` are fresh.

    num_parameters: weights of the model.
    num_trainable: weights that are trained; the others never change and are in no checkpoint.
    num_frozen: weights of the model beside an adapter; 0: there is no adapter.
    bytes_a_weight: of a result that `export` writes; 0: not known.
    links: the codec writes weights as the result has them, so `best/` needs no copy (see `link`).
    """

    num_parameters: int
    num_trainable: int
    num_frozen: int = 0
    bytes_a_weight: int = 0
    links: bool = False

    @abstractmethod
    def load(self, weights: Any | None) -> None: ...

    @abstractmethod
    def load_optimizer(self, moments: Any | None) -> None: ...

    @abstractmethod
    def weights(self) -> Any:
        """The trained weights, as a copy that later training does not touch."""

    @abstractmethod
    def optimizer(self) -> Any:
        """The moments, as a copy, and whatever else training goes on with that weights do not say:
        `load(weights)` and then `load_optimizer` of these must stand where they were taken."""

    @abstractmethod
    def average(self, weights: Iterable[Any]) -> Any:
        """The mean of several weights: added up in fp32, in the order given, one at a time. No
        more than the sum and one of them is held. Nothing of what is trained changes."""

    @abstractmethod
    def seed(self, number: int) -> None:
        """Start the engine's own randomness (dropout) anew."""

    @abstractmethod
    def work(self, batch: Batch) -> tuple[Losses, int]:
        """Do with the batch what its `use` says: losses per row, and the tokens of its rows.

        A look-ahead leaves weights, moments and random state bit-identical.
        """

    @abstractmethod
    def predictor(self) -> Predictor:
        """What the present weights say. Not one bit of the training state may change."""

    @abstractmethod
    def codec(self) -> Codec:
        """How weights, and moments with the feed's state, become files and back."""

    @abstractmethod
    def export(self, weights: Any | None, folder: Path) -> None:
        """Write a model into an empty folder, as its users load it."""

    # What an engine may leave out.

    def link(self, source: Path, folder: Path) -> None:
        """As `export`, with the weights that the codec wrote into `source`; the folder may hold
        another export already. Called only where `links` is true."""
        raise NotImplementedError

    def plan_steps(self, steps: int) -> None:  # noqa: B027
        """So many steps come next, over which a changing learning rate is spread; 0: those of the
        recipe. Told where the number changes. Default: the recipe's."""

    def memory(
        self, each: int, aside: int, most: int
    ) -> tuple[list[MemoryTier], Callable[[Any], Any]]:
        """Tiers for up to `most` checkpoints of `each` bytes in memory that leave `aside` bytes
        free; and what a payload goes through before another thread reads it. Default: no tier."""
        return [], lambda payload: payload

    def how(self) -> str:
        """Which engine it is, and which path each of its parts takes now, for people to read;
        empty: nobody is told."""
        return ""

    def fingerprint(self) -> str:
        """Changes when the base model does. Default: with the class and the number of weights."""
        known = (type(self).__qualname__, self.num_parameters)
        return sha256(repr(known).encode()).hexdigest()


def completed(engine: HasVerbs) -> Engine:
    """An engine with the defaults for what it leaves out: itself if it inherits from `Engine`, else
    an `Engine` that hands every verb on to it. UsageError where a verb is missing."""
    if isinstance(engine, Engine):
        return engine
    public = [name for name in vars(Engine) if not name.startswith("_")]
    public += ["num_parameters", "num_trainable"]
    own = {name: getattr(engine, name) for name in public if hasattr(engine, name)}
    kind = type(engine)
    needed = {*Engine.__abstractmethods__, "num_parameters", "num_trainable"}
    if missing := sorted(needed - own.keys()):
        raise UsageError(
            f"{kind.__qualname__} is no engine: it has no {', '.join(missing)}; see the class "
            "Engine in msft.run.engine"
        )
    own = {name: staticmethod(each) if callable(each) else each for name, each in own.items()}
    own.setdefault("links", "link" in own)
    made: Engine = type(kind.__name__, (Engine,), {**own, "__qualname__": kind.__qualname__})()
    return made
