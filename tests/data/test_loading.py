"""Loading: benchmarks from folders and from the hub, exemplars, and rows that ask the same."""

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msft.data.corpus import load_corpus
from msft.data.sources import hub_sources, refuse_missing_files
from msft.data.splits import (
    LoadedDataset,
    _asked,
    load_datasets,
    question_of,
    shared_between,
)
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import DataError, RecipeError
from msft.example import Example
from msft.recipe.recipe import Recipe
from msft.text import SELECTED_ON_TEST

Rows = Sequence[dict[str, Any]]
datasets = importlib.import_module("datasets")
ABCDE = ["A", "B", "C", "D", "E"]


def jsonl(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def own(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(start, start + count)
    ]


def flat(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows of commonsenseqa in the one schema of data folders."""
    return [
        {"question": f"What is word {n}?", "context": None, "choices": ["x", "y"], "answer": n % 2}
        for n in range(start, start + count)
    ]


def csqa(count: int, start: int = 0) -> list[dict[str, Any]]:
    """The same rows as the hub has them, with five choices."""
    return [
        {
            "id": str(n),
            "question": f"What is word {n}?",
            "question_concept": "word",
            "choices": {"label": ABCDE, "text": ["v", "w", "x", "y", "z"]},
            "answerKey": ABCDE[n % 5],
        }
        for n in range(start, start + count)
    ]


def obqa(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "id": str(n),
            "question_stem": f"Kettle number {n} sings",
            "choices": {"text": ["a", "b", "c", "d"], "label": ABCDE[:4]},
            "answerKey": ABCDE[n % 4],
        }
        for n in range(start, start + count)
    ]


def folder_of(folder: Path, train: Rows, validation: Rows = (), test: Rows = ()) -> Path:
    for split, rows in (("train", train), ("validation", validation), ("test", test)):
        if rows:
            jsonl(folder / f"{split}.jsonl", rows)
    return folder


def recipe(*specs: dict[str, Any], folder: Path | None = None, **keys: Any) -> Recipe:
    given = {"model_name_or_path": "tiny", "num_fewshot": 0, **keys, "datasets": list(specs)}
    return Recipe.from_mapping(given, folder=folder)


def loaded(spec: dict[str, Any], folder: Path | None = None, **keys: Any) -> LoadedDataset:
    (only,) = load_datasets(recipe({"name": "a", **spec}, folder=folder, **keys))
    return only


def sizes(data: LoadedDataset) -> tuple[int, int, int]:
    return len(data.train), len(data.validation), len(data.test)


def questions(rows: Sequence[Example]) -> set[str]:
    return set(map(question_of, rows))


CSQA = {"benchmark": "commonsenseqa"}
PROMPT = "Q: What is word 0?\noptions: A. x, B. y\nA:"


# Folders


def test_a_benchmark_comes_from_the_data_folder(tmp_path: Path) -> None:
    folder_of(tmp_path / "commonsenseqa", flat(4), flat(2, 10), flat(3, 20))
    sub = loaded(CSQA, data_dir=str(tmp_path))
    assert sizes(sub) == (4, 2, 3)
    assert sub.train[0].prompt == PROMPT
    assert sub.train[1].completion == " #### B"
    assert sub.train[0].where == f"{tmp_path / 'commonsenseqa' / 'train.jsonl'}, line 1"
    assert sub.format == "commonsenseqa"
    assert sub.group == "commonsense"
    assert sub.grader is not None
    assert sub.grader.extracted(sub.train[1].completion) == "B"
    text = loaded(CSQA, data_dir=str(tmp_path), prompt_style="text")
    assert (text.train[1].choices, text.train[1].answer) == ((" x", " y"), 1)


def test_a_folder_may_have_the_schema_of_the_hub(tmp_path: Path) -> None:
    folder_of(tmp_path / "commonsenseqa", csqa(4), csqa(2, 10), csqa(3, 20))
    data = loaded(CSQA, data_dir=str(tmp_path))
    assert sizes(data) == (4, 2, 3)
    assert data.train[2].prompt.endswith("options: A. v, B. w, C. x, D. y, E. z\nA:")
    assert data.train[2].completion == " #### C"


def test_a_folder_named_after_the_sub_dataset_comes_first(tmp_path: Path) -> None:
    folder_of(tmp_path / "commonsenseqa", flat(4), flat(2, 10))
    assert len(loaded(CSQA, data_dir=str(tmp_path)).train) == 4
    folder_of(tmp_path / "a", flat(5), flat(2, 10))
    assert len(loaded(CSQA, data_dir=str(tmp_path)).train) == 5


def test_a_benchmark_has_a_path_of_its_own(tmp_path: Path) -> None:
    folder_of(tmp_path / "mine", flat(3), flat(2, 10))
    folder_of(tmp_path / "data" / "commonsenseqa", flat(4), flat(2, 10))
    data = loaded({**CSQA, "path": "mine"}, tmp_path, data_dir=str(tmp_path / "data"))
    assert sizes(data) == (3, 2, 0)


def test_own_data_does_not_come_from_the_data_folder(tmp_path: Path) -> None:
    jsonl(tmp_path / "t.jsonl", own(3))
    spec = {"train": "t.jsonl", "validation_fraction": 0.4}
    assert sizes(loaded(spec, tmp_path, data_dir=str(tmp_path / "gone"))) == (2, 1, 0)


@pytest.mark.parametrize("there", [False, True])
def test_a_data_folder_that_is_none(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "data"
    if there:
        path.write_text("a file")
    with pytest.raises(RecipeError, match="no such folder; expected one with a folder for each"):
        loaded(CSQA, data_dir=str(path))


def test_a_data_folder_without_the_benchmark_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "openbookqa").mkdir()
    (tmp_path / "arc_easy").mkdir()
    (tmp_path / "commonsenseqa").write_text("a file")
    with pytest.raises(DataError) as caught:
        loaded(CSQA, data_dir=str(tmp_path))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}: no folder commonsenseqa in it")
    assert "['arc_easy', 'openbookqa']" in message


def test_a_benchmark_folder_without_train_says_what_it_has(tmp_path: Path) -> None:
    jsonl(tmp_path / "commonsenseqa" / "dev.jsonl", flat(3))
    with pytest.raises(DataError, match=r"no train file in this folder \(found \['dev.jsonl'\]"):
        loaded(CSQA, data_dir=str(tmp_path))


def test_a_relative_data_folder_is_here_or_beside_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    beside = tmp_path / "beside"
    folder_of(beside / "data" / "commonsenseqa", flat(4), flat(2, 10))
    assert len(loaded(CSQA, beside, data_dir="data").train) == 4
    folder_of(here / "data" / "commonsenseqa", flat(5), flat(2, 10))
    assert len(loaded(CSQA, beside, data_dir="data").train) == 5, "here comes first"
    with pytest.raises(RecipeError, match="data_dir is 'nowhere'"):
        loaded(CSQA, beside, data_dir="nowhere")


def test_rows_of_a_folder_are_the_user_s_to_mend(tmp_path: Path) -> None:
    train = [*flat(4), {**flat(1, 4)[0], "answer": 2}]
    folder_of(tmp_path / "commonsenseqa", train, flat(2, 10))
    with pytest.raises(DataError, match=r"train.jsonl, line 5: answer is 2 of 2 choices"):
        loaded(CSQA, data_dir=str(tmp_path))
    data = loaded({**CSQA, "skip_bad_rows": True}, data_dir=str(tmp_path))
    assert len(data.train) == 4
    assert data.notes[0].startswith("train: 1 bad row skipped (first: ")


def test_a_row_of_a_benchmark_must_be_an_object(tmp_path: Path) -> None:
    (tmp_path / "commonsenseqa").mkdir()
    (tmp_path / "commonsenseqa" / "train.json").write_text("[3]")
    with pytest.raises(DataError, match=r"train.json.*found 3; expected an object"):
        loaded(CSQA, data_dir=str(tmp_path))


# The hub

Hub = Callable[[dict[str, Any]], list[tuple[str, str | None]]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with one dataset, which keeps what it was asked for."""

    def with_splits(splits: dict[str, Any]) -> list[tuple[str, str | None]]:
        asked: list[tuple[str, str | None]] = []

        def load_dataset(name: str, configuration: str | None) -> dict[str, Any]:
            asked.append((name, configuration))
            return splits

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    return with_splits


class Hidden:
    """A split without labels; reading it is a mistake."""

    def __iter__(self) -> Any:
        raise AssertionError("the hidden split was read")


def table(rows: Rows) -> Any:
    return datasets.Dataset.from_list(list(rows))


def test_a_benchmark_comes_from_the_hub_by_its_name(hub: Hub) -> None:
    asked = hub({"train": obqa(5), "validation": table(obqa(2, 10)), "test": obqa(3, 20)})
    data = loaded({"benchmark": "openbookqa"})
    assert asked == [("allenai/openbookqa", "main")]
    assert sizes(data) == (5, 2, 3)
    assert data.train[1].completion == " #### B"
    assert data.train[1].where == "a, train, row 2"


def test_a_dataset_object_of_the_hub_is_read(hub: Hub) -> None:
    hub({"train": table(csqa(10)), "validation": table(csqa(3, 20)), "test": Hidden()})
    data = loaded(CSQA)
    assert sizes(data) == (8, 2, 3)
    assert data.test[0].prompt.startswith("Q: What is word 20?\noptions: A. v, B. w,")


def test_a_hidden_test_is_not_read_and_validation_is_held_out(hub: Hub) -> None:
    asked = hub({"train": csqa(50), "validation": csqa(7, 100), "test": Hidden()})
    data = loaded(CSQA)
    assert asked == [("tau/commonsense_qa", None)]
    assert sizes(data) == (40, 10, 7), "at most a fifth"
    assert questions(data.test) == {f"whatisword{n}" for n in range(100, 107)}
    assert questions(data.train) | questions(data.validation) == {
        f"whatisword{n}" for n in range(50)
    }
    assert not questions(data.train) & questions(data.validation)
    assert loaded({**CSQA, "validation_rows": 5}).notes == ()
    assert sizes(loaded({**CSQA, "validation_rows": 5})) == (45, 5, 7)
    assert sizes(loaded({**CSQA, "validation_fraction": 0.5})) == (25, 25, 7)


def test_a_path_names_another_copy_on_the_hub(hub: Hub) -> None:
    asked = hub({"train": csqa(10), "validation": csqa(2, 20), "test": Hidden()})
    data = loaded({**CSQA, "path": "someone/copy:small"})
    assert asked == [("someone/copy", "small")]
    assert sizes(data) == (8, 2, 2)


def test_bad_rows_of_the_hub_are_skipped_and_counted(hub: Hub) -> None:
    bad = {**csqa(1, 50)[0], "answerKey": ""}
    hub({"train": [bad, *csqa(10), bad], "validation": [*csqa(2, 20), bad], "test": Hidden()})
    data = loaded(CSQA)
    assert sizes(data) == (8, 2, 2)
    train, test = data.notes
    assert train.startswith("train: 2 bad rows skipped (first: a, train, row 1: the label is ''")
    assert test.startswith("test: 1 bad row skipped (first: a, test, row 3: ")


def test_a_hub_of_bad_rows_only_is_refused(hub: Hub) -> None:
    hub({"train": own(3), "validation": csqa(2, 20)})
    with pytest.raises(DataError, match=r"a, train: no rows; .* all 3 are bad, the first is"):
        loaded(CSQA)


def test_a_hub_without_train_is_refused(hub: Hub) -> None:
    hub({"validation": csqa(2)})
    with pytest.raises(DataError, match="a: no train split; expected one among test"):
        loaded(CSQA)


def test_official_splits_that_overlap_lose_rows_from_train(hub: Hub) -> None:
    same = [{**row, "question_stem": row["question_stem"].upper() + "!"} for row in obqa(2)]
    train, validation = [*obqa(10), *obqa(1, 51)], obqa(3, 50)
    hub({"train": train, "validation": [*validation, same[0]], "test": same})
    data = loaded({"benchmark": "openbookqa"})
    assert sizes(data) == (8, 3, 2)
    assert questions(data.train) == questions(loaded({"benchmark": "openbookqa"}).train)
    assert not questions(data.train) & (questions(data.validation) | questions(data.test))
    assert not questions(data.validation) & questions(data.test)
    why = "left out, since a later split asks the same"
    assert data.notes == (
        f"validation: 1 row of the official split is {why}",
        f"train: 3 rows of the official split are {why}",
    )


def test_the_data_folder_comes_before_the_hub(hub: Hub, tmp_path: Path) -> None:
    asked = hub({"train": csqa(10), "validation": csqa(2, 20)})
    folder_of(tmp_path / "commonsenseqa", flat(4), flat(2, 10))
    assert len(loaded(CSQA, data_dir=str(tmp_path)).train) == 4
    assert asked == []


def test_what_rows_ask_is_not_held_any_longer_than_it_is_compared(tmp_path: Path) -> None:
    folder_of(tmp_path / "commonsenseqa", flat(9), flat(2, 10))
    keys = {"model_name_or_path": "tiny", "data_dir": str(tmp_path)}
    recipe = Recipe.from_mapping({**keys, "datasets": [{"name": "a", **CSQA}]})
    load_datasets(recipe)
    assert _asked
    load_corpus(recipe, tiny_tokenizer())
    assert not _asked


# Exemplars


def test_exemplars_are_drawn_by_the_seed(tmp_path: Path) -> None:
    folder_of(tmp_path / "commonsenseqa", flat(60), flat(5, 100), flat(5, 200))

    def exemplars(seed: int, **keys: Any) -> list[str]:
        data = loaded(CSQA, data_dir=str(tmp_path), seed=seed, **{"num_fewshot": 3, **keys})
        return [row.where for row in data.exemplars]

    assert len(set(exemplars(20))) == 3
    assert exemplars(20) == exemplars(20)
    assert exemplars(20) != exemplars(21)
    assert len(exemplars(20, num_fewshot=None)) == 5, "what the paper has"
    assert exemplars(20, num_fewshot=0) == []


def test_every_sub_dataset_says_how_many_exemplars_it_has(tmp_path: Path) -> None:
    folder_of(tmp_path / "commonsenseqa", flat(60), flat(5, 100))
    both = recipe(
        {"name": "a", **CSQA, "num_fewshot": 2},
        {"name": "b", "train": own(9), "validation": own(2, 20)},
        {"name": "c", "train": own(9, 50), "validation": own(2, 70), "num_fewshot": 1},
        data_dir=str(tmp_path),
        num_fewshot=4,
    )
    assert [len(sub.exemplars) for sub in load_datasets(both)] == [2, 0, 1]


def test_rows_beyond_train_rows_serve_as_exemplars_first() -> None:
    spec = {"train": own(20), "validation": own(2, 50), "num_fewshot": 4, "train_rows": 16}
    data = loaded(spec)
    assert len(data.train) == 16
    assert questions(data.train) | questions(data.exemplars) == questions_of_rows(own(20))
    assert data.train == loaded({**spec, "num_fewshot": 0}).train
    assert len(loaded({**spec, "train_rows": 17}).train) == 16, "three are spare, one is not"
    assert len(loaded({**spec, "train_rows": 20}).train) == 16
    assert len(loaded({**spec, "train_rows": None}).train) == 16


def questions_of_rows(rows: Rows) -> set[str]:
    return {question_of(Example(row["prompt"], row["completion"])) for row in rows}


def test_some_rows_must_be_left_to_train() -> None:
    spec = {"train": own(4), "validation": own(2, 50)}
    assert len(loaded({**spec, "num_fewshot": 3}).train) == 1
    with pytest.raises(DataError, match="num_fewshot is 4, but there are only 4 train rows"):
        loaded({**spec, "num_fewshot": 4})
    with pytest.raises(DataError, match="but there is only 1 train row to choose from"):
        loaded({**spec, "train": own(1), "num_fewshot": 1})
    twice = {**spec, "train": [*own(2), *own(2)], "num_fewshot": 2}
    with pytest.raises(DataError, match="there are only 2 train rows to choose from"):
        loaded(twice)


def test_conversations_have_no_exemplars() -> None:
    chats = [
        {"messages": [{"role": "user", "content": str(n)}, {"role": "assistant", "content": "x"}]}
        for n in range(6)
    ]
    spec = {"train": chats[:4], "validation": chats[4:]}
    assert len(loaded(spec).train) == 4
    with pytest.raises(DataError, match="num_fewshot is 1, but its rows are conversations"):
        loaded({**spec, "num_fewshot": 1})


LETTERS = st.lists(st.sampled_from("abcdefghij"), min_size=6, max_size=30)


@given(LETTERS, st.integers(1, 4), st.integers(0, 5), st.integers(1, 12))
def test_an_exemplar_is_never_trained_or_scored(
    letters: list[str], shots: int, seed: int, most: int
) -> None:
    """With rows that repeat each other, in other case and with other blanks."""
    spellings = [letter.upper() if n % 2 else f" {letter} " for n, letter in enumerate(letters)]
    rows = [{"prompt": text, "completion": "x"} for text in spellings]
    spec = {"train": rows, "validation_fraction": 0.2, "train_rows": most}
    if len(set(letters)) < 2:
        return
    without = loaded(spec, seed=seed)
    trained = questions(without.train)
    spare = set(letters) - trained - questions(without.validation)
    if len(trained) <= shots - len(spare):
        with pytest.raises(DataError, match="some must be left to train"):
            loaded({**spec, "num_fewshot": shots}, seed=seed)
        return
    data = loaded({**spec, "num_fewshot": shots}, seed=seed)
    exemplars = questions(data.exemplars)
    assert len(data.exemplars) == len(exemplars) == shots
    assert not exemplars & (questions(data.train) | questions(data.validation))
    assert data.train
    assert data.validation == without.validation
    assert data.train == without.train or len(spare) < shots


# Rows that ask the same


@pytest.mark.parametrize(
    ("validation", "test", "message"),
    [
        (flat(2, 3), (), r"1 of 2 validation rows of a are also in train, so their scores"),
        (flat(2, 10), flat(3, 2), r"2 of 3 test rows of a are also in train, so their scores"),
        (flat(2, 10), flat(2, 11), r"1 of 2 test rows of a are also in validation, which choo"),
    ],
)
def test_overlap_in_a_folder_is_refused_with_examples(
    tmp_path: Path, validation: Rows, test: Rows, message: str
) -> None:
    path = folder_of(tmp_path / "commonsenseqa", flat(4), validation, test)
    with pytest.raises(DataError, match=message) as caught:
        loaded(CSQA, data_dir=str(tmp_path))
    assert ".jsonl, line 1 = " in str(caught.value)
    assert str(path) in str(caught.value)
    assert "('whatisword" in str(caught.value)


def test_a_benchmark_s_rows_are_compared_by_what_they_ask(tmp_path: Path) -> None:
    """Other choices, case and punctuation make no other question; another passage does."""
    leaked = {**flat(1)[0], "question": "what is -- WORD 0", "choices": ["p", "q"]}
    folder_of(tmp_path / "commonsenseqa", flat(4), [leaked])
    with pytest.raises(DataError, match="also in train"):
        loaded(CSQA, data_dir=str(tmp_path))
    folder_of(tmp_path / "commonsenseqa", flat(4), [{**leaked, "context": "Of two."}])
    assert sizes(loaded(CSQA, data_dir=str(tmp_path))) == (4, 1, 0)


def test_a_spare_row_that_is_scored_is_no_exemplar(tmp_path: Path) -> None:
    spec = {"train": own(3), "train_rows": 2, "num_fewshot": 1}
    spare = loaded({**spec, "validation": own(2, 50)}).exemplars[0]
    leaked = {"prompt": spare.prompt, "completion": spare.completion}
    with pytest.raises(DataError, match="also in exemplars, so the prompt would hold the answer"):
        loaded({**spec, "validation": [leaked]})


def test_what_another_sub_dataset_trains_is_told() -> None:
    long, short = "What is the capital of France?", "2 + 2"
    rows = {text: Example(text, "x") for text in (long, short, "How far away is the moon?")}
    notes = shared_between(
        {
            "a": {"train": [rows[long], rows[short]], "validation": [], "test": []},
            "b": {
                "train": [rows["How far away is the moon?"]],
                "validation": [rows[short]],
                "test": [rows[long], rows["How far away is the moon?"]],
            },
        }
    )
    assert notes == {"a": [], "b": ["test: 1 row asks what trained rows of a ask"]}


def test_a_dataset_that_is_a_script_is_read_from_the_hubs_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, str]] = []

    def load(name: str, configuration: str | None, **options: str) -> dict[str, list[int]]:
        asked.append(options)
        if not options:
            raise RuntimeError("Dataset scripts are no longer supported, but found logiqa.py")
        return {"train": [1], "test": [2]}

    monkeypatch.setattr("datasets.load_dataset", load)
    assert hub_sources("owner/name:some", {"train": "train", "test": "test"}) == {
        "train": [1],
        "test": [2],
    }
    assert asked == [{}, {"revision": "refs/convert/parquet"}]


