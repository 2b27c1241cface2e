"""What to do about a key of another tool."""

from dataclasses import dataclass

NOT_THERE = "not there;"
"""How the answer begins where msft lacks what a key asks for."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What to do about a key of another tool.

    ours: the key that it corresponds to, if there is one.
    renamed: ours takes the same values.
    """

    answer: str
    ours: str = ""
    renamed: bool = False


def same(keys: str, answer: str, ours: str = "") -> dict[str, Foreign]:
    return dict.fromkeys(keys.split(), Foreign(answer, ours))


def write(keys: str, ours: str, more: str = "") -> dict[str, Foreign]:
    return dict.fromkeys(keys.split(), Foreign(f"write {ours}{more}", ours, renamed=True))
