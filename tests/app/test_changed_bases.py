"""A base that changed under a run or an adapter, and folders of msft's that were damaged."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from toys import recipe_of, write_data

import msft
from msft.cli import main
from msft.engine.model.folders import base_files, digests_of
from msft.engine.model.loading import load_model
from msft.engine.saving.weight_files import PublishedModel
from msft.store.store import Hashes

pytestmark = pytest.mark.usefixtures("no_reports")

HUB_NAME = "somebody/small"


def write_base(folder: Path) -> Path:
    folder.mkdir(parents=True)
    loaded = load_model("tiny", torch.device("cpu"))
    PublishedModel(loaded).write(dict(loaded.model.named_parameters()), folder)
    return folder


def flip(file: Path, place: int = -5) -> None:
    """Change a bit; the file looks as old as before."""
    before, content = file.stat(), bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip_number(file: Path) -> None:
    """Change a bit of one number that is not in the samples of a fingerprint."""
    size = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + size])
    flip(file, 8 + size + header["model.embed_tokens.weight"]["data_offsets"][0] + 4 * 3)


def cut(run: Path) -> bytes:
    """Let a finished run be one that was killed before its end; its log."""
    lines = (run / "run.jsonl").read_bytes().splitlines(keepends=True)
    (run / "run.jsonl").write_bytes(b"".join(lines[:-1]))
    return b"".join(lines)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`plain` and `lora` over a local base, and `embedded`, an adapter whose base is beside it."""
    folder = tmp_path_factory.mktemp("bases")
    write_data(folder, train=16, held_out=4)
    name = str(write_base(folder / "model"))
    short: dict[str, Any] = {"method": "soup", "num_train_epochs": 1, "evals_per_epoch": 1}
    lora: dict[str, Any] = {"use_peft": True, "lora_r": 4, "lora_alpha": 16, "learning_rate": 1e-2}
    runs: dict[str, dict[str, Any]] = {
        "plain": {"model_name_or_path": name},
        "lora": {"model_name_or_path": name, **lora},
        "embedded": lora,
    }
    for run, keys in runs.items():
        result = msft.train(recipe_of(folder, **{**short, **keys}), folder / run)
        assert result.summary["best"]["checkpoint"] != "base"
    return folder


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    """A copy of all of it, at a place of its own."""
    copytree(runs, tmp_path / "copy")
    for file in (tmp_path / "copy").rglob("*"):
        if file.name in ("recipe.yaml", "adapter_config.json"):
            file.write_text(file.read_text().replace(str(runs), str(tmp_path / "copy")))
    return tmp_path / "copy"


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    return " ".join(capsys.readouterr().err.split())


def go_on(run: Path) -> list[str]:
    return ["train", str(run / "recipe.yaml"), "--out", str(run)]


