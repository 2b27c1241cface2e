"""The benchmarks: what is asked and how an answer is graded; `benchmark: NAME` in a recipe.

Read `benchmark.py` first, then `public.py`, where each is a row of a table. `grading.py` finds the
answer in what the model wrote, `synthetic.py` makes the rows of the demo. See CONTRIBUTING to add
one.
They may import the search (for its draws): no recipe, no data, no torch.
"""

from functools import partial

from msft.benchmarks import synthetic
from msft.benchmarks.benchmark import Benchmark
from msft.benchmarks.public import COMMONSENSE, LANGUAGE, MATHEMATICS, SCIENCE

PUBLIC: dict[str, Benchmark] = SCIENCE | COMMONSENSE | MATHEMATICS | LANGUAGE
"""Benchmarks with a dataset on the hub."""

MADE = {f"demo_{name}": partial(synthetic.splits, name) for name in synthetic.TASKS}
"""Benchmarks made by code, as functions from a seed to the splits."""

BENCHMARKS = (*PUBLIC, *MADE)
