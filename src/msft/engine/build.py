"""The door of the engine: from a recipe to an engine, or to an evaluator of any model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from msft.data.corpus import SLACK, Corpus
from msft.engine.adapters.lora import adapted
from msft.engine.decode.decoder import Decoder
from msft.engine.fast import FastEngine
from msft.engine.isolation import fault_of, leak_of, padding_leak
from msft.engine.kernels import device_here, layers_of
from msft.engine.memory import (
    FP32,
    SAFETY,
    Demand,
    Fit,
    demand_of,
    evaluated_tokens,
    fit_of,
    in_bf16,
)
from msft.engine.model.loading import LoadedModel, end_tokens, load_model
from msft.engine.model.shape import ModelShape, named_shape, shape_of
from msft.engine.model.tokenizers import load_rows
from msft.engine.optimizer import TrainingSettings
from msft.engine.simple import SimpleEngine, SimplePredictor
from msft.errors import RecipeError, Unsuited
from msft.ranks import ALONE, Ranks, all_or_fail
from msft.recipe.recipe import Recipe
from msft.run.engine import Predictor
from msft.scoring.evaluation import Evaluator

SIMPLE_TOKENS = 4096
"""Tokens, with padding, of one forward pass of the simple engine that has a gradient."""


def load_suited(
    recipe: Recipe,
    name: str,
    corpus: Corpus,
    device: torch.device,
    tokenizer: Any,
    notice: Callable[[str], None],
) -> tuple[LoadedModel, bool]:
    """Load a model for the engine that the recipe asks for; True: for the fast one.

    `auto` is the fast engine where it suits the model (see `isolation.py`), else the simple one;
    `notice` is told why, and where the simple one cannot pad rows. RecipeError where `fast` does
    not suit, or no engine does.
    """
    trust, longest = recipe.trust_remote_code, _longest(corpus, tokenizer)
    if recipe.engine != "simple":
        try:
            loaded = load_model(name, device, trust, tokenizer)
            leak = leak_of(loaded.model, longest=longest)
        except Unsuited as error:
            leak = str(error)
        if leak is None:
            return loaded, True
        if recipe.engine == "fast":
            raise RecipeError(
                f"engine is fast, which does not suit {name}: {leak}; leave engine out, or set "
                "engine: simple",
                ("engine",),
            )
        notice(f"the fast engine does not suit {name}: {leak}; the simple engine takes over")
    loaded = load_model(name, device, trust, tokenizer, own_attention=True)
    fault = fault_of(loaded.model, longest)
    if fault is not None:
        raise RecipeError(
            f"no engine can train {name}, a {loaded.model.config.model_type} model: {fault}; "
            "expected a decoder-only text model, such as Llama, Qwen or Mamba",
            ("model_name_or_path",),
        )
    leak = padding_leak(loaded, longest)
    if leak is not None:
        notice(f"the simple engine takes one row at a time, which is slower: {leak}")
    return replace(loaded, padded=leak is None), False


def _longest(corpus: Corpus, tokenizer: Any) -> int:
    """Tokens of the longest row that is trained, or scored with its exemplars and its answer."""
    longest = 0
    for dataset in corpus.scored.values():
        shots = len(tokenizer.encode(dataset.shots)) if dataset.shots else 0
        for split in (dataset.train, dataset.validation, dataset.test):
            rows = split.rows if split is not None else ()
            most = max((len(row.tokens) for row in rows), default=0)
            longest = max(longest, most + shots + (dataset.spec.max_new_tokens or SLACK))
    return longest


def engine_of(
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: Any,
    device: torch.device,
    notice: Callable[[str], None] = lambda text: None,
    ranks: Ranks = ALONE,
    shape: ModelShape | None = None,
    demand: Demand | None = None,
) -> FastEngine | SimpleEngine:
    """The engine that a recipe asks for, with its model loaded.

    shape, demand: of the model and its training, where they are known already.
    """
    name = recipe.model()
    first = _first_device(recipe, name, device)
    needs = (recipe, name, corpus, first, tokenizer, notice)
    loaded, fast = all_or_fail(ranks, "model", lambda: load_suited(*needs))
    return engine_over(loaded, fast, recipe, corpus, device, ranks, shape, demand)


def _first_device(recipe: Recipe, name: str, device: torch.device) -> torch.device:
    """Where a model is loaded and tried in fp32. Beside an adapter weights are held in less, so
    they may fit where fp32 does not; then the host has them first."""
    if not recipe.use_peft or device.type != "cuda":
        return device
    needed = FP32 * named_shape(name, recipe.trust_remote_code).parameters
    fits = needed / SAFETY < torch.cuda.mem_get_info(device)[0]
    return device if fits else torch.device("cpu")


def engine_over(
    loaded: LoadedModel,
    fast: bool,
    recipe: Recipe,
    corpus: Corpus,
    device: torch.device,
    ranks: Ranks = ALONE,
    shape: ModelShape | None = None,
    demand: Demand | None = None,
) -> FastEngine | SimpleEngine:
    """An engine over a model that is loaded already; the simple one takes small batches, and saves
    memory only where it is told to."""
    settings = _settings(recipe, corpus, device, ranks)
    if recipe.export_dtype != "auto":
        loaded = loaded.exported_in(recipe.export_dtype)
    options = recipe.adapter
    with_adapter = None if options is None else adapted(loaded, options, device, settings.bf16)
    rows = {name: dataset.train.rows for name, dataset in corpus.datasets.items()}
    if not fast:
        refuse_fast_keys(recipe)
        settings = replace(
            settings,
            gradient_checkpointing=recipe.gradient_checkpointing is True,
            micro_batch_tokens=recipe.micro_batch_tokens or SIMPLE_TOKENS,
        )
        return SimpleEngine(loaded, rows, settings, with_adapter)
    if shape is None or demand is None:
        shape = shape_of(loaded.model) if with_adapter is None else with_adapter.shape
        demand = demand_of(recipe, corpus, device, shape)
    fit = fit_of(loaded.model, shape, device, demand, recipe.gradient_checkpointing)
    if ranks.world > 1:
        fit = agreed(ranks, fit)
    settings = replace(
        settings,
        gradient_checkpointing=fit.gradient_checkpointing,
        micro_batch_tokens=recipe.micro_batch_tokens or fit.micro_batch_tokens,
        batch_rows=recipe.train_batch_size if fit.recorded else 0,
        half_moments=demand.half_moments,
    )
    layers = layers_of(loaded.model, demand.fused)
    if settings.full_sharding:  # gradients travel inside the passes, so nothing is recorded
        settings = replace(settings, batch_rows=0)
    return FastEngine(loaded, rows, settings, layers, adapted=with_adapter, ranks=ranks)


def agreed(ranks: Ranks, fit: Fit) -> Fit:
    """What fits in every rank: their devices may have other amounts of memory free, and with
    `sharding: full` all of them take the same passes."""
    tokens, again, recorded = zip(
        *ranks.gather("passes", [fit.micro_batch_tokens, fit.gradient_checkpointing, fit.recorded]),
        strict=True,
    )
    return Fit(min(tokens), any(again), all(recorded))


def refuse_fast_keys(recipe: Recipe) -> None:
    """RecipeError where a recipe asks for what the simple engine cannot do."""
    only_fast = {
        "optim": recipe.optim != "adamw",
        "torch_compile": recipe.torch_compile is True,
        "lanes": recipe.lanes not in ("auto", 1),
    }
    for key, asked_for in only_fast.items():
        if asked_for:
            raise RecipeError(
                f"{key} is {getattr(recipe, key)}, which the simple engine cannot do; leave it out",
                (key,),
            )


def _settings(
    recipe: Recipe, corpus: Corpus, device: torch.device, ranks: Ranks = ALONE
) -> TrainingSettings:
    """What both engines are told."""
    sizes, epochs = corpus.epochs(recipe), recipe.num_train_epochs
    steps = round(sizes[0].steps * epochs)
    if len(sizes) > 1:
        steps = corpus.mixture(0.0).steps(epochs, recipe.train_batch_size)
    return TrainingSettings(
        learning_rate=recipe.learning_rate,
        schedule=recipe.lr_scheduler_type,
        warmup_steps=recipe.warmup_steps,
        schedule_steps=steps,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        bf16=in_bf16(recipe, device),
        evaluated_tokens=evaluated_tokens(recipe, device.type),
        ema_decay=recipe.ema_decay,
        lanes=1 if recipe.lanes == "auto" else recipe.lanes,
        full_sharding=recipe.sharding == "full" and ranks.world > 1,
    )


def load_evaluator(
    recipe: Recipe, name: str, split: str, notice: Callable[[str], None]
) -> tuple[Evaluator, dict[str, str], tuple[str, ...]]:
    """An evaluator of any model on the sub-datasets of a recipe that have rows in this split, the
    group of each, and those that are only watched."""
    device = device_here()
    rows = load_rows(recipe, name)
    tokenizer, corpus = rows.tokenizer, rows.corpus
    for dataset in corpus.scored.values():
        for note in dataset.notes:
            notice(f"{dataset.name}: {note}")
    scored = corpus.scored
    every = {n: replace(t, splits=scored[n].given) for n, t in corpus.tasks(recipe).items()}
    tasks = {name: task for name, task in every.items() if split in task.splits}
    if not tasks:
        raise RecipeError(f"no sub-dataset of this recipe has {split} rows; try --split validation")
    for dataset in scored.values():
        if dataset.name not in tasks:
            more = "" if dataset.watched else " and not in the mean"
            notice(f"{dataset.name}: it has no {split} rows, so it is not scored{more}")
    loaded, fast = load_suited(recipe, name, corpus, device, tokenizer, notice)
    bf16, tokens = in_bf16(recipe, device), evaluated_tokens(recipe, device.type)
    predictor: Predictor
    if fast:
        if bf16:
            for parameter in loaded.model.parameters():
                parameter.data = parameter.data.bfloat16()  # buffers stay as they are
        predictor = Decoder(loaded.model, end_tokens(loaded), tokens)
    else:
        predictor = SimplePredictor(loaded, tokens, bf16)
    groups = {name: scored[name].group for name in tasks}
    watched = tuple(name for name in tasks if name in corpus.watched)
    return Evaluator(tasks, predictor, tokenizer), groups, watched
