"""`msft merge`: a run's adapter and its base as one model folder."""

from contextlib import suppress
from pathlib import Path

from msft.engine.model.folders import ADAPTER_CONFIG, CONFIG, base_of, is_adapter
from msft.errors import LogError, RecipeError, UsageError
from msft.files import remove
from msft.recipe.recipe import load_recipe
from msft.report.card import card_of
from msft.report.findings import findings_in
from msft.run.folder import RunFolder, read_history, refuse_audit, write_text


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


def merge(source: Path, out: Path) -> None:
    """Write the merged model, which transformers loads without peft, into a new folder."""
    refuse_audit(source)
    folder, out = adapter_in(source), out.resolve()
    run = RunFolder(folder.parent)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already; choose a new folder with --out")
    import torch

    from msft.engine.memory import refuse_no_space
    from msft.engine.model.loading import load_model
    from msft.engine.saving.weight_files import PublishedModel

    trust = trusts_remote_code(run)
    loaded = load_model(str(folder), torch.device("cpu"), trust, own_attention=True)
    loaded = loaded.exported_in(_export_dtype(run))
    weights = dict(loaded.model.named_parameters())
    each = loaded.export_dtype.itemsize
    refuse_no_space(out, sum(each * tensor.numel() for tensor in weights.values()))
    fresh = out.with_name(f".{out.name}.tmp")
    remove(fresh)
    fresh.mkdir(parents=True)
    PublishedModel(loaded).write(weights, fresh)
    if card := _card(run):
        write_text(fresh / "README.md", card)
    remove(out)
    fresh.rename(out)


def trusts_remote_code(run: RunFolder) -> bool:
    """Whether the recipe of a run trusts the code of its model."""
    with suppress(RecipeError, OSError):
        return load_recipe(run.recipe).trust_remote_code
    return False


def _export_dtype(run: RunFolder) -> str:
    """The dtype in which the run would have written a merged model; auto: that of the published
    base. The base of an adapter on an adapter lies beside the run in fp32, so the dtype is read
    from the recipe's model."""
    from msft.engine.model.loading import published_dtype

    with suppress(RecipeError, OSError):
        recipe = load_recipe(run.recipe)
        if recipe.export_dtype == "auto" and is_adapter(recipe.model()):
            found = published_dtype(recipe.model(), recipe.trust_remote_code, has_files=True)
            return str(found).rpartition(".")[2]
        return recipe.export_dtype
    return "auto"


def _card(run: RunFolder) -> str:
    """The card of a run's merged model; empty where the adapter is of no run that can be read."""
    if not run.log.exists() or not run.recipe.exists():
        return ""
    with suppress(LogError, RecipeError, UsageError):
        recipe, history = load_recipe(run.recipe), read_history(run.path)
        found = findings_in(run.path, history) if history.ended else None
        return card_of(history, recipe.model(), found, recipe.report_split, merged=True)
    return ""
