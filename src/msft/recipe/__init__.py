"""The recipe: YAML or Python in, a frozen `Recipe` out, every mistake with its file and line.

Read `recipe.py` first: every key with its type, bounds and default. `dataset.py` is one
sub-dataset, `values.py` the kinds of values that need more than a plain type, `agreements.py` what
keys have to do with each other, `mistakes.py` collects everything that is wrong, `yaml.py` reads
files and `--set` and keeps the lines, `foreign_keys.py` knows the names that other tools use.
`importer.py` makes a recipe from the config of another tool, with `importer_datasets.py` for its
rows and `draft.py` for the result.
It may import the search and the benchmarks' names: no data, no torch, nobody's run.
"""
