"""Evaluation in lanes: rows are dealt out as those of a training step are.

Batches of other rows round in another way, so the lanes are evaluated one by one, each by the
process that has it. One gather brings the answers of all together.
"""

from collections.abc import Callable, Sequence

from msft.engine.decode.plans import question
from msft.engine.lanes import lanes_of, units
from msft.example import Encoded
from msft.ranks import Ranks
from msft.run.engine import Generated, Likelihoods, Predictor, StopRow


class LanePredictor:
    """Asks a predictor lane by lane; see `msft.run.engine.Predictor`."""

    def __init__(self, predictor: Predictor, lanes: int, ranks: Ranks) -> None:
        self._predictor = predictor
        self._lanes = lanes
        self._ranks = ranks

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        found: list[tuple[list[int], list[list[int]], int]] = []
        for numbers in self._mine([*range(len(prompts))]):
            said = self._predictor.generate(
                [prompts[n] for n in numbers],
                [limits[n] for n in numbers],
                lambda row, tokens, known, numbers=numbers: leaves(numbers[row], tokens, known),  # type: ignore[misc]
                [groups[n] for n in numbers],
            )
            found.append((numbers, said.rows, said.tokens))
        rows: dict[int, list[int]] = {}
        tokens = 0
        for part in self._ranks.gather("answers", found):
            for numbers, texts, took in part:
                rows |= dict(zip(numbers, texts, strict=True))
                tokens += took
        return Generated([rows[n] for n in range(len(prompts))], tokens)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        asked = [
            (
                numbers,
                self._predictor.measure([rows[n] for n in numbers], [groups[n] for n in numbers]),
            )
            for numbers in self._mine(units([question(row) for row in rows], groups))
        ]

        def gathered() -> Likelihoods:
            found = [(numbers, part.rows, part.tokens) for numbers, part in _known(asked)]
            sums: dict[int, float] = {}
            tokens = 0
            for part in self._ranks.gather("likelihoods", found):
                for numbers, losses, took in part:
                    sums |= dict(zip(numbers, losses, strict=True))
                    tokens += took
            return Likelihoods([sums[n] for n in range(len(rows))], tokens)

        return gathered

    def _mine(self, unit: Sequence[int]) -> list[list[int]]:
        """The rows of each lane of this process that has any."""
        mine = lanes_of(self._ranks.rank, self._ranks.world, self._lanes)
        lanes = [[n for n, u in enumerate(unit) if u % self._lanes == lane] for lane in mine]
        return [numbers for numbers in lanes if numbers]


def _known(
    asked: Sequence[tuple[list[int], Callable[[], Likelihoods]]],
) -> list[tuple[list[int], Likelihoods]]:
    return [(numbers, likelihoods()) for numbers, likelihoods in asked]
