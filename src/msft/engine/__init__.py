"""The engine: the only place with torch.

`tokenizers` and `gguf` say what is known of a model without its weights, and import no torch;
`models` loads it. `packing` and `attention` let rows stand in one line without seeing each other,
`torch_engine` trains, `decoding` generates and measures likelihoods. `codec` writes tensors,
`result` keeps `best/`, `memory` says what fits. `assembly` makes settings, engine and evaluator
from a recipe, and `session` is one run. Everything outside speaks `msft.worker.Engine` and
`msft.evaluation.Predictor`.
"""
