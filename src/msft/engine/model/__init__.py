"""A model by its name: files, tokenizer, shape, weights.

Read `loading.py` first, which loads it. `folders.py` knows where the files of a model are, what is
wrong with them and whether they have changed; it and `tokenizers.py` need no weights and import no
torch. `shape.py` has the sizes that memory and FLOPs depend on. It may not import training,
decoding or the memory model, which stand above it; beside it only `packing.py` and
`adapters/four_bit.py`.
"""
