"""The engine: the only place with torch.

`tokenizers` and `gguf` say what is known of a model without its weights, and import no torch;
`models` loads it. `attention` lets rows stand in one line without seeing each other, by `varlen`
(torch's kernel) or `short_rows`, which calls the `kernels` that are our own.

Training: `torch_engine` is the engine, `buffers` lays a step out on the host, `adamw` is the
optimizer on fp32 masters and `update` its one kernel, `graphs` records steps, `fusing` compiles
layers and losses, `joining` makes one matrix product of several, `later` hands losses out when they
are asked for, `fit` says what memory holds. `recorder` makes the CUDA graphs of all that there is.

Evaluation: `decoding` chooses the way. The fast one is `generation` with `plans` and `lines` (who
shares what), `shared` (keys and attention over them), `measuring` (losses of answers) and
`stepping` (one token for all rows); the plain one is `plain` with `cache`. `texts` says where an
answer ends.

Before a run: `tally` counts what an evaluation pushes through, `forecast` says what memory and
disk will hold, `room` refuses what cannot fit, `calibration` times a few steps, `hindsight`
compares with a finished run, and `planning` puts them together.

Around them: `codec` and `copies` write tensors beside the training, `result` keeps `best/`, and
`memory` says which checkpoints fit. `assembly` makes settings, engine and evaluator from a recipe,
`tracking` starts trackers, and `session` is one run. Everything outside speaks
`msft.run.worker.Engine` and `msft.scoring.predictor`.
"""
