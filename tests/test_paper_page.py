"""docs/paper.md: it names everything that the paper labels, and `make paper` runs its commands."""

import re
from pathlib import Path

import pytest

from msft.cli import build_parser
from msft.recipe.recipe import load_recipe

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "paper.md"
PAPER = ROOT.parent / "shared" / "paper" / "msft.tex"
FENCED = re.compile(r"^```\n(.*?)^```", re.DOTALL | re.MULTILINE)

LABELLED = """
tab:homo tab:main tab:ablation tab:olmo2_flops tab:sft_hyperparams tab:seed tab:flops_comparison
fig:train_proportion fig:motivation fig:hetero fig:delta_epoch
fig:diverge fig:delta_benchmark fig:delta_mean
fig:further fig:std fig:right_placeholder fig:diverse_N fig:granular_flops fig:med fig:decomp
fig:loss-qwen3-8b fig:remaining_instances
fig:app_all_models_1 fig:app_qwen0_5b_a fig:app_qwen0_5b_b fig:app_qwen1_5b_a fig:app_qwen1_5b_b
fig:app_all_models_2 fig:app_qwen3b_a fig:app_qwen3b_b fig:app_qwen7b_a fig:app_qwen7b_b
fig:app_olmo1b_a fig:app_olmo1b_b
fig:delta_all_models fig:delta_qwen25_05b fig:delta_qwen25_15b fig:delta_qwen25_3b
fig:delta_qwen25_7b fig:delta_olmo2_1b
fig:app_loss_1 fig:loss_olmo_c3 fig:loss_3b_c3 fig:loss_7b_c3 fig:loss_8b_c3
fig:app_loss_2 fig:loss_3b_medmcqa fig:loss_olmo_c1 fig:loss_0.5b_c1 fig:loss_1.5b_c1 fig:loss_3b_c1
fig:app_disk_1 fig:disk_olmo_c3 fig:disk_0.5b_c3 fig:disk_1.5b_c3 fig:disk_3b_c3 fig:disk_7b_c3
fig:disk_8b_c3
fig:app_disk_2 fig:disk_olmo_c1 fig:disk_0.5b_c1 fig:disk_1.5b_c1 fig:disk_3b_c1
fig:app_disk_3 fig:disk_3b_5cats fig:disk_3b_15cats
eq:theta eq:theta_prime eq:forget
alg:msft alg:sro alg:soft-sro alg:msft-disk
"""
LABELS = LABELLED.split()
"""What the paper labels, its sections aside."""


def commands_of_the_page() -> list[str]:
    """The lines of code blocks that are commands."""
    lines = [line for block in FENCED.findall(PAGE.read_text()) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ msft ")]


def commands_of_make() -> list[str]:
    """What the target runs, in its order."""
    rules = (ROOT / "Makefile").read_text()
    target = rules.split("\npaper:")[1].split("\n\n")[0].replace("\\\n\t\t", "")
    lines = [line.strip() for line in target.splitlines()]
    return [line.replace("$(SMALL) ", "msft ") for line in lines if line.startswith("$(SMALL) ")]


def test_the_page_names_everything_that_the_paper_labels() -> None:
    named = {word for code in re.findall(r"`([^`\n]+)`", PAGE.read_text()) for word in code.split()}
    assert [label for label in LABELS if label not in named] == []


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside the checkout")
def test_the_labels_are_those_of_the_paper() -> None:
    labels = set(re.findall(r"\\label\{([^}]+)\}", PAPER.read_text()))
    assert {label for label in labels if not label.startswith(("sec:", "app:"))} == set(LABELS)


def test_make_runs_the_commands_of_the_page() -> None:
    commands = commands_of_the_page()
    assert len(commands) > 7
    assert commands == commands_of_make()


@pytest.mark.parametrize("command", commands_of_the_page())
def test_every_command_is_one_and_writes_into_the_folder(command: str) -> None:
    _, *words = command.split()
    options = build_parser().parse_args(words)
    places = options.folders if options.command == "report" else [options.out]
    assert all(place.startswith("paper/") for place in places)
    if "recipe" in options:
        assert load_recipe(ROOT / options.recipe).model_name_or_path == "tiny"


def test_what_it_makes_is_not_under_git() -> None:
    assert "/paper/" in (ROOT / ".gitignore").read_text().splitlines()
