"""The recipe: YAML or Python in, a frozen `Recipe` out, every mistake with its file and line.

Read `recipe.py` first: every key with its type, bounds and default. `dataset.py` is one
sub-dataset, `blocks.py` the keys that hold several values, `adapters.py` those of LoRA,
`agreements.py` what keys have to do with each other, `notes.py` what a user is told about keys,
`yaml.py` reads files and `--set` and keeps the lines, `foreign_keys.py` knows the names that other
tools use, `mistakes.py` finds everything that is wrong. `importer.py` makes a recipe from the
config of another tool, with `importer_datasets.py` for its rows and `draft.py` for the result.
It may import the search and the benchmarks' names: no data, no torch, nobody's run.
"""
