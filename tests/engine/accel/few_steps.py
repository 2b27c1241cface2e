"""Trains and asks a tiny model, and prints all numbers; `test_without_accel.py` runs it twice."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from families import END, loaded, model_of, rows_of
from toys import recipe_of

import msft
from msft.engine.decode.decoder import Decoder
from msft.engine.fast import FastEngine
from msft.engine.kernels import varlen
from msft.engine.optimizer import TrainingSettings
from msft.search.feeds import Batch


def main(place: str) -> None:
    """place: a folder with the files of the toy recipe, where the run is written."""
    folder = Path(place)
    torch.set_num_threads(1)
    model, rows = model_of("llama", 1.0), rows_of(8)
    settings = TrainingSettings(learning_rate=1e-3, max_grad_norm=1.0, weight_decay=0.1)
    engine = FastEngine(loaded(model), {"a": rows}, settings)
    batch = Batch(tuple(("a", number) for number in range(8)))
    losses = [list(engine.work(batch)[0].rows) for _ in range(5)]
    decoder = Decoder(model, [END], 10**6)
    said = decoder.generate([row.tokens for row in rows], [6] * 8).rows
    likelihoods = decoder.measure(rows)().rows
    msft.train(recipe_of(folder, method="sft", num_train_epochs=1), folder / "run", quiet=True)
    print(
        json.dumps(
            {
                "losses": losses,
                "said": said,
                "likelihoods": likelihoods,
                "paths": asdict(engine.paths()),
                "varlen": varlen().reason,
            }
        )
    )