# selection_split: test

ON_TEST: dict[str, Any] = {"model_name_or_path": "tiny", "selection_split": "test"}


def test_where_test_rows_select_no_validation_file_is_opened(tmp_path: Path) -> None:
    """Not even to see whether it is there, and nothing is held out of train."""
    train, test = (
        jsonl(tmp_path / "train.jsonl", own(20)),
        jsonl(tmp_path / "test.jsonl", own(5, 50)),
    )
    (tmp_path / "validation.jsonl").write_text("not JSON\n")
    files = {"train": str(train), "test": str(test)}
    datasets = [
        {"name": "file", **files, "validation": str(tmp_path / "nowhere.jsonl")},
        {"name": "share", **files, "validation_fraction": 0.5, "validation_rows": 1},
        {"name": "folder", "path": str(tmp_path)},
    ]
    recipe = Recipe(**ON_TEST, datasets=datasets)
    refuse_missing_files(recipe)
    for found in load_datasets(recipe):
        assert [row.prompt for row in found.train] == [row["prompt"] for row in own(20)]
        assert [row.prompt for row in found.test] == [row["prompt"] for row in own(5, 50)]
        assert found.validation == ()
        assert not any("validation" in note for note in found.notes)
    with pytest.raises(DataError, match="nowhere"):
        refuse_missing_files(replace(recipe, selection_split="validation"))


