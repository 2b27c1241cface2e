"""Settings of a run, with digests of what its log does not spell out: data, model, training."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

from msft.data.corpus import Corpus, settings_for
from msft.own_code import source_digest
from msft.recipe.recipe import ADAPTER_KEYS, Recipe
from msft.run.engine import Engine, HasFingerprint
from msft.search.methods import PreparedMethod
from msft.search.rollout import Settings


def settings_of(
    recipe: Recipe,
    corpus: Corpus,
    method: PreparedMethod,
    engine: Engine,
    engine_name: str,
    lanes: int,
) -> Settings:
    """What the log is a function of."""
    fingerprint = {
        "data": corpus.fingerprint(),
        "model": _model_fingerprint(engine),
        "training": sha256(repr(_training(recipe)).encode()).hexdigest(),
        **_metrics(corpus),
    }
    plain = settings_for(recipe, corpus, method)
    frozen = getattr(engine, "num_frozen", 0)  # a Trainer has an adapter of its own
    adapter = engine.num_trainable if recipe.use_peft or frozen else 0
    return replace(plain, fingerprint=fingerprint, engine=engine_name, adapter=adapter, lanes=lanes)


def _model_fingerprint(engine: Engine) -> str:
    if isinstance(engine, HasFingerprint):
        return engine.fingerprint()
    return sha256(repr((type(engine).__qualname__, engine.num_parameters)).encode()).hexdigest()


def _metrics(corpus: Corpus) -> dict[str, str]:
    """The code of each metric of the user's own. Older logs do not have it and are not asked."""
    own = {d.spec.metric: None for d in corpus.datasets.values() if ":" in d.spec.metric}
    digests = {f"metric {path}": source_digest(path) for path in own}
    return {name: digest for name, digest in digests.items() if digest is not None}


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
    younger = ("ema_decay",)  # keys that older folders do not have count where they are set
    used = [*keys, *(key for key in younger if getattr(recipe, key) is not None)]
    used += ADAPTER_KEYS if recipe.use_peft else ()
    return [(key, getattr(recipe, key)) for key in used]
