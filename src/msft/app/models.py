"""Several base models on one command line: their names, and the folder of each."""

from collections.abc import Sequence
from urllib.parse import quote

from msft.app.variants import LONGEST, listed_words, refuse_twice
from msft.errors import UsageError

MODEL = "model_name_or_path"
EXAMPLE = "Qwen/Qwen2.5-0.5B,allenai/OLMo-2-0425-1B"


def models_named(models: str | Sequence[str] | None) -> list[str]:
    """`A,B` as names; none where none were given."""
    if models is None:
        return []
    words = listed_words(models, "--models", EXAMPLE)
    refuse_twice(words, "--models")
    folders: dict[str, str] = {}
    for word in words:
        other = folders.setdefault(model_folder(word).casefold(), word)
        if other != word:
            raise UsageError(
                f"--models has {other} and {word}, whose folders would have one name; compare one "
                "of them with another --out"
            )
        if len(model_folder(word)) > LONGEST:
            raise UsageError(
                f"--models has {word!r}, which is too long for the name of a folder; make a link "
                "to it with a short name"
            )
    return words


def model_folder(model: str) -> str:
    """The folder of a model's runs, as the hub's cache names them: `Qwen--Qwen2.5-0.5B`."""
    name = quote(model.strip("/").replace("/", "--"), safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name
