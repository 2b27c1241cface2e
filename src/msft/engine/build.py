"""From a recipe to the settings of a run and to an engine that can train it."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch

from msft.data.corpus import Corpus, load_corpus, settings_for
from msft.engine.decode.decoder import Decoder
from msft.engine.memory_model import Demand, fit_of
from msft.engine.model.loading import LoadedModel, load_model
from msft.engine.model.tokenizers import load_context, load_tokenizer
from msft.engine.paths import PLAIN_LAYERS, Layers, layers_of
from msft.engine.train.adamw import has_kernel
from msft.engine.train.engine import TorchEngine, TrainingSettings
from msft.errors import RecipeError
from msft.recipe.recipe import ROLLING_BACK, Recipe
from msft.scoring.evaluation import Evaluator
from msft.search.feeds import steps_of
from msft.search.methods import PreparedMethod
from msft.search.rollout import Settings

EVALUATED_TOKENS = {"cuda": 16384, "cpu": 8192}
"""Tokens of one forward pass that keeps nothing, over four; halved where they do not fit."""


WORTH_COMPILING = 1500
"""Steps of a run that repay the compiling of its layers (15 s on an H200, 14 ms a step)."""


def settings_of(
    recipe: Recipe, corpus: Corpus, method: PreparedMethod, loaded: LoadedModel
) -> Settings:
    """What the log is a function of: the recipe's settings and digests of data, model, training."""
    fingerprint = {
        "data": corpus.fingerprint(),
        "model": _model_fingerprint(loaded),
        "training": sha256(repr(_training(recipe)).encode()).hexdigest(),
    }
    return replace(settings_for(recipe, corpus, method), fingerprint=fingerprint)


def _training(recipe: Recipe) -> list[tuple[str, Any]]:
    keys = (
        "learning_rate",
        "lr_scheduler_type",
        "train_batch_size",
        "weight_decay",
        "max_grad_norm",
        "warmup_steps",
        "bf16",
        "optim",
    )
    return [(key, getattr(recipe, key)) for key in keys]


def engine_of(
    recipe: Recipe,
    corpus: Corpus,
    loaded: LoadedModel,
    device: torch.device,
    settings: Settings,
) -> TorchEngine:
    per_epoch = steps_of(settings.mixture.rows, recipe.train_batch_size)
    demand = demand_of(recipe, corpus, device)
    fit = fit_of(loaded.model, device, demand, recipe.gradient_checkpointing)
    training = TrainingSettings(
        learning_rate=recipe.learning_rate,
        schedule=recipe.lr_scheduler_type,
        warmup_steps=recipe.warmup_steps,
        schedule_steps=round(per_epoch * recipe.num_train_epochs),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        bf16=demand.bf16,
        gradient_checkpointing=fit.gradient_checkpointing,
        micro_batch_tokens=recipe.micro_batch_tokens or fit.micro_batch_tokens,
        batch_rows=recipe.train_batch_size if fit.recorded else 0,
        half_moments=demand.half_moments,
    )
    rows = {name: dataset.train.rows for name, dataset in corpus.datasets.items()}
    layers = layers_of(loaded.model, demand.fused)
    decoder = _decoder(recipe, loaded, device, layers)
    evaluator = Evaluator(corpus.tasks(recipe), decoder, loaded.tokenizer)
    return TorchEngine(loaded.model, rows, training, evaluator, layers)


def is_long(recipe: Recipe, rows: int, datasets: int) -> bool:
    """Whether a run is long enough to repay the compiling of its layers, or asks for it."""
    if recipe.torch_compile != "auto":
        return recipe.torch_compile
    epochs = recipe.num_train_epochs
    if recipe.method in ROLLING_BACK:
        epochs = recipe.compute_budget * datasets / 2
    steps = steps_of(rows, recipe.train_batch_size) * epochs
    return not recipe.deterministic and steps >= WORTH_COMPILING


def demand_of(recipe: Recipe, corpus: Corpus, device: torch.device) -> Demand:
    rows = [row for dataset in corpus.datasets.values() for row in dataset.train.rows]
    tokens = sum(len(row.tokens) for row in rows)
    bf16 = _bf16(recipe, device)
    return Demand(
        batch_tokens=round(1.5 * recipe.train_batch_size * tokens / len(rows)),
        answers=sum(row.answer_tokens for row in rows) / tokens,
        bf16=bf16,
        half_moments=recipe.optim == "adamw_bf16",
        fused=device.type == "cuda" and is_long(recipe, len(rows), len(corpus.datasets)),
        lean=has_kernel(device, bf16),
    )


def load_evaluator(
    recipe: Recipe, name: str, split: str, notice: Callable[[str], None]
) -> tuple[Evaluator, dict[str, str]]:
    """An evaluator of any model on the sub-datasets of a recipe that have rows in this split, and
    the group of each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(name, recipe.trust_remote_code)
    corpus = load_corpus(recipe, tokenizer, load_context(name, recipe.trust_remote_code))
    for dataset in corpus.datasets.values():
        for note in dataset.notes:
            notice(f"{dataset.name}: {note}")
    tasks = {n: task for n, task in corpus.tasks(recipe).items() if split in task.splits}
    if not tasks:
        raise RecipeError(f"no sub-dataset of this recipe has {split} rows; try --split validation")
    loaded = load_model(name, device, recipe.trust_remote_code, tokenizer)
    if _bf16(recipe, device):
        for parameter in loaded.model.parameters():
            parameter.data = parameter.data.bfloat16()  # buffers stay as they are
    decoder = _decoder(recipe, loaded, device)
    groups = {name: corpus.datasets[name].group for name in tasks}
    return Evaluator(tasks, decoder, loaded.tokenizer), groups


def _decoder(
    recipe: Recipe, loaded: LoadedModel, device: torch.device, layers: Layers = PLAIN_LAYERS
) -> Decoder:
    tokens = recipe.micro_batch_tokens or EVALUATED_TOKENS[device.type]
    return Decoder(loaded.model, _end_tokens(loaded), 4 * tokens, layers=layers)


def _bf16(recipe: Recipe, device: torch.device) -> bool:
    return device.type == "cuda" if recipe.bf16 == "auto" else bool(recipe.bf16)


def _end_tokens(loaded: LoadedModel) -> list[int]:
    ends = {loaded.tokenizer.eos_token_id}
    configured = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends |= set(configured if isinstance(configured, list) else [configured])
    return sorted(end for end in ends if end is not None)


def _model_fingerprint(loaded: LoadedModel) -> str:
    """Changes when the base model does: name, shape and up to 4,096 numbers of every tensor."""
    digest = sha256()
    for name, parameter in loaded.model.named_parameters():
        flat = parameter.detach().flatten()
        sample = flat[:: max(1, len(flat) // 4096)].cpu().contiguous()
        digest.update(repr((name, tuple(parameter.shape))).encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()
