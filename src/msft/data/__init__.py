"""The data: rows of files, the hub or memory become examples, and examples become tokens.

Read `corpus.py` first: what a recipe's sub-datasets are when all is done. On the way there
`loading.py` reads every sub-dataset from its `sources.py` with `readers.py`, `formats.py` knows how
rows may look, `splits.py` and `partition.py` hold out and divide, `encoding.py` makes tokens.
It may import recipe, benchmarks and what is left of them: no torch, no scoring, no engine.
"""
