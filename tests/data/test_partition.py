"""`split_by`: one dataset as one sub-dataset per value of a column."""

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from msft.benchmarks.public import MEDICAL_GROUPS
from msft.data.splits import LoadedDataset, load_datasets, question_of
from msft.errors import DataError
from msft.example import Example
from msft.recipe.recipe import Recipe

Row = dict[str, Any]
datasets = importlib.import_module("datasets")


def rows(values: Mapping[Any, int], start: int = 0, column: str = "kind") -> list[Row]:
    """So many rows of each value, in turns."""
    found: list[Row] = []
    for turn in range(max(values.values())):
        for value, count in values.items():
            if turn < count:
                number = start + len(found)
                found.append({"prompt": f"row {number}:", "completion": " x", column: value})
    return found


def own(train: Mapping[Any, int], other: Mapping[Any, int] | None = None, **keys: Any) -> Row:
    """A sub-dataset of the user's own, split by `kind`; values below two rows are pooled."""
    spec: Row = {"name": "a", "train": rows(train), "split_by": "kind", "split_min_rows": 2}
    if other is not None:
        spec["validation"] = rows(other, 1000)
    return spec | keys


def pieces(*specs: Row, **keys: Any) -> dict[str, LoadedDataset]:
    given = {"model_name_or_path": "tiny", "num_fewshot": 0, **keys, "datasets": list(specs)}
    return {found.spec.name: found for found in load_datasets(Recipe.from_mapping(given))}


def sizes(found: Mapping[str, LoadedDataset]) -> dict[str, tuple[int, int, int]]:
    return {name: (len(f.train), len(f.validation), len(f.test)) for name, f in found.items()}


def subjects(examples: Sequence[Example]) -> set[str]:
    return {example.subject for example in examples}


def test_every_value_is_a_sub_dataset_and_the_most_frequent_is_first() -> None:
    found = pieces(own({"red": 3, "blue": 5, "green": 3}, {"red": 1, "blue": 2, "green": 1}))
    assert sizes(found) == {"a.blue": (5, 2, 0), "a.green": (3, 1, 0), "a.red": (3, 1, 0)}
    assert list(found) == ["a.blue", "a.green", "a.red"], "equal ones by their names"
    for name, value in (("a.blue", "blue"), ("a.red", "red")):
        assert subjects(found[name].train) == {value}
        assert subjects(found[name].validation) == {value}
        assert found[name].notes == ()
        assert found[name].spec.split_by is None


def test_a_file_is_split_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows({"x": 4, 7: 3, True: 2})))
    spec = {**own({"x": 1}), "train": str(path), "validation_fraction": 0.3}
    assert sizes(pieces(spec)) == {"a.x": (3, 1, 0), "a.7": (2, 1, 0), "a.True": (1, 1, 0)}


def test_other_keys_apply_to_each() -> None:
    values = {"x": 9, "y": 6}
    spec = own(values, values, train_rows=4, validation_rows=5, keep=True, metric="nll")
    found = pieces(spec)
    assert sizes(found) == {"a.x": (4, 5, 0), "a.y": (4, 5, 0)}
    assert all(sub.spec.keep and sub.spec.metric == "nll" for sub in found.values())
    shots = pieces({**spec, "metric": "accuracy", "num_fewshot": 2})
    assert [len(sub.exemplars) for sub in shots.values()] == [2, 2]
    for sub in shots.values():
        assert subjects(sub.exemplars) == subjects(sub.train)


def test_values_with_few_rows_are_pooled_and_told() -> None:
    spec = own({"x": 3, "y": 1, "z": 1}, {"x": 1, "y": 1, "z": 1})
    found = pieces(spec)
    assert sizes(found) == {"a.x": (3, 1, 0), "a.other": (2, 2, 0)}
    assert found["a.x"].notes == ()
    assert found["a.other"].notes == (
        "2 values of kind with fewer than 2 train rows or none in another split are pooled: y 1, "
        "z 1",
    )
    assert list(pieces({**spec, "split_min_rows": 1})) == ["a.x", "a.y", "a.z"]
    with pytest.raises(DataError, match=r"no value has 4 train rows .*: x 3, y 1, z 1"):
        pieces({**spec, "split_min_rows": 4})


