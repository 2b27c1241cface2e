"""What a config of another tool means where it says nothing, and configs as people have them."""

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from msft.cli import main
from msft.recipe.draft import TRL, Draft
from msft.recipe.importer import drafted
from msft.recipe.recipe import Recipe, load_recipe
from msft.recipe.yaml import parse

AXOLOTL_SILENT = "base_model: a\ndatasets: [{path: owner/a, type: alpaca}]\n"
FACTORY_SILENT = "model_name_or_path: a\nstage: sft\ndataset: a\n"
TRL_SILENT = "model_name_or_path: a\ndataset_name: owner/a\n"


def draft_of(text: str) -> Draft:
    return drafted(parse(text).value, Path(), Path())


def rows(file: Path, count: int) -> None:
    file.write_text((json.dumps({"prompt": "a", "completion": "b"}) + "\n") * count)


def test_an_axolotl_config_that_says_nothing() -> None:
    draft = draft_of(AXOLOTL_SILENT)
    keys = draft.keys
    assert (keys["num_train_epochs"], keys["max_length"], keys["train_batch_size"]) == (1, 512, 1)
    assert (keys["lr_scheduler_type"], keys["max_grad_norm"], keys["seed"]) == ("cosine", 1.0, 42)
    assert {"learning_rate", "weight_decay", "use_peft", "warmup_steps"}.isdisjoint(keys)
    assert "3% of the steps, 100 at most" in draft.remarks["warmup_steps"]


def test_a_llama_factory_config_that_says_nothing_trains_an_adapter() -> None:
    keys = draft_of(FACTORY_SILENT).keys
    assert (keys["use_peft"], keys["lora_r"], keys["lora_alpha"]) == (True, 8, 16)
    assert {"lora_dropout", "lora_target_modules", "load_in_4bit"}.isdisjoint(keys)
    assert (keys["learning_rate"], keys["max_length"], keys["train_batch_size"]) == (5e-5, 2048, 8)
    assert (keys["num_train_epochs"], keys["lr_scheduler_type"]) == (3, "linear")
    assert (keys["max_grad_norm"], keys["seed"]) == (1.0, 42)
    full = draft_of(f"{FACTORY_SILENT}finetuning_type: full\n")
    assert full.keys["use_peft"] is False
    frozen = draft_of(f"{FACTORY_SILENT}finetuning_type: freeze\nlora_rank: 4\n")
    assert "use_peft" not in frozen.keys
    assert frozen.left["finetuning_type"].endswith("'freeze': this recipe trains all weights")
    assert frozen.left["lora_rank"] == "there is no adapter to apply it to"


def test_a_trl_config_that_says_nothing() -> None:
    draft = draft_of(TRL_SILENT)
    keys = draft.keys
    assert (keys["learning_rate"], keys["max_length"], keys["train_batch_size"]) == (2e-5, 1024, 8)
    assert (keys["num_train_epochs"], keys["lr_scheduler_type"]) == (3, "linear")
    assert (keys["max_grad_norm"], keys["seed"]) == (1.0, 42)
    assert draft.remarks["completion_only_loss"].startswith("TRL trains on all of a conversation")
    keys = draft_of(f"{TRL_SILENT}use_peft: true").keys
    assert (keys["lora_dropout"], keys["lora_target_modules"]) == (0.05, ["q_proj", "v_proj"])
    assert {"lora_r", "lora_alpha"}.isdisjoint(keys)


