"""Built-in benchmarks, named as `benchmark: NAME` in a recipe; see CONTRIBUTING to add one."""

from msft.tasks import synthetic
from msft.tasks.benchmark import Benchmark
from msft.tasks.commonsense import COMMONSENSE
from msft.tasks.language import LANGUAGE
from msft.tasks.mathematics import MATHEMATICS
from msft.tasks.science import SCIENCE

PUBLIC: dict[str, Benchmark] = SCIENCE | COMMONSENSE | MATHEMATICS | LANGUAGE
"""Those with a dataset on the hub."""

MADE = {f"demo_{name}": synthetic.reader(name) for name in synthetic.TASKS}
"""Those made by code: reader(seed) gives the splits."""

BENCHMARKS = (*PUBLIC, *MADE)
