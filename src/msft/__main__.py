"""`python -m msft` is the same program."""

import sys

from msft.cli import main

if __name__ == "__main__":
    sys.exit(main())
