"""Names between commas on the command line: methods with settings in brackets, and base models."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from msft.errors import UsageError
from msft.recipe.foreign_keys import ALIASES
from msft.recipe.recipe import Recipe, recipe_keys
from msft.recipe.yaml import value_of
from msft.report.compare.runs import folder_name, variant_text
from msft.search.methods import METHODS, SHARED_OPTIONS, known_options
from msft.search.options import refuse_unknown

ELSEWHERE = {
    "seed": "name seeds with --seeds",
    "method": "name the method before the bracket",
    "method_options": "name its options one by one",
    "options_by_method": "name its options one by one",
    "datasets": "a comparison is of one mixture",
    "output_dir": "the place of every run is in --out",
    "report_to": "set it for all of them with --set",
    "selection_split": "scores of different rows cannot be compared: set it for all with --set",
}
"""Keys of a recipe that do not belong into a bracket, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A method, and what it has of its own: keys with their values as text, by key."""

    method: str
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return variant_text(self.method, self.settings)

    def folder_name(self, seed: int) -> str:
        return folder_name(self.method, self.settings, seed)

    def overrides(self, recipe: Recipe) -> tuple[str, ...]:
        """The changes that make the variant's recipe from the common one, as `--set` takes them."""
        options, more = options_of(self.method, recipe), list[str]()
        known = known_options(self.method)
        for key, text in self.settings.items():
            top, dot, inside = key.partition(".")
            if top in known:
                value = value_of(text, f"{self}: {key}={text}")
                held = options.get(top)
                options[top] = (
                    {**(held if isinstance(held, Mapping) else {}), inside: value} if dot else value
                )
            else:
                self._refuse(top, known)
                more.append(f"{key}={text}")
        method = (f"method={json.dumps(self.method)}", f"method_options={json.dumps(options)}")
        return (*method, *more)

    def _refuse(self, key: str, options: Sequence[str]) -> None:
        if key in ELSEWHERE:
            raise UsageError(f"{self}: {key} does not belong into a bracket; {ELSEWHERE[key]}")
        if key not in ALIASES:
            settings = [known for known in recipe_keys() if known not in ELSEWHERE]
            refuse_unknown([key], (*options, *settings), f"setting of {self.method}:")


def options_of(method: str, recipe: Recipe) -> dict[str, Any]:
    """The options of a method in a comparison.

    The recipe's own method has all of the recipe's. Another one has those that mean the same for
    it (how roll-outs are done, what remains of excluded sub-datasets); its own are those of
    `options_by_method`, else their defaults.
    """
    own = recipe.options_of(method)
    if method == recipe.method:
        return own
    known = SHARED_OPTIONS.get(method, () if method in METHODS else SHARED_OPTIONS["msft"])
    shared = {key: value for key, value in recipe.method_options.items() if key in known}
    return {**shared, **own}


def methods_of(text: str | None) -> list[str]:
    """`sft,msft` as names; all the built-in ones by default."""
    if text is None:
        return list(METHODS)
    return listed_words(text, "--methods", "sft,msft")


def variants_of(methods: str | Sequence[str] | None) -> list[Variant]:
    """`sft,soup[of=last,k=4]` as variants; all the built-in methods by default."""
    if methods is None:
        return [Variant(method) for method in METHODS]
    found = [_variant(word) for word in listed_words(methods, "--methods", "sft,msft")]
    refuse_twice([str(variant) for variant in found], "--methods")
    return found


def _variant(word: str) -> Variant:
    method, bracket, rest = word.partition("[")
    method = method.strip()
    if not bracket:
        return Variant(method)
    closed = rest.endswith("]")
    pairs = [pair.partition("=") for pair in _split(rest[:-1], word)] if closed else []
    if not method or not pairs or not all(key.strip() and equals for key, equals, _ in pairs):
        raise UsageError(
            f"--methods has {word!r}; expected settings in brackets behind a method, such as "
            "soup[of=last,k=4]"
        )
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    refuse_twice([key.strip() for key, *_ in pairs], word)
    return Variant(method, dict(sorted(settings.items())))


def listed_words(
    text: str | Sequence[str], option: str, example: str, repeated: str | None = None
) -> list[str]:
    """Words between commas that are in no bracket, or a list of them; UsageError for one that
    stands there twice.

    repeated: the word that may.
    """
    words = _split(text, option) if isinstance(text, str) else [word.strip() for word in text]
    if not words or not all(words):
        raise UsageError(f"{option} is {text!r}; expected names between commas, such as {example}")
    refuse_twice([word for word in words if word != repeated], option)
    return words


def _split(text: str, where: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if depth < 0:
            break
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise UsageError(f"{where} has {text!r}: its brackets do not close each other")
    return [part.strip() for part in parts]


def refuse_twice(words: Sequence[object], option: str) -> None:
    twice = [word for number, word in enumerate(words) if word in words[:number]]
    if twice:
        raise UsageError(f"{option} has {twice[0]} twice; name it once")


MODEL = "model_name_or_path"


def models_named(models: str | Sequence[str] | None) -> list[str]:
    """`A,B` as names; none where none were given."""
    if models is None:
        return []
    return listed_words(models, "--models", "Qwen/Qwen2.5-0.5B,allenai/OLMo-2-0425-1B")


def model_folder(model: str) -> str:
    """The folder of a model's runs, as the hub's cache names them: `Qwen--Qwen2.5-0.5B`."""
    name = quote(model.strip("/").replace("/", "--"), safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name
