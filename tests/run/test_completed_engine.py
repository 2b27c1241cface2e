"""What an engine may leave out has a default, whether it inherits from `Engine` or not."""

from pathlib import Path
from typing import Any

import pytest

from msft.errors import UsageError
from msft.run.engine import Engine, completed

VERBS = ("load", "load_optimizer", "weights", "optimizer", "average", "seed", "work")
MORE = ("predictor", "codec", "export")


def an_engine(leave_out: str = "", **more: Any) -> Any:
    """An object with every verb that an engine must have, which answers with the verb's name."""
    own: dict[str, Any] = {name: lambda self, *given, n=name: n for name in (*VERBS, *MORE)}
    own |= {"num_parameters": 3, "num_trainable": 2, **more}
    own.pop(leave_out, None)
    return type("Mine", (), own)()


def test_an_engine_that_does_not_inherit_gets_the_defaults() -> None:
    made = completed(an_engine())
    assert [getattr(made, verb)() for verb in (*VERBS, *MORE)] == [*VERBS, *MORE]
    assert (made.num_parameters, made.num_trainable) == (3, 2)
    assert (made.num_frozen, made.bytes_a_weight, made.links, made.how()) == (0, 0, False, "")
    assert made.memory(1, 1, 1)[0] == []


def test_what_it_has_of_its_own_is_kept() -> None:
    linked: list[Path] = []
    own = an_engine(
        link=lambda self, source, folder: linked.append(source), how=lambda self: "by hand"
    )
    made = completed(own)
    assert (made.links, made.how()) == (True, "by hand")
    made.link(Path("a"), Path("b"))
    assert linked == [Path("a")]


def test_an_engine_that_inherits_is_itself() -> None:
    kind = type(completed(an_engine()))
    made = kind()
    assert isinstance(made, Engine)
    assert completed(made) is made


def test_the_fingerprint_is_that_of_class_and_size_where_nothing_else_is_said() -> None:
    one, same, other = an_engine(), an_engine(), an_engine(num_parameters=4)
    assert completed(one).fingerprint() == completed(same).fingerprint()
    assert completed(one).fingerprint() != completed(other).fingerprint()
    said = an_engine(fingerprint=lambda self: "mine")
    assert completed(said).fingerprint() == "mine"


@pytest.mark.parametrize("verb", ["export", "work", "num_trainable"])
def test_a_missing_verb_is_named(verb: str) -> None:
    with pytest.raises(UsageError, match=f"Mine is no engine: it has no {verb};"):
        completed(an_engine(leave_out=verb))
