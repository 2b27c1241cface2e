"""LoRA adapters: a frozen model and a few trained matrices beside its layers.

Read `lora.py` first: what is trained, and the plain model that is evaluated and handed out.
`four_bit.py` holds frozen weights in NF4, `adapter_files.py` writes adapters as peft reads them,
and `model/loading.py` reads one again. It may not import training or decoding.
"""
