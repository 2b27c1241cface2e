"""Which rows are trained, and in which order: mixtures and feeds.

A mixture says which rows of which sub-datasets make up one epoch. It is a value: a method never
changes one, it asks for another: without a sub-dataset, with only one, or with other sizes.

A feed says which rows come next inside a roll-out. The shuffled feed goes through the mixture epoch
by epoch, as the paper does. DynamixSFT and IES are feeds too: they watch the losses and choose
other rows. A feed asks for work by yielding batches and is shown the losses of each batch before
the next one is asked for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, fsum
from typing import Any, Literal, Protocol

from msft.search.draws import sampled, shuffled


@dataclass(frozen=True, slots=True)
class Part:
    """One sub-dataset's share of an epoch.

    size: rows that the sub-dataset has.
    rows: rows taken from it in an epoch: whole copies, then a sample without replacement.
    rehearsed: it was excluded and only a sample, drawn anew each epoch, is shown (see
        `rehearsal_fraction`).
    keep: it may never be excluded.
    anew: its sample is drawn anew each epoch, as where the recipe gives it a weight; otherwise
        once.
    numbers: the only rows that are trained, `size` of them; None: all are.
    later: `(epoch, rows)` where from a later epoch on other numbers of rows are taken, in order.
    """

    name: str
    size: int
    rows: int
    rehearsed: bool = False
    keep: bool = False
    anew: bool = False
    numbers: tuple[int, ...] | None = None
    later: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def weighted(
        name: str, size: int, weight: float | Mapping[int, float], keep: bool = False
    ) -> "Part":
        """A sub-dataset with `weight` rows an epoch for each that it has, one at least where it is
        above 0.

        weight: or several, by the epochs from which on they hold; the first is 0.
        """

        def rows(weight: float) -> int:
            return max(1, round(Fraction(repr(float(weight))) * size)) if weight else 0

        if not isinstance(weight, Mapping):
            return Part(name, size, rows(weight), keep=keep, anew=weight != 1)
        first, *later = ((epoch, rows(each)) for epoch, each in weight.items())
        return Part(name, size, first[1], keep=keep, anew=True, later=tuple(later))

    def rows_in(self, epoch: int) -> int:
        """Rows taken in an epoch."""
        reached = [rows for first, rows in self.later if first <= epoch]
        return reached[-1] if reached else self.rows

    def epoch(self, seed: int, rollout: int, epoch: int) -> list[int]:
        """The row numbers of one epoch, before shuffling."""
        copies, rest = divmod(self.rows_in(epoch) if self.later else self.rows, self.size)
        numbers = list(range(self.size)) * copies
        if rest:
            when: tuple[str | int, ...] = ("once",)
            if self.rehearsed or self.anew:
                when = ("rehearsal" if self.rehearsed else "weight", rollout, epoch)
            numbers += sampled(self.size, rest, seed, "sample", self.name, *when)
        return self.row_numbers(numbers)

    def row_numbers(self, places: list[int]) -> list[int]:
        """The row numbers at these places among the rows that are trained."""
        return places if self.numbers is None else [self.numbers[place] for place in places]

    def among(self, numbers: Sequence[int]) -> "Part":
        """The same share of an epoch from these rows only; each of them once where the share is
        another one in later epochs."""
        share = Fraction(1 if self.later else self.rows, 1 if self.later else self.size)
        rows = max(1, round(share * len(numbers))) if numbers else 0
        return replace(self, size=len(numbers), rows=rows, numbers=tuple(numbers), later=())


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sub-datasets in recipe order. Truthy while at least one is active.

    rehearsal_fraction: this share of each excluded sub-dataset's rows of an epoch stays in every
        later one, against forgetting (0, the paper's setting: nothing stays).
    sizes: rows of each.
    """

    parts: tuple[Part, ...]
    rehearsal_fraction: float = 0.0
    sizes: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", {part.name: part.size for part in self.parts})
        if not 0 <= self.rehearsal_fraction < 1:
            raise ValueError(
                f"rehearsal_fraction is {self.rehearsal_fraction}; expected 0 or more, less than 1"
            )

    @staticmethod
    def of(sizes: Mapping[str, int], rehearsal_fraction: float = 0.0) -> "Mixture":
        """Every row of every sub-dataset once an epoch."""
        parts = tuple(Part(name, size, size) for name, size in sizes.items())
        return Mixture(parts, rehearsal_fraction)

    def __bool__(self) -> bool:
        return any(not part.rehearsed for part in self.parts)

    @property
    def active(self) -> tuple[str, ...]:
        """The sub-datasets that are being learned, in recipe order."""
        return tuple(part.name for part in self.parts if not part.rehearsed)

    @property
    def droppable(self) -> tuple[str, ...]:
        """The active sub-datasets that may be excluded."""
        return tuple(part.name for part in self.parts if not part.rehearsed and not part.keep)

    @property
    def candidates(self) -> tuple[str, ...]:
        """Whose peaks decide: those that may leave; once only kept ones are left, theirs."""
        return self.droppable or self.active

    @property
    def rows(self) -> int:
        """Rows in one epoch, rehearsal included; where their number changes, in the first."""
        return sum(part.rows for part in self.parts)

    @property
    def changes(self) -> tuple[int, ...]:
        """The epochs from which on another number of rows is taken, in order."""
        return tuple(sorted({epoch for part in self.parts for epoch, _ in part.later}))

    def rows_in(self, epoch: int) -> int:
        """Rows in an epoch."""
        return sum(part.rows_in(epoch) for part in self.parts)

    def steps(self, epochs: float, batch_size: int) -> int:
        """Steps of so many epochs from the first on."""
        if not self.changes:
            return round(steps_of(self.rows, batch_size) * epochs)
        whole = int(epochs)
        last = round(steps_of(self.rows_in(whole), batch_size) * (epochs - whole))
        return sum(steps_of(self.rows_in(epoch), batch_size) for epoch in range(whole)) + last

    def only(self, name: str, after: tuple[str, ...] = ()) -> "Mixture":
        """Only this sub-dataset active, the ones in `after` rehearsed, the others gone."""
        parts = (
            part if part.name == name else self._rehearsed(part)
            for part in self.parts
            if part.name == name or part.name in after
        )
        return replace(self, parts=tuple(part for part in parts if part.rows))

    def without(self, names: tuple[str, ...]) -> "Mixture":
        """These sub-datasets excluded: gone, or rehearsed where the recipe asks for it."""
        unknown = set(names) - set(self.active)
        if unknown:
            raise ValueError(f"not active, cannot be excluded: {sorted(unknown)}")
        parts = (self._rehearsed(part) if part.name in names else part for part in self.parts)
        return replace(self, parts=tuple(part for part in parts if part.rows))

    def among(self, numbers: Mapping[str, Sequence[int]]) -> "Mixture":
        """Only these rows of each sub-dataset; one of which no row is named is gone."""
        parts = (part.among(numbers[part.name]) for part in self.parts if part.name in numbers)
        return replace(self, parts=tuple(part for part in parts if part.rows))

    def resized(self, rows: Mapping[str, int]) -> "Mixture":
        """Other numbers of rows an epoch; a sub-dataset left with none is gone."""
        parts = (replace(part, rows=rows[part.name]) for part in self.parts)
        return replace(self, parts=tuple(part for part in parts if part.rows))

    def epoch(self, seed: int, rollout: int, epoch: int) -> list[tuple[str, int]]:
        """Every row of an epoch as (sub-dataset, row number), before shuffling."""
        return [
            (part.name, number)
            for part in self.parts
            for number in part.epoch(seed, rollout, epoch)
        ]

    def _rehearsed(self, part: Part) -> Part:
        share = Fraction(repr(float(self.rehearsal_fraction)))
        return replace(part, rows=ceil(share * part.rows), rehearsed=True)


