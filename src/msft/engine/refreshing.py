"""A predictor whose model is brought up to date before it is asked."""

from collections.abc import Callable, Sequence

from msft.example import Encoded
from msft.run.engine import Generated, Likelihoods, Predictor, StopRow


class Refreshing:
    """Calls `refresh` before every question; see `msft.run.engine.Predictor`."""

    def __init__(self, predictor: Predictor, refresh: Callable[[], None]) -> None:
        self._predictor = predictor
        self._refresh = refresh

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        self._refresh()
        return self._predictor.generate(prompts, limits, leaves, groups)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        self._refresh()
        return self._predictor.measure(rows, groups)
