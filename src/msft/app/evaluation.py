"""`msft eval`: a model's answers to a recipe's rows, and their scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msft.app.terminal.results import Scoreboard, answer_lines, scoreboard
from msft.recipe.recipe import Recipe
from msft.scoring.evaluation import Answers
from msft.search.curves import TEST
from msft.text import SELECTED_ON_TEST


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of a model on a split: `content` for programs, `text` for a terminal; `lines` has
    every answer.

    mark: said below the scores.
    """

    content: dict[str, Any]
    board: Scoreboard
    answers: Answers
    mark: str

    def text(self, width: int) -> str:
        return self.board.text(width) + self.mark

    def lines(self) -> list[dict[str, Any]]:
        return [*answer_lines(self.answers)]


def evaluation(
    recipe: Recipe, model: str, split: str, whole: bool, notice: Callable[[str], None]
) -> Evaluation:
    """Score a model on a split.

    whole: answers are generated to their end, to be read; else only until the verdict is certain.
    """
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
    mark = f"\na result of this recipe (selection_split: test): {SELECTED_ON_TEST}"
    return Evaluation(content, board, answers, mark if on_test else "")