def fields_in(package: str, file: str) -> dict[str, Any]:
    """The plain defaults of the dataclasses in a file, which is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    tree = ast.parse(Path(spec.submodule_search_locations[0], file).read_text())
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value: ast.expr | None = node.value
            if isinstance(value, ast.Call):
                value = next((k.value for k in value.keywords if k.arg == "default"), None)
            if isinstance(value, ast.Constant):
                found[node.target.id] = value.value
    return found


def test_the_defaults_of_trl_are_those_of_the_trl_that_is_installed() -> None:
    theirs = fields_in("transformers", "training_args.py")
    theirs |= fields_in("trl", "trainer/model_config.py") | fields_in(
        "trl", "trainer/sft_config.py"
    )
    for key, value in {**TRL.defaults, **dict(TRL.batch)}.items():
        assert theirs[key] == value, key
    assert theirs["lora_dropout"] == TRL.adapter_defaults["lora_dropout"]
    assert theirs["lora_target_modules"] is None
    assert theirs["assistant_only_loss"] is False
    ours = ("lora_r", "lora_alpha", "weight_decay", "warmup_steps", "use_peft", "load_in_4bit")
    assert {key: theirs[key] for key in ours} == {key: getattr(Recipe, key) for key in ours}
    targets = (Path(find_spec("peft").origin).parent / "utils/constants.py").read_text()  # type: ignore[union-attr,arg-type]
    names = json.dumps(TRL.adapter_defaults["lora_target_modules"])
    assert all(f'"{model}": {names},' in targets for model in ("llama", "qwen3", "mistral"))


def test_a_batch_of_axolotl_is_batch_size_or_its_factors() -> None:
    config = f"{AXOLOTL_SILENT}micro_batch_size: 2\n"
    assert draft_of(f"{config}gradient_accumulation_steps: 8").keys["train_batch_size"] == 16
    draft = draft_of(f"{config}batch_size: 32")
    assert draft.keys["train_batch_size"] == 32
    assert "micro_batch_size" in draft.left


def test_shares_are_of_the_rows_that_a_split_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows(Path("a.jsonl"), 100)
    axolotl = draft_of(
        "base_model: a\ndatasets: [{path: a.jsonl, weight: 0.5, split: 'train[:20]'}]"
    )
    assert axolotl.datasets[0]["train_rows"] == 10


def test_who_cuts_long_rows_and_who_leaves_them_out() -> None:
    notes = [
        next(each.note for each in draft_of(text).carried if each.ours == "max_length")
        for text in (AXOLOTL_SILENT, FACTORY_SILENT, f"{TRL_SILENT}max_length: 64")
    ]
    said = "longer rows are left out, not cut"
    assert notes == ["their default", f"their default; {said}", said]
    unlimited = draft_of(f"{TRL_SILENT}max_length:\n")
    assert "max_length" not in unlimited.keys
    assert "512 by default" in unlimited.remarks["max_length"]


@pytest.mark.parametrize(
    ("given", "answers_only"),
    [
        ("assistant_only_loss: true", True),
        ("assistant_only_loss: false", None),
        ("completion_only_loss: true", True),
        ("completion_only_loss: false", False),
    ],
)
def test_what_trl_trains_on(given: str, answers_only: bool | None) -> None:
    assert draft_of(f"{TRL_SILENT}{given}").keys.get("completion_only_loss") is answers_only


@pytest.mark.parametrize(
    ("given", "targets"),
    [
        ("lora_target_linear: true\nlora_target_modules: [q_proj]", "all-linear"),
        ("lora_target_modules: [q_proj, o_proj]", ["q_proj", "o_proj"]),
        ("lora_target_modules: ['all-linear']", "all-linear"),
        (r"lora_target_modules: 'model.layers.[\d]+.(q|k)_proj'", None),
    ],
)
def test_layers_of_an_adapter(given: str, targets: Any) -> None:
    draft = draft_of(f"{AXOLOTL_SILENT}adapter: lora\nlora_r: 8\n{given}")
    assert draft.keys.get("lora_target_modules") == targets
    assert targets or draft.left["lora_target_modules"].startswith("a pattern")


PEOPLES = {
    "ax_moe": f"""{AXOLOTL_SILENT}
plugins: [axolotl.integrations.liger.LigerPlugin]
use_scattermoe: true
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_target_modules: 'model.layers.[0-9]+.(mlp|self_attn).(up|q)_proj'
lora_target_parameters: [experts.down_proj]
bnb_config_kwargs: {{bnb_4bit_use_double_quant: true}}
optimizer: adamw_torch_8bit
lr_scheduler: rex
learning_rate: 2e-4
warmup_ratio: 0.1
evals_per_epoch: 0
""",
    "ax_loss": f"""{AXOLOTL_SILENT}
use_eaft: true
eaft_alpha: 1.0
max_steps: 1000
evaluation_strategy: "no"
lr_scheduler: constant
warmup_steps: 10
tensor_parallel_size: 2
fsdp_config: {{offload_params: false}}
hub_model_id: me/mine
""",
    "ax_rows": """
