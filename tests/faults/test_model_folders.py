"""Broken model folders: exit code 2, the name of the file and what is wrong with it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import run, toy_recipe

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import tiny_tokenizer

Change = Callable[[Path], object]
PAYLOAD = "open({place!r}, 'w').write('it ran')\nclass Evil:\n    pass\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a good model."""
    folder = tmp_path_factory.mktemp("models")
    toy_recipe(folder, num_train_epochs=1, evals_per_epoch=1)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder / "good")
    tiny_model(len(tokenizer)).save_pretrained(folder / "good")
    return folder


def written(name: str, content: str | bytes) -> Change:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def configured(**keys: Any) -> Change:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | keys
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return change


def without(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def indexed(content: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(content)

    return change


def replaced(name: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = json.dumps({"weight_map": {"a": "model-1.safetensors"}})
OUTSIDE = json.dumps({"weight_map": {"a": "../good/model.safetensors"}})
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
BROKEN: dict[str, tuple[Change, str, str]] = {
    "no config": (without("config.json"), "config.json", "no such file"),
    "config is no JSON": (written("config.json", '{"a":'), "config.json", "not valid JSON"),
    "config is empty": (written("config.json", ""), "config.json", "not valid JSON"),
    "config is a list": (written("config.json", "[]"), "config.json", "found []"),
    "config is null": (written("config.json", "null"), "config.json", "found None"),
    "config is binary": (written("config.json", b"\xff\x00{"), "config.json", "not valid JSON"),
    "config is nested": (written("config.json", "[" * 10**5), "config.json", "not valid JSON"),
    "config is a pipe": (replaced("config.json", os.mkfifo), "config.json", "not a regular file"),
    "no model_type": (configured(model_type=None), "config.json", "it has no model_type"),
    "model_type is a number": (configured(model_type=7), "config.json", "model_type is 7"),
    "unknown model_type": (configured(model_type="quux"), "config.json", "`quux`"),
    "hidden_size is text": (configured(hidden_size="many"), "config.json", "is 'many'"),
    "hidden_size is negative": (configured(hidden_size=-4), "config.json", "is -4"),
    "no heads": (configured(num_attention_heads=0), "config.json", "num_attention_heads is 0"),
    "heads do not divide": (configured(num_attention_heads=7), "config.json", "multiple"),
    "no layers": (configured(num_hidden_layers=0), "config.json", "num_hidden_layers is 0"),
    "a million layers": (configured(num_hidden_layers=10**6), "config.json", "1,000 at most"),
    "unknown activation": (configured(hidden_act="quux"), "config.json", "'quux'"),
    "unknown dtype": (configured(dtype="float3"), "config.json", "float3"),
    "no tokenizer": (
        without("tokenizer.json", "tokenizer_config.json"),
        "tokenizer.json",
        "no such file",
    ),
    "tokenizer is no JSON": (written("tokenizer.json", "{"), "tokenizer.json", "not valid JSON"),
    "tokenizer is empty": (written("tokenizer.json", "{}"), "tokenizer.json", "no `model`"),
    "tokenizer_config is a list": (
        written("tokenizer_config.json", "[]"),
        "tokenizer_config.json",
        "found []",
    ),
    "no weights": (without(WEIGHTS), WEIGHTS, "no such file"),
    "weights are empty": (written(WEIGHTS, b""), WEIGHTS, "0 bytes that are no safetensors"),
    "weights are a page": (written(WEIGHTS, "<!DOCTYPE html>"), WEIGHTS, "15 bytes that are no"),
    "weights are truncated": (
        lambda folder: os.truncate(folder / WEIGHTS, 10**5),
        WEIGHTS,
        "it has 100,000 bytes, its header says 1,644,096",
    ),
    "weights have a huge header": (
        written(WEIGHTS, b"\xff" * 7 + b"\x0f{}"),
        WEIGHTS,
        "no safetensors",
    ),
    "weights are an LFS pointer": (written(WEIGHTS, LFS), WEIGHTS, "git lfs pull"),
    "weights are a pipe": (replaced(WEIGHTS, os.mkfifo), WEIGHTS, "not a regular file"),
    "weights are a link to nowhere": (
        replaced(WEIGHTS, lambda path: path.symlink_to("/nowhere")),
        WEIGHTS,
        "not a regular file",
    ),
    "weights are a pickle": (
        lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
        "pytorch_model.bin",
        "may be a pickle, which can run code",
    ),
    "shards are absent": (indexed(SHARDS), "model-1.safetensors", f"but {INDEX} names it"),
    "shards are elsewhere": (indexed(OUTSIDE), INDEX, "expected files beside it"),
    "index is no JSON": (indexed("{"), INDEX, "not valid JSON"),
    "index is empty": (indexed("{}"), INDEX, "no `weight_map`"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_folder_is_refused_with_the_name_of_the_file(
    kind: str, whole: Path, tmp_path: Path
) -> None:
    change, file, said = BROKEN[kind]
    model = tmp_path / "model"
    shutil.copytree(whole / "good", model)
    change(model)
    ended = run(
        *("train", "recipe.yaml", "--out", tmp_path / "out"),
        *("--set", f"model_name_or_path={model}"),
        cwd=whole,
        limit=20,
    )
    assert ended.code == 2, ended.err
    assert file in ended.err.splitlines()[-1]
    assert said in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
    assert not (tmp_path / "out").exists()


def test_eval_and_plan_refuse_it_too(whole: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(whole / "good", model)
    os.truncate(model / WEIGHTS, 9000)
    ended = run("eval", model, "recipe.yaml", cwd=whole)
    assert ended.code == 2
    assert "its header says 1,644,096" in ended.err
    configured(num_hidden_layers=10**6)(model)
    ended = run("plan", "recipe.yaml", "--set", f"model_name_or_path={model}", cwd=whole, limit=20)
    assert ended.code == 2
    assert "1,000 at most" in ended.err


@pytest.mark.parametrize("place", ["config", "tokenizer", "pickle"])
def test_code_in_a_model_folder_does_not_run(place: str, whole: Path, tmp_path: Path) -> None:
    model, canary = tmp_path / "model", tmp_path / "canary"
    shutil.copytree(whole / "good", model)
    (model / "evil.py").write_text(PAYLOAD.format(place=str(canary)))
    if place == "config":
        classes = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
        configured(model_type="quux", auto_map=classes)(model)
    elif place == "tokenizer":
        named = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Quux"}
        (model / "tokenizer_config.json").write_text(json.dumps(named))
    else:
        (model / WEIGHTS).unlink()
        code = f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()
        (model / "pytorch_model.bin").write_bytes(code)
        (model / "training_args.bin").write_bytes(code)
        (model / "optimizer.pt").write_bytes(code)
    override = f"model_name_or_path={model}"
    ended = run("train", "recipe.yaml", "--out", tmp_path / "out", "--set", override, cwd=whole)
    assert ended.code == 2, ended.err
    assert not canary.exists()
    if place != "pickle":
        assert "trust_remote_code: true" in ended.err
