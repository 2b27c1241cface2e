"""The engine: everything that computes with torch.

Read `simple.py` first: a whole engine in the plainest way. `build.py` is the door: it makes an
engine from a recipe, and the fast one (`fast.py`) only where `isolation.py` has proved that no row
sees another. `packing.py` has rows in one line and their attention, `optimizer.py` AdamW,
`graphs.py` recorded steps, `memory.py` what fits, `kernels.py` which fast parts of `accel/` this
machine has (they may be deleted). `parallel.py` computes a step's gradient in several lanes and
processes, which meet through `ranks.py`; in `sharding.py` each process has a slice of all weights.
`model/` finds and loads a model, and reads rows in its tokens (`load_rows` in `tokenizers.py`).
`adapters/` has LoRA, `decode/` generates, `saving/` brings tensors to memory and disk. May not
import planning, report or app; everything outside speaks `msft.run.engine`.
"""
