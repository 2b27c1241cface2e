"""Tensors to memory and disk and back: checkpoints, and `best/`.

Read `weight_files.py` first: how weights become files. `model_files.py` has what an engine keeps
and hands out, `stores.py` makes the store of a run, `best_folder.py` keeps `best/`. How many
checkpoints memory holds is counted in `engine/memory.py`, which of them are kept is decided in
`store`. It may not import training, decoding, `planning` or `app`.
"""
