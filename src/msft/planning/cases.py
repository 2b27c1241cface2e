"""The cheapest and the dearest run of every method, from recipe and data alone.

How long a search takes is what it finds out, so every method is counted twice, once as cheap and
once as dear as it can be. mSFT is cheapest if the largest sub-dataset leaves first, at the start of
every roll-out, and dearest if nobody ever overfits and `max_stages` or `max_epochs` ends it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from msft.data.corpus import Corpus, settings_for
from msft.planning.counting_run import (
    MOST_LOOKS,
    Case,
    EvaluationTokens,
    Script,
    TooLong,
    TrainRows,
    counted_run,
)
from msft.planning.long_searches import extended, follows_from_two
from msft.recipe.recipe import Recipe
from msft.search.methods import METHODS, PreparedMethod, prepare
from msft.search.mixture import Mixture
from msft.search.rollout import ticks_of

TOO_LONG = (
    f"counting it takes more than {MOST_LOOKS:,} looks at scores and rows; plan fewer epochs or "
    "stages (num_train_epochs, compute_budget, max_stages): cost grows in proportion"
)


@dataclass(frozen=True, slots=True)
class Cases:
    """A method's cheapest and dearest run."""

    best: Case
    worst: Case


@dataclass(frozen=True, slots=True)
class Counted:
    """cases: of every method that was counted. left_out: why the others were not."""

    cases: Mapping[str, Cases]
    left_out: Mapping[str, str]


def cases_of(
    recipe: Recipe,
    corpus: Corpus,
    evaluation: EvaluationTokens,
    methods: Iterable[str] = METHODS,
) -> Counted:
    """The recipe's own method and these, each with what the recipe says for it."""
    budget = ticks_of(recipe.compute_budget, recipe.evals_per_epoch, "compute_budget")
    cases: dict[str, Cases] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys([recipe.method, *methods]):
        try:
            options = recipe.options_of(name)
            method = prepare(name, options, budget, recipe.peak_rule)
        except ValueError as error:
            left_out[name] = f"this recipe cannot have it: {error}"
            continue
        try:
            cases[name] = _cases(recipe, corpus, method, evaluation)
        except TooLong:
            left_out[name] = TOO_LONG
    return Counted(cases, left_out)


def _cases(
    recipe: Recipe, corpus: Corpus, method: PreparedMethod, evaluation: EvaluationTokens
) -> Cases:
    train = {n: [len(r.tokens) for r in d.train.rows] for n, d in corpus.datasets.items()}
    settings, batch = settings_for(recipe, corpus, method), recipe.train_batch_size

    def counted(script: Script, method: PreparedMethod) -> Case:
        return counted_run(settings, method, batch, train, evaluation, script)

    scripts = _scripts(method, train)
    try:
        cases = [counted(script, method) for script in dict.fromkeys(scripts)]
    except TooLong:
        if not follows_from_two(method, settings):
            raise
        parts = {p.name: sum(train[p.name]) * p.rows / p.size for p in settings.mixture.parts}
        cases = extended(method, settings, batch, parts, scripts, counted)
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
