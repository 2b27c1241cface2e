"""Steps and tokens of a run, counted without training: real methods, feeds and evaluation grid.

**A run.** Steps and tokens come out exactly as a run would log them. What a run finds out by itself
(who peaks when, which rows stop bending, whom a bandit favours) is written down beforehand as a
`Script`. What would take too long to count is known by a count too, never by a clock: a busy
machine gives the same answer as an idle one.

**Cases.** How long a search takes is what it finds out, so every method is counted twice, once as
cheap and once as dear as it can be. mSFT is cheapest if the largest sub-dataset leaves first, at
the start of every roll-out, and dearest if nobody ever overfits and `max_stages` or `max_epochs`
ends it.

**Evaluations.** Prompts, shared prefixes and choices are counted as the decoder computes them. How
long an answer gets is for the model to decide; here it is taken to be as long as its reference,
within the limit.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from msft.data.corpus import Corpus, Task, generates, settings_for
from msft.data.encoding import EncodedSplit, Tokenizer
from msft.data.splits import question_of
from msft.engine.decode.decoder import grouped, question
from msft.engine.decode.plans import answer_plan
from msft.engine.memory import EvaluationSize, EvaluationSizes
from msft.errors import UsageError, WrongMethod
from msft.example import Encoded
from msft.recipe.dataset import FUNCTION
from msft.recipe.recipe import Recipe, refuse_courses
from msft.run.engine import Generated, Likelihoods, StopRow
from msft.run.history import History
from msft.run.log import Event, Log, RolloutEvent, Tokens
from msft.run.recorded_run import RecordedRun
from msft.run.rows import Judged, Judgments, Scored
from msft.run.worker import EngineWorker, Question, Work
from msft.scoring.evaluation import Evaluator, judged, kind_of
from msft.search.curves import SELECTION, TEST, value
from msft.search.draws import shuffled
from msft.search.feeds import SHUFFLED, Batch, FeedContext, Losses, Mixture, Part
from msft.search.methods import METHODS, PreparedMethod, prepare, prepared_audit
from msft.search.options import ticks_of
from msft.search.rollout import Settings
from msft.store.store import CheckpointStore, MemoryTier

TrainRows = Mapping[str, Sequence[int]]
"""Tokens of each training row of a sub-dataset."""
EvaluationTokens = Mapping[tuple[str, str], int]
"""Tokens of one evaluation, by sub-dataset and split."""
MOST_ROLLOUTS = 1000
RESTLESS = 1e12
"""A row's loss grows by this, so that it bends whatever the threshold is."""
MOST_LOOKS = 1_000_000
"""Looks that one counted run may take, some seconds of an idle core. A look is a score, or two rows
that a feed chooses."""
REHEARSED_LOOKS = 200_000
TICK_LOOKS = 60
"""What a tick costs beside its scores."""
MOST_DRAWN = 1_000_000
"""Rows of shuffled epochs that are put in order, to see the largest batch; after that, whole epochs
are summed without their order."""
FEW_ROWS = 4
"""Rows of each sub-dataset, all alike: a fall is sure where there is one."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a run is taken to find out.

    falling: of a roll-out's active sub-datasets, those whose score falls from the start on; the
        scores of the others rise to the end.
    restless: whether the rows' losses go on bending, so that IES never lets them rest.
    favoured: the only sub-dataset whose loss a look-ahead lowers.
    """

    falling: Callable[[Mixture], Collection[str]]
    restless: bool = False
    favoured: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One roll-out: active sub-datasets, epochs, steps, training tokens."""

    active: int
    epochs: float
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Case:
    """One way that a whole run can go.

    largest_batch: tokens of its largest training batch, among the first million rows.
    """

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

    def points(self, evals_per_epoch: int, datasets: int) -> int:
        """Checkpoints that can be kept at a time: a roll-out's own, its start and the best."""
        if not self.stages:
            return datasets + 3
        ticks = max(round(stage.epochs * evals_per_epoch) for stage in self.stages)
        return ticks + (2 if len(self.stages) > 1 else 0)


