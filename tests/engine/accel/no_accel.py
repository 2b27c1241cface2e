"""Blocks the import of `msft.engine.accel`, as if the folder were deleted.

`pytest -p no_accel`, or `import no_accel` before anything of ours.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

ROOM = "msft.engine.accel"


class Blocker:
    """A finder that stands before all others."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == ROOM or name.startswith(f"{ROOM}."):
            raise ImportError(f"{ROOM} is not there")
        return None


assert not any(name.startswith(ROOM) for name in sys.modules), "too late to block it"
sys.meta_path.insert(0, Blocker)