@pytest.mark.parametrize("split", ["validation", "test"])
def test_values_that_a_split_lacks_are_pooled(split: str) -> None:
    spec = own({"x": 3, "y": 3, "z": 1}, {"x": 1, "y": 1, "z": 1}, test=rows({"x": 1}, 2000))
    spec["test"] = rows({"x": 1, "y": 1, "z": 1}, 2000)
    spec[split] = rows({"x": 1, "z": 1}, 3000)
    found = pieces(spec)
    assert list(found) == ["a.x", "a.other"]
    assert subjects(found["a.other"].train) == {"y", "z"}
    assert found["a.other"].notes[0].endswith("are pooled: y 3, z 1")


def test_a_value_that_is_only_scored_is_pooled() -> None:
    found = pieces(own({"x": 3, "y": 1}, {"x": 1, "new": 2}))
    assert sizes(found) == {"a.x": (3, 1, 0), "a.other": (1, 2, 0)}
    assert found["a.other"].notes[0].endswith("are pooled: new 0, y 1")


def test_empty_values_are_pooled() -> None:
    found = pieces(own({"x": 3, None: 3, "": 2, " ": 1}, {"x": 1, None: 1}))
    assert sizes(found) == {"a.x": (3, 1, 0), "a.other": (6, 1, 0)}
    assert found["a.other"].notes[0].endswith("is pooled: (empty) 6")


def test_pooled_values_without_rows_in_a_split_are_refused() -> None:
    with pytest.raises(DataError) as caught:
        pieces(own({"x": 3, "y": 1}, {"x": 1}))
    assert str(caught.value) == (
        "a: split_by kind leaves the values y 1 with fewer than 2 train rows, and together they "
        "have no validation rows; lower split_min_rows, or remove these rows"
    )
    with pytest.raises(DataError, match=r"new 0 with fewer.*no train rows"):
        pieces(own({"x": 3}, {"x": 1, "new": 1}))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["C+", "C-", "C"], ["a.C", "a.C-2", "a.C-3"]),
        (["Ä", "A"], ["a.A", "a.A-2"]),
        (["日本", "中国"], ["a.value", "a.value-2"]),
        (["Cat", "cat", "CAT"], ["a.CAT", "a.Cat-2", "a.cat-3"]),
        (["C+", "C", "C-2"], ["a.C", "a.C-2", "a.C-2-2"]),
        (["../up", "a b/c", "v1.2"], ["a.a-b-c", "a.up", "a.v1.2"]),
        (["x" * 300, "x" * 300 + "y"], ["a." + "x" * 88, "a." + "x" * 88 + "-2"]),
        (["con", "nul"], ["a.con", "a.nul"]),
    ],
)
def test_names_are_plain_and_never_agree(values: list[str], names: list[str]) -> None:
    counts = dict.fromkeys(values, 2)
    found = pieces(own(counts, counts))
    assert sorted(found, key=str.casefold) == sorted(names, key=str.casefold)
    seen = [subjects(sub.train) for sub in found.values()]
    assert sorted(map(sorted, seen)) == sorted([value] for value in values)


def test_a_value_called_as_the_pool_is() -> None:
    counts = {"other": 3, "x": 1}
    found = pieces(own(counts, counts))
    assert {name: subjects(sub.train) for name, sub in found.items()} == {
        "a.other": {"other"},
        "a.other-2": {"x"},
    }


@given(
    st.lists(st.text(max_size=120), min_size=1, max_size=8, unique_by=str.strip),
    st.text("abc.-_", min_size=1, max_size=100).filter(lambda name: name not in (".", "..")),
)
def test_any_values_make_names_that_a_recipe_may_have(values: list[str], name: str) -> None:
    counts = dict.fromkeys(values, 2)
    assume(any(value.strip() for value in values))
    found = pieces(own(counts, counts, name=name))
    assert len({name.casefold() for name in found}) == len(found) == len(values)
    assert sum(size[0] for size in sizes(found).values()) == 2 * len(values)


def test_a_name_that_the_recipe_has_already_is_refused() -> None:
    other = {"name": "A.X", "train": rows({"x": 2}, 500), "validation": rows({"x": 1}, 600)}
    with pytest.raises(DataError, match=r"split_by made a sub-dataset of this name"):
        pieces(own({"x": 2}, {"x": 1}), other)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(DataError) as caught:
        pieces(own({"x": 2}, {"x": 1}, split_by="colour"))
    assert str(caught.value) == (
        "sub-dataset 'a', train, row 1: split_by is 'colour', which is no column here (found "
        "['completion', 'kind', 'prompt']) (and so in all 2 rows: none can be read)"
    )