@pytest.mark.parametrize("run", ["plain", "lora"])
def test_a_run_does_not_go_on_with_a_base_that_changed(
    copied: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = cut(copied / run)
    assert main(go_on(copied / run)) == 0, "the same bytes at another place"
    assert (copied / run / "run.jsonl").read_bytes() == log
    cut(copied / run)
    flip_number(copied / "model" / "model.safetensors")
    said = refused(go_on(copied / run), capsys)
    assert "the base model has changed since" in said
    assert "model.safetensors was 1,6" in said
    config = copied / "model" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 2e-06'))
    (copied / "model" / "generation_config.json").unlink()
    said = refused(go_on(copied / run), capsys)
    assert "config.json was " in said
    assert "generation_config.json is not there" in said


def test_a_folder_of_an_earlier_version_goes_on(copied: Path) -> None:
    log = cut(copied / "plain")
    environment = copied / "plain" / "environment.json"
    items = json.loads(environment.read_text())
    assert items[0].pop("base").keys() == {
        *("config.json", "generation_config.json", "model.safetensors")
    }
    environment.write_text(json.dumps(items))
    assert main(go_on(copied / "plain")) == 0
    assert (copied / "plain" / "run.jsonl").read_bytes() == log
    assert "base" in json.loads(environment.read_text())[-1], "known from here on"


def test_what_nobody_touched_is_not_read_again(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    fresh = Hashes.fresh

    def counted(self: Hashes, path: Path) -> tuple[int, str]:
        read.append(path)
        return fresh(self, path)

    monkeypatch.setattr(Hashes, "fresh", counted)
    monkeypatch.setattr("msft.store.store.SETTLED_NS", 0)  # the copy is only just written
    weights = copied / "model" / "model.safetensors"
    for expected in (1, 0):
        monkeypatch.setattr(
            "msft.engine.model.folders.HASHES", Hashes(strict=True)
        )  # a new process
        cut(copied / "plain")
        read.clear()
        assert main(go_on(copied / "plain")) == 0
        assert read.count(weights) == expected


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a bit of the adapter": ("best/adapter_model.safetensors", flip),
    "its scale": (
        "best/adapter_config.json",
        lambda file: void(file.write_text(file.read_text().replace('alpha": 16', 'alpha": 32'))),
    ),
    "its facts": ("best/msft_adapter.json", lambda file: flip(file, 40)),
    "its tokenizer": ("best/tokenizer_config.json", lambda file: flip(file, 10)),
    "a bit of its base": ("base/model.safetensors", flip_number),
    "its base's config": ("base/config.json", lambda file: flip(file, 20)),
    "a manifest": ("base/manifest.json", lambda file: flip(file, 1)),
    "a file that is gone": ("base/model.safetensors", Path.unlink),
}


def void(count: int) -> None:
    assert count


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_neither_merged_nor_scored(
    copied: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change = DAMAGES[damage]
    run, out = copied / "embedded", copied / "merged"
    change(run / name)
    for command in (
        ["merge", str(run), "--out", str(out)],
        ["eval", str(run / "best"), str(run / "recipe.yaml")],
    ):
        assert Path(name).name.replace("manifest.json", "base") in refused(command, capsys)
    assert not out.exists()


def test_a_damaged_model_is_not_scored(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copied / "plain"
    scored = ["eval", str(run / "best"), str(run / "recipe.yaml")]
    flip_number(run / "best" / "model.safetensors")
    said = refused(scored, capsys)
    assert "model.safetensors is not what was written" in said
    assert "run the same `msft train` again" in said
    assert main(go_on(run)) == 0
    assert main(scored) == 0
    config = run / "best" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 2e-06'))
    assert "config.json is not what was written" in refused(scored, capsys)
    (run / "best" / "manifest.json").unlink()  # as the message says, for who meant it
    assert main(scored) == 0


def test_an_adapter_is_not_merged_into_another_base(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = (copied / "model").rename(copied / "elsewhere")
    config = copied / "lora" / "best" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(copied / "model"), str(moved)))
    assert main(["merge", str(copied / "lora"), "--out", str(copied / "merged")]) == 0
    flip_number(moved / "model.safetensors")
    for command in (
        ["merge", str(copied / "lora"), "--out", str(copied / "again")],
        ["eval", str(copied / "lora" / "best"), str(copied / "lora" / "recipe.yaml")],
    ):
        said = refused(command, capsys)
        assert "is an adapter of another base model" in said
        assert "model.safetensors was" in said
    assert not (copied / "again").exists()


def test_a_base_beside_a_run_that_was_damaged_is_made_anew(copied: Path) -> None:
    run = copied / "embedded"
    cut(run)
    whole = (run / "base" / "model.safetensors").read_bytes()
    flip_number(run / "base" / "model.safetensors")
    assert main(go_on(run)) == 0
    assert (run / "base" / "model.safetensors").read_bytes() == whole
    assert main(["merge", str(run), "--out", str(copied / "merged")]) == 0


def test_a_manifest_of_others_is_none_of_ours(copied: Path) -> None:
    (copied / "model" / "manifest.json").write_text('{"files": ["config.json"], "by": "others"}')
    recipe = str(copied / "plain" / "recipe.yaml")
    assert main(["eval", str(copied / "model"), recipe]) == 0


def test_the_files_of_every_kind_of_model(runs: Path, tmp_path: Path) -> None:
    assert base_files("tiny") == {}
    assert base_files("somebody/never-fetched") == {}
    local = digests_of(str(runs / "model"))
    adapter = digests_of(str(runs / "lora" / "best"))
    assert {f"base/{name}": digest for name, digest in local.items()}.items() <= adapter.items()
    own = {"adapter_config.json", "adapter_model.safetensors", "msft_adapter.json"}
    assert {name for name in adapter if "/" not in name} == own
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert base_files(str(tmp_path / "m.gguf")) == {"m.gguf": tmp_path / "m.gguf"}
    shards = copytree(runs / "model", tmp_path / "shards")
    (shards / "model.safetensors").rename(shards / "model-00001-of-00001.safetensors")
    places = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(places))
    (shards / "modeling.py").write_text("")
    (shards / "README.md").write_text("")
    assert base_files(str(shards)).keys() == {
        *("config.json", "generation_config.json", "model.safetensors.index.json"),
        *("model-00001-of-00001.safetensors", "modeling.py"),
    }


def test_a_model_of_the_hub_that_was_fetched_again_is_refused(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cache = tmp_path / "hub" / f"models--{HUB_NAME.replace('/', '--')}"

    def fetch(commit: str) -> Path:
        """As the hub's library has it: links to blobs, and the commit of `main`."""
        snapshot = cache / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (cache / "blobs").mkdir(exist_ok=True)
        (cache / "refs").mkdir(exist_ok=True)
        for file in (runs / "model").iterdir():
            (cache / "blobs" / f"{commit}{file.name}").write_bytes(file.read_bytes())
            (snapshot / file.name).symlink_to(cache / "blobs" / f"{commit}{file.name}")
        (cache / "refs" / "main").write_text(commit)
        return snapshot

    fetch("1" * 40)
    keys: dict[str, Any] = {"num_train_epochs": 1, "evals_per_epoch": 1}
    keys["model_name_or_path"] = HUB_NAME
    write_data(tmp_path, train=16, held_out=4)
    msft.train(recipe_of(tmp_path, method="soup", **keys), tmp_path / "run")
    log = cut(tmp_path / "run")
    second = fetch("2" * 40)
    assert main(go_on(tmp_path / "run")) == 0, "the same bytes in another commit"
    assert (tmp_path / "run" / "run.jsonl").read_bytes() == log
    cut(tmp_path / "run")
    flip_number((second / "model.safetensors").resolve())
    assert "model.safetensors was" in refused(go_on(tmp_path / "run"), capsys)
