"""The mixture: which rows of which sub-datasets make up one epoch.

A mixture is a value. A method never changes one, it asks for another: without a sub-dataset,
with only one, or with other sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from msft.search.draws import sampled


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
    """

    name: str
    size: int
    rows: int
    rehearsed: bool = False
    keep: bool = False
    anew: bool = False

    @staticmethod
    def weighted(name: str, size: int, weight: float, keep: bool = False) -> "Part":
        """A sub-dataset with `weight` rows an epoch for each that it has, one at least."""
        rows = max(1, round(Fraction(repr(float(weight))) * size))
        return Part(name, size, rows, keep=keep, anew=weight != 1)

    def epoch(self, seed: int, rollout: int, epoch: int) -> list[int]:
        """The row numbers of one epoch, before shuffling."""
        copies, rest = divmod(self.rows, self.size)
        numbers = list(range(self.size)) * copies
        if rest:
            when: tuple[str | int, ...] = ("once",)
            if self.rehearsed or self.anew:
                when = ("rehearsal" if self.rehearsed else "weight", rollout, epoch)
            numbers += sampled(self.size, rest, seed, "sample", self.name, *when)
        return numbers


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sub-datasets in recipe order. Truthy while at least one is active.

    rehearsal_fraction: this share of each excluded sub-dataset's rows of an epoch stays in every
        later one, against forgetting (0, the paper's setting: nothing stays).
    """

    parts: tuple[Part, ...]
    rehearsal_fraction: float = 0.0

    def __post_init__(self) -> None:
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
        """Rows in one epoch, rehearsal included."""
        return sum(part.rows for part in self.parts)

    @property
    def sizes(self) -> dict[str, int]:
        return {part.name: part.size for part in self.parts}

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
