"""One rank of a run, after some Python of a test: `rank_program.py BEFORE ARGUMENTS...`"""

import os
import sys

import torch

if __name__ == "__main__":
    torch.set_num_threads(1)  # as in conftest.py
    _, before, *arguments = sys.argv
    sys.argv = ["msft", *arguments]
    exec(before, {"rank": int(os.environ["RANK"])})  # noqa: S102
    if arguments:
        from msft.__main__ import main

        sys.exit(main())
