"""The program: `python -m msft`, and the command `msft`, which imports `main` from here.

Signals are caught and threads are counted before anything else is loaded.
"""

import atexit
import os
import sys

from msft.process import all_done, catch_signals

catch_signals()

from msft import process  # noqa: E402
from msft.threads import set_threads  # noqa: E402

set_threads()

from msft.cli import main as carry_out  # noqa: E402


def main() -> int:
    """Carry out the command line; the exit code."""
    from msft.app.terminal.screen import guard_streams

    guard_streams()
    try:
        code = carry_out()
    except SystemExit as ending:  # argparse has said what is wrong
        code = ending.code if isinstance(ending.code, int) else 0
        all_done(code)
        raise
    all_done(code)
    if process.world() > 1:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End one of several processes without taking Python down: a thread of gloo's that something
    still holds then, such as a mesh of FSDP2, aborts the process in one run of twenty."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
