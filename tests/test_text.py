"""One of a thing is said in the singular, wherever things are counted."""

from pathlib import Path

import pytest

from msft.app.terminal.results import result_text
from msft.errors import RecipeError
from msft.report.card import card_of
from msft.run.history import summary_of
from msft.testing.simulated import Learner, simulate
from msft.text import counted, epochs_in_words, in_markdown, masked, safe


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        (0, "0 epochs"),
        (1, "1 epoch"),
        (1.0, "1 epoch"),
        (2, "2 epochs"),
        (0.125, "0.125 epochs"),
        (1.5, "1.5 epochs"),
        (1 / 3, "0.333333 epochs"),
        (1234567, "1,234,567 epochs"),
    ],
)
def test_only_one_is_singular(amount: float, said: str) -> None:
    assert counted(amount, "epoch") == said


@pytest.mark.parametrize(
    ("amount", "said"),
    [(0.999, "1 epoch"), (1.004, "1 epoch"), (1.25, "1.25 epochs"), (1 / 3, "0.33 epochs")],
)
def test_what_is_rounded_to_one_is_singular_too(amount: float, said: str) -> None:
    assert epochs_in_words(amount) == said


def test_keys_of_the_user_are_in_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the environment and of the file that `hf auth login` leaves, in whatever says them."""
    (tmp_path / "token").write_text("hf_from_the_file\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_from_the_shell")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    said = "401 for hf_from_the_shell, hf_from_the_file and key=0123456789abcdef."
    assert masked(said) == "401 for ***, *** and key=***."
    assert str(RecipeError(said)) == masked(said)
    monkeypatch.setenv("WANDB_API_KEY", "no")
    assert masked("nothing is no key") == "nothing is no key"


def test_a_run_of_one_epoch() -> None:
    history = simulate("sft", {"a": Learner(limit=9.0)}, num_train_epochs=1, evals_per_epoch=1)
    card = card_of(history, "m")
    assert "), after 1 epoch on the path to it; chosen from 2 scored points by" in card
    summary = summary_of(history)
    text = result_text(summary | {"best": summary["best"] | {"candidates": 1}})
    result, ended, *_ = text.splitlines()
    assert result.endswith(" after 1 epoch, chosen from 1 point on validation")
    assert ended == "ended: all epochs are trained; 1 epoch trained in all"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:token@host/path", "https://***@host/path"),
        ("https:/user:token@host/path", "https:/***@host/path"),
        ("see git+ssh://token@host, https://host/a@b", "see git+ssh://***@host, https://host/a@b"),
        ("'https://a:b@c' and 'https://d:e@f'", "'https://***@c' and 'https://***@f'"),
        ("https://host:8080/x", "https://host:8080/x"),
        ("me@example.org, C:/folder", "me@example.org, C:/folder"),
        ("\x1b[31mred\n", "\ufffd[31mred\n"),
    ],
)
def test_what_is_printed_has_no_credentials_and_no_escapes(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_text_in_markdown_is_text() -> None:
    assert in_markdown("<b>|*x*\n") == "&lt;b&gt;\\|\\*x\\*\ufffd"
