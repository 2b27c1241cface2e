"""The engine: the only place with torch.

`models` finds a model, `attention` and `packing` let rows stand in one line without seeing each
other, `torch_engine` trains, `decoding` generates and `codec` writes tensors. `load_engine` brings
them together; everything outside speaks `msft.worker.Engine` and `msft.evaluation.Scorer`.
"""