class TooLong(Exception):
    """Counting a run would take more looks than it may."""


def counted_run(
    settings: Settings,
    method: PreparedMethod,
    batch_size: int,
    train: TrainRows,
    evaluation: EvaluationTokens,
    script: Script,
    most_rollouts: int = MOST_ROLLOUTS,
    most_looks: int | None = None,
    judgments: Judgments | None = None,
) -> Case:
    """A whole run in which the script decides; UsageError after so many roll-outs.

    most_looks: TooLong before a roll-out with which it would take more (default: MOST_LOOKS).
    judgments: of an audit.
    """
    settings = replace(settings, peaks=replace(settings.peaks, by="score"))  # a script's are both
    settings = replace(settings, guards={})  # which cost nothing
    if method.peaks is not None:
        method = replace(method, peaks=replace(method.peaks, by="score"))
    engine = CountingEngine(train, evaluation, script, 1 + settings.peaks.min_delta)
    looks = 0

    def watch(event: Event, live: bool) -> None:
        nonlocal looks
        if not isinstance(event, RolloutEvent):
            return
        looks += _looks_of(event, settings)
        if looks > (most_looks or MOST_LOOKS):
            raise TooLong
        if event.rollout >= max(most_rollouts, 4 * len(settings.mixture.parts)):
            raise UsageError(
                f"the method asks for more than {most_rollouts:,} roll-outs while scores rise, so "
                "its cost has no bound; give it a limit of its own, as msft has max_stages"
            )
        parts = (part for part in settings.mixture.parts if part.name in event.active)
        engine.follow(Mixture(tuple(parts)))

    patience = settings.early_stopping_patience or method.rollout_options.patience
    may_stop = patience is not None
    worker = CountingWorker(engine, settings, batch_size, train, may_stop)
    store = CheckpointStore([MemoryTier("memory", capacity=10**9)])
    history = RecordedRun(
        settings,
        method,
        worker,
        Log(),
        store,
        watch=watch,
        judgments=judgments,
    ).carry_out()
    return Case(_stages(history), engine.evaluations, history.tokens, engine.largest_batch)


def refuse_wrong_method(settings: Settings, method: PreparedMethod, batch_size: int) -> None:
    """WrongMethod where a method of the user's own ends as none may, or excludes whom there is
    not, before anything is trained. It is asked twice: while all scores rise, and while all fall.

    The scores are not real, so whatever else goes wrong here says nothing.
    """
    settings = replace(settings, watched={})
    rows = {name: [1] * size for name, size in settings.mixture.sizes.items()}
    free = {(name, split): 0 for name in rows for split in (SELECTION, TEST)}
    for script in (Script(lambda mixture: ()), Script(lambda mixture: mixture.active)):
        try:
            counted_run(
                settings, method, batch_size, rows, free, script, most_looks=REHEARSED_LOOKS
            )
        except WrongMethod:
            raise
        except Exception:  # noqa: S112
            continue


