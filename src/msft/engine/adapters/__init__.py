"""LoRA adapters: a frozen model and a few trained matrices beside its layers.

Read `injection.py` first: peft gives names, first values and config; the engines train what it
names. `merged.py` makes the plain model that is evaluated and handed out, `four_bit.py` holds
frozen weights in NF4, `adapter_files.py` writes adapters as peft reads them, and `folders.py` reads
one again. It may not import training or decoding.
"""
