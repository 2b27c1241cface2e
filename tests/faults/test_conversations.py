"""Conversations and chat templates that cannot be used: the row is named, and nothing hangs."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from program import Ended, run
from toys import write_lines

from msft.engine.model.loading import tiny_model
from msft.engine.model.tokenizers import tiny_tokenizer

Turns = list[dict[str, str]]
RECIPE = """model_name_or_path: model
method: sft
max_length: 256
datasets:
  - {name: chats, train: train.jsonl, validation: valid.jsonl, metric: nll}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "model"
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    tiny_model(len(tokenizer)).save_pretrained(folder)
    return folder


def turns(*texts: str, first: str = "user") -> Turns:
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


GOOD = [turns(f"question {number}", f"answer {number}") for number in range(6)]


def validated(
    folder: Path, model: Path, rows: Sequence[Turns], template: str | None = None
) -> Ended:
    shutil.copytree(model, folder / "model")
    if template is not None:
        (folder / "model" / "chat_template.jinja").write_text(template)
    for split, part in (("train", rows), ("valid", [turns("else", "other")] * 2)):
        write_lines(folder / f"{split}.jsonl", ({"messages": row} for row in part))
    (folder / "recipe.yaml").write_text(RECIPE)
    return run("validate", "recipe.yaml", cwd=folder, limit=30, memory=4_000_000_000)


def test_a_conversation_that_begins_with_the_assistant_is_refused(
    model: Path, tmp_path: Path
) -> None:
    rows = [*GOOD, turns("yes", "no?", "yes", first="assistant")]
    ended = validated(tmp_path, model, rows)
    assert ended.code == 2
    assert "train.jsonl, line 7: messages begins with a turn of the assistant" in ended.err


def test_good_conversations_are_taken(model: Path, tmp_path: Path) -> None:
    assert validated(tmp_path, model, GOOD).code == 0


FAILING = {
    "raises": ("x\n{{ raise_exception('only users here') }}", 1, 2, "only users here"),
    "raises at a row": (
        "{% for m in messages %}\n{% if m.content == 'question 3' %}\n"
        "{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}",
        *(4, 3, ": no;"),
    ),
    "is no template": ("\n\n{% for %}", 1, 3, "TemplateSyntaxError"),
    "misses something": ("{{ messages[0].foo.bar }}", 1, 1, "no attribute 'foo'"),
    "divides by zero": ("{{ 1 / 0 }}", 1, 1, "ZeroDivisionError"),
    "reaches inside": ("{{ ''.__class__.__mro__ }}", 1, 1, "unsafe"),
    "calls itself": (
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        *(1, 1, "RecursionError"),
    ),
    "wants 10 GB": ("{{ 'x' * 10000000000 }}", 1, 1, "MemoryError"),
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_template_that_fails_names_the_row_and_its_own_line(
    kind: str, model: Path, tmp_path: Path
) -> None:
    template, row, line, said = FAILING[kind]
    ended = validated(tmp_path, model, GOOD, template)
    assert ended.code == 2, ended.err
    place = f"train.jsonl, line {row}: this model's chat template failed in its line {line}:"
    assert place in ended.err
    assert said in ended.err


def test_a_template_that_never_ends_is_stopped(model: Path, tmp_path: Path) -> None:
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    ended = validated(tmp_path, model, GOOD, loops)
    assert ended.code == 2
    assert "train.jsonl, line 1: this model's chat template did not end within 5 s" in ended.err
    assert ended.seconds < 15


def test_a_conversation_without_end_is_refused_at_once(model: Path, tmp_path: Path) -> None:
    ended = validated(tmp_path, model, [*GOOD, turns(*["hi"] * 10_000)])
    assert ended.code == 2
    assert "train.jsonl, line 7: messages has 10,000 turns; expected 2,000 at most" in ended.err
    assert ended.seconds < 5


def test_a_long_conversation_that_does_not_fit_is_left_out_at_once(
    model: Path, tmp_path: Path
) -> None:
    ended = validated(tmp_path, model, [*GOOD, turns(*["hi"] * 2000)])
    assert ended.code == 0
    assert ended.seconds < 5
