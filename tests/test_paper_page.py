"""docs/paper.md: it names everything that the paper labels, `make paper` runs its commands, and its
output is what they print on any machine."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from msft.cli import build_parser, main
from msft.planning.forecast import forecast
from msft.recipe.recipe import load_recipe
from msft.text import si

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


LINES, WORD = "…", "·"
"""Stand for any lines, and for one word that depends on the machine."""


def outputs_of_the_page() -> dict[str, list[str]]:
    """Each command of a code block with the lines below it."""
    found: dict[str, list[str]] = {}
    for block in FENCED.findall(PAGE.read_text()):
        for line in block.splitlines():
            if line.startswith("$ msft "):
                command = line.removeprefix("$ ")
                found[command] = []
            else:
                found[command].append(line)
    return found


def commands_of_the_page() -> list[str]:
    return [*outputs_of_the_page()]


def unlike(shown: Sequence[str], printed: Sequence[str]) -> str | None:
    """The first line of the page that was not printed where it should be, or None.

    How far apart words are does not matter: columns are as wide as their numbers.
    """
    here, skipping = 0, False
    for line in shown:
        if line == LINES:
            skipping = True
            continue
        ends = len(printed) if skipping else min(here + 1, len(printed))
        places = (n for n in range(here, ends) if _alike(line, printed[n]))
        found = next(places, None)
        if found is None:
            return line
        here, skipping = found + 1, False
    return None if skipping or here == len(printed) else f"and no more after {shown[-1]!r}"


def _alike(shown: str, printed: str) -> bool:
    words, others = shown.split(), printed.split()
    pairs = zip(words, others, strict=False)
    return len(words) == len(others) and all(a in (WORD, b) for a, b in pairs)


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
    _, *words = shlex.split(command)
    options = build_parser().parse_args(words)
    places = options.folders if options.command == "report" else [getattr(options, "out", "")]
    prints_only = "plan" in words or "homogeneous" in words
    assert prints_only or all(place.startswith("paper/") for place in places)
    if "recipe" in options:
        assert load_recipe(ROOT / options.recipe).model_name_or_path == "tiny"


TRAINS_NOTHING = [
    command
    for command in commands_of_the_page()
    if command.startswith(("msft plan ", "msft analyze compute ", "msft analyze homogeneous"))
]
TRAINS = [command for command in commands_of_the_page() if command not in TRAINS_NOTHING]


def said(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(shlex.split(command)[1:]) == 0
    lines = capsys.readouterr().out.splitlines()
    again = bool(lines) and lines[0].endswith("is finished already; this is its result")
    return [line for line in lines[again:] if line.strip()]


@pytest.mark.parametrize("command", TRAINS_NOTHING)
def test_what_needs_no_training_prints_what_the_page_shows(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    assert unlike(outputs_of_the_page()[command], said(command, capsys)) is None


@pytest.mark.skipif(not (ROOT / "paper" / "budget").exists(), reason="make paper has not run")
@pytest.mark.parametrize("command", TRAINS)
def test_what_make_paper_trained_is_what_the_page_shows(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same commands once more: they find their runs finished."""
    monkeypatch.chdir(ROOT)
    assert unlike(outputs_of_the_page()[command], said(command, capsys)) is None


def test_lines_and_words_that_may_be_others() -> None:
    printed = ["head  mean", "SFT   70.4*", "mSFT  47.9", "note"]
    assert unlike(["head mean", "SFT ·", "…"], printed) is None
    assert unlike(["…", "mSFT ·", "note"], printed) is None
    assert unlike(["head mean", "mSFT ·", "…"], printed) == "mSFT ·", "a line is missing"
    assert unlike(["head mean", "SFT 70.4", "…"], printed) == "SFT 70.4"
    assert unlike(["…", "SFT · ·", "…"], printed) == "SFT · ·"
    assert unlike(["head mean", "SFT ·", "mSFT ·"], printed) == "and no more after 'mSFT ·'"


def test_the_flops_of_training_are_those_that_are_counted() -> None:
    """Of methods whose training does not depend on scores; the plan counts them without torch."""
    recipe = load_recipe(ROOT / "recipes" / "tiny-paper.yaml")
    methods = forecast(recipe, Path("out"), seconds=0)["methods"]
    (shown,) = [lines for command, lines in outputs_of_the_page().items() if "dynamix" in command]
    for name, method, kind in (
        ("SFT", "sft", "train"),
        ("Continual SFT", "continual", "train"),
        ("DynamixSFT", "dynamix", "lookahead"),
    ):
        (line,) = [line for line in shown if line.startswith(f"{name} ")]
        assert si(methods[method]["best"]["flops"][kind]) in line


def test_the_command_for_the_papers_models_is_that_of_the_recipe() -> None:
    """On the page, and over some lines at the head of the recipe."""
    (shown,) = re.findall(r"^```sh\n(msft .*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    recipe = (ROOT / "recipes" / "ten-tasks.yaml").read_text()
    told = recipe.split("#   msft compare")[1].split("# What it costs")[0]
    shown, told = shown.replace("\\\n", " "), "msft compare" + told.replace("\n#", " ")
    found = [build_parser().parse_args(shlex.split(text)[1:]) for text in (shown, told)]
    assert found[0] == found[1]
    assert found[0].recipe == "recipes/ten-tasks.yaml"
    assert len(found[0].models.split(",")) == 6
    assert found[0].methods.split(",")[-2:] == ["msft[compute_budget=1]", "msft"]


def test_what_it_makes_is_not_under_git() -> None:
    assert "/paper/" in (ROOT / ".gitignore").read_text().splitlines()