@pytest.mark.parametrize("value", [1.5, [1], {"x": 1}])
def test_a_value_that_is_no_text(value: Any) -> None:
    spec = own({"x": 2}, {"x": 1})
    spec["train"][1]["kind"] = value
    with pytest.raises(DataError, match=r"row 2: kind is .*; split_by needs text or a wh"):
        pieces(spec)


def test_held_out_rows_come_from_each() -> None:
    found = pieces(own({"x": 30, "y": 10}, validation_fraction=0.2))
    assert sizes(found) == {"a.x": (24, 6, 0), "a.y": (8, 2, 0)}
    for sub in found.values():
        assert subjects(sub.train) == subjects(sub.validation)


def test_the_same_row_with_two_values_is_told_and_not_refused() -> None:
    """Each sub-dataset is clean; between them it is a note of the corpus."""
    spec = own({"x": 2, "y": 2}, {"x": 1, "y": 1})
    spec["validation"][1]["prompt"] = spec["train"][0]["prompt"]
    found = pieces(spec)
    asked = question_of(found["a.y"].validation[0])
    assert asked in {question_of(row) for row in found["a.x"].train}


def test_bad_rows_are_counted_once() -> None:
    spec = own({"x": 2, "y": 2}, {"x": 1, "y": 1}, skip_bad_rows=True)
    spec["train"].append({"prompt": "p", "completion": "", "kind": "x"})
    notes = [note for sub in pieces(spec).values() for note in sub.notes]
    assert len(notes) == 1
    assert notes[0].startswith("train: 1 bad row skipped")


def test_a_made_benchmark_has_no_columns() -> None:
    with pytest.raises(DataError, match="split_by is 'kind', but the rows of demo_teams are made"):
        pieces({"name": "a", "benchmark": "demo_teams", "split_by": "kind"})


# Benchmarks


def flat(count: int, subject: str | None, start: int) -> list[Row]:
    return [
        {"question": f"Bone {n}?", "context": None, "choices": list("wxyz"), "answer": n % 4}
        | {"subject": subject}
        for n in range(start, start + count)
    ]


def hub_row(row: Row) -> Row:
    """The same in the schema of the hub."""
    choices = dict(zip(("opa", "opb", "opc", "opd"), row["choices"], strict=True))
    return {
        "question": row["question"],
        **choices,
        "cop": row["answer"],
        "choice_type": "single",
        "exp": None,
        "subject_name": row["subject"],
        "topic_name": None,
    }


SPLITS = {
    "train": flat(5, "Anatomy", 0) + flat(3, "Skin", 10) + flat(1, "ENT", 20),
    "validation": flat(2, "Anatomy", 100) + flat(1, "Skin", 110) + flat(1, "ENT", 120),
    "test": flat(1, "Anatomy", 200) + flat(1, "Skin", 210) + flat(1, "ENT", 220),
}
MEDMCQA = {"name": "med", "benchmark": "medmcqa", "split_by": "subject", "split_min_rows": 3}


@pytest.mark.parametrize(
    ("of_hub", "column"), [(False, "subject"), (True, "subject"), (True, "subject_name")]
)
def test_a_benchmark_is_split_by_its_subject(tmp_path: Path, of_hub: bool, column: str) -> None:
    for split, found in SPLITS.items():
        lines = [json.dumps(hub_row(row) if of_hub else row) + "\n" for row in found]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    sub_datasets = pieces({**MEDMCQA, "path": str(tmp_path), "split_by": column})
    assert sizes(sub_datasets) == {
        "med.Anatomy": (5, 2, 1),
        "med.Skin": (3, 1, 1),
        "med.other": (1, 1, 1),
    }
    assert {sub.group for sub in sub_datasets.values()} == {
        "Anatomy",
        "Medicine & Skin",
        "Eye & ENT",
    }
    assert all(sub.grader is not None for sub in sub_datasets.values())
    assert sub_datasets["med.Skin"].train[0].prompt.startswith("Q: Bone 10?\noptions: A. w")


def test_a_benchmark_without_subjects_has_none_to_split_by(tmp_path: Path) -> None:
    row = {"question": "Where?", "choices": {"label": ["A", "B"], "text": ["x", "y"]}}
    (tmp_path / "train.jsonl").write_text(json.dumps({**row, "answerKey": "A"}))
    spec = {**MEDMCQA, "benchmark": "commonsenseqa", "path": str(tmp_path)}
    with pytest.raises(DataError, match=r"no column here \(found \['answerKey', 'choices', 'ques"):
        pieces(spec)


