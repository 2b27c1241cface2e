"""Ten seconds of real training and scoring on this machine, for a forecast of time.

The engine is the one that a run would have, over the recipe's own rows. Training takes steps of the
first epoch, and the median over steps counts: the first ones are slower. Scoring takes a few rows
of each sub-dataset, and where these are quick all rows. On a GPU each kind of work is done once
more before it counts, since kernels are compiled and steps are recorded at first.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

import torch

from msft.data.corpus import Corpus, SubDataset, settings_for
from msft.data.encoding import EncodedSplit
from msft.engine.build import engine_of
from msft.engine.model.tokenizers import tokenizer_for
from msft.recipe.recipe import Recipe
from msft.run.engine import Engine
from msft.run.log import Tokens
from msft.run.rows import Scorer
from msft.scoring.evaluation import Evaluator
from msft.search.curves import SELECTION, TEST
from msft.search.feeds import SHUFFLED, FeedContext

SECONDS = 5.0
"""For training, and again for scoring."""
WARM_UP = 2
SAMPLE = 8
"""Rows of each sub-dataset that are scored first, to see how long all of them would take."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Speed on this machine; an evaluation is counted in tokens too.

    loading: seconds until the first step.
    sampled: only a few rows were scored, since all of them would take too long.
    """

    loading: float
    train_tokens_per_second: float
    evaluation_tokens_per_second: float
    sampled: bool

    def seconds(self, tokens: Tokens) -> float:
        """A run of so many tokens; a look-ahead is a step and a forward pass more."""
        trained = (tokens.train + tokens.lookahead * 8 / 6) / self.train_tokens_per_second
        return self.loading + trained + tokens.evaluation / self.evaluation_tokens_per_second


def calibrate(
    recipe: Recipe, corpus: Corpus, device: torch.device, seconds: float = SECONDS
) -> Calibration:
    """Load the model, take steps, score; nothing is written."""
    begun = time.perf_counter()
    tokenizer = tokenizer_for(recipe, recipe.model())
    sample = _sample(corpus)
    settings = settings_for(recipe, sample, recipe.prepared)
    engine = engine_of(recipe, sample, tokenizer, device)
    evaluator = Evaluator(sample.tasks(recipe), engine.predictor(), tokenizer)
    loading = time.perf_counter() - begun
    place = FeedContext(
        settings.mixture,
        settings.train_ticks,
        settings.evals_per_epoch,
        recipe.train_batch_size,
        recipe.seed,
        0,
    )
    compiling = device.type == "cuda"
    trained = training_rate(engine, place, compiling, seconds)
    scored, sampled = scoring_rate(evaluator, list(sample.scored), compiling, seconds)
    return Calibration(loading, trained, scored, sampled)


def _sample(corpus: Corpus) -> Corpus:
    """The corpus with a few of the rows that select as validation, and all of them as test."""

    def of(datasets: Mapping[str, SubDataset]) -> dict[str, SubDataset]:
        return {
            name: replace(d, validation=_first(rows), test=rows)
            for name, d in datasets.items()
            for rows in [d.rows_of(corpus.selection)]
        }

    watched = of(corpus.watched)
    return replace(corpus, datasets=of(corpus.datasets), watched=watched, selection=SELECTION)


def _first(split: EncodedSplit) -> EncodedSplit:
    return replace(split, examples=split.examples[:SAMPLE], rows=split.rows[:SAMPLE])


def training_rate(
    engine: Engine,
    place: FeedContext,
    compiling: bool,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> float:
    """Tokens a second: the median over steps.

    On a GPU a batch is taken twice and the second time counts: at first, kernels are compiled and
    a step of a new shape is recorded.
    """
    rates: list[float] = []
    feed = SHUFFLED.open(place)
    begun = clock()
    for batch in (batch for tick in range(1, place.ticks + 1) for batch in feed.batches(tick)):
        if compiling:
            engine.work(batch)[0].rows[0]
        start = clock()
        losses, tokens = engine.work(batch)
        losses.rows[0]  # waits for the device
        rates.append(tokens / (clock() - start))
        late = clock() - begun > seconds
        if late and len(rates) > compiling * WARM_UP:
            break
    return median(rates[min(WARM_UP, len(rates) - 1) :])


def scoring_rate(
    score: Scorer,
    names: list[str],
    compiling: bool,
    seconds: float,
    clock: Clock = time.perf_counter,
) -> tuple[float, bool]:
    """Tokens a second, of all rows that select if that does not take too long; if not, True."""

    def timed(split: str, most: float) -> tuple[int, float]:
        """The last of a few times: the first of all is slower, and on a GPU the second records."""
        tokens, took = 0, 0.0
        for number in range(2 + compiling):
            start = clock()
            tokens = score(names, split).tokens
            took = clock() - start
            if took > most and number >= compiling:
                break
        return tokens, took

    tokens, took = timed(SELECTION, seconds / 4)
    sampled = took > seconds / 4
    if not sampled:
        tokens, took = timed(TEST, seconds / 2)
    return tokens / took, sampled
