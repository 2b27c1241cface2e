"""The kinds of values that keys take where a plain type does not say enough.

Each is an annotation with a function that refuses a value by saying what was expected.
"""

import os
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from msft.errors import OptionError, RecipeError
from msft.text import shown

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""What `report_to` may name."""
ALL_LINEAR = "all-linear"
"""Every linear layer but the head."""
LONGEST_TEMPLATE = 1_000_000

_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _path_as_text(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def writable(text: str) -> str:
    """Text that can stand in a file, a path and on a terminal."""
    if not text.strip():
        raise ValueError("expected text, or leave the key out")
    if _UNWRITABLE.search(text):
        raise ValueError("expected text without control characters; remove them")
    return text


Text = Annotated[str, BeforeValidator(_path_as_text), AfterValidator(writable)]
"""Text; a path is taken too."""


def _template(given: Any) -> str | None:
    if given is None or (isinstance(given, str) and is_template(given) and "\0" not in given):
        return given
    if not isinstance(given, str):
        raise ValueError("expected a .jinja file, or the text of a template")
    return writable(given)


Template = Annotated[str | None, PlainValidator(_template)]
"""A chat template: its text, or the name of its file."""


def is_template(written: str) -> bool:
    """Whether this is the text of a chat template, not the name of a file."""
    return "{{" in written or "{%" in written


def template_in(file: Path, at: str) -> str:
    """The text of a template's file; `at` stands before messages."""
    try:
        with file.open("rb") as stream:
            text = stream.read(LONGEST_TEMPLATE + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"{at}{file} cannot be read as a chat template: {error}", ("chat_template",)
        ) from error
    if len(text) > LONGEST_TEMPLATE or not is_template(text):
        raise RecipeError(
            f"{at}{file} is no chat template: expected Jinja with {{{{ or {{% in it, and "
            f"{LONGEST_TEMPLATE:,} characters at most",
            ("chat_template",),
        )
    return text


def _trackers(given: Any) -> str | list[str]:
    several = isinstance(given, list | tuple)
    names = list(given) if several else [given]
    known = TRACKERS if several else ("none", *TRACKERS)
    if any(name not in known for name in names):
        more = "" if several else ", or a list of trackers"
        raise ValueError(f"expected {', '.join(map(repr, known))}{more}")
    if len(set(names)) < len(names):
        raise ValueError("name each tracker once")
    return names or "none" if several else str(given)


Trackers = Annotated[str | Sequence[str], PlainValidator(_trackers)]
"""`none`, a tracker, or a list of different ones."""


def _layers(given: Any) -> str | list[str]:
    if given in (ALL_LINEAR, [ALL_LINEAR], (ALL_LINEAR,)):  # TRL reads a list of one as its name
        return ALL_LINEAR
    named = isinstance(given, list | tuple) and given and all(isinstance(n, str) for n in given)
    if not named or not all(name.strip() for name in given):
        raise ValueError(
            f"expected {ALL_LINEAR}, or a list of layers' names such as [q_proj, v_proj]"
        )
    if len(set(given)) < len(given):
        raise ValueError("name each layer once")
    return list(given)


Layers = Annotated[str | Sequence[str], PlainValidator(_layers)]
"""`all-linear`, or a list of different names."""


def options_like(example: str) -> PlainValidator:
    """Options by name, copied; an example of them is shown where there are none."""

    def block(given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise ValueError(f"expected options {example}")
        return dict(given)

    return PlainValidator(block)


def plain_option(value: Any, option: str, block: str) -> Any:
    """A copy of an option's value, which is what YAML can hold: it is written down."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain_option(inner, option, block) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_option(inner, option, block) for inner in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return value
    said = "expected text, a finite number, true, false, null, or lists and mappings of them"
    try:
        if isinstance(value, str):
            return writable(value)
    except ValueError as error:
        said = str(error)
    raise OptionError(f"{block}.{option} is {shown(value)}; {said}", option)
