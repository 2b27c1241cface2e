"""What `best/` must have in common with `save_pretrained` of the base, for any model family."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file
from toys import rows

import msft
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.recipe.recipe import Recipe

Auto: Any = transformers.AutoModelForCausalLM

TASKS = ("upper", "first")


def write_base(model: Any, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """A published model: random weights, and persistent buffers that are not zero. Zeros among
    other numbers stay: they may be what keeps a token from seeing those after it."""
    torch.manual_seed(0)
    kept = set(model.state_dict())
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in kept and buffer.is_floating_point():
                stays = (buffer == 0) & (buffer != 0).any()
                buffer.add_(torch.rand_like(buffer).masked_fill(stays, 0))
    model.to(dtype).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def recipe_of(base: Path, **keys: Any) -> Recipe:
    """Two steps of SFT on a base."""
    datasets = [
        {"name": name, "train": rows(name, 8), "validation": rows(name, 4, seed=1), "metric": "nll"}
        for name in TASKS
    ]
    given: dict[str, Any] = {
        "learning_rate": 3e-3,
        "train_batch_size": 8,
        "num_train_epochs": 1,
        "seed": 1,
    }
    given |= {"method": "sft", "evals_per_epoch": 1, "samples": 0, "max_length": 64, **keys}
    return Recipe(model_name_or_path=str(base), datasets=datasets, **given)


def train(base: Path, out: Path, **keys: Any) -> Any:
    """The result of msft."""
    return msft.train(recipe_of(base, **keys), out, quiet=True)


def differences(base: Path, out: Path, dtype: str | torch.dtype = "auto") -> list[str]:
    """Where `best/` of a run is not what `save_pretrained` of its base writes, or computes another
    loss than the trained weights rounded to its dtype."""
    published = Auto.from_pretrained(base, dtype=dtype)
    published.save_pretrained(out / "expected")
    found, expected = contents(out / "best"), contents(out / "expected")
    said = []
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            said.append(f"{name}: found {found.get(name)}, expected {expected.get(name)}")
    best = json.loads((out / "summary.json").read_text())["best"]["checkpoint"]
    trained = Auto.from_pretrained(base, dtype=torch.float32)
    dtypes = {name: tensor.dtype for name, tensor in published.state_dict().items()}
    if best == "base":
        said.append("nothing was trained")
    else:
        weights = load_file(out / "checkpoints" / f"{best}.weights" / "model.safetensors")
        with torch.no_grad():
            for name, parameter in trained.named_parameters():
                parameter.copy_(weights[name].to(dtypes[name]))
    loaded, missing = Auto.from_pretrained(
        out / "best", dtype=torch.float32, output_loading_info=True
    )
    said += [f"{kind}: {sorted(names)[:3]}" for kind, names in missing.items() if names]
    for (name, mine), theirs in zip(
        loaded.state_dict().items(), trained.state_dict().values(), strict=True
    ):
        if not torch.equal(mine.float(), theirs.to(dtypes[name]).float()):
            said.append(f"{name} has other numbers")
    losses = [loss_of(each) for each in (loaded, trained)]
    if not abs(losses[0] - losses[1]) < 1e-5:
        said.append(f"the loss is {losses[0]:.6f}, that of the trained weights {losses[1]:.6f}")
    return said


def contents(folder: Path) -> dict[str, Any]:
    """Tensors by file and name, and the configs, of a model folder."""
    found: dict[str, Any] = {
        path.name: json.loads(path.read_text())
        for path in folder.glob("*.json")
        if path.name in ("config.json", "generation_config.json", "model.safetensors.index.json")
    }
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                found[f"{path.name}: {name}"] = (part.get_dtype(), part.get_shape())
    return found


def loss_of(model: Any) -> float:
    torch.manual_seed(1)
    tokens = torch.randint(2, 100, (2, 12))
    with torch.no_grad():
        logits = model.eval()(input_ids=tokens, use_cache=False).logits[:, :-1]
    return float(torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]))
