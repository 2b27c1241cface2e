"""Nothing that comes from outside moves the terminal's cursor, shows a secret, or becomes HTML."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from program import Ended, run, toy_recipe
from toys import write_lines

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("no_reports")

ESCAPE = "\x1b[2J\x1b]0;gone\x07\x9b31m"
SECRET = "hf_secretsecret"  # noqa: S105
URL = f"https://user:{SECRET}@example.org/model"


def clean(ended: Ended) -> bool:
    said = ended.out + ended.err
    return not any(char in said for char in "\x1b\x07\x9b") and SECRET not in said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("terminal")
    toy_recipe(place, num_train_epochs=1, evals_per_epoch=1)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(place / "model")
    tiny_model(len(tokenizer)).save_pretrained(place / "model")
    return place


COMMANDS = {
    "--set": ["train", "recipe.yaml", "--set", f"seed={ESCAPE}"],
    "--set key": ["train", "recipe.yaml", "--set", f"{ESCAPE}=1"],
    "--out": ["train", "recipe.yaml", "--out", f"recipe.yaml/{ESCAPE}"],
    "recipe": ["train", f"no{ESCAPE}.yaml"],
    "option": ["train", "recipe.yaml", f"--{ESCAPE}"],
    "command": [ESCAPE],
    "method": ["train", "recipe.yaml", "--set", f"method=a{ESCAPE}:b"],
    "model": ["train", "recipe.yaml", "--set", f"model_name_or_path=./{ESCAPE}"],
    "model URL": ["train", "recipe.yaml", "--set", f"model_name_or_path={URL}"],
    "data URL": ["train", "recipe.yaml", "--set", f"datasets=[{{name: a, train: {URL}.jsonl}}]"],
    "--out URL": ["train", "recipe.yaml", "--out", f"recipe.yaml/{URL}"],
    "eval": ["eval", f"./{ESCAPE}{URL}", "recipe.yaml"],
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_escapes_and_credentials_on_the_command_line_are_not_printed(
    kind: str, folder: Path
) -> None:
    offline = {"HF_HUB_OFFLINE": "1"}
    ended = run(*COMMANDS[kind], cwd=folder, env=offline, limit=30)
    assert ended.code in (1, 2), ended.err
    assert ended.err
    assert clean(ended), repr(ended.err)


def test_a_stopped_run_names_its_command_without_escapes_and_credentials(folder: Path) -> None:
    kill = "import os, signal, msft.app.commands as c\n"
    kill += "c.train = lambda options: os.kill(os.getpid(), signal.SIGTERM)"
    ended = run("train", "recipe.yaml", "--out", ESCAPE + URL, cwd=folder, before=kill)
    assert ended.code == 4
    assert "https://***@example.org/model" in ended.err
    assert clean(ended), repr(ended.err)


def test_messages_of_transformers_carry_no_escapes(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": f"a{ESCAPE}{URL}"}))
    ended = run("train", "recipe.yaml", "--set", f"model_name_or_path={model}", cwd=folder)
    assert ended.code == 2
    assert "https://***@example.org" in ended.err
    assert clean(ended), repr(ended.err)


def test_rows_and_templates_are_shown_without_escapes(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    template = ESCAPE + "{% for turn in messages %}{{ turn.content }}{% endfor %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    for split in ("train", "valid"):
        turns = [("user", f"{split} {ESCAPE}"), ("assistant", f"yes {ESCAPE}")]
        rows = [[{"role": r, "content": f"{text}{n}"} for r, text in turns] for n in range(4)]
        write_lines(tmp_path / f"{split}.jsonl", ({"messages": row} for row in rows))
    data = {"name": "a", "train": "train.jsonl", "validation": "valid.jsonl"}
    recipe = {"model_name_or_path": "model", "method": "sft", "datasets": [data]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    ended = run("validate", "recipe.yaml", "--show", 2, cwd=tmp_path)
    assert clean(ended), repr(ended.out + ended.err)
    assert ended.out


def test_the_model_card_is_markdown_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)> # x: [y"
    shutil.copytree(folder / "model", tmp_path / name)
    ended = run(
        *("train", folder / "recipe.yaml", "--out", "out"),
        *("--set", f"model_name_or_path={json.dumps('./' + name)}"),
        cwd=tmp_path,
    )
    assert ended.code == 0, ended.err
    card = (tmp_path / "out/best/README.md").read_text()
    _, front, body = card.split("---\n", 2)
    assert sorted(yaml.safe_load(front)) == ["library_name", "pipeline_tag", "tags"]
    assert "<img" not in body
    assert "&lt;img src=x" in body
    for path in (tmp_path / "out").rglob("*"):
        if path.suffix in (".json", ".jsonl", ".md", ".yaml"):
            assert "\x1b" not in path.read_text()
