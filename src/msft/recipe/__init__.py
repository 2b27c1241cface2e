"""The recipe: YAML or Python in, a frozen `Recipe` out, every mistake with its file and line.

Read `recipe.py` first: every key with its type, bounds and default. `dataset_spec.py` is one
sub-dataset, `blocks.py` the keys that hold several values, `overrides.py` reads files and `--set`,
`foreign_keys.py` knows the names that other tools use, `strict_yaml.py` keeps the lines.
It may import the search and the benchmarks' names: no data, no torch, nobody's run.
"""
