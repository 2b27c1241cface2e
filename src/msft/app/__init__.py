"""The application: what each command does and prints.

Read `commands.py` first; `interface.py` is the same for Python. Training itself is in
`msft/training.py`. `compare.py` and `analyses.py` make many runs of one recipe, which `jobs.py`
starts as processes. `demo.py`, `starter.py`, `evaluation.py`, `merge.py` and `watch.py` have one
command each; `terminal/` is what is printed.
May import every room but integrations and testing; the door imports it when a command is given.
"""
