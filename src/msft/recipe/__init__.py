"""The recipe: YAML or Python in, a frozen `Recipe` out, every mistake with its file and line.

Read `recipe.py` first: every key with its type, bounds and default. `dataset_spec.py` is one
sub-dataset, `dataset_sources.py` where its rows come from, `blocks.py` the keys that hold several
values, `agreements.py` what keys have to do with each other, `overrides.py` reads files and
`--set`, `foreign_keys.py` knows the names that other tools use, `mistakes.py` finds everything that
is wrong, `strict_yaml.py` keeps the lines.
It may import the search and the benchmarks' names: no data, no torch, nobody's run.
"""
