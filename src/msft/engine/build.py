"""From a recipe to the settings of a run and to an engine that can train it."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch

from msft.data.corpus import Corpus, load_corpus, settings_for
from msft.engine.accel.fused_layers import NOT_FUSED, Fused, FusedLayers
from msft.engine.decode.decoder import Decoder
from msft.engine.memory_model import EVALUATED_TOKENS, demand_of, fit_of, in_bf16
from msft.engine.model.loading import LoadedModel, load_model
from msft.engine.model.tokenizers import load_context, load_tokenizer
from msft.engine.train.engine import TorchEngine, TrainingSettings
from msft.errors import RecipeError
from msft.recipe.recipe import Recipe
from msft.scoring.evaluation import Evaluator
from msft.search.feeds import steps_of
from msft.search.methods import PreparedMethod
from msft.search.rollout import Settings


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
    fused = FusedLayers(loaded.model) if demand.fused else NOT_FUSED
    decoder = _decoder(recipe, loaded, device, fused)
    evaluator = Evaluator(corpus.tasks(recipe), decoder, loaded.tokenizer)
    return TorchEngine(loaded.model, rows, training, evaluator, fused)


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
    if in_bf16(recipe, device):
        for parameter in loaded.model.parameters():
            parameter.data = parameter.data.bfloat16()  # buffers stay as they are
    decoder = _decoder(recipe, loaded, device)
    groups = {name: corpus.datasets[name].group for name in tasks}
    return Evaluator(tasks, decoder, loaded.tokenizer), groups


def _decoder(
    recipe: Recipe, loaded: LoadedModel, device: torch.device, fused: Fused = NOT_FUSED
) -> Decoder:
    tokens = recipe.micro_batch_tokens or EVALUATED_TOKENS[device.type]
    return Decoder(loaded.model, _end_tokens(loaded), 4 * tokens, fused=fused)


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
