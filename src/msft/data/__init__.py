"""The data: rows of files, the hub or memory become examples, and examples become tokens.

Read `corpus.py` first: `load_corpus` goes through the stages. `sources.py` reads the rows of a
sub-dataset (files with `readers.py`) and makes examples of them (`formats.py` knows how rows may
look). `splits.py` says which rows train, select and test, after `partition.py` where a recipe has
`split_by`. `encoding.py` makes tokens, of which `token_cache.py` keeps many on disk, and
`exclusions.py` knows which rows are not trained.
It may import recipe, benchmarks and what is left of them: no torch, no scoring, no engine.
"""
