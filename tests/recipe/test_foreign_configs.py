"""`msft init --from`: configs of Axolotl, LLaMA-Factory and TRL become recipes, key by key."""

import json
from pathlib import Path

import pytest

from msft.cli import main
from msft.recipe.draft import Draft
from msft.recipe.importer import drafted
from msft.recipe.recipe import Recipe, load_recipe
from msft.recipe.yaml import parse

AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
load_in_8bit: false
load_in_4bit: true
strict: false
chat_template: llama3
datasets:
  - path: mlabonne/FineTome-100k
    type: chat_template
    split: train[:20%]
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
  - path: rows/own.jsonl
    type: alpaca
    weight: 0.25
  - path: owner/pairs
    name: en
    split: train[:500]
    type: {field_instruction: question, field_output: answer}
  - path: owner/chat
    type: chat_template
    field_messages: turns
    weight: 0.5
dataset_prepared_path: last_run_prepared
val_set_size: 0.02
output_dir: ./outputs/out
adapter: qlora
lora_model_dir:
lora_r: 16
lora_alpha: 64
lora_dropout: 0.05
lora_target_linear: true
lora_fan_in_fan_out:
sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true
wandb_project: mine
wandb_watch:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 2
optimizer: paged_adamw_8bit
lr_scheduler: cosine
learning_rate: 2e-5
train_on_inputs: true
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
logging_steps: 1
flash_attention: true
loss_watchdog_threshold: 5.0
warmup_steps: 100
evals_per_epoch: 2
saves_per_epoch: 1
weight_decay: 0.1
fsdp: [full_shard, auto_wrap]
special_tokens: {pad_token: <|end_of_text|>}
"""

FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 4
lora_target: q_proj, v_proj
quantization_bit: 4
dataset: identity,orca,chat,gone
template: llama3
max_samples: 1000
val_size: 0.2
preprocessing_num_workers: 16
output_dir: saves/sft
save_steps: 500
plot_loss: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
lr_scheduler_type: cosine_with_restarts
warmup_ratio: 0.1
bf16: true
"""

INFO = {
    "identity": {"file_name": "identity.json", "num_samples": 3},
    "orca": {
        "hf_hub_url": "Open-Orca/OpenOrca",
        "subset": "small",
        "columns": {"prompt": "question", "response": "response", "system": "system_prompt"},
    },
    "chat": {
        "hf_hub_url": "owner/chat",
        "formatting": "sharegpt",
        "columns": {"messages": "turns"},
        "tags": {"role_tag": "role", "content_tag": "content"},
    },
    "lima": {"hf_hub_url": "owner/lima", "columns": {"messages": "conversation"}},
}

TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: owner/capybara
dataset_config: en
dataset_test_split: test
report_to: none
learning_rate: 0.0001
max_steps: -1
use_peft: true
assistant_only_loss: true
env: {CUDA_VISIBLE_DEVICES: 0}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"axolotl.yml": AXOLOTL, "factory.yaml": FACTORY, "trl.yaml": TRL}.items():
        (tmp_path / name).write_text(text)
    for folder in ("rows", "data", "made"):
        (tmp_path / folder).mkdir()
    rows = [{"instruction": "a", "output": "b"}] * 12
    (tmp_path / "rows/own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "data/identity.json").write_text(json.dumps(rows))
    (tmp_path / "data/dataset_info.json").write_text(json.dumps(INFO))
    return tmp_path


def made(source: str) -> Recipe:
    assert main(["init", "--from", source, "made/recipe.yaml"]) == 0
    return load_recipe("made/recipe.yaml")


def draft_of(text: str) -> Draft:
    return drafted(parse(text).value, Path(), Path())


def test_axolotl(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = made("axolotl.yml")
    tome, own, pairs, chat = recipe.datasets
    assert (tome.name, tome.path, tome.columns) == ("FineTome-100k", "mlabonne/FineTome-100k", None)
    assert (own.name, own.train, own.train_rows) == ("own", "../rows/own.jsonl", 3)
    assert (pairs.path, pairs.train_rows) == ("owner/pairs:en", 500)
    assert pairs.columns == {"prompt": "question", "completion": "answer"}
    assert (chat.columns, chat.weight) == ({"messages": "turns"}, 0.5)
    assert {spec.validation_fraction for spec in recipe.datasets} == {0.02}
    assert {spec.metric for spec in recipe.datasets} == {"nll"}
    assert (recipe.method, recipe.max_length) == ("sft", 4096)
    assert (recipe.num_train_epochs, recipe.learning_rate) == (2, 2e-5)
    assert (recipe.lr_scheduler_type, recipe.warmup_steps) == ("cosine", 100)
    assert (recipe.optim, recipe.weight_decay, recipe.max_grad_norm) == ("adamw_bf16", 0.1, 1.0)
    assert (recipe.seed, recipe.evals_per_epoch, recipe.bf16) == (42, 2, "auto")
    assert (recipe.gradient_checkpointing, recipe.completion_only_loss) == (True, False)
    assert (recipe.report_to, recipe.output_dir) == ("wandb", "./outputs/out")
    shown = " ".join(capsys.readouterr().out.split())
    assert "datasets[1].weight → datasets: train_rows: 3 (of 12)" in shown
    assert "max_grad_norm → max_grad_norm: 1.0 (their default)" in shown
    assert "datasets[0].split: msft reads the split train, whole, and not train[:20%]" in shown
    assert "flash_attention: the engine chooses attention" in shown
    empty = "lora_model_dir, lora_fan_in_fan_out, wandb_watch"
    assert f"{empty}, load_in_8bit, strict, tf32: empty or off" in shown
    text = Path("made/recipe.yaml").read_text()
    assert "max_length: 4096            # sequence_len\n" in text
    assert "seed: 42                    # their default\n" in text


def test_llama_factory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = made("factory.yaml")
    identity, orca, chat, gone = recipe.datasets
    assert (identity.name, identity.train) == ("identity", "../data/identity.json")
    assert [spec.train_rows for spec in recipe.datasets] == [3, 1000, 1000, 1000]
    assert orca.path == "Open-Orca/OpenOrca:small"
    assert orca.columns == {"prompt": "question", "completion": "response"}
    assert (chat.path, chat.columns) == ("owner/chat", {"messages": "turns"})
    assert gone.train == "data/gone.json"
    assert {spec.validation_fraction for spec in recipe.datasets} == {0.2}
    assert (recipe.train_batch_size, recipe.learning_rate, recipe.max_length) == (8, 5e-5, 2048)
    assert (recipe.lr_scheduler_type, recipe.num_train_epochs) == ("cosine", 3)
    assert recipe.trust_remote_code is True
    shown = " ".join(capsys.readouterr().out.split())
    assert "lr_scheduler_type: cosine (theirs is 'cosine_with_restarts')" in shown
    assert "dataset.gone: data/dataset_info.json does not name it" in shown
    assert "warmup_ratio: write warmup_steps: a number of steps" in shown


def test_conversations_are_sharegpts_unless_their_tags_say_otherwise(here: Path) -> None:
    draft = draft_of("model_name_or_path: a\nstage: sft\ndataset: lima")
    assert draft.datasets[0]["columns"] == {"conversations": "conversation"}


@pytest.mark.parametrize(
    ("strategy", "weights"), [("interleave_under", [1.0, 0.3333]), ("interleave_over", [3.0, 1.0])]
)
def test_probabilities_become_rows_per_epoch(
    here: Path, strategy: str, weights: list[float]
) -> None:
    """12 and 24 rows at 0.6 and 0.4: the first is used up after 20 rows, the second after 60."""
    row = json.dumps({"prompt": "a", "completion": "b"}) + "\n"
    Path("data/long.jsonl").write_text(row * 24)
    info = {**INFO, "identity": {"file_name": "identity.json"}, "long": {"file_name": "long.jsonl"}}
    Path("data/dataset_info.json").write_text(json.dumps(info))
    config = "model_name_or_path: a\nstage: sft\ndataset: identity,long\n"
    draft = draft_of(f"{config}mix_strategy: {strategy}\ninterleave_probs: 0.6,0.4")
    assert [spec["weight"] for spec in draft.datasets] == weights
    draft = draft_of(f"{config.replace('long', 'orca')}mix_strategy: {strategy}")
    assert "mix_strategy" in draft.left


def test_probabilities_are_of_the_rows_that_max_samples_leaves(here: Path) -> None:
    """Of 240 rows 12 are left, and of 12 a tenth is held out: 10.8 of either make an epoch."""
    row = json.dumps({"prompt": "a", "completion": "b"}) + "\n"
    Path("data/long.jsonl").write_text(row * 240)
    info = {**INFO, "identity": {"file_name": "identity.json"}, "long": {"file_name": "long.jsonl"}}
    Path("data/dataset_info.json").write_text(json.dumps(info))
    config = "model_name_or_path: a\nstage: sft\ndataset: identity,long\nmax_samples: 12\n"
    draft = draft_of(f"{config}mix_strategy: interleave_under\ninterleave_probs: 0.5,0.5")
    assert [spec["weight"] for spec in draft.datasets] == [1.0, 0.9]


def test_no_more_rows_are_held_out_than_are_scored(here: Path) -> None:
    row = json.dumps({"prompt": "a", "completion": "b"}) + "\n"
    Path("data/long.jsonl").write_text(row * 400)
    info = {**INFO, "long": {"file_name": "long.jsonl"}}
    Path("data/dataset_info.json").write_text(json.dumps(info))
    config = "model_name_or_path: a\nstage: sft\ndataset: long,identity,orca\nval_size: 10\n"
    draft = draft_of(config)
    assert [spec["validation_fraction"] for spec in draft.datasets] == [0.025, 0.1, 0.1]
    assert {spec["validation_rows"] for spec in draft.datasets} == {10}


def test_trl(here: Path) -> None:
    recipe = made("trl.yaml")
    (spec,) = recipe.datasets
    assert (spec.name, spec.path, spec.validation_fraction) == (
        "capybara",
        "owner/capybara:en",
        0.1,
    )
    assert (recipe.train_batch_size, recipe.max_length, recipe.num_train_epochs) == (8, 1024, 3)
    assert (recipe.learning_rate, recipe.lr_scheduler_type) == (1e-4, "linear")
    assert recipe.completion_only_loss is True


def test_a_mixture_of_trl(here: Path) -> None:
    draft = draft_of(
        "model_name_or_path: a\ntest_split_size: 0.3\ndatasets:\n"
        "  - {path: json, data_files: rows/own.jsonl}\n"
        "  - {path: owner/two, name: en, split: train_sft, columns: [prompt, completion]}\n"
    )
    own, two = draft.datasets
    assert own == {
        "name": "own",
        "train": "rows/own.jsonl",
        "metric": "nll",
        "validation_fraction": 0.3,
    }
    assert (two["name"], two["path"]) == ("two", "owner/two:en")
    assert draft.left["datasets[1].split"].startswith("msft reads the split train")


def test_a_mixture_of_alignment_handbook(here: Path) -> None:
    """A weight is a subsample of the rows. A split other than train is said."""
    draft = draft_of(
        "model_name_or_path: a\nmax_seq_length: 64\ndataset_mixture:\n  datasets:\n"
        "    - {id: rows/own.jsonl, weight: 0.5, columns: [messages]}\n"
        "    - {id: owner/two, config: en, split: train_sft, weight: 1.0}\n"
        "  seed: 0\n  test_split_size: 0.2\n"
    )
    own, two = draft.datasets
    assert (own["train"], own["train_rows"]) == ("rows/own.jsonl", 6)
    assert (two["name"], two["path"], "train_rows" in two) == ("two", "owner/two:en", False)
    assert [spec["validation_fraction"] for spec in draft.datasets] == [0.2, 0.2]
    assert "dataset_mixture[1].split" in draft.changes
    assert draft.keys["max_length"] == 64
    older = draft_of("model_name_or_path: a\ndataset_mixer: {owner/a: 1.0, owner/b: 0.5}\n")
    assert [spec["path"] for spec in older.datasets] == ["owner/a", "owner/b"]
    assert older.datasets[1]["weight"] == 0.5


def test_a_dataset_that_is_named_once_for_each_of_its_splits_is_read_once(here: Path) -> None:
    """msft reads the split train only, which two sub-datasets would have twice."""
    draft = draft_of(
        "model_name_or_path: a\ndataset_mixture:\n  datasets:\n"
        "    - {id: owner/a, config: en, split: train_sft}\n"
        "    - {id: owner/a, config: en, split: test_sft}\n"
        "    - {id: owner/a, config: de, split: train_sft}\n"
    )
    assert [spec["path"] for spec in draft.datasets] == ["owner/a:en", "owner/a:de"]
    assert "dataset_mixture[1]" in draft.changes


@pytest.mark.parametrize(
    ("given", "changing"),
    [
        ("datasets: [{path: o/a, type: alpaca}]", None),
        ("datasets: [{path: o/a, type: chat_template, roles_to_train: [assistant]}]", None),
        ("datasets: [{path: o/a, type: 'alpaca:phi'}]", "datasets[0].type"),
        ("datasets: [{path: o/a, roles_to_train: [user]}]", "datasets[0].roles_to_train"),
        ("datasets: [{path: o/a}]\nlora_model_dir: adapter", "lora_model_dir"),
        ("datasets: [{path: o/a}]\nunfrozen_parameters: [lm_head]", "unfrozen_parameters"),
        ("datasets: [{path: o/a}]\nspecial_tokens: {pad_token: <pad>}", None),
        ("datasets: [{path: o/a}]\nspecial_tokens: {eos_token: <end>}", "special_tokens"),
        ("datasets: [{path: o/a}]\nload_in_8bit: true", "load_in_8bit"),
        ("datasets: [{path: o/a}]\nadam_beta2: 0.999\nchat_template: tokenizer_default", None),
    ],
)
def test_what_changes_the_run_is_told_apart(given: str, changing: str | None) -> None:
    draft = draft_of(f"base_model: a\n{given}\n")
    assert draft.changes == ([] if changing is None else [changing])


def test_fp16_is_not_fp32() -> None:
    draft = draft_of("base_model: a\ndatasets: [{path: o/a}]\nbf16: false\nfp16: true\n")
    assert "bf16" not in draft.keys
    draft = draft_of("base_model: a\ndatasets: [{path: o/a}]\nbf16: false\n")
    assert draft.keys["bf16"] is False


NEWER = """
model: Qwen/Qwen3-4B
model_class: llm
peft_config: {name: lora, r: 4, target_modules: all, use_dora: true}
quant_config: {name: bnb, quantization_bit: 4}
dist_config: {name: fsdp2}
train_dataset: data/mixture.yaml
micro_batch_size: 2
global_batch_size: 16
cutoff_len: 256
batching_strategy: normal
"""


def test_the_newer_layout_of_llama_factory(here: Path) -> None:
    Path("data/mixture.yaml").write_text(
        "own: {path: rows/own.jsonl, source: local, converter: alpaca, size: 5}\n"
        "hub: {path: owner/hub, split: train}\n"
    )
    Path("newer.yaml").write_text(NEWER)
    recipe = made("newer.yaml")
    own, hub = recipe.datasets
    assert (own.name, own.train, own.train_rows) == ("own", "../rows/own.jsonl", 5)
    assert (hub.name, hub.path) == ("hub", "owner/hub")
    assert (recipe.model_name_or_path, recipe.train_batch_size) == ("Qwen/Qwen3-4B", 16)
    assert (recipe.max_length, recipe.learning_rate, recipe.weight_decay) == (256, 1e-4, 0.01)
    assert (recipe.lr_scheduler_type, recipe.num_train_epochs) == ("constant", 3)
    assert (recipe.use_peft, recipe.lora_r, recipe.lora_alpha) == (True, 4, 16)
    assert (recipe.lora_target_modules, recipe.load_in_4bit) == ("all-linear", True)
    assert recipe.use_dora is True
    full = draft_of("model: a\ntrain_dataset: owner/a\noptim_config: {name: muon, wd: 0.1}\n")
    assert "use_peft" not in full.keys
    assert "optim_config.name" in full.changes
    assert full.keys["weight_decay"] == 0.1
    packed = draft_of("model: a\ntrain_dataset: owner/a\nbatching_strategy: dynamic_batching\n")
    assert "packed sequences" in packed.left["micro_batch_size"]


def test_adapters(here: Path) -> None:
    axolotl, factory, trl = (draft_of(text).keys for text in (AXOLOTL, FACTORY, TRL))
    assert [axolotl[key] for key in ("use_peft", "load_in_4bit", "lora_r")] == [True, True, 16]
    assert (axolotl["lora_alpha"], axolotl["lora_dropout"]) == (64, 0.05)
    assert axolotl["lora_target_modules"] == "all-linear"
    assert [factory[key] for key in ("use_peft", "load_in_4bit", "lora_r")] == [True, True, 4]
    assert (factory["lora_alpha"], factory["lora_target_modules"]) == (8, ["q_proj", "v_proj"])
    assert (trl["use_peft"], trl["lora_dropout"]) == (True, 0.05)
    without = draft_of(AXOLOTL.replace("load_in_4bit: true", ""))
    assert without.keys["load_in_4bit"] is True
    full = draft_of(AXOLOTL.replace("adapter: qlora", "adapter:"))
    assert "use_peft" not in full.keys
    assert full.left["lora_r"] == "there is no adapter to apply it to"


EXAMPLES = {
    "Axolotl": "base_model model_type tokenizer_type load_in_8bit load_in_4bit strict plugins "
    "liger_rope liger_rms_norm liger_glu_activation liger_layer_norm "
    "liger_fused_linear_cross_entropy chat_template dataset_prepared_path val_set_size output_dir "
    "sequence_len sample_packing eval_sample_packing pad_to_sequence_len adapter lora_model_dir "
    "lora_r lora_alpha lora_dropout lora_target_linear lora_target_modules lora_fan_in_fan_out "
    "lora_modules_to_save lora_mlp_kernel lora_qkv_kernel lora_o_kernel peft_use_dora "
    "wandb_project wandb_entity wandb_watch wandb_name wandb_log_model hub_model_id "
    "gradient_accumulation_steps micro_batch_size num_epochs optimizer lr_scheduler learning_rate "
    "cosine_min_lr_ratio cosine_constant_lr_ratio train_on_inputs group_by_length bf16 fp16 tf32 "
    "fp8 fp8_enable_fsdp_float8_all_gather gradient_checkpointing gradient_checkpointing_kwargs "
    "early_stopping_patience resume_from_checkpoint local_rank logging_steps xformers_attention "
    "flash_attention s2_attention flex_attention flex_attn_compile_kwargs attn_implementation "
    "attention loss_watchdog_threshold loss_watchdog_patience warmup_steps warmup_ratio "
    "evals_per_epoch eval_table_size eval_max_new_tokens saves_per_epoch save_first_step debug "
    "deepspeed weight_decay fsdp fsdp_config special_tokens tokens eot_tokens exact_deduplication "
    "test_value torch_compile save_only_model use_ray ray_num_workers max_steps save_steps "
    "eval_steps seed unfrozen_parameters neftune_noise_alpha max_grad_norm test_datasets",
    "LLaMA-Factory": "model_name_or_path trust_remote_code stage do_train finetuning_type "
    "lora_rank lora_target lora_alpha lora_dropout quantization_bit quantization_method "
    "double_quantization use_dora use_rslora pissa_init loraplus_lr_ratio deepspeed dataset "
    "dataset_dir eval_dataset template cutoff_len max_samples overwrite_cache "
    "preprocessing_num_workers dataloader_num_workers mix_strategy interleave_probs packing "
    "neat_packing train_on_prompt mask_history output_dir logging_steps save_steps plot_loss "
    "overwrite_output_dir save_only_model report_to run_name per_device_train_batch_size "
    "gradient_accumulation_steps learning_rate num_train_epochs max_steps lr_scheduler_type "
    "warmup_ratio warmup_steps weight_decay max_grad_norm bf16 fp16 pure_bf16 ddp_timeout "
    "resume_from_checkpoint val_size per_device_eval_batch_size eval_strategy eval_steps "
    "flash_attn enable_liger_kernel use_unsloth rope_scaling attn shift_attn neftune_noise_alpha "
    "gradient_checkpointing predict_with_generate compute_accuracy optim use_galore use_badam "
    "use_apollo mixture_of_depths freeze_trainable_layers upcast_layernorm seed "
    "include_num_input_tokens_seen push_to_hub hub_model_id",
    "TRL": "model_name_or_path model_revision dtype attn_implementation use_peft lora_r lora_alpha "
    "lora_dropout lora_target_modules lora_target_parameters lora_modules_to_save lora_task_type "
    "use_rslora use_dora load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant "
    "dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming "
    "ignore_bias_buffers env chat_template_path dataset_text_field dataset_num_proc eos_token "
    "pad_token max_length shuffle_dataset packing packing_strategy padding_free "
    "pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss loss_type "
    "activation_offloading learning_rate num_train_epochs max_steps per_device_train_batch_size "
    "per_device_eval_batch_size gradient_accumulation_steps gradient_checkpointing "
    "gradient_checkpointing_kwargs lr_scheduler_type lr_scheduler_kwargs warmup_steps "
    "weight_decay max_grad_norm optim adam_beta1 adam_beta2 adam_epsilon seed data_seed bf16 fp16 "
    "tf32 torch_compile use_liger_kernel logging_steps logging_strategy logging_first_step "
    "eval_strategy eval_steps eval_on_start save_strategy save_steps save_total_limit report_to "
    "run_name output_dir push_to_hub hub_model_id hub_strategy hub_private_repo ddp_timeout "
    "load_best_model_at_end metric_for_best_model greater_is_better resume_from_checkpoint "
    "dataloader_num_workers dataloader_drop_last dataloader_pin_memory trackio_space_id fsdp "
    "fsdp_config deepspeed remove_unused_columns disable_tqdm log_level model_init_kwargs",
}
"""The keys of their example configs, and of their schemas where examples are few."""
SAMPLES = {
    "adapter": "lora",
    "use_peft": True,
    "lora_target": "all",
    "stage": "sft",
    "dataset": "a,b",
    "finetuning_type": "lora",
    "mix_strategy": "concat",
    "lr_scheduler": "cosine",
    "lr_scheduler_type": "cosine",
    "test_datasets": [{"path": "x"}],
    "dataset_dir": "data",
    "interleave_probs": "0.5,0.5",
    "loss_type": "nll",
    "lora_task_type": "CAUSAL_LM",
}


@pytest.mark.parametrize("tool", EXAMPLES)
def test_every_key_of_their_examples_is_carried_over_or_has_a_reason(tool: str) -> None:
    words = EXAMPLES[tool].split()
    config = {word: SAMPLES.get(word, 1) for word in words}
    config |= {"datasets": [{"path": "owner/a", "type": "alpaca"}]} if tool == "Axolotl" else {}
    config |= {"dataset_name": "owner/a"} if tool == "TRL" else {}
    draft = drafted(config, Path(), Path())
    told = " ".join(each.theirs for each in draft.carried).split()
    open_ = [key for key in words if key not in (*told, *draft.left, *draft.silent)]
    assert open_ == []
    assert [key for key, why in draft.left.items() if why == "msft has no such key"] == []


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("a: 1", "wrong.yaml: this is no config of Axolotl (it has base_model), LLaMA-Factory"),
        ("[1]", "this is no config of Axolotl"),
        (
            "model_name_or_path: m\ndatasets: [{name: a, train: a.jsonl}]",
            "a recipe of msft already",
        ),
        ("# nothing", "wrong.yaml: the file is empty"),
        ("base_model: a\nrl: dpo\ndatasets: []", "it asks for 'dpo', but msft does supervised"),
        ("model_name_or_path: a\nstage: pt", "it asks for 'pt'"),
        ("base_model: a", "datasets is None; expected a list"),
        ("model: a\ndataset: [owner/a]", "a config of ms-swift, which msft does not read"),
        ("base_model: a\ndatasets: [{type: alpaca}]", "datasets[0] has no path"),
        ("model_name_or_path: a\nstage: sft", "dataset is missing"),
        (
            "base_model: a\nmicro_batch_size: x\ndatasets: [{path: a/b}]",
            "micro_batch_size is 'x'; expected a whole number above 0",
        ),
        ("model_name_or_path: a\nstage: sft\ndataset: b\nmax_samples: x", "a value is of another"),
        (
            "base_model: a\nlearning_rate: -1\ndatasets: [{path: a/b}]",
            "means a recipe that msft refuses, so nothing was written: learning_rate is -1",
        ),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_and_nothing_written(
    here: Path, config: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("wrong.yaml").write_text(config)
    assert main(["init", "--from", "wrong.yaml", "new.yaml"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("new.yaml").exists()


def test_nothing_is_overwritten(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--from", "trl.yaml", "axolotl.yml"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert Path("axolotl.yml").read_text() == AXOLOTL
    assert main(["init", "--from", "gone.yaml"]) == 2
    assert "there is no such file" in capsys.readouterr().err


NAMES = {"chatml": "chatml", "llama3": "llama3", "qwen_25": "qwen", "mistral_v1": "mistral"}


@pytest.mark.parametrize("theirs", NAMES)
def test_axolotl_templates_by_name_are_ours(theirs: str) -> None:
    draft = draft_of(
        f"base_model: a\nlearning_rate: 1e-4\nchat_template: {theirs}\n"
        "datasets: [{path: o/a, type: chat_template}]"
    )
    assert draft.keys["chat_template"] == NAMES[theirs]
    assert "chat_template" not in draft.left
    unknown = draft_of(
        "base_model: a\nlearning_rate: 1e-4\nchat_template: jamba\ndatasets: [{path: o/a}]"
    )
    assert "chat_template" not in unknown.keys
    assert "chat_template" in unknown.changes


def test_axolotl_plain_text_and_system_prompts(here: Path) -> None:
    (here / "text.yml").write_text(
        "base_model: tiny\nlearning_rate: 1e-4\ndefault_system_message: Be brief.\ndatasets:\n"
        "- {path: o/text, type: completion}\n"
        "- {path: o/body, type: completion, field: body}\n"
        "- {path: o/chat, type: chat_template}\n"
        "- {path: o/alpaca, type: alpaca}\n"
    )
    text, body, chat, alpaca = made("text.yml").datasets
    assert (text.columns, body.columns) == ({"text": "text"}, {"text": "body"})
    assert [spec.system_prompt for spec in (text, body, chat, alpaca)] == [
        None,
        None,
        "Be brief.",
        None,
    ]
    assert {spec.metric for spec in (text, body)} == {"nll"}
    assert (chat.format, alpaca.format) == ("auto", "auto"), "Axolotl's alpaca has Alpaca's prompt"


def test_llama_factory_writes_all_rows_by_its_template(here: Path) -> None:
    def of(more: str, names: str = "identity,chat") -> Draft:
        return draft_of(f"model_name_or_path: a\nstage: sft\ndataset: {names}\n{more}")

    named = of("template: qwen\ndefault_system: Be brief.")
    assert named.keys["chat_template"] == "qwen"
    assert [spec["format"] for spec in named.datasets] == ["chat", "chat"]
    assert [spec["system_prompt"] for spec in named.datasets] == ["Be brief.", "Be brief."]
    assert "template" not in named.remarks
    other = of("template: qwen3\nenable_thinking: false")
    assert "chat_template" not in other.keys
    assert "template" in other.changes
    assert [spec["format"] for spec in other.datasets] == ["chat", "chat"]
    thinking = [spec["chat_template_kwargs"] for spec in other.datasets]
    assert thinking == [{"enable_thinking": False}] * 2
    plain = of("template: default\ndefault_system: Be brief.", "identity")
    assert "format" not in plain.datasets[0]
    assert {"template", "default_system"} <= {*plain.changes}
    silent = of("")
    assert "format: chat in each sub-dataset writes turns" in silent.remarks["template"]


def test_trl_names_the_column_of_its_text() -> None:
    base = "model_name_or_path: a\ndataset_name: o/text\nlearning_rate: 1e-4\n"
    assert draft_of(f"{base}dataset_text_field: body").datasets[0]["columns"] == {"text": "body"}
    assert "columns" not in draft_of(f"{base}dataset_text_field: text").datasets[0]


def test_what_it_writes_is_trained_as_their_tool_would(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"instruction": f"say {n}", "input": "now", "output": f"{n}"} for n in range(12)]
    (here / "data/identity.json").write_text(json.dumps(rows))
    (here / "mine.yaml").write_text(
        "model_name_or_path: tiny\nstage: sft\nfinetuning_type: full\ndataset: identity\n"
        "template: chatml\ndefault_system: Be brief.\nval_size: 0.2\ncutoff_len: 256\n"
    )
    made("mine.yaml")
    capsys.readouterr()
    assert main(["validate", "made/recipe.yaml", "--show", "1", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["datasets"]["identity"]["shown"]
    assert shown.startswith("<|im_start|>system\nBe brief.<eos>\n<|im_start|>user\nsay ")
    assert "\nnow<eos>\n<|im_start|>assistant\n⟦" in shown


@pytest.mark.parametrize(("given", "kept"), [("0.1", 0.1), ("2", None), ("true", None)])
def test_a_weight_of_prompts_is_carried_over_where_it_is_a_share(
    given: str, kept: float | None
) -> None:
    text = f"base_model: a\ndatasets: [{{path: a.jsonl}}]\nprompt_loss_weight: {given}\n"
    draft = draft_of(text)
    assert draft.keys.get("prompt_loss_weight") == kept
    assert ("prompt_loss_weight" in draft.left) is (kept is None)
