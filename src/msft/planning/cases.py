"""The cheapest and the dearest run of every method, from recipe and data alone.

How long a search takes is what it finds out, so every method is counted twice, once as cheap and
once as dear as it can be. mSFT is cheapest if the largest sub-dataset leaves first, at the start of
every roll-out, and dearest if nobody ever overfits and `max_stages` or `max_epochs` ends it.
"""

import time
from dataclasses import dataclass, replace

from msft.data.corpus import Corpus, settings_for
from msft.errors import UsageError
from msft.planning.counting_run import Case, EvaluationTokens, Script, TrainRows, counted_run
from msft.planning.long_searches import extended, follows_from_two
from msft.recipe.recipe import Recipe
from msft.search.methods import METHODS, PreparedMethod, prepare
from msft.search.mixture import Mixture
from msft.search.rollout import ticks_of

MOST_COUNTED = 100
"""Sub-datasets whose searches are counted stage by stage; their cost grows with the square."""
SECONDS = 20
"""How long all methods together may take to count."""


@dataclass(frozen=True, slots=True)
class Cases:
    """A method's cheapest and dearest run."""

    best: Case
    worst: Case


def cases_of(recipe: Recipe, corpus: Corpus, evaluation: EvaluationTokens) -> dict[str, Cases]:
    """Every method with this recipe and what it says for them, its own first.

    Others than its own are left out once counting has taken its time; UsageError where its own
    takes too long.
    """
    budget = ticks_of(recipe.compute_budget, recipe.evals_per_epoch, "compute_budget")
    cases: dict[str, Cases] = {}
    until = time.monotonic() + SECONDS
    for name in dict.fromkeys([recipe.method, *METHODS]):
        try:
            options = recipe.options_of(name)
            method = prepare(name, options, budget, recipe.peak_rule)
        except ValueError:  # this method cannot be had with this recipe
            continue
        now = time.monotonic()  # one long search must not leave the others without time
        own = until if name == recipe.method else now + max(0.0, until - now) / 2
        try:
            cases[name] = _cases(recipe, corpus, method, evaluation, own)
        except TimeoutError:
            if name == recipe.method:
                raise UsageError(
                    f"counting what {name} does took more than {SECONDS} s: "
                    f"num_train_epochs is {recipe.num_train_epochs:g}, compute_budget "
                    f"{recipe.compute_budget:g}, and each epoch is scored {recipe.evals_per_epoch} "
                    "times; plan fewer epochs, such as --set num_train_epochs=10 --set "
                    "compute_budget=3: cost grows in proportion"
                ) from None
    return cases


def _cases(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    evaluation: EvaluationTokens,
    until: float,
) -> Cases:
    train = {n: [len(r.tokens) for r in d.train.rows] for n, d in corpus.datasets.items()}
    settings = settings_for(recipe, corpus, method)

    def counted(script: Script, method: PreparedMethod) -> Case:
        batch = recipe.train_batch_size
        return counted_run(settings, method, batch, train, evaluation, script, until=until)

    scripts = _scripts(method, train)
    if len(train) > MOST_COUNTED and follows_from_two(method, settings):
        parts = {p.name: sum(train[p.name]) * p.rows / p.size for p in settings.mixture.parts}
        cases = extended(method, settings, recipe.train_batch_size, parts, scripts, counted)
    else:
        cases = [counted(script, method) for script in dict.fromkeys(scripts)]
    cases.sort(key=lambda case: 3 * case.tokens.train + case.tokens.evaluation)
    return Cases(cases[0], cases[-1])


def _scripts(method: PreparedMethod, train: TrainRows) -> tuple[Script, Script]:
    """What makes a run of this method as cheap, and as dear, as it can be."""
    means = {name: sum(rows) / len(rows) for name, rows in train.items()}
    short, long = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    nobody = Script(lambda mixture: ())

    def all_but(name: str) -> Script:
        return Script(lambda mixture: [n for n in mixture.active if n != name])

    def largest(mixture: Mixture) -> list[str]:
        tokens = {p.name: sum(train[p.name]) * p.rows / p.size for p in mixture.parts}
        return [max(mixture.candidates, key=tokens.__getitem__)]

    match method.name:
        case "sft" | "soup":  # one roll-out, however its curves go
            return nobody, nobody
        case "dynamix":
            return replace(nobody, favoured=short), replace(nobody, favoured=long)
        case "ies":
            return nobody, replace(nobody, restless=True)
        case "soft_sro":  # as many rows in all, of the sub-dataset that peaks last
            return all_but(short), all_but(long)
        case "msft" if method.options.get("drop_ties") != "all":
            return Script(largest), nobody
    return Script(lambda mixture: mixture.active), nobody
