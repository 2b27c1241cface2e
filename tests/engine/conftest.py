"""Torch tests share two cores with each other: one thread each."""

import torch

torch.set_num_threads(1)
