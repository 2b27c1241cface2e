"""`msft init --from`: configs of other trainers than SFT, and with images, are refused by name."""

from pathlib import Path

import pytest

from msft.cli import main

AXOLOTL = "base_model: a\ndatasets: [{path: owner/a, type: alpaca}]\n"
FACTORY = "model_name_or_path: a\nstage: sft\ndataset: a\n"
TRL = "model_name_or_path: a\ndataset_name: owner/a\n"
HANDBOOK = "model_name_or_path: a\ndataset_mixture: {datasets: [{id: owner/a, columns: [%s]}]}\n"

OTHERS = {
    "axolotl rl": (f"{AXOLOTL}rl: dpo", "'dpo'"),
    "axolotl prm": (f"{AXOLOTL}process_reward_model: true", "a reward model"),
    "axolotl classifier": (
        f"{AXOLOTL}model_type: AutoModelForTokenClassification",
        "a classifier",
    ),
    "axolotl diffusion": (
        f"{AXOLOTL}plugins: [axolotl.integrations.diffusion.DiffusionPlugin]",
        "a diffusion model",
    ),
    "axolotl distillation": (f"{AXOLOTL}kd_trainer: true", "distillation"),
    "factory pt": (FACTORY.replace("sft", "pt"), "'pt'"),
    "factory rm": (FACTORY.replace("sft", "rm"), "'rm'"),
    "trl dpo": (f"{TRL}beta: 0.1\nmax_length: 512", "DPO"),
    "trl dpo loss": (f"{TRL}loss_type: sigmoid", "loss_type 'sigmoid' of DPO"),
    "trl dpo keys": (f"{TRL}precompute_ref_log_probs: true", "a key of DPO"),
    "trl orpo": (f"{TRL}beta: 0.05\nmax_prompt_length: 512", "ORPO"),
    "trl kto": (f"{TRL}desirable_weight: 1.0", "KTO"),
    "trl grpo": (f"{TRL}num_generations: 8\nreward_funcs: [accuracy]", "GRPO"),
    "trl gkd": (f"{TRL}teacher_model_name_or_path: b\nlmbda: 0.5", "distillation"),
    "trl reward": (f"{TRL}center_rewards_coefficient: 0.01", "a reward model"),
    "trl classifier": (f"{TRL}lora_task_type: SEQ_CLS", "SEQ_CLS"),
    "trl ppo": (f"{TRL}reward_model_path: b\nsft_model_path: c", "PPO"),
    "handbook pairs": (HANDBOOK % "chosen, rejected", "pairs of answers"),
    "without a dataset": ("model_name_or_path: a\nbeta: 0.1\nlearning_rate: 1e-6", "DPO"),
    "factory export": ("model_name_or_path: a\ntemplate: x\nexport_dir: b", "trains nothing"),
}
IMAGES = {
    "axolotl processor": f"{AXOLOTL}processor_type: AutoProcessor",
    "axolotl flag": f"{AXOLOTL}is_multimodal: true",
    "axolotl size": f"{AXOLOTL}image_size: 512",
    "axolotl dataset": AXOLOTL.replace("owner/a", "HuggingFaceH4/llava-instruct-mix-vsft"),
    "axolotl template": f"{AXOLOTL}chat_template: qwen2_vl",
    "factory pixels": f"{FACTORY}image_max_pixels: 262144",
    "factory tower": f"{FACTORY}freeze_vision_tower: true",
    "factory template": f"{FACTORY}template: qwen3_vl_nothink",
    "factory name": FACTORY.replace("dataset: a", "dataset: identity,mllm_demo"),
    "factory columns": FACTORY.replace("dataset: a", "dataset: seen"),
    "trl columns": HANDBOOK % "messages, images",
}


def refused(folder: Path, config: str, capsys: pytest.CaptureFixture[str]) -> str:
    (folder / "theirs.yaml").write_text(config)
    (folder / "data").mkdir()
    info = '{"seen": {"file_name": "seen.json", "columns": {"images": "images"}}}'
    (folder / "data/dataset_info.json").write_text(info)
    assert main(["init", "--from", "theirs.yaml", "ours.yaml"]) == 2
    assert not (folder / "ours.yaml").exists()
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", OTHERS)
def test_another_trainer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config, said = OTHERS[name]
    assert said in refused(tmp_path, config, capsys)


@pytest.mark.parametrize("name", IMAGES)
def test_images(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "it is for images, video or sound" in refused(tmp_path, IMAGES[name], capsys)


@pytest.mark.parametrize(
    "config",
    [
        f"{AXOLOTL}rl:\nprocessor_type:\nreward_model: false",
        f"{FACTORY}freeze_vision_tower: false\nvideo_fps:",
        f"{TRL}loss_type: dft\nlabel_smoothing: 0\nlora_task_type: CAUSAL_LM",
    ],
)
def test_what_is_empty_or_off_asks_for_nothing(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(config)
    assert main(["init", "--from", "theirs.yaml", "ours.yaml"]) == 0