def test_a_benchmark_holds_nothing_out_where_test_rows_select(tmp_path: Path) -> None:
    folder_of(tmp_path / "commonsenseqa", flat(40), test=flat(10, 100))
    keys = {"name": "csqa", "benchmark": "commonsenseqa", "num_fewshot": 2}
    sizes: dict[Literal["validation", "test"], int] = {"validation": 30, "test": 38}
    for selection, trained in sizes.items():
        recipe = Recipe(
            "tiny", [keys], selection_split=selection, data_dir=str(tmp_path), prompt_style="text"
        )
        (found,) = load_datasets(recipe)
        assert len(found.train) == trained
        assert len(found.validation) == (8 if selection == "validation" else 0)
        asked = {example.asks for example in found.exemplars}
        assert len(asked) == 2, "exemplars are of train"
        assert not asked & {example.asks for example in found.test}
    (made,) = load_datasets(Recipe(**ON_TEST, datasets=[{"name": "a", "benchmark": "demo_gates"}]))
    assert made.validation == ()
    assert len(made.test) == 400


def test_no_test_rows_and_rows_that_are_trained_too_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path / "a", own(20), own(5, 50))
    recipe = Recipe(**ON_TEST, datasets=[{"name": "a", "path": str(tmp_path / "a")}])
    with pytest.raises(DataError, match="a: no test rows, but selection_split is test"):
        load_datasets(recipe)
    folder_of(tmp_path / "a", own(20), test=own(5, 18))
    with pytest.raises(DataError, match="2 of 5 test rows of a are also in train"):
        load_datasets(recipe)


def test_a_corpus_says_that_its_scores_are_optimistic(tmp_path: Path) -> None:
    folder_of(tmp_path / "a", own(20), own(5, 50), own(5, 60))
    recipe = Recipe(**ON_TEST, datasets=[{"name": "a", "path": str(tmp_path / "a")}])
    corpus = load_corpus(recipe, tiny_tokenizer())
    assert corpus.selection == "test"
    assert corpus.note == f"selection_split is test. {SELECTED_ON_TEST}"
    assert [*corpus.tasks(recipe)["a"].splits] == ["test"]
    plain = load_corpus(replace(recipe, selection_split="validation"), tiny_tokenizer())
    assert (plain.selection, plain.note) == ("validation", None)
    assert plain.fingerprint() != corpus.fingerprint()
