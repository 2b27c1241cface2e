"""The plan's counts, against figures worked out by hand: steps, tokens and FLOPs of every method.

Two sub-datasets: `a` has 8 rows of 10 tokens, `b` has 5 of 20. An epoch is 4 steps of 4 rows and
180 tokens. An evaluation is 7 tokens for `a` and 11 for `b`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from msft.app.terminal.plan import plan_text
from msft.data.corpus import Corpus, load_corpus, settings_for
from msft.engine.build import _settings
from msft.engine.memory import FreeMemory
from msft.engine.model.shape import named_shape
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import UsageError
from msft.planning.counting import (
    TOO_LONG,
    Case,
    Cases,
    CountingWorker,
    Script,
    cases_of,
    counted_run,
)
from msft.planning.forecast import forecast_of
from msft.recipe.recipe import Recipe
from msft.run.history import inference_flops, look_ahead_flops, train_flops
from msft.run.worker import EngineWorker
from msft.search.methods import METHODS
from msft.text import duration

EVALUATION = {("a", "validation"): 7, ("b", "validation"): 11, ("a", "test"): 100, ("b", "test"): 1}


def rows(name: str, count: int, tokens: int) -> list[dict[str, str]]:
    """The embedded tokenizer has one token a byte, and the end is one."""
    return [{"prompt": f"{name}{i:02}", "completion": "x" * (tokens - 4)} for i in range(count)]


def recipe_of(
    method: str = "msft",
    test: bool = False,
    keep: str | None = None,
    weights: tuple[float, float] = (1, 1),
    **keys: Any,
) -> Recipe:
    def dataset(name: str, count: int, tokens: int) -> dict[str, Any]:
        splits = {
            "name": name,
            "train": rows(name, count, tokens),
            "validation": rows(f"{name}v", 2, 9),
            "keep": name == keep,
            "weight": dict(zip("ab", weights, strict=True))[name],
        }
        return splits | ({"test": rows(f"{name}t", 2, 9)} if test else {})

    settings: dict[str, Any] = {"train_batch_size": 4, "evals_per_epoch": 1, "compute_budget": 2}
    return Recipe(
        "tiny",
        [dataset("a", 8, 10), dataset("b", 5, 20)],
        method=method,
        **{**settings, "num_train_epochs": 2, **keys},
    )


def corpus_of(recipe: Recipe) -> Corpus:
    return load_corpus(recipe, tiny_tokenizer())


def cases(method: str, **keys: Any) -> Cases:
    recipe = recipe_of(method, **keys)
    return cases_of(recipe, corpus_of(recipe), EVALUATION).cases[method]


def figures(case: Case) -> tuple[int, int, int, int]:
    """Stages, steps, training tokens, evaluation tokens."""
    return len(case.stages), case.steps, case.tokens.train, case.tokens.evaluation


@pytest.mark.parametrize(
    ("method", "keys", "best", "worst"),
    [
        ("sft", {}, (1, 8, 360, 54), (1, 8, 360, 54)),
        # Soup: SFT, and one more evaluation
        ("soup", {}, (1, 8, 360, 54 + 18), (1, 8, 360, 54 + 18)),
        ("continual", {}, (2, 8, 360, 90), (2, 8, 360, 90)),
        # IES: all rows rest in epochs 4 and 5, and are looked at; or none ever does
        ("ies", {"num_train_epochs": 5}, (1, 12, 540, 72 + 360), (1, 20, 900, 108)),
        # SRO: every peak at the start, so nothing is trained again; or every peak at the end
        ("sro", {}, (1, 8, 360, 54), (2, 16, 720, 90)),
        # Soft SRO: 13 rows an epoch from the shorter rows, or from the longer ones
        ("soft_sro", {}, (2, 16, 360 + 260, 90), (2, 16, 360 + 520, 90)),
        # mSFT: b leaves first, then a; or nobody in 2N stages
        ("msft", {}, (2, 12, 360 + 160, 90), (4, 32, 1440, 162)),
        # the same where only sure falls count: four epochs a stage, b leaves first
        (
            "msft",
            {"compute_budget": 4, "method_options": {"exclude": {"confidence": 0.95}}},
            (2, 24, 2 * (360 + 160), 162),
            (4, 64, 2880, 306),
        ),
    ],
)
def test_steps_and_tokens_of_a_method(
    method: str, keys: dict[str, Any], best: tuple[int, ...], worst: tuple[int, ...]
) -> None:
    both = cases(method, **keys)
    assert (figures(both.best), figures(both.worst)) == (best, worst)


@pytest.mark.parametrize(
    ("method", "weights", "keys", "best", "worst"),
    [
        # 4 rows of a and 10 of b an epoch: 4 steps and 240 tokens
        ("sft", (0.5, 2), {}, (1, 8, 480, 54), (1, 8, 480, 54)),
        ("soup", (0.5, 2), {}, (1, 8, 480, 72), (1, 8, 480, 72)),
        ("continual", (0.5, 2), {}, (2, 2 + 6, 80 + 400, 90), (2, 2 + 6, 80 + 400, 90)),
        ("sro", (0.5, 2), {}, (1, 8, 480, 54), (2, 16, 960, 90)),
        ("soft_sro", (0.5, 2), {}, (2, 16, 480 + 280, 90), (2, 16, 480 + 560, 90)),
        ("msft", (0.5, 2), {}, (2, 8 + 2, 480 + 80, 90), (4, 32, 1920, 162)),
        # half of b's ten rows stay
        (
            "msft",
            (0.5, 2),
            {"method_options": {"rehearsal_fraction": 0.5}},
            (2, 8 + 6, 480 + 280, 90),
            (4, 32, 1920, 162),
        ),
        # 40 rows of a: now it is the larger one, which leaves first
        ("msft", (5, 1), {}, (2, 24 + 4, 1000 + 200, 90), (4, 96, 4000, 162)),
        # rows of b come twice in an epoch, and are looked at once
        ("ies", (1, 2), {"num_train_epochs": 5}, (1, 15, 840, 72 + 360), (1, 25, 1400, 108)),
    ],
)
def test_weights_count_in_every_method(
    method: str,
    weights: tuple[float, float],
    keys: dict[str, Any],
    best: tuple[int, ...],
    worst: tuple[int, ...],
) -> None:
    both = cases(method, weights=weights, **keys)
    assert (figures(both.best), figures(both.worst)) == (best, worst)


def test_a_decaying_rate_reaches_its_end_with_the_weighted_rows() -> None:
    recipe = recipe_of("sft", weights=(5, 1), lr_scheduler_type="cosine")
    settings = _settings(recipe, corpus_of(recipe), torch.device("cpu"))
    assert settings.schedule_steps == 2 * 12


@pytest.mark.parametrize(
    ("options", "best", "worst"),
    [
        ({"patience": 1}, (2, 6, 260, 54), (4, 32, 1440, 162)),
        ({"max_stages": 1}, (1, 8, 360, 54), (1, 8, 360, 54)),
        ({"max_epochs": 3}, (2, 10, 360 + 80, 72), (2, 12, 540, 72)),
        ({"rehearsal_fraction": 0.5}, (2, 14, 360 + 280, 90), (4, 32, 1440, 162)),
        ({"drop_ties": "all"}, (1, 8, 360, 54), (4, 32, 1440, 162)),
        ({"score_excluded": "rollback"}, (2, 12, 520, 18 + 36 + 14), (4, 32, 1440, 162)),
    ],
)
def test_options_of_msft(
    options: dict[str, Any], best: tuple[int, ...], worst: tuple[int, ...]
) -> None:
    both = cases("msft", method_options=options)
    assert (figures(both.best), figures(both.worst)) == (best, worst)


def test_without_the_start_a_patient_stage_is_a_tick_longer() -> None:
    peaks, options = {"include_start": False}, {"patience": 1}
    both = cases("msft", peaks=peaks, method_options=options, compute_budget=3)
    assert figures(both.best)[:3] == (2, 12, 2 * 180 + 2 * 80)


def test_peaks_by_probability_are_planned_as_peaks_by_score() -> None:
    corpus, soft = corpus_of(recipe_of()), recipe_of(peaks={"by": "probability"})
    found = cases_of(soft, corpus, EVALUATION).cases["msft"]
    assert (found.best, found.worst) == (cases("msft").best, cases("msft").worst)


def test_dynamix_looks_ahead_before_every_step_of_a_short_run() -> None:
    both = cases("dynamix")
    assert both.best.tokens.lookahead == both.worst.tokens.lookahead == 8 * 180
    assert 260 <= both.best.tokens.train < both.worst.tokens.train <= 520


def test_the_test_split_is_scored_at_the_base_model_and_at_the_best() -> None:
    both = cases("sft", test=True)
    assert figures(both.best)[3] == 54 + 2 * 101
    assert both.best.evaluations == 5


def test_stages_say_who_is_in_them() -> None:
    best = cases("msft").best
    assert [(s.active, s.epochs, s.steps, s.tokens) for s in best.stages] == [
        (2, 2.0, 8, 360),
        (1, 2.0, 4, 160),
    ]


def test_a_sub_dataset_that_is_kept_does_not_leave_first() -> None:
    best = cases("msft", keep="b").best
    assert [(s.active, s.steps, s.tokens) for s in best.stages] == [(2, 8, 360), (1, 4, 200)]


def test_the_largest_batch_has_the_longest_rows_there_are_together() -> None:
    """Of all 13 rows at once 180 tokens; of `b` alone, which continual comes to, four rows."""
    assert cases("msft", train_batch_size=13).best.largest_batch == 180
    assert cases("continual").worst.largest_batch == 4 * 20


def test_every_method_stands_beside_the_recipes_own() -> None:
    recipe = recipe_of("sro")
    found = cases_of(recipe, corpus_of(recipe), EVALUATION)
    assert next(iter(found.cases)) == "sro"
    assert set(found.cases) == set(METHODS)
    assert found.left_out == {}


def test_a_method_that_cannot_be_had_is_left_out_with_the_reason() -> None:
    """mSFT with one tick and without the start could never exclude anybody."""
    recipe = recipe_of("sft", compute_budget=1, peaks={"include_start": False})
    found = cases_of(recipe, corpus_of(recipe), EVALUATION)
    assert set(found.cases) == set(METHODS) - {"msft"}
    assert [*found.left_out] == ["msft"]
    why = "this recipe cannot have it: compute_budget is one tick and peaks.include_start is false"
    assert found.left_out["msft"].startswith(why)


def endless(run: Any) -> None:
    """A method of a user's own that never ends while scores rise."""
    theta, peak = run.base, 1
    while peak:
        rollout = run.rollout(theta, run.mixture, 1)
        theta, peak = rollout.end, min(rollout.peaks().values())