def test_each_subject_of_the_hub_holds_out_validation_rows_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`validation_rows` is of each, however many there are."""
    train = [hub_row(row) for s in range(10) for row in flat(50, f"S{s}", 100 * s)]
    test = [hub_row(row) for s in range(10) for row in flat(2, f"S{s}", 5000 + 100 * s)]
    hub = {"train": train, "validation": test}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, configuration: hub)
    found = pieces({**MEDMCQA, "validation_rows": 8})
    assert sizes(found) == {f"med.S{s}": (42, 8, 2) for s in range(10)}
    assert sizes(pieces(MEDMCQA))["med.S3"] == (40, 10, 2), "at most a fifth"


# MedMCQA in eleven groups

BROAD = {
    "train": flat(5, "Pathology", 0)
    + flat(4, "Microbiology", 10)
    + flat(3, "Psychiatry", 20)
    + flat(3, "Radiology", 30)
    + flat(2, "Alchemy", 40),
    "validation": [
        row
        for n, s in enumerate(("Pathology", "Radiology", "Alchemy"))
        for row in flat(1, s, 99 + n)
    ],
    "test": [
        row
        for n, s in enumerate(("Microbiology", "Psychiatry", "Alchemy"))
        for row in flat(1, s, 200 + n)
    ],
}


def broad(folder: Path, of_hub: bool = False) -> str:
    for split, found in BROAD.items():
        lines = [json.dumps(hub_row(row) if of_hub else row) + "\n" for row in found]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return str(folder)


@pytest.mark.parametrize("of_hub", [False, True])
def test_a_benchmark_is_split_by_the_group_of_its_subject(tmp_path: Path, of_hub: bool) -> None:
    found = pieces({**MEDMCQA, "path": broad(tmp_path, of_hub), "split_by": "group"})
    assert sizes(found) == {
        "med.Pathology-Microbiology": (9, 1, 1),
        "med.Forensic-Psychiatry-Radiology": (6, 1, 1),
        "med.other": (2, 1, 1),
    }
    assert {sub.group for sub in found.values()} == {"science"}, "one each: nothing to sum up"


def test_subjects_stand_in_their_groups_where_the_benchmark_is_alone(tmp_path: Path) -> None:
    for split in BROAD:
        rows = [row for s in SUBJECTS for row in flat(3, s, hash_of(s, split))]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {**MEDMCQA, "path": str(tmp_path)}
    found = pieces(spec)
    assert {name: sub.group for name, sub in found.items()} == {
        "med.Alchemy": "other",
        "med.Microbiology": "Pathology & Microbiology",
        "med.Pathology": "Pathology & Microbiology",
        "med.Radiology": "Forensic, Psychiatry & Radiology",
    }
    both = pieces(spec, {"name": "mine", "benchmark": "demo_teams"})
    assert {sub.group for name, sub in both.items() if name != "mine"} == {"science"}
    by_topic = {**spec, "split_by": "answer", "split_min_rows": 1}
    assert {sub.group for sub in pieces(by_topic).values()} == {"science"}


SUBJECTS = ("Pathology", "Microbiology", "Radiology", "Alchemy")


def hash_of(subject: str, split: str) -> int:
    """Numbers of its own for the rows of each."""
    return 1000 * SUBJECTS.index(subject) + 100 * [*BROAD].index(split)


def test_another_benchmark_has_no_groups_to_split_by(tmp_path: Path) -> None:
    spec = {**MEDMCQA, "benchmark": "arc_easy", "path": broad(tmp_path), "split_by": "group"}
    with pytest.raises(DataError, match="split_by is 'group', which is no column here"):
        pieces(spec)


def test_the_table_of_the_docs_is_the_mapping() -> None:
    text = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text()
    head, _, rest = text.partition("| group | subjects |\n| --- | --- |\n")
    lines = rest.partition("\n\n")[0].splitlines()
    table = {
        subject: group
        for group, subjects in (line.strip("| ").split(" | ") for line in lines)
        for subject in subjects.split(", ")
    }
    assert table == MEDICAL_GROUPS
    assert len(table) == 21
    assert len(lines) == len({*table.values()}) == 11
    assert "the rest of this table is ours" in head