base_model: a
datasets:
  - {path: owner/text, type: completion, field: body}
  - path: owner/own
    type: {system_prompt: hi, format: "[INST] {instruction} [/INST]", field_instruction: q}
  - path: owner/chat
    name: [en, de]
    type: chat_template
    message_property_mappings: {role: speaker, content: text}
    ds_type: json
    fraction: 0.5
    roles_to_train: [assistant]
tokens: [<|im_start|>]
""",
    "lf_galore": f"""{FACTORY_SILENT}
finetuning_type: full
use_galore: true
galore_rank: 128
warmup_steps: 0.1
pure_bf16: true
eval_strategy: steps
disable_gradient_checkpointing: true
""",
    "lf_freeze": f"""{FACTORY_SILENT}
finetuning_type: freeze
freeze_trainable_modules: all
use_llama_pro: true
new_special_tokens_config: tokens.yaml
use_v1_kernels: true
lr_scheduler_type: cosine_with_restarts
max_new_tokens: 64
""",
    "lf_hqq": f"""{FACTORY_SILENT}
quantization_bit: 8
quantization_method: hqq
lora_target: q_proj,v_proj
fp8: true
fsdp: full_shard auto_wrap
fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
use_muon: true
report_to: swanlab
""",
    "trl_qlora": f"""{TRL_SILENT}
use_peft: true
load_in_4bit: true
lora_target_modules: [all-linear]
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {{min_lr_rate: 0.1}}
packing: true
report_to: [wandb]
warmup_ratio: 0.03
eval_strategy: 'no'
""",
}
"""Small configs with the keys of those in their examples folders."""


@pytest.mark.parametrize("name", PEOPLES)
def test_every_key_of_a_config_is_accounted_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(PEOPLES[name])
    assert main(["init", "--from", "theirs.yaml", "ours.yaml"]) == 0
    assert load_recipe("ours.yaml").method == "sft"
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    config = parse(PEOPLES[name]).value
    draft = drafted(config, Path(), Path())
    told = " ".join(each.theirs for each in draft.carried).split()
    told += [*draft.left, *draft.silent, *draft.remarks]
    inside = [
        f"datasets[{number}].{key}"
        for number, entry in enumerate(config.pop("datasets", []))
        for key in {**entry, **(entry["type"] if isinstance(entry["type"], dict) else {})}
        if not (key == "type" and isinstance(entry["type"], dict))
    ]
    assert [key for key in (*config, *inside) if key not in told] == []
    assert "msft has no such key" not in draft.left.values()


def test_names_of_a_turn_that_msft_does_not_read_are_told() -> None:
    config = "base_model: a\ndatasets:\n  - path: owner/a\n    message_property_mappings: {map}"
    draft = draft_of(config.replace("{map}", "{role: speaker, content: text}"))
    assert draft.left["datasets[0].message_property_mappings"].startswith("a turn has role and")
    draft = draft_of(config.replace("{map}", "{role: from, content: value}"))
    assert draft.left == {}


def test_what_is_refused_says_what_was_asked_for() -> None:
    with pytest.raises(Exception, match="asks for 'pretraining_dataset', a key of pre-training"):
        draft_of("base_model: a\npretraining_dataset: [{path: owner/a}]")
    with pytest.raises(Exception, match="asks for 'reward_model'"):
        draft_of(f"{AXOLOTL_SILENT}reward_model: true")
    with pytest.raises(Exception, match=r"it trains nothing \(do_predict without do_train\)"):
        draft_of("model_name_or_path: a\nstage: sft\ndo_predict: true\neval_dataset: a")


@pytest.mark.parametrize(
    ("given", "steps", "left"),
    [
        ("warmup_steps: 7", 7, None),
        ("warmup_ratio: 0.1", None, "warmup_ratio"),
        ("warmup_steps: 0.1", None, "warmup_steps"),
        ("warmup_steps: 0", None, None),
        ("warmup_ratio: 0.1\nlr_scheduler: constant", None, "warmup_ratio"),
    ],
)
def test_a_number_of_warm_up_steps_is_carried_over_and_a_share_is_said(
    given: str, steps: int | None, left: str | None
) -> None:
    draft = draft_of(f"{AXOLOTL_SILENT}{given}")
    assert draft.keys.get("warmup_steps") == steps
    assert [key for key in draft.left if "warmup" in key] == ([left] if left else [])
