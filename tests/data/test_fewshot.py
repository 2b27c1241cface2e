"""Exemplars before scored rows: as many as fit, the same before every row."""

import json
from pathlib import Path
from typing import Any

import pytest

from msft.cli import main
from msft.data.corpus import SLACK, Corpus, load_corpus
from msft.engine.model.tokenizers import TINY_CONTEXT, load_context, tiny_tokenizer
from msft.errors import RecipeError
from msft.recipe.recipe import Recipe

LINE = 50
"""Bytes, and so tokens, of one exemplar: prompt, completion and the empty line after it."""


def rows(count: int, start: int = 0, choices: bool = False) -> list[dict[str, Any]]:
    """Prompts of 40 tokens with answers of 8."""
    found: list[dict[str, Any]] = []
    for n in range(start, start + count):
        prompt = f"{f'What follows {n:03}?':.<40}"
        found.append({"prompt": prompt, "completion": " 1234567"})
        if choices:
            found[-1] = {"prompt": prompt, "choices": [" 1234567", " " + "x" * 99], "answer": 0}
    return found


def corpus(shots: int, context: int | None, choices: bool = False, **keys: Any) -> Corpus:
    spec: dict[str, Any] = {"name": "a", "train": rows(30, 0, choices)}
    spec |= {"validation": rows(3, 100, choices)}
    spec |= {"test": rows(2, 200, choices), "num_fewshot": shots, **keys}
    recipe = Recipe.from_mapping(
        {"model_name_or_path": "tiny", "datasets": [spec], "max_length": 200 if choices else 50}
    )
    return load_corpus(recipe, tiny_tokenizer(), context)


def test_as_many_exemplars_as_the_model_has_places_for() -> None:
    assert load_context("tiny") == TINY_CONTEXT == 512
    row = 40 + 8 + 1 + SLACK
    for shots, context, fit in [
        (9, 9 * LINE + row, 9),
        (9, 9 * LINE + row - 1, 8),
        (9, row, 0),
        (9, None, 9),
        (12, TINY_CONTEXT, 9),
    ]:
        (data,) = corpus(shots, context).datasets.values()
        assert len(data.exemplars) == fit
        assert len(data.train.rows) == 30 - shots
        assert len(data.notes) == int(fit < shots), "said once"
        assert data.shots.count("\n\n") == fit
    assert data.notes[0] == (
        "9 instead of 12 exemplars, which would take 600 tokens before up to 57 of a scored row; "
        "the model has places for 512"
    )


def test_rows_may_not_be_longer_than_the_model_has_places_for() -> None:
    with pytest.raises(RecipeError, match="max_length is 50 tokens, but the model has places for"):
        corpus(0, 49)


def test_a_long_answer_leaves_fewer_places() -> None:
    (data,) = corpus(9, TINY_CONTEXT, max_new_tokens=200).datasets.values()
    assert len(data.exemplars) == (512 - 240) // LINE == 5


def test_the_longest_choice_must_fit_too() -> None:
    """Each is measured, right or wrong."""
    (data,) = corpus(9, TINY_CONTEXT, choices=True).datasets.values()
    assert len(data.exemplars) == (512 - 40 - 100 - SLACK) // LINE == 7


def test_those_that_fit_are_the_first_ones_and_count_in_the_fingerprint() -> None:
    many, few = corpus(9, None), corpus(9, TINY_CONTEXT - 200)
    first = many.datasets["a"].shots
    assert first.startswith(few.datasets["a"].shots)
    assert len(few.datasets["a"].exemplars) < 9
    assert many.fingerprint() != few.fingerprint()
    assert many.fingerprint() == corpus(9, TINY_CONTEXT * 2).fingerprint()


@pytest.mark.parametrize("choices", [False, True])
def test_exemplars_stand_before_every_prompt(
    tmp_path: Path, choices: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for split, found in (("train", rows(20, 0, choices)), ("test", rows(3, 100, choices))):
        text = "".join(json.dumps(row) + "\n" for row in found)
        (tmp_path / f"{split}.jsonl").write_text(text)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model_name_or_path: tiny\n"
        f"datasets: [{{name: a, path: {tmp_path}, validation_fraction: 0.1, num_fewshot: 9}}]\n"
    )
    answers = tmp_path / "answers.jsonl"
    assert main(["eval", "tiny", str(recipe), "--answers", str(answers)]) == 0
    said = capsys.readouterr().err
    fit = 7 if choices else 9
    assert said.count("instead of 9 exemplars") == int(choices)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    shots = {line["prompt"][: fit * LINE] for line in lines}
    assert len(shots) == 1, "the same before every row"
    (before,) = shots
    trained = {row["prompt"] for row in rows(20)}
    assert [text[:40] in trained for text in before.split("\n\n")[:-1]] == [True] * fit
    assert [line["prompt"][fit * LINE :] for line in lines] == [r["prompt"] for r in rows(3, 100)]


def test_exemplars_change_what_the_model_says(tmp_path: Path) -> None:
    """They do not only stand in the file: likelihoods are other ones with them."""
    found: dict[int, list[list[float]]] = {}
    spec = {"train": rows(20, 0, True), "validation": rows(3, 100, True)}
    for split, data in spec.items():
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in data))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model_name_or_path: tiny\ndatasets: [{{name: a, path: {tmp_path}}}]\n")
    for shots in (0, 3):
        out = tmp_path / f"{shots}.jsonl"
        given = ["--set", f"datasets.a.num_fewshot={shots}", "--split", "validation"]
        assert main(["eval", "tiny", str(recipe), "--answers", str(out), *given]) == 0
        lines = out.read_text().splitlines()
        found[shots] = [json.loads(line)["likelihoods"] for line in lines]
    assert [len(row) for row in found[0]] == [2, 2, 2]
    assert all(a != b for a, b in zip(found[0], found[3], strict=True))


def test_rows_that_leave_few_places_for_an_answer_are_noted() -> None:
    """Prompts of 40 tokens, answers of 9 with their end."""
    (data,) = corpus(0, 53, max_new_tokens=14).datasets.values()
    said = (
        "can be answered with fewer than 14 tokens (at least 13), since the model has places for 53"
    )
    assert data.notes == (f"validation: 3 of 3 rows {said}", f"test: 2 of 2 rows {said}")
    spec = {"name": "a", "train": rows(1), "validation": rows(1, 100)}
    recipe = Recipe.from_mapping({"model_name_or_path": "tiny", "datasets": [spec]})
    assert corpus(0, 53).tasks(recipe)["a"].context == 53
    assert corpus(0, 57).datasets["a"].notes == ()
    assert "17 tokens (at least 16)" in corpus(0, 56).datasets["a"].notes[0], "by the reference"
    for keys in ({"metric": "nll"}, {"choices": True}):
        assert corpus(0, 200, max_new_tokens=199, **keys).datasets["a"].notes == ()
