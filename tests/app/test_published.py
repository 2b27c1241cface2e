"""`best/` has the names, buffers, dtypes, shards and config that `save_pretrained` writes."""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published import Auto, contents, differences, recipe_of, train, write_base
from safetensors.torch import load_file

import msft
from msft.app.merge import merge
from msft.run.worker import EngineWorker
from msft.store.store import Hashes, Manifest

pytestmark = pytest.mark.usefixtures("no_reports")

SHAPE: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {
    **SHAPE,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}
GPT2 = {
    "vocab_size": 258,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
JAMBA = {**EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "weights alone": ("Llama", GROUPED),
    "tied": ("GPT2", GPT2),
    "renamed head": ("GPTNeoX", SHAPE),
    "experts apart": ("Mixtral", {**GROUPED, "num_local_experts": 4}),
    "experts of Qwen": ("Qwen3Moe", {**EXPERTS, "head_dim": 8, "moe_intermediate_size": 16}),
    "experts of OLMo": ("Olmoe", EXPERTS),
    "experts of Granite": ("GraniteMoe", {**GROUPED, "num_local_experts": 4}),
    "bias of a router": ("DeepseekV3", DEEPSEEK),
    "buffer of an activation": ("Apertus", {**GROUPED, "hidden_act": "xielu"}),
    "state spaces": ("Jamba", {**JAMBA, "use_mamba_kernels": False}),
}


def base_of(kind: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    name, options = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**options)
    model = Auto.from_config(config)
    write_base(model, folder / "base", dtype)
    return folder / "base"


@pytest.mark.parametrize("kind", KINDS)
def test_best_is_what_save_pretrained_of_the_base_writes(kind: str, tmp_path: Path) -> None:
    base = base_of(kind, tmp_path)
    result = train(base, tmp_path / "out")
    assert result.best == tmp_path / "out" / "best"
    assert differences(base, tmp_path / "out") == []


@pytest.mark.parametrize(
    ("published", "key", "written"),
    [
        ("float32", "bfloat16", "BF16"),
        ("bfloat16", "float32", "F32"),
        ("bfloat16", "float16", "F16"),
        ("float16", "auto", "F16"),
    ],
)
def test_a_key_chooses_the_dtype_of_the_result(
    published: str, key: str, written: str, tmp_path: Path
) -> None:
    base = base_of("bias of a router", tmp_path, getattr(torch, published))
    train(base, tmp_path / "out", export_dtype=key)
    dtype = published if key == "auto" else key
    assert differences(base, tmp_path / "out", getattr(torch, dtype)) == []
    found = contents(tmp_path / "out" / "best")
    assert found["model.safetensors: lm_head.weight"][0] == written
    assert found["config.json"]["dtype"] == dtype


def test_a_config_without_a_dtype_leaves_it_to_the_tensors(tmp_path: Path) -> None:
    base = base_of("weights alone", tmp_path)
    config = json.loads((base / "config.json").read_text())
    del config["dtype"]
    (base / "config.json").write_text(json.dumps(config))
    train(base, tmp_path / "out")
    assert contents(tmp_path / "out" / "best")["model.safetensors: lm_head.weight"][0] == "BF16"


def test_the_very_file_of_a_checkpoint_is_linked_and_other_results_are_written(
    tmp_path: Path,
) -> None:
    """`plan` counts what is written: the result, and the next one before it takes its place."""
    for kind, dtype, linked in (
        ("weights alone", torch.float32, True),
        ("tied", torch.float32, True),
        ("weights alone", torch.bfloat16, False),
        ("renamed head", torch.float32, False),
        ("buffer of an activation", torch.float32, False),
    ):
        folder = tmp_path / f"{kind}-{dtype}"
        base = base_of(kind, folder, dtype)
        best = train(base, folder / "out").summary["best"]["checkpoint"]
        weights = folder / "out" / "checkpoints" / f"{best}.weights" / "model.safetensors"
        assert weights.samefile(folder / "out" / "best" / "model.safetensors") == linked, folder
        assert differences(base, folder / "out") == []
        forecast = msft.plan(recipe_of(base), calibrate=False)
        size = 0 if linked else 2 * dtype.itemsize * forecast["parameters"]
        assert forecast["disk"]["models"] == size, folder


def test_a_large_result_has_the_shards_and_the_index_of_save_pretrained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = transformers.PreTrainedModel.save_pretrained
    base = base_of("experts apart", tmp_path)

    def small(self: Any, folder: Path, max_shard_size: str = "20KB", **rest: Any) -> None:
        plain(self, folder, max_shard_size=max_shard_size, **rest)

    assert "max_shard_size" in inspect.signature(plain).parameters
    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", small)
    train(base, tmp_path / "out")
    assert len([*(tmp_path / "out" / "best").glob("model-*-of-*.safetensors")]) > 2
    assert differences(base, tmp_path / "out") == []
    again = train(tmp_path / "out" / "best", tmp_path / "again")
    assert again.summary["best"]["checkpoint"] != "base", "a result is a base, too"
    assert differences(tmp_path / "out" / "best", tmp_path / "again") == []


def test_a_generation_config_that_cannot_be_saved_strictly_is_handed_on(tmp_path: Path) -> None:
    """Llama 2 was published with a temperature and without sampling."""
    base = base_of("weights alone", tmp_path)
    path = base / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": 0.6}))
    best = train(base, tmp_path / "out").best
    assert json.loads((best / "generation_config.json").read_text())["temperature"] == 0.6


def test_an_adapter_is_merged_into_the_names_and_the_dtype_of_the_base(tmp_path: Path) -> None:
    base = base_of("bias of a router", tmp_path)
    keys = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["o_proj"]}
    train(base, tmp_path / "run", **keys)
    merge(tmp_path / "run", tmp_path / "merged")
    best = train(base, tmp_path / "whole", **keys, merge_adapter=True).best
    published = transformers.AutoModelForCausalLM.from_pretrained(base)
    published.save_pretrained(tmp_path / "expected")
    expected = contents(tmp_path / "expected")
    assert contents(tmp_path / "merged") == expected
    assert contents(best) == expected
    files = [load_file(folder / "model.safetensors") for folder in (tmp_path / "merged", best)]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], tensor) for name, tensor in files[1].items())
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert torch.equal(files[0][bias], load_file(base / "model.safetensors")[bias])


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished run whose result was written, and which may not train any more."""
    train(base_of("renamed head", tmp_path), tmp_path / "out")
    return tmp_path / "out"


def again(run: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The weights of the result after the same call, without training."""
    monkeypatch.delattr(EngineWorker, "advance")
    train(run.parent / "base", run)
    return (run / "best" / "model.safetensors").read_bytes()


def test_a_finished_run_needs_no_checkpoint_beside_a_result_that_is_whole(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (finished / "best" / "model.safetensors").read_bytes()
    shutil.rmtree(finished / "checkpoints")
    assert again(finished, monkeypatch) == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_result_that_was_damaged_is_written_again_from_its_checkpoint(
    name: str, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = finished / "best"
    before = {path.name: path.read_bytes() for path in best.iterdir()}
    (best / name).write_bytes(before[name][:-1] + b"x")
    again(finished, monkeypatch)
    assert {path.name: path.read_bytes() for path in best.iterdir()} == before


def test_an_older_result_that_is_the_only_copy_becomes_a_checkpoint_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the checkpoint's own file, whatever its model was published as."""
    written = (finished / "best" / "model.safetensors").read_bytes()
    [checkpoint] = finished.glob("checkpoints/*.weights")
    best = finished / "best" / "model.safetensors"
    best.unlink()
    (checkpoint / "model.safetensors").rename(best)
    digests = {best.name: Hashes().of(best)}
    manifest = Manifest(digests, checkpoint.name).to_bytes()
    (finished / "best" / "manifest.json").write_bytes(manifest)
    shutil.rmtree(finished / "checkpoints")
    assert again(finished, monkeypatch) == written
