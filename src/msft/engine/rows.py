"""Rows: a tokenizer, and what a recipe trains and scores in its tokens. Nothing here has weights.

`msft validate`, `plan`, `eval`, `compare` and `train` all begin with `load_rows`.
"""

from dataclasses import dataclass
from typing import Any

from msft.data.corpus import Corpus, load_corpus
from msft.engine.model.tokenizers import load_context, tokenizer_for
from msft.recipe.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Rows:
    """notes: what a person should know of the rows before training."""

    tokenizer: Any
    corpus: Corpus
    notes: tuple[str, ...] = ()


def load_rows(recipe: Recipe, model: str | None = None) -> Rows:
    """The rows of a recipe in the tokens of its model, or of another one."""
    name = model or recipe.model()
    tokenizer = tokenizer_for(recipe, name)
    corpus = load_corpus(recipe, tokenizer, load_context(name, recipe.trust_remote_code))
    return Rows(tokenizer, corpus, corpus.notes)
