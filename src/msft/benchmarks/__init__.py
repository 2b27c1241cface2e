"""Built-in benchmarks, named as `benchmark: NAME` in a recipe; see CONTRIBUTING to add one."""

from msft.benchmarks import synthetic
from msft.benchmarks.benchmark import Benchmark
from msft.benchmarks.commonsense import COMMONSENSE
from msft.benchmarks.language import LANGUAGE
from msft.benchmarks.mathematics import MATHEMATICS
from msft.benchmarks.science import SCIENCE

PUBLIC: dict[str, Benchmark] = SCIENCE | COMMONSENSE | MATHEMATICS | LANGUAGE
"""Those with a dataset on the hub."""

MADE = {f"demo_{name}": synthetic.reader(name) for name in synthetic.TASKS}
"""Those made by code: reader(seed) gives the splits."""

BENCHMARKS = (*PUBLIC, *MADE)
