"""Tensors to memory and disk and back: checkpoints, and `best/`.

Read `weight_files.py` first: how weights become files. `model_files.py` has what an engine keeps
and hands out, `checkpoint_sizes.py` says how many checkpoints memory holds, `best_folder.py` keeps
`best/`. Which checkpoints are kept is decided in `store`; here may be no import of training,
decoding, `planning` or `app`.
"""
