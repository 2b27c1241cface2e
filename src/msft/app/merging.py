"""`msft merge`: a run's adapter and its base as one model folder."""

from pathlib import Path

from msft.engine.model.adapter_folders import ADAPTER_CONFIG, base_of, is_adapter
from msft.engine.model.folders import CONFIG
from msft.errors import UsageError
from msft.files import remove
from msft.run.folder import RunFolder


def adapter_in(source: Path) -> Path:
    """The adapter folder of a run, or the folder itself; UsageError where there is none."""
    best = RunFolder(source).best
    for folder in (best, source):
        if is_adapter(str(folder)):
            base_of(str(folder))
            return folder
    if (best / CONFIG).exists() or (source / CONFIG).exists():
        raise UsageError(
            f"{source} has a whole model already, no adapter; there is nothing to merge"
        )
    raise UsageError(
        f"{source} has no adapter; expected the folder of a run with use_peft: true, whose best/ "
        f"has {ADAPTER_CONFIG}"
    )


def merge(source: Path, out: Path, trust_remote_code: bool = False) -> None:
    """Write the merged model, which transformers loads without peft, into a new folder."""
    folder = adapter_in(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already; choose a new folder with --out")
    import torch

    from msft.engine.model.loading import load_model
    from msft.engine.saving.model_files import write_model

    loaded = load_model(str(folder), torch.device("cpu"), trust_remote_code, own_attention=True)
    fresh = out.with_name(f".{out.name}.tmp")
    remove(fresh)
    fresh.mkdir(parents=True)
    write_model(loaded, dict(loaded.model.named_parameters()), fresh)
    remove(out)
    fresh.rename(out)
