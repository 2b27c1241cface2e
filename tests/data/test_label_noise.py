"""Wrong labels for studies: exactly as many as asked for, drawn by seed and name, in train only."""

import json
from pathlib import Path
from typing import Any

import pytest

from msft.cli import main
from msft.data.corpus import load_corpus
from msft.data.splits import LoadedDataset, load_datasets
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import DataError
from msft.example import Example
from msft.recipe.recipe import Recipe

WORDS = ["one", "two", "three", "four"]


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Own rows with four choices each."""
    return [
        {"prompt": f"Which is {n}?", "choices": [f" {w} {n}" for w in WORDS], "answer": n % 4}
        for n in range(start, start + count)
    ]


def recipe_of(seed: int = 20, top: dict[str, Any] | None = None, **keys: Any) -> Recipe:
    spec = {"name": "a", "train": rows(60), "validation": rows(20, 100), "test": rows(20, 200)}
    return Recipe.from_mapping(
        {
            "model_name_or_path": "tiny",
            "seed": seed,
            "datasets": [{**spec, **keys}],
            **(top or {}),
        }
    )


def loaded(seed: int = 20, **keys: Any) -> LoadedDataset:
    (only,) = load_datasets(recipe_of(seed, **keys))
    return only


def is_right(row: Example) -> bool:
    number = int(row.prompt.removeprefix("Which is ").rstrip("?"))
    assert row.answer is not None
    assert row.completion == row.choices[row.answer], "completion and answer say the same"
    return row.answer == number % 4


def wrong(found: LoadedDataset) -> list[str]:
    return [row.prompt for row in found.train if not is_right(row)]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.4, 24), (0.11, 7), (1.0, 60), (1, 60)])
def test_exactly_so_many_training_rows_get_a_wrong_choice(share: float, count: int) -> None:
    found = loaded(label_noise=share)
    assert len(wrong(found)) == count
    assert [row.prompt for row in found.train] == [row.prompt for row in loaded().train]
    assert all(map(is_right, (*found.validation, *found.test)))
    note = f"label_noise {share:g}: {count} of 60 train labels are made wrong, drawn by seed"
    assert found.notes == ((note,) if share else ())


def test_the_share_is_of_what_train_rows_leaves_and_held_out_rows_stay_clean() -> None:
    assert len(wrong(loaded(label_noise=0.5, train_rows=10))) == 5
    held = loaded(label_noise=1.0, validation=None, validation_fraction=0.5)
    assert len(wrong(held)) == len(held.train) == 30
    assert all(map(is_right, held.validation))


def test_every_wrong_choice_comes_up() -> None:
    found = loaded(label_noise=1.0)
    moved = {
        ((row.answer or 0) - int(row.prompt.removeprefix("Which is ").rstrip("?"))) % 4
        for row in found.train
    }
    assert moved == {1, 2, 3}


def test_rows_and_choices_are_drawn_by_seed_and_name() -> None:
    first = loaded(label_noise=0.4)
    assert loaded(label_noise=0.4).train == first.train
    assert wrong(loaded(21, label_noise=0.4)) != wrong(first)
    assert wrong(loaded(label_noise=0.4, name="b")) != wrong(first)
    answers = [row.answer for row in loaded(label_noise=1.0).train]
    assert [row.answer for row in loaded(label_noise=1.0, name="b").train] != answers


def test_exemplars_stay_clean() -> None:
    found = loaded(label_noise=1.0, num_fewshot=5)
    assert len(found.exemplars) == 5
    assert all(map(is_right, found.exemplars))
    assert len(wrong(found)) == len(found.train) == 55


def test_a_choice_that_says_the_same_as_the_right_one_is_not_wrong(tmp_path: Path) -> None:
    same = {"question": "Which word is it?", "choices": ["x", "x", "y"], "answer": 0}
    others = {"validation": "And this one?", "test": "And that one?"}
    write_benchmark(tmp_path, [same], {s: [{**same, "question": q}] for s, q in others.items()})
    keys = {"top": {"prompt_style": "text", "data_dir": str(tmp_path), "num_fewshot": 0}}
    for seed in range(6):
        (row,) = loaded(seed, label_noise=1.0, **BENCHMARK, **keys).train
        assert (row.completion, row.answer) == (" y", 2)


def test_rows_without_choices_are_refused_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"prompt": "p", "completion": "c"}\n')
    with pytest.raises(DataError) as caught:
        loaded(
            label_noise=0.4,
            train=str(file),
            validation=[{"prompt": "q", "completion": "c"}],
            test=None,
        )
    assert str(caught.value) == (
        f"{file}, line 1: label_noise is 0.4 at a, but this row has no wrong choice to take; leave "
        "label_noise out, or give rows of prompt, choices and answer"
    )


# Benchmarks, whose prompts are made from an item.

BENCHMARK: dict[str, Any] = {
    "name": "sciq",
    "benchmark": "sciq",
    "train": None,
    "validation": None,
    "test": None,
}


def write_benchmark(folder: Path, train: Any, held_out: Any) -> None:
    (folder / "sciq").mkdir()
    for split, found in {"train": train, **held_out}.items():
        text = "".join(json.dumps(row) + "\n" for row in found)
        (folder / "sciq" / f"{split}.jsonl").write_text(text)


def items(split: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f"What is word {n} of {split}?",
            "choices": [f"{w}{n}" for w in WORDS],
            "answer": n % 4,
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("style", ["letters", "text"])
@pytest.mark.parametrize("benchmark", ["sciq", "arc_easy", "commonsenseqa"])
def test_a_benchmark_s_answer_follows_the_wrong_choice_in_both_styles(
    tmp_path: Path, style: str, benchmark: str
) -> None:
    splits = {split: items(split, 40) for split in ("validation", "test")}
    write_benchmark(tmp_path, items("train", 40), splits)
    top = {"prompt_style": style, "data_dir": str(tmp_path), "num_fewshot": 2}
    keys = {**BENCHMARK, "benchmark": benchmark, "top": top}
    clean, noisy = loaded(**keys), loaded(label_noise=0.5, **keys)
    assert noisy.exemplars == clean.exemplars or all(
        a.completion == b.completion for a, b in zip(noisy.exemplars, clean.exemplars, strict=True)
    )
    changed = 0
    for before, after in zip(clean.train, noisy.train, strict=True):
        assert (after.prompt, after.choices, after.asks) == (
            before.prompt,
            before.choices,
            before.asks,
        )
        if after.completion == before.completion:
            assert (after.answer, after.label) == (before.answer, before.label)
            continue
        changed += 1
        if style == "text":
            assert after.answer is not None
            assert after.completion == after.choices[after.answer]
        elif benchmark == "sciq":
            assert after.completion.startswith(" #### ")
            assert after.completion[6:-1].rstrip("0123456789") in WORDS
        else:
            assert after.completion == f" #### {after.label}"
    assert changed == 19, "round(0.5 · 38)"
    assert [row.completion for row in noisy.validation] == [r.completion for r in clean.validation]


def test_it_changes_the_data_s_fingerprint_and_the_tokens_that_are_trained() -> None:
    plain, noisy = (
        load_corpus(recipe_of(label_noise=share), tiny_tokenizer()) for share in (0.0, 0.4)
    )
    assert plain.fingerprint() != noisy.fingerprint()
    before, after = plain.datasets["a"], noisy.datasets["a"]
    differ = [a != b for a, b in zip(before.train.rows, after.train.rows, strict=True)]
    assert sum(differ) == 24
    assert (before.validation, before.test) == (after.validation, after.test)


def test_validate_says_how_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, start in (("train", 0), ("validation", 100)):
        text = "".join(json.dumps(row) + "\n" for row in rows(10, start))
        (tmp_path / f"{split}.jsonl").write_text(text)
    (tmp_path / "r.yaml").write_text(
        "model_name_or_path: tiny\ndatasets:\n"
        "- {name: a, train: train.jsonl, validation: validation.jsonl, label_noise: 0.4}\n"
    )
    assert main(["validate", str(tmp_path / "r.yaml")]) == 0
    said = capsys.readouterr().out
    assert "note: a: label_noise 0.4: 4 of 10 train labels are made wrong, drawn by seed" in said
