"""Keys that are given as flags, as other trainers have them, and options that are given as keys."""

from pathlib import Path
from typing import Any

import pytest

from msft.cli import main
from msft.errors import RecipeError
from msft.recipe.recipe import Recipe, set_for_flag

WRONG = 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train r.yaml --num_train_epochs 3", "write --set num_train_epochs=3"),
        ("train --num_train_epochs 3 r.yaml", "write --set num_train_epochs=3"),
        ("train r.yaml --learning-rate=1e-4", "write --set learning_rate=1e-4"),
        (
            "plan r.yaml --lr 1e-4 --epochs 2 --bf16",
            "write --set learning_rate=1e-4 --set num_train_epochs=2 --set bf16=true",
        ),
        (
            "validate r.yaml --lora_target_modules q_proj v_proj --seed -1",
            "write --set 'lora_target_modules=[q_proj, v_proj]' --set seed=-1",
        ),
        ("train r.yaml --max_stages 2", "write --set method_options.max_stages=2"),
        ("train r.yaml --min_delta 0.1", "write --set peaks.min_delta=0.1"),
        ("compare r.yaml --train_rows 9 --out x", "write --set datasets.NAME.train_rows=9"),
        ("train r.yaml --base_model tiny", "write --set model_name_or_path=tiny"),
        ("plan r.yaml --seed 30 --method sft", "write --set seed=30 --set method=sft"),
        ("train r.yaml --max_steps 10", "--max_steps: a run's length is counted in epochs"),
        ("train r.yaml --micro_batch_size 2", "--micro_batch_size: msft chooses micro-batches"),
        ("train r.yaml --seeds 3", "--seeds: did you mean --set seed=3?"),
        ("train r.yaml --frobnicate 3", "unrecognized arguments: --frobnicate 3"),
        ("train r.yaml surplus", "unrecognized arguments: surplus"),
        ("demo --learning_rate 3", "unrecognized arguments: --learning_rate 3"),
    ],
)
def test_a_key_as_a_flag_is_answered_with_what_to_write(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == WRONG
    *_, said = capsys.readouterr().err.strip().split("error: ")
    assert " ".join(said.split()).endswith(says) or f"{says};" in said or says in said


def test_what_is_written_instead_is_read(tmp_path: Path) -> None:
    """Every key of a recipe: what the answer says is what `--set` takes."""
    assert set_for_flag("--learning-rate", "1e-4") == ("learning_rate=1e-4", "")
    assert set_for_flag("--k", "3") == ("method_options.k=3", "")
    assert set_for_flag("--nothing-like-it", "3") == ("", "")


def recipe(**keys: Any) -> Recipe:
    spec = {"name": "a", "train": "a.jsonl", "validation_fraction": 0.1}
    return Recipe.from_mapping({"model_name_or_path": "tiny", "datasets": [spec], **keys})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"max_stages": 2},
            "unknown key 'max_stages'; it is an option of method msft: write method_options: "
            "{max_stages: 2}, or --set method_options.max_stages=2",
        ),
        (
            {"method": "sft", "k": 2},
            "unknown key 'k'; it is an option of soup, but method is sft; with it: write "
            "method_options: {k: 2}, or --set method_options.k=2",
        ),
        (
            {"smooth": 1},
            "unknown key 'smooth'; it is an option of peaks: write peaks: {smooth: 1}, or --set "
            "peaks.smooth=1",
        ),
    ],
)
def test_an_option_as_a_key_is_answered_with_its_block(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(**keys)
    assert str(caught.value) == says


def test_an_option_of_several_keys_is_shown_as_yaml_has_it() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(exclude={"confidence": 0.95})
    assert str(caught.value).endswith(
        "write method_options: {exclude: {confidence: 0.95}}, or --set "
        "'method_options.exclude={confidence: 0.95}'"
    )
