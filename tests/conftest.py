"""Torch tests share two cores with each other: one thread each. Kernels are interpreted where
there is no GPU, which Triton must know before it is first loaded."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

for size in ("COLUMNS", "LINES"):  # pytest-xdist sets them, and a user would not
    os.environ.pop(size, None)

torch.set_num_threads(1)