# Feeds: which rows come next inside a roll-out.

RowId = tuple[str, int]
"""Sub-dataset and row number."""

Use = Literal["train", "look_ahead", "track"]
StepRule = Literal["optimizer", "sgd"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows, and what to do with them: one step, a look-ahead step, or only their losses."""

    rows: tuple[RowId, ...]
    use: Use = "train"
    step: StepRule = "optimizer"


@dataclass(frozen=True, slots=True)
class Update:
    """What an optimizer step did: its learning rate, and the norm of its gradient before clipping.

    grad_norm: is asked late, since a device may still be computing it.
    """

    learning_rate: float
    grad_norm: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Losses:
    """Mean answer-token NLL per row; `after` the virtual step where the batch was a look-ahead.

    update: of a step that was taken, if the engine says so.
    apart: each row has its own; else every row has the mean over the batch's answer tokens.
    """

    rows: Sequence[float]
    after: Sequence[float] = ()
    update: Update | None = None
    apart: bool = True

    def relative_drop(self) -> float:
        """Mean over rows of (L_before - L_after) / (L_before + 1e-8)."""
        pairs = zip(self.rows, self.after, strict=True)
        drops = [(before - after) / (before + 1e-8) for before, after in pairs]
        return fsum(drops) / len(drops)


@dataclass(frozen=True, slots=True)
class FeedContext:
    """Where a feed works: everything its choices are a function of, the losses apart."""

    mixture: Mixture
    ticks: int
    evals_per_epoch: int
    batch_size: int
    seed: int
    rollout: int

    @property
    def steps_per_epoch(self) -> int:
        """Where their number changes, of the first."""
        return steps_of(self.mixture.rows, self.batch_size)

    def steps_in(self, tick: int) -> tuple[int, range, int]:
        """The epoch that a tick lies in, the steps of the epoch that it covers, and of how many."""
        epoch = (tick - 1) // self.evals_per_epoch
        steps = steps_of(self.mixture.rows_in(epoch), self.batch_size)
        return *epoch_and_steps(tick, steps, self.evals_per_epoch), steps

    def steps_of_tick(self, tick: int) -> Iterator[tuple[int, int]]:
        """A tick's steps, counted from the roll-out's start, and the rows of each."""
        epoch, steps = epoch_and_steps(tick, self.steps_per_epoch, self.evals_per_epoch)
        for step in steps:
            rows = min(self.batch_size, self.mixture.rows - step * self.batch_size)
            yield epoch * self.steps_per_epoch + step, rows

    def due(self, step: int, every: float) -> bool:
        """Whether something done every U steps, or every share of all steps, is due before it."""
        interval = Fraction(repr(float(every)))
        if interval < 1:
            interval *= self.steps
        return step % max(interval, Fraction(1)) < 1

    def shuffled_epoch(self, epoch: int) -> list[RowId]:
        """An epoch's rows in training order."""
        rows = self.mixture.epoch(self.seed, self.rollout, epoch)
        order = shuffled(len(rows), self.seed, "order", self.rollout, epoch)
        return [rows[number] for number in order]

    def in_steps(self, rows: Sequence[RowId]) -> list[tuple[RowId, ...]]:
        """The rows cut into steps, the last may be smaller."""
        size = self.batch_size
        return [tuple(rows[i : i + size]) for i in range(0, len(rows), size)]

    def sample(self, part: Part, size: int, *where: str | int) -> tuple[RowId, ...]:
        """`size` rows of a sub-dataset (all, if it has fewer), without replacement."""
        places = sampled(part.size, size, self.seed, self.rollout, part.name, *where)
        return tuple((part.name, number) for number in part.row_numbers(places))

    @property
    def steps(self) -> int:
        """Steps of the whole roll-out."""
        if self.mixture.changes:
            return sum(len(self.steps_in(tick)[1]) for tick in range(1, self.ticks + 1))
        epochs, rest = divmod(self.ticks, self.evals_per_epoch)
        last = steps_before(rest, self.steps_per_epoch, self.evals_per_epoch)
        return epochs * self.steps_per_epoch + last


class Feed(Protocol):
    """One roll-out's feed. One that does not look at losses may say so with `blind = True`: then
    its next batch is drawn before they are known."""

    def batches(self, tick: int) -> Iterator[Batch]:
        """The work of tick 1, 2, …; each batch is observed before the next one is drawn, unless
        the feed is blind."""

    def observe(self, batch: Batch, losses: Losses) -> None: ...

    def state(self) -> Any:
        """What `restore` needs to go on after the last tick, as JSON; a copy that later batches do
        not touch, since it is written while they are trained."""

    def restore(self, state: Any) -> None: ...


class FeedSpec(Protocol):
    """A feed's settings: a frozen dataclass, which the log records by name and fields."""

    def open(self, place: FeedContext) -> Feed: ...


def steps_of(rows: int, batch_size: int) -> int:
    """Steps of an epoch: every row once, the last step may be smaller."""
    return -(-rows // batch_size)


def steps_before(tick: int, steps_per_epoch: int, evals_per_epoch: int) -> int:
    """Steps of an epoch that are done when its tick 0, 1, … `evals_per_epoch` ends."""
    return -(-tick * steps_per_epoch // evals_per_epoch)


def epoch_and_steps(tick: int, steps_per_epoch: int, evals_per_epoch: int) -> tuple[int, range]:
    """The epoch that a tick (from 1) lies in, and the steps of that epoch that it covers."""
    epoch, within = divmod(tick - 1, evals_per_epoch)
    first = steps_before(within, steps_per_epoch, evals_per_epoch)
    last = steps_before(within + 1, steps_per_epoch, evals_per_epoch)
    return epoch, range(first, last)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Every row of the mixture once an epoch, in a new order each epoch."""

    def open(self, place: FeedContext) -> "ShuffledFeed":
        return ShuffledFeed(place)


SHUFFLED = Shuffled()


class ShuffledFeed:
    """Has no state: its order is a pure function of (seed, roll-out, epoch)."""

    blind = True

    def __init__(self, place: FeedContext) -> None:
        self._place = place
        self._epoch = -1
        self._rows: list[RowId] = []

    def batches(self, tick: int) -> Iterator[Batch]:
        place, size = self._place, self._place.batch_size
        epoch, steps, _ = place.steps_in(tick)
        if epoch != self._epoch:
            self._epoch, self._rows = epoch, place.shuffled_epoch(epoch)
        for step in steps:
            yield Batch(tuple(self._rows[step * size : (step + 1) * size]))

    def observe(self, batch: Batch, losses: Losses) -> None:
        pass

    def state(self) -> None:
        return None

    def restore(self, state: None) -> None:
        pass


class Cycles:
    """Each part's rows in one shuffled order, again and again; `taken` of each so far.

    Of a part with a weight these are all rows that it has: its weight says how often it is drawn.
    """

    def __init__(self, place: FeedContext) -> None:
        self._rows: list[list[RowId]] = []
        for part in place.mixture.parts:
            every = part.anew and not part.rehearsed
            rows = (
                part.row_numbers([*range(part.size)])
                if every
                else part.epoch(place.seed, place.rollout, 0)
            )
            order = shuffled(len(rows), place.seed, "cycle", place.rollout, part.name)
            self._rows.append([(part.name, rows[number]) for number in order])
        self.taken = [0] * len(self._rows)

    def next(self, part: int) -> RowId:
        self.taken[part] += 1
        return self._rows[part][(self.taken[part] - 1) % len(self._rows[part])]


class RowLosses:
    """The losses of each row over the epochs in which it was seen, for feeds that compare epochs.

    A weight in the recipe may let a row come more than once in an epoch: its last loss counts.
    """

    def __init__(self, mixture: Mixture) -> None:
        self._repeats = any(part.rows > part.size for part in mixture.parts)
        self._seen = set[RowId]()  # in this epoch; kept where rows come more than once
        self.losses = dict[RowId, list[float]]()

    def begin_epoch(self) -> None:
        self._seen.clear()

    def add(self, rows: Sequence[RowId], losses: Sequence[float]) -> None:
        for row, loss in zip(rows, losses, strict=True):
            looks = self.losses.setdefault(row, [])
            if row in self._seen:
                looks[-1] = loss
            else:
                looks.append(loss)
            if self._repeats:
                self._seen.add(row)

    def state(self) -> dict[str, Any]:
        """The losses as JSON, in a copy."""
        losses = [[name, number, list(seen)] for (name, number), seen in self.losses.items()]
        return {"losses": losses, **({"seen": sorted(self._seen)} if self._repeats else {})}

    def restore(self, state: Any) -> None:
        self.losses = {(name, number): list(seen) for name, number, seen in state["losses"]}
        self._seen = {(name, number) for name, number in state.get("seen", ())}
