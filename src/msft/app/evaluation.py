"""`msft eval`: a model's answers to a recipe's rows, and their scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msft.recipe.recipe import Recipe
from msft.search.curves import TEST
from msft.text import SELECTED_ON_TEST

OF_A_RESULT = f"a result of this recipe (selection_split: test): {SELECTED_ON_TEST}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """content: the scores for programs. text: the same for a terminal. lines: every answer."""

    content: dict[str, Any]
    text: Callable[[int], str]
    lines: Callable[[], list[dict[str, Any]]]


def evaluation(
    recipe: Recipe, model: str, split: str, whole: bool, notice: Callable[[str], None]
) -> Evaluation:
    """Score a model on a split.

    whole: answers are generated to their end, to be read; else only until the verdict is certain.
    """
    from msft.app.terminal.results import answer_lines, scoreboard
    from msft.engine.build import load_evaluator

    evaluator, groups, watched = load_evaluator(recipe, model, split, notice)
    answers = evaluator.answered(list(groups), split, early=not whole)
    scored = evaluator.scored(answers)
    board = scoreboard(answers, scored.scores, groups, recipe.mean, watched)
    on_test = recipe.selection_split == TEST
    content = {
        "model": model,
        "split": split,
        **({"selection_split": recipe.selection_split} if on_test else {}),
        **board.content(),
        "tokens": scored.tokens,
    }
    mark = f"\n{OF_A_RESULT}" if on_test else ""
    return Evaluation(
        content, lambda width: board.text(width) + mark, lambda: [*answer_lines(answers)]
    )
