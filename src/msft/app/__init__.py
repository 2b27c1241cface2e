"""The application: what each command does, the only room that may know all the others.

Read `commands.py` first, then `session.py`, which puts one training run together. `compare.py` and
`analyses.py` make many runs of one, `admission.py` refuses what cannot work before anything starts,
`processes.py` and `meetings.py` bring the processes of one run together.
May import every room but testing; nobody imports it, except the door when a command is given.
"""
