"""Integrations: the methods inside other people's training tools, which stay as they are.

Read `trainer.py` first: `train` takes a TRL `SFTTrainer` or a transformers `Trainer` and runs any
method that works with it. `engine.py` is the engine over it, `rows.py` its rows, `refusals.py`
what is refused, of the trainer and of the keys of a recipe.
May import every room but testing; nobody imports it.
"""
