"""The recipe: YAML or Python in, a frozen `Recipe` out, every mistake with its file and line.

Read `recipe.py` first: every key with its type, bounds and default, how a recipe is built, and what
keys have to do with each other. `dataset.py` is one sub-dataset, `keys.py` the kinds of values that
need more than a plain type, and the error that tells of every mistake at once. `yaml.py` reads
files and `--set` and keeps the line of each key.
`foreign_keys.txt` has the keys of other tools with what to write instead. `importer.py` makes a
recipe from the config of another tool, with `importer_datasets.py` for its rows and `draft.py` for
the tools and the result.
It may import the search and the benchmarks' names: no data, no torch, nobody's run.
"""
