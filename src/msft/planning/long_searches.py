"""mSFT on very many sub-datasets: two stages are counted, and the others follow from them.

A search over N sub-datasets has N stages or more, and each tick scores N, so counting all of it
takes minutes for a thousand. Its stages differ only by who has left, so where counting takes too
many looks, they are not counted one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msft.planning.counting_run import Case, Script, Stage
from msft.search.feeds import steps_of
from msft.search.methods import PreparedMethod
from msft.search.options import RolloutOptions
from msft.search.rollout import Settings, Tokens

Counted = Callable[[Script, PreparedMethod], Case]


def follows_from_two(method: PreparedMethod, settings: Settings) -> bool:
    """Whether every stage is as long as the first, and one sub-dataset leaves at a time or none."""
    odd = {"drop_ties", "max_epochs", "exclude"} & {*method.options}
    kept = any(part.keep for part in settings.mixture.parts)
    usual = method.rollout_options == RolloutOptions()
    whole = settings.compute_budget % settings.evals_per_epoch == 0
    rehearsed = settings.mixture.rehearsal_fraction > 0
    return method.name == "msft" and usual and whole and not (odd or kept or rehearsed)


def extended(
    method: PreparedMethod,
    settings: Settings,
    batch_size: int,
    tokens: Mapping[str, float],
    scripts: Sequence[Script],
    counted: Counted,
) -> list[Case]:
    """The cheapest and the dearest run.

    tokens: of an epoch, by sub-dataset; the first script lets the largest leave after each stage,
        the second nobody.
    """
    most = method.options.get("max_stages") or 2 * len(tokens)
    leaving = sorted(tokens, key=lambda name: -tokens[name])
    shrinking = [leaving[number:] for number in range(min(most, len(tokens)))]
    active = [shrinking, [leaving] * most]
    rows = {part.name: part.rows for part in settings.mixture.parts}
    found: list[Case] = []
    for script, stages in zip(scripts, active, strict=True):
        one, two = (counted(script, _limited(method, number)) for number in (1, 2))
        epochs = settings.compute_budget // settings.evals_per_epoch
        listed = tuple(
            Stage(
                active=len(names),
                epochs=one.stages[0].epochs,
                steps=epochs * steps_of(sum(rows[name] for name in names), batch_size),
                tokens=round(epochs * sum(tokens[name] for name in names)),
            )
            for names in stages
        )
        more = len(stages) - 1
        trained = sum(stage.tokens for stage in listed)
        scored = one.tokens.evaluation + more * (two.tokens.evaluation - one.tokens.evaluation)
        evaluations = one.evaluations + more * (two.evaluations - one.evaluations)
        found.append(replace(one, stages=listed, evaluations=evaluations))
        found[-1] = replace(found[-1], tokens=Tokens(train=trained, evaluation=scored))
    return found


def _limited(method: PreparedMethod, stages: int) -> PreparedMethod:
    carry_out: Any = method.carry_out
    limited = partial(carry_out, max_stages=stages)
    return replace(method, options={**method.options, "max_stages": stages}, carry_out=limited)
