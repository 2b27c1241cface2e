"""A model by its name: tokenizer, shape, weights.

Read `loading.py` first, which loads it. `tokenizers.py` and `gguf.py` know a model without its
weights and import no torch; `shape.py` has the sizes that memory and FLOPs depend on. It may not
import training, decoding or the memory model, which stand above it; only `attention.py` beside it.
"""
