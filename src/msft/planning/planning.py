"""`msft plan`: from a recipe to the forecast, and to what it would have said of finished runs."""

from pathlib import Path
from typing import Any

import torch

from msft.data.corpus import load_corpus
from msft.engine.machine import room_of
from msft.engine.memory_model import named_shape
from msft.engine.model.tokenizers import load_context, load_tokenizer
from msft.planning.calibration import Calibration
from msft.planning.forecast import forecast_of, loads_of
from msft.planning.hindsight import events_of, hindsight
from msft.recipe.recipe import Recipe


def planned(
    recipe: Recipe, out: Path, calibrated: bool = True, known: Path | None = None
) -> dict[str, Any]:
    """The forecast as plain data; the model is loaded only to be calibrated.

    known: a run folder whose path is forecast too.
    """
    name, trust = recipe.model(), recipe.trust_remote_code
    tokenizer = load_tokenizer(name, trust)
    corpus = load_corpus(recipe, tokenizer, load_context(name, trust))
    shape = named_shape(name, trust, len(tokenizer))
    room = room_of(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    events = events_of(known, recipe, corpus, shape) if known else []
    content = forecast_of(recipe, corpus, tokenizer, shape, room, out, calibrated)
    if known is not None:
        loads = loads_of(recipe, corpus, tokenizer, room)
        speed = Calibration(**content["calibration"]) if content["calibration"] else None
        held = content["disk"]["checkpoints_in_memory"]
        content["known"] = hindsight(known, events, recipe, corpus, shape, loads, speed, held)
    return content
