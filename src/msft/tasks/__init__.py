"""Built-in benchmarks: where their rows come from.

A recipe names one as `benchmark: NAME`. Adding one is a function from a recipe's sub-dataset to
its splits, and a line in `BENCHMARKS`.
"""

from collections.abc import Callable

from msft.data import Split
from msft.tasks import synthetic

Reader = Callable[[int], dict[str, Split]]
"""reader(seed): the splits, for benchmarks that are made by code."""

BENCHMARKS: dict[str, Reader] = {f"demo_{name}": synthetic.reader(name) for name in synthetic.TASKS}
