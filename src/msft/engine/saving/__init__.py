"""Tensors to memory and disk and back: checkpoints, and `best/`.

Read `safetensors_codec.py` first: how a state becomes files. `host_copies.py` brings tensors off
the device beside the training, `checkpoint_sizes.py` says how many memory holds, `best_folder.py`
keeps `best/`. Which checkpoints are kept is decided in `store`; here may be no import of training,
decoding, `planning` or `app`.
"""
