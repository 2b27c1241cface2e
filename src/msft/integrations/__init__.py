"""Integrations: the methods inside other people's training tools, which stay as they are.

Read `trainer.py` first: `train` takes a TRL `SFTTrainer` or a transformers `Trainer` and runs any
method that works with it. `trainer_engine.py` is the engine over it, `trainer_rows.py` its rows,
`trainer_refusals.py` what is refused, `trainer_keys.py` which keys of a recipe.
May import every room but testing; nobody imports it.
"""
