"""Weights that are not the model's: refused with their names before anything is trained."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from program import run
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_runs import write_recipe

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("no_reports")

Tensors = dict[str, Tensor]
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama in `model`, whose output weights are tied to its embeddings."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    tiny_model(len(tokenizer)).save_pretrained(folder / "model")
    return folder


def with_model(
    model: Path,
    folder: Path,
    change: Callable[[Tensors], object] = lambda tensors: None,
    **config: object,
) -> None:
    """A recipe whose model has other tensors or another config.json."""
    shutil.copytree(model / "model", folder / "model")
    file, described = folder / "model/model.safetensors", folder / "model/config.json"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    described.write_text(json.dumps({**json.loads(described.read_text()), **config}))
    write_recipe(folder, model=str(folder / "model"))


WRONG: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "missing": (lambda t: t.pop(QUERY), f"1 tensor is missing ({QUERY})"),
    "renamed": (
        lambda t: t.update({"model.layers.1.self_attn.query.weight": t.pop(QUERY)}),
        "1 tensor is not the model's (model.layers.1.self_attn.query.weight)",
    ),
    "extra": (lambda t: t.update(more=torch.ones(2)), "1 tensor is not the model's (more)"),
    "shape": (
        lambda t: t.update({QUERY: torch.ones(3, 5)}),
        f"1 tensor is of another shape ({QUERY} is 3×5, not 128×128)",
    ),
    "dtype": (
        lambda t: t.update({QUERY: t[QUERY].to(torch.int32)}),
        f"1 tensor is no weights ({QUERY} is I32)",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_tensors_that_are_not_the_models_are_refused_with_their_names(
    fault: str, model: Path, tmp_path: Path
) -> None:
    change, said = WRONG[fault]
    with_model(model, tmp_path, change)
    done = run("train", "recipe.yaml", "--out", "out", cwd=tmp_path)
    assert done.code == 2, done.err
    assert said in done.err
    assert not (tmp_path / "out/run.jsonl").exists()


@pytest.mark.parametrize("kind", ["qwen2", "gemma", "mistral"])
def test_another_model_type_over_the_same_file_is_refused(
    kind: str, model: Path, tmp_path: Path
) -> None:
    with_model(model, tmp_path, model_type=kind)
    done = run("train", "recipe.yaml", "--out", "out", cwd=tmp_path)
    assert done.code == 2, done.err
    assert f"config.json says model_type {kind}, but architectures LlamaForCausalLM" in done.err


def test_a_config_that_hides_the_family_is_refused_for_its_tensors(
    model: Path, tmp_path: Path
) -> None:
    with_model(model, tmp_path, model_type="qwen2", architectures=None)
    done = run("train", "recipe.yaml", "--out", "out", cwd=tmp_path)
    assert done.code == 2, done.err
    assert "not those of a Qwen2ForCausalLM" in done.err
    assert "6 tensors are missing (model.layers.0.self_attn.k_proj.bias, " in done.err


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "model", "recipe.yaml", "--split", "validation"),
        ("plan", "recipe.yaml"),
        ("replay", "schedule.json", "recipe.yaml", "--out", "out"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_loads_weights_refuses_them(
    command: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    with_model(model, tmp_path, lambda tensors: tensors.pop(QUERY))
    rows = {"upper": 32, "first": 32, "vowel": 32}
    stage = {
        "active": rows,
        "rehearsed": {},
        "optimizer": "fresh",
        "epochs": 1,
        "steps": 6,
        "feed": {"name": "shuffled"},
    }
    schedule = {"method": "sft", "rows": rows, "stages": [stage]}
    (tmp_path / "schedule.json").write_text(json.dumps(schedule))
    done = run(*command, cwd=tmp_path)
    assert done.code == 2, done.err
    assert f"1 tensor is missing ({QUERY})" in done.err


FINE: dict[str, Callable[[Tensors], object]] = {
    "tied": lambda t: t.pop("lm_head.weight", None),
    "old buffers": lambda t: t.update(
        {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    ),
    "halves": lambda t: t.update({QUERY: t[QUERY].to(torch.bfloat16)}),
}


@pytest.mark.parametrize("case", FINE)
def test_what_legitimately_differs_still_loads(case: str, model: Path, tmp_path: Path) -> None:
    with_model(model, tmp_path, FINE[case])
    done = run("eval", "model", "recipe.yaml", "--split", "validation", cwd=tmp_path)
    assert done.code == 0, done.err
