"""`msft init --from` with rows at hand: packed batches, what is counted in steps, and one line a
note."""

import json
import time
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from toys import write_lines

from msft.cli import main
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.recipe.recipe import Recipe, load_recipe
from msft.recipe.yaml import dump, parse

ROW = {"prompt": "one two", "completion": "ten"}
CONFIGS = {
    "Axolotl": "base_model: tiny\ndatasets: [{path: a.jsonl}]\nsequence_len: 100\n"
    "val_set_size: 0.25\nmicro_batch_size: 4\ngradient_accumulation_steps: 2\n"
    "sample_packing: true\n",
    "LLaMA-Factory": "model_name_or_path: tiny\nstage: sft\ndataset: a.jsonl\ndataset_dir: .\n"
    "cutoff_len: 100\nval_size: 0.25\nper_device_train_batch_size: 4\n"
    "gradient_accumulation_steps: 2\nneat_packing: true\n",
    "TRL": "model_name_or_path: tiny\ndatasets: [{path: json, data_files: a.jsonl}]\n"
    "max_length: 100\ntest_split_size: 0.25\nper_device_train_batch_size: 4\n"
    "gradient_accumulation_steps: 2\npacking: true\n",
}
"""A batch of 8 packed sequences of 100 tokens, a quarter of the rows held out."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_rows(count: int, file: str = "a.jsonl", longer: int = 1) -> int:
    """Rows that differ in their first word; the tokens of one."""
    rows = [{**ROW, "prompt": f"{n:05d} {ROW['prompt'] * longer}"} for n in range(count)]
    write_lines(Path(file), rows)
    encode = tiny_tokenizer().encode
    first = rows[0]
    prompt = encode(first["prompt"], add_special_tokens=True)
    return len(prompt) + len(encode(first["completion"], add_special_tokens=False)) + 1


def in_eight(tokens: int) -> int:
    """Rows in 8 of the sequences that 300 rows of so many tokens make."""
    return round(8 * 300 / ceil(300 / (100 // tokens)))


def made(config: str) -> Recipe:
    Path("theirs.yaml").write_text(config)
    Path("ours.yaml").unlink(missing_ok=True)
    assert main(["init", "--from", "theirs.yaml", "ours.yaml"]) == 0
    return load_recipe("ours.yaml")


@pytest.mark.parametrize("tool", CONFIGS)
def test_a_batch_of_packed_sequences_becomes_rows(
    tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    each = write_rows(400)
    assert 8 <= each <= 25
    recipe = made(CONFIGS[tool])
    assert recipe.train_batch_size == in_eight(each)
    said = " ".join(capsys.readouterr().out.split())
    assert "8 packed sequences of 100 tokens" in said
    assert f"(rows of {each} tokens on average, by the model's tokenizer)" in said
    plain = CONFIGS[tool].replace("packing: true", "packing: false")
    assert made(plain).train_batch_size == 8


def test_padding_free_does_not_change_the_count() -> None:
    write_rows(40)
    config = CONFIGS["TRL"].replace("packing: true", "padding_free: true")
    assert made(config).train_batch_size == 8


def test_tokens_are_estimated_where_the_tokenizer_is_not_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_rows(400)
    text = json.loads(Path("a.jsonl").read_text().splitlines()[0])
    each = len(text["prompt"] + text["completion"]) // 4 + 1
    recipe = made(CONFIGS["Axolotl"].replace("tiny", "owner/nobody-has-this"))
    assert recipe.train_batch_size == in_eight(each)
    said = " ".join(capsys.readouterr().out.split())
    assert f"rows of {each} tokens on average, estimated at 4 bytes a token" in said


def test_rows_that_leave_gaps_are_packed_as_they_fit() -> None:
    """A row of more than half of a sequence fits once, however many tokens remain."""
    long = write_rows(40, longer=7)
    assert 50 < long < 100
    assert made(CONFIGS["TRL"]).train_batch_size == 8
    wrapped = made(f"{CONFIGS['TRL']}packing_strategy: wrapped\n").train_batch_size
    assert wrapped == round(8 * 100 / long)


@pytest.mark.parametrize("tool", CONFIGS)
def test_where_rows_cannot_be_read_the_batch_is_left_out(
    tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = made(f"{CONFIGS[tool]}warmup_ratio: 0.1\n")
    text = Path("ours.yaml").read_text()
    assert "train_batch_size" not in parse(text).value
    assert "warmup_steps" not in parse(text).value
    assert recipe.train_batch_size == Recipe.train_batch_size
    for said in (" ".join(capsys.readouterr().out.split()), text):
        assert "theirs counts packed sequences: 8 of 100 tokens" in said
        assert "write train_batch_size: 800 / the mean tokens of a row" in said


def test_max_steps_that_cannot_be_counted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    made("model_name_or_path: tiny\ndataset_name: owner/a\nmax_steps: 70\n")
    for said in (" ".join(capsys.readouterr().out.split()), Path("ours.yaml").read_text()):
        assert "max_steps: their run ends after 70 steps" in said


def test_a_percentage_of_a_split_is_counted() -> None:
    write_rows(400)
    (spec,) = made(CONFIGS["Axolotl"].replace("}", ", split: 'train[:20%]'}")).datasets
    assert spec.train_rows == 80


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lr_scheduler_type: polynomial", "lr_scheduler_type here has no 'polynomial'"),
        ("lr_scheduler_type: cosine_with_min_lr", "has no 'cosine_with_min_lr'; now it is cosine"),
        ("optim: adafactor", "optim here has no 'adafactor'; now it is adamw"),
        ("optim: adamw_torch_4bit", "optim here has no 'adamw_torch_4bit'"),
        ("use_peft: true\nlora_target_modules: '.*(q|v)_proj'", "a pattern; msft takes names"),
        ("dataset_train_split: 'train[:20%]'", "whole, and not train[:20%]"),
        ("neftune_noise_alpha: 5", "neftune_noise_alpha: not there"),
        ("adam_beta2: 0.95", "adam_beta2: AdamW's betas"),
        ("warmup_ration: 0.1", "warmup_ration: msft has no such key"),
    ],
)
def test_what_changes_the_run_stands_in_the_recipe(given: str, said: str) -> None:
    made(f"model_name_or_path: tiny\ndataset_name: owner/a\n{given}\n")
    text = Path("ours.yaml").read_text()
    listed = text[text.index("# Not as in their run") : text.index("model_name_or_path:")]
    assert said in listed


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            CONFIGS["Axolotl"].replace("sequence_len: 100", "sequence_len: x"),
            "max_length is 'x'; expected a whole number",
        ),
        (CONFIGS["TRL"] + "train_batch_size: false\n", "train_batch_size is False; expected"),
        ("base_model: a\ndatasets: [{path: o/a}]\nwarmup_steps: .inf\n", "warmup_steps is inf"),
        ("model: a\ntrain_dataset: ''\n", "train_dataset is None; expected a file or a name"),
    ],
)
def test_a_number_that_is_none_is_refused_by_name(
    config: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(40)
    Path("theirs.yaml").write_text(config)
    assert main(["init", "--from", "theirs.yaml", "ours.yaml"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


LIVE = "trust_remote_code: true"
BREAKS = ("\n", "\r", "\r\n", "\x85", "\u2028", "\u2029")


@pytest.mark.parametrize("line_break", BREAKS, ids=ascii)
def test_nothing_foreign_becomes_a_key(line_break: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad = f"x{line_break}{LIVE}"
    config: dict[str, Any] = {
        "base_model": "tiny",
        "datasets": [
            {"path": f"a{line_break}{LIVE}.jsonl", "type": bad, "split": bad, bad: bad},
        ],
        "wandb_project": bad,
        "lr_scheduler": f"cosine{line_break}{LIVE}",
        "optimizer": bad,
        "chat_template": bad,
        "adapter": bad,
        "lora_target_modules": bad,
        "gradient_checkpointing": bad,
        bad: bad,
    }
    source = Path(f"theirs{line_break}{LIVE}.yaml")
    source.write_text(dump(config), newline="")
    code = main(["init", "--from", str(source), "ours.yaml"])
    if code == 2:  # a path with a control character is no path; say the rest without it
        config["datasets"][0]["path"] = "a.jsonl"
        source.write_text(dump(config), newline="")
        code = main(["init", "--from", str(source), "ours.yaml"])
    assert code == 0
    keys = parse(Path("ours.yaml").read_text()).value
    assert "trust_remote_code" not in keys
    assert {*keys} <= {
        *("model_name_or_path", "datasets", "method", "report_to", "num_train_epochs"),
        *("max_length", "lr_scheduler_type", "max_grad_norm", "seed", "train_batch_size"),
        "gradient_checkpointing",
    }
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("trust")]


def test_a_config_of_many_keys_is_refused_in_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    for text in (
        "base_model: a\n" + "".join(f"k{n}: 1\n" for n in range(90_000)),
        "{base_model: a, " + ", ".join(f"k{n}: 1" for n in range(80_000)) + "}",
    ):
        Path("theirs.yaml").write_text(text)
        start = time.process_time()
        assert main(["init", "--from", "theirs.yaml", "ours.yaml"]) == 2
        assert time.process_time() - start < 4
        assert "more than 10,000 keys and values" in capsys.readouterr().err
