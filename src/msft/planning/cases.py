"""The plan: what a run will cost, from recipe and data alone.

How long a search takes is what it finds out, so every method is counted twice, once as cheap and
once as dear as it can be. mSFT is cheapest if the largest sub-dataset leaves first, at the start of
every roll-out, and dearest if nobody ever overfits and `max_stages` or `max_epochs` ends it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from msft.data.corpus import Corpus, settings_for
from msft.planning.counting_run import Counted, Rows, Script, counted
from msft.recipe.recipe import Recipe
from msft.search.methods import METHODS, PreparedMethod, prepare
from msft.search.mixture import Mixture
from msft.search.rollout import Tokens, ticks_of


@dataclass(frozen=True, slots=True)
class Stage:
    """One roll-out: active sub-datasets, epochs, steps, training tokens."""

    active: int
    epochs: float
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Case:
    """One way that a whole run can go."""

    stages: tuple[Stage, ...]
    evaluations: int
    tokens: Tokens
    largest_batch: int

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def epochs(self) -> float:
        return sum(stage.epochs for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Cases:
    """A method's cheapest and dearest run."""

    best: Case
    worst: Case


def cases_of(
    recipe: Recipe, corpus: Corpus, evaluation: Mapping[tuple[str, str], int]
) -> dict[str, Cases]:
    """Every method with this recipe, its own first; the others have the paper's options.

    evaluation: tokens of an evaluation by sub-dataset and split.
    """
    found: dict[str, Cases] = {}
    for name in dict.fromkeys([recipe.method, *METHODS]):
        try:
            method = recipe.prepared() if name == recipe.method else _plain(name, recipe)
        except ValueError:  # this method cannot be had with this recipe
            continue
        found[name] = cases(recipe, corpus, method, evaluation)
    return found


def _plain(name: str, recipe: Recipe) -> PreparedMethod:
    budget = ticks_of(recipe.compute_budget, recipe.evals_per_epoch, "compute_budget")
    return prepare(name, {}, budget, recipe.peak_rule)


def cases(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    evaluation: Mapping[tuple[str, str], int],
) -> Cases:
    """The cheapest and the dearest run of one method."""
    train = {n: [len(r.tokens) for r in d.train.rows] for n, d in corpus.datasets.items()}
    settings = settings_for(recipe, corpus, method)
    rows = Rows(train, evaluation)
    found = [
        _case(counted(settings, method, recipe.train_batch_size, rows, script))
        for script in dict.fromkeys(scripts(method, train))
    ]
    found.sort(key=lambda case: 3 * case.tokens.train + case.tokens.evaluation)
    return Cases(found[0], found[-1])


def scripts(method: PreparedMethod, train: Mapping[str, list[int]]) -> tuple[Script, Script]:
    """What makes a run of this method as cheap, and as dear, as it can be."""
    means = {name: sum(rows) / len(rows) for name, rows in train.items()}
    short, long = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    if method.name == "soft_sro":  # as many rows in all, from whoever peaks last

        def but(name: str) -> Script:
            return Script(lambda mixture: [other for other in mixture.active if other != name])

        return but(short), but(long)
    if method.name == "msft" and method.options.get("drop_ties") != "all":

        def largest(mixture: Mixture) -> list[str]:
            return [max(mixture.candidates, key=lambda name: sum(train[name]))]

        return Script(largest), Script(_nobody)
    if method.name in ("sft", "dynamix", "ies"):  # one roll-out, however its curves go
        restless = method.name == "ies"
        favoured = (short, long) if method.name == "dynamix" else (None, None)
        return Script(_nobody, favoured=favoured[0]), Script(_nobody, restless, favoured[1])
    return Script(lambda mixture: mixture.active), Script(_nobody)


def _nobody(mixture: Mixture) -> tuple[str, ...]:
    return ()


def _case(run: Counted) -> Case:
    history = run.history
    stages = tuple(
        Stage(
            len(stage.asked.active),
            stage.ticks / history.evals_per_epoch,
            sum(point.steps for point in stage.points),
            sum(point.tokens.train for point in stage.points),
        )
        for stage in history.stages
    )
    return Case(stages, run.evaluations, history.tokens, run.largest_batch)