def test_a_method_without_an_end_is_refused() -> None:
    recipe = recipe_of(f"{__name__}:endless")
    method, rising = recipe.prepared, Script(lambda mixture: ())
    settings = settings_for(recipe, corpus_of(recipe), method)
    train = {"a": [10] * 8, "b": [20] * 5}
    with pytest.raises(UsageError, match="more than 20 roll-outs"):
        counted_run(settings, method, 4, train, EVALUATION, rising, most_rollouts=20)


ODD: list[dict[str, Any]] = [
    {"weights": (0.5, 2.5)},
    {"evals_per_epoch": 4, "compute_budget": 1.25, "num_train_epochs": 1.75},
    {"evals_per_epoch": 8, "compute_budget": 2.5, "method_options": {"patience": 3}},
    {"weights": (1, 1.5), "method_options": {"rehearsal_fraction": 0.4}, "test": True},
    {"test": True, "score_test": "every", "keep": "a"},
]


@pytest.mark.parametrize("keys", ODD)
@pytest.mark.parametrize("method", METHODS)
def test_epochs_by_their_sums_are_epochs_row_by_row(
    method: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn as batches, and summed once enough are drawn: both are what walking the rows gives."""
    options = keys.get("method_options", {}) if method == "msft" else {}
    recipe = recipe_of(method, **{**keys, "method_options": options, "seed": 3})
    prepared = recipe.prepared
    settings = settings_for(recipe, corpus_of(recipe), prepared)
    train = {"a": [3, 1, 4, 15, 9, 26, 5, 35], "b": [89, 7, 93, 2, 38]}
    scripts = (Script(lambda mixture: ()), Script(lambda mixture: mixture.active[:1]))

    def counted() -> list[Case]:
        return [counted_run(settings, prepared, 4, train, EVALUATION, each) for each in scripts]

    drawn = counted()
    monkeypatch.setattr("msft.planning.counting.MOST_DRAWN", 1)
    summed = counted()
    monkeypatch.setattr(CountingWorker, "advance", EngineWorker.advance)
    assert counted() == drawn
    for one, other in zip(summed, drawn, strict=True):
        assert one == replace(other, largest_batch=one.largest_batch)
        assert 0 < one.largest_batch <= other.largest_batch


def limited_to(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msft.planning.counting.MOST_LOOKS", looks)


def test_what_takes_too_many_looks_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ticks of two sub-datasets are 2·(60 + 2) looks; 13 rows twice, chosen by IES, 13 more."""
    recipe = recipe_of("sft")
    needed = 2 * (60 + 2)
    limited_to(needed, monkeypatch)
    found = cases_of(recipe, corpus_of(recipe), EVALUATION)
    assert [*found.cases] == ["sft", "soup"]
    assert [*found.left_out] == ["continual", "dynamix", "ies", "sro", "soft_sro", "msft"]
    assert set(found.left_out.values()) == {TOO_LONG}
    assert "1,000,000 looks at scores and rows; plan fewer epochs or stages" in TOO_LONG
    limited_to(needed + 13, monkeypatch)
    found = cases_of(recipe, corpus_of(recipe), EVALUATION, methods=["ies", "sro"])
    assert [*found.cases] == ["sft", "ies"]
    limited_to(needed - 1, monkeypatch)
    found = cases_of(recipe, corpus_of(recipe), EVALUATION, methods=[])
    assert (found.cases, [*found.left_out]) == ({}, ["sft"])


def test_flops_are_those_of_the_paper() -> None:
    best = cases("msft").best
    assert train_flops(1000, best.tokens.train) == 6 * 1000 * 520
    assert inference_flops(1000, best.tokens.evaluation) == 2 * 1000 * 90
    assert look_ahead_flops(1000, cases("dynamix").best.tokens.lookahead) == 8 * 1000 * 1440


def test_a_name_cannot_move_the_cursor() -> None:
    recipe, room = recipe_of(), FreeMemory("cpu", 1000, 1000, 1000)
    how = (corpus_of(recipe), tiny_tokenizer(), named_shape("tiny", False, 1), room, Path("x"), 0)
    content = forecast_of(recipe, *how)
    content["datasets"] = {"a\x1b[2J": content["datasets"]["a"]}
    content["not_counted"] = {"ies": "it is long", "sro": "it is odd", "soup": "it is long"}
    content["not_calibrated"] = "it is a test"
    content["memory"]["average"], content["disk"]["fits"] = 1000, False
    content["epoch"] = {"rows": 1, "tokens": 3, "steps": 2, "batch_size": 1, "evaluations": 1}
    content["evaluation"] = {"rows": 1, "tokens": 4, "written": 0}
    text = plan_text(content)
    assert "\x1b" not in text
    first = [line.partition(":")[0] for line in text.splitlines()[1:4]]
    assert first == ["time", "memory", "disk"], "what decides comes first"
    assert text.count("does NOT fit") == 2
    assert "time: not known, since it is a test" in text
    assert "one epoch: 1 row, 3 tokens, 2 steps of 1 row, 1 evaluation\n" in text
    assert "one evaluation: 1 row, 4 tokens through" in text
    assert "not counted: ies and soup, since it is long\nnot counted: sro, since it is odd" in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.94, "0.9 s"), (42, "42 s"), (600, "10 min"), (7200, "2.0 h"), (10**6, "12 days")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_other_methods_are_planned_with_what_the_recipe_says_for_them() -> None:
    """IES without a look at resting rows: 360 tokens less than with it."""
    by = {"ies": {"track_excluded": False}, "msft": {"max_stages": 1}}
    recipe = recipe_of("sft", num_train_epochs=5, options_by_method=by)
    found = cases_of(recipe, corpus_of(recipe), EVALUATION).cases
    assert figures(found["ies"].best) == (1, 12, 540, 72)
    assert len(found["msft"].worst.stages) == 1
