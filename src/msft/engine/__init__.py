"""The engine: everything that computes with torch.

Read `simple.py` first: a whole engine in the plainest way. `build.py` is the door: it makes an
engine from a recipe, and the fast one only where `isolation.py` has proved that no row sees
another. `model/` finds and loads a model, `train/` and `decode/` are the fast engine, `accel/` its
kernels, which may be deleted, `saving/` brings tensors to memory and disk. `lanes.py` says what a
step's gradient is; `data_parallel.py` and `full_sharding.py` compute it in one process or several,
which meet through `ranks.py`. May not import planning, report or app; everything outside speaks
`msft.run.engine`.
"""