def _looks_of(event: RolloutEvent, settings: Settings) -> int:
    """What counting a roll-out takes at most: its scores, and the rows of a feed that chooses."""
    scores = event.ticks * (TICK_LOOKS + len(settings.mixture.parts))
    if event.feed["name"] == "shuffled":
        return scores
    rows = sum(event.active.values()) + sum(event.rehearsed.values())
    return scores + rows * -(-event.ticks // settings.evals_per_epoch) // 2


def _stages(history: History) -> tuple[Stage, ...]:
    return tuple(
        Stage(
            len(stage.asked.active),
            stage.ticks / history.evals_per_epoch,
            sum(point.steps for point in stage.points),
            sum(point.tokens.train for point in stage.points),
        )
        for stage in history.stages
    )


class CountingEngine:
    """A `Trainer` that counts. Its weights are the scores, which a script moves."""

    num_parameters = 1
    num_trainable = 1

    def __init__(
        self,
        train: TrainRows,
        evaluation: EvaluationTokens,
        script: Script,
        slope: float,
    ) -> None:
        self.largest_batch = 0
        self.evaluations = 0
        self._train = train
        self._evaluation = evaluation
        self._script = script
        self._slope = slope
        self._falling: frozenset[str] = frozenset()
        self._seen: Counter[tuple[str, int]] = Counter()
        self.load(None)

    def follow(self, mixture: Mixture) -> None:
        """A roll-out begins; the mixture has its active sub-datasets."""
        self._settle()
        self._falling = frozenset(self._script.falling(mixture))

    def load(self, weights: Any | None) -> None:
        self._heights: dict[str, float] = dict(weights or dict.fromkeys(self._train, 0.0))
        self._rise = 0.0

    def load_optimizer(self, moments: Any | None) -> None:
        pass  # nothing here has moments

    def _settle(self) -> None:
        """Move the scores by the steps taken since; not at each of them, for there are many."""
        for name in self._heights if self._rise else ():
            self._heights[name] += -self._rise if name in self._falling else self._rise
        self._rise = 0.0

    def weights(self) -> Any:
        self._settle()
        return dict(self._heights)

    def optimizer(self) -> Any:
        return {}

    def average(self, weights: Iterable[Any]) -> Any:
        held = list(weights)
        return {name: fsum(each[name] for each in held) / len(held) for name in self._heights}

    def seed(self, number: int) -> None:
        pass  # nothing here is random

    def work(self, batch: Batch) -> tuple[Losses, int]:
        tokens = sum([self._train[name][number] for name, number in batch.rows])
        if batch.use == "look_ahead":
            after = [0.0 if name == self._script.favoured else 1.0 for name, _ in batch.rows]
            return Losses([1.0] * len(batch.rows), after), tokens
        if batch.use == "train":
            self.step(1, tokens)
        if not self._script.restless:
            return Losses([1.0] * len(batch.rows)), tokens
        self._seen.update(batch.rows)
        return Losses([RESTLESS * self._seen[row] ** 2 for row in batch.rows]), tokens

    def step(self, steps: int, largest: int) -> None:
        """So many steps were taken, the largest of so many tokens."""
        self.largest_batch = max(self.largest_batch, largest)
        self._rise += steps * self._slope

    def score(self, names: Sequence[str], split: str) -> Scored:
        self.evaluations += 1
        self._settle()
        tokens = sum(self._evaluation[name, split] for name in names)
        heights = {name: self._heights.get(name, 0.0) for name in names}  # 0.0: only watched
        verdicts = {name: [height] * FEW_ROWS for name, height in heights.items()}
        return Scored({n: value(height) for n, height in heights.items()}, tokens, verdicts)


class CountingWorker(EngineWorker):
    """Counts shuffled epochs by their sums; the rows of other feeds are followed one by one.

    may_stop: a roll-out may end at any of its ticks.
    """

    def __init__(
        self,
        engine: CountingEngine,
        settings: Settings,
        batch_size: int,
        train: TrainRows,
        may_stop: bool,
    ) -> None:
        super().__init__(
            engine,
            engine.score,
            seed=settings.seed,
            batch_size=batch_size,
            evals_per_epoch=settings.evals_per_epoch,
        )
        self._counting = engine
        self._rows = _Rows({name: np.array(rows) for name, rows in train.items()})
        self._may_stop = may_stop
        self._place: FeedContext | None = None

    def open(self, question: Question, tick: int, weights: Any | None, training: Any) -> None:
        if tick:  # scoring something else came between; the feed stands where it did
            self._counting.load(weights)
            return
        super().open(question, tick, weights, training)
        self._place = self.context if question.feed == SHUFFLED else None

    def training(self) -> Any:
        return None

    def advance(self, tick: int) -> Work:
        place = self._place
        if place is None:
            return super().advance(tick)
        epoch, steps, all_steps = place.steps_in(tick)
        cut_short = self._may_stop or epoch >= place.ticks // place.evals_per_epoch
        if cut_short or self._rows.may_draw(place, epoch):
            batches = self._rows.batches(place, epoch)[steps.start : steps.stop]
            tokens, largest = int(batches.sum()), int(batches.max(initial=0))
        else:
            whole = self._rows.tokens(place, epoch)
            tokens = whole * steps.stop // all_steps - whole * steps.start // all_steps
            largest = 0
        self._counting.step(len(steps), largest)
        every = place.mixture.rows_in(epoch)
        rows = min(steps.stop * place.batch_size, every)
        rows -= min(steps.start * place.batch_size, every)
        return Work(len(steps), (float(rows), rows), Tokens(train=tokens))


class _Rows:
    """Tokens of training rows, as shuffled epochs take them."""

    def __init__(self, tokens: Mapping[str, NDArray[np.int64]]) -> None:
        self._drawn = 0
        self._tokens = tokens
        self._last: tuple[FeedContext, int] | None = None
        self._batches = np.zeros(0, np.int64)
        self._sums: dict[Part, int] = {}

    def may_draw(self, place: FeedContext, epoch: int) -> bool:
        """Whether this epoch is in order already, or not too many rows are."""
        return self._last == (place, epoch) or self._drawn < MOST_DRAWN

    def batches(self, place: FeedContext, epoch: int) -> NDArray[np.int64]:
        """Tokens of each batch of an epoch, in training order."""
        if self._last != (place, epoch):
            parts = [self._part(part, place, epoch) for part in place.mixture.parts]
            rows = np.concatenate(parts)
            order = shuffled(len(rows), place.seed, "order", place.rollout, epoch)
            starts = np.arange(0, len(rows), place.batch_size)
            self._batches = np.add.reduceat(rows[order], starts)
            self._last = (place, epoch)
            self._drawn += len(rows)
        return self._batches

    def tokens(self, place: FeedContext, epoch: int) -> int:
        """Tokens of a whole epoch."""
        return sum(self._sum(part, place, epoch) for part in place.mixture.parts)

    def _sum(self, part: Part, place: FeedContext, epoch: int) -> int:
        if part.rehearsed or part.anew:
            return int(self._part(part, place, epoch).sum())
        if part not in self._sums:
            self._sums[part] = int(self._part(part, place, epoch).sum())
        return self._sums[part]

    def _part(self, part: Part, place: FeedContext, epoch: int) -> NDArray[np.int64]:
        return self._tokens[part.name][part.epoch(place.seed, place.rollout, epoch)]


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
            refuse_courses(recipe, name)
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
    settings = settings_for(recipe, corpus, method)
    cases = [
        counted_run(settings, method, recipe.train_batch_size, train, evaluation, script)
        for script in dict.fromkeys(_scripts(method, train, settings))
    ]
    cases.sort(key=lambda case: 3 * case.tokens.train + case.tokens.evaluation)
    return Cases(cases[0], cases[-1])


def _scripts(method: PreparedMethod, train: TrainRows, settings: Settings) -> tuple[Script, ...]:
    """What makes a run of this method as cheap, and as dear, as it can be."""
    means = {name: sum(rows) / len(rows) for name, rows in train.items()}
    short, long = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    nobody = Script(lambda mixture: ())

    def all_but(name: str) -> Script:
        return Script(lambda mixture: [n for n in mixture.active if n != name])

    def largest(mixture: Mixture) -> list[str]:
        tokens = {p.name: sum(train[p.name]) * p.rows / p.size for p in mixture.parts}
        return [max(mixture.candidates, key=tokens.__getitem__)]

    everybody = Script(lambda mixture: mixture.active)
    if settings.early_stopping_patience is not None:
        return everybody, nobody, replace(nobody, favoured=long, restless=True)
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
    return everybody, nobody


def audit_round(recipe: Recipe, corpus: Corpus, tokenizer: Tokenizer, stems: bool) -> Case:
    """One round of an audit, whose evaluations are what its judges are asked. Each answer is taken
    to be wrong, and as long as its reference.

    stems: as for `evaluation_sizes`.
    """
    tasks = _silent(corpus.tasks(recipe, watched=False))
    train = {name: each.train for name, each in corpus.datasets.items()}
    seen = sum(sum(_written(task, task.splits[SELECTION])) for task in tasks.values())
    written = {name: _written(tasks[name], rows) for name, rows in train.items()}

    def judge(rows: Mapping[str, Sequence[int]]) -> Judged:
        found = judged(tasks, train, rows, _Counter(stems), tokenizer)
        tokens = found.tokens + seen
        for name, numbers in rows.items():  # an answer is asked for, then how likely it was
            times = 2 if kind_of(tasks[name]) == "generated" else 1
            tokens += times * sum([written[name][number] for number in numbers])
        return replace(found, tokens=tokens)

    method = prepared_audit(1)
    questions = {n: [question_of(row) for row in each.examples] for n, each in train.items()}
    case = counted_run(
        settings_for(recipe, corpus, method),
        method,
        recipe.train_batch_size,
        {name: [len(row.tokens) for row in each.rows] for name, each in train.items()},
        {},
        Script(lambda mixture: ()),
        judgments=Judgments(judge=judge, questions=questions),
    )
    return replace(case, evaluations=len(case.stages))  # each judge is asked once


LINE = 2**62
"""How lines are cut does not change their tokens."""
STAND_IN = "f1"
"""For a metric of the user's own, which is not called: rows of both are generated to their ends."""


def evaluation_sizes(
    tasks: Mapping[str, Task], tokenizer: Tokenizer, stems: bool
) -> EvaluationSizes:
    """The sizes of the evaluations of every sub-dataset and split.

    stems: whether what choices share below the prefix is computed once, as on CUDA in bf16.
    """
    counter = _Counter(stems)
    evaluator = Evaluator(_silent(tasks), counter, tokenizer)
    sizes: dict[tuple[str, str], EvaluationSize] = {}
    for name, task in tasks.items():
        for split, encoded in task.splits.items():
            counter.limits = ()  # nothing is generated yet
            read = evaluator.answered([name], split).tokens
            sizes[name, split] = _size(task, encoded.rows, read, counter)
    return sizes


def _silent(tasks: Mapping[str, Task]) -> dict[str, Task]:
    """The tasks without metrics of the user's own."""
    return {
        name: replace(task, metric=STAND_IN) if FUNCTION.fullmatch(task.metric) else task
        for name, task in tasks.items()
    }


def _written(task: Task, split: EncodedSplit) -> list[int]:
    """Tokens that the model reads while it writes an answer to each row."""
    if not generates(task.metric, split):
        return [0] * len(split.rows)
    return [len(row.tokens) - len(row.prompt) - 1 for row in split.rows]


def _size(task: Task, rows: Sequence[Encoded], read: int, counter: "_Counter") -> EvaluationSize:
    if not counter.limits:
        return EvaluationSize(len(rows), read, answers=counter.answers)
    references = (len(row.tokens) - len(row.prompt) for row in rows)
    written = sum(min(pair) - 1 for pair in zip(references, counter.limits, strict=True))
    cut_short = task.grader is None and task.metric == "accuracy"
    slots = read + sum(counter.limits)
    return EvaluationSize(len(rows), read + written, written, cut_short, slots)


class _Counter:
    """A predictor that counts what is asked of it and answers nothing.

    limits, answers: of the last generation, and of the last likelihoods.
    """

    def __init__(self, stems: bool) -> None:
        self.limits: Sequence[int] = ()
        self.answers = 0
        self._stems = stems

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        self.limits = limits
        return Generated([[] for _ in prompts], _with_prefixes(prompts, prompts, groups))

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        self.answers = sum(row.answer_tokens for row in rows)
        if self._stems:
            tokens = answer_plan(rows, groups, LINE, torch.device("cpu")).tokens
        else:
            questions = [question(row) for row in rows]
            tokens = _with_prefixes(questions, [row.tokens for row in rows], groups)
        return lambda: Likelihoods([0.0] * len(rows), tokens)


def _with_prefixes(
    starts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], groups: Sequence[int]
) -> int:
    """Tokens of the rows, what the rows of a group start with once."""
    shared = sum(len(group.prefix) * (len(group.rows) - 1) for group in grouped(starts, groups))
    return sum(map(len, rows)) - shared
