"""The parser of the command line: its messages fit the screen."""

import sys
from argparse import ArgumentParser
from typing import NoReturn

from msft.errors import WRONG
from msft.layout import fitted, screen_width


class Parser(ArgumentParser):
    """argparse wraps its help, but not what it says about a mistake."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        said = fitted(f"{self.prog}: error: {message}", screen_width(sys.stderr))
        self.exit(WRONG, f"{said}\n")
