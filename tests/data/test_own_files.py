"""Data as people have it: several files, patterns, packed files, other columns, rows in memory."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import msft
from msft.cli import main
from msft.data.corpus import Corpus, load_corpus
from msft.data.formats import FORMATS
from msft.data.sources import refuse_missing_files
from msft.data.splits import load_datasets
from msft.engine.model.tokenizers import tiny_tokenizer, tokenizer_for
from msft.errors import DataError, Diverged, RecipeError
from msft.planning.admission import refuse_no_rows, resolved
from msft.recipe.dataset import FIELDS
from msft.recipe.recipe import Recipe, load_recipe, with_rows

pytestmark = pytest.mark.usefixtures("no_reports")

Row = dict[str, Any]


def pairs(*names: str) -> list[Row]:
    return [{"prompt": f"say {name}", "completion": f" {name}"} for name in names]


def lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def recipe(folder: Path | None = None, **spec: Any) -> Recipe:
    held = {} if {"validation", "path"} & set(spec) else {"validation": pairs("v")}
    keys = {"name": "a", **held, **spec}
    return Recipe.from_mapping({"model_name_or_path": "tiny", "datasets": [keys]}, folder=folder)


def trained(folder: Path | None = None, **spec: Any) -> list[str]:
    (found,) = load_datasets(recipe(folder, **spec))
    return [row.completion.strip() for row in found.train]


def corpus_of(given: Recipe) -> Corpus:
    return load_corpus(given, tokenizer_for(given, "tiny"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    for name in ("b/10", "b/9", "b/x", "one"):
        (tmp_path / f"{name}.jsonl").write_bytes(lines(pairs(name)))
    (tmp_path / "b/w.csv").write_text("prompt,completion\nsay csv,csv\n")
    return tmp_path


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("one.jsonl", ["one"]),
        (["one.jsonl"], ["one"]),
        (["b/x.jsonl", "one.jsonl"], ["b/x", "one"]),
        ("b/*.jsonl", ["b/10", "b/9", "b/x"]),
        ("b/?.jsonl", ["b/9", "b/x"]),
        ("**/*.jsonl", ["b/10", "b/9", "b/x", "one"]),
        (["b/9.jsonl", "b/*"], ["b/9", "b/10", "csv", "b/x"]),  # each once, where it is first
    ],
)
def test_several_files_and_patterns_are_read_in_a_stable_order(
    folder: Path, train: Any, expected: list[str]
) -> None:
    assert trained(folder, train=train) == expected


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "b/[9].jsonl").write_bytes(lines(pairs("brackets")))
    assert trained(folder, train="b/[9].jsonl") == ["brackets"]


def test_a_resolved_recipe_finds_the_same_files_from_anywhere(tmp_path: Path) -> None:
    place = tmp_path / "a [1]"
    place.mkdir()
    (place / "x.jsonl").write_bytes(lines(pairs("x")))
    (place / "y.jsonl").write_bytes(lines(pairs("y")))
    assert trained(place, train=["*.jsonl", "y.jsonl"]) == ["x", "y"]
    written = resolved(recipe(place, train=["*.jsonl"], validation="y.jsonl")).to_yaml()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/recipe.yaml").write_text(written)
    again = load_recipe(tmp_path / "elsewhere/recipe.yaml")
    assert again.datasets[0].train == (f"{tmp_path}/a [[]1]/*.jsonl",)
    refuse_missing_files(again)


PACKED = lines(pairs("p", "q"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", PACKED),
        ("a.JSONL.GZ", PACKED),
        ("a.json.gz", json.dumps(pairs("p", "q")).encode()),
        ("a.csv.gz", b"prompt,completion\nsay p,p\nsay q,q\n"),
        ("a.jsonl.gz", json.dumps(pairs("p", "q"), indent=1).encode()),
    ],
)
def test_a_packed_file_is_read_like_the_file_in_it(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content))
    assert trained(tmp_path, train=name) == ["p", "q"]


def test_a_folder_may_have_packed_files(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines(pairs(split))))
    assert trained(path=str(tmp_path)) == ["train"]


@pytest.mark.parametrize("start", ["", "\ufeff", "\n  "])
def test_one_list_in_a_jsonl_file_is_read(tmp_path: Path, start: str) -> None:
    text = start + json.dumps(pairs("p", "q"), indent=2)
    (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")
    assert trained(tmp_path, train="a.jsonl") == ["p", "q"]


def test_missing_files_are_told_all_at_once_with_line_and_sub_dataset(folder: Path) -> None:
    path = folder / "recipe.yaml"
    path.write_text(
        "model_name_or_path: tiny\n"
        "datasets:\n"
        "- name: mine\n"
        "  train: [one.jsonl, b/1*.csv]\n"
        "  validation: b/8.jsonl\n"
        "- name: yours\n"
        "  path: ./nowhere\n"
    )
    with pytest.raises(DataError) as caught:
        refuse_missing_files(load_recipe(path))
    head, *told = str(caught.value).split("\n  ")
    assert head == "3 sources of rows cannot be read:"
    assert [line.partition(";")[0].replace(f"{folder}/", "") for line in told] == [
        "recipe.yaml, line 4: sub-dataset 'mine', train: b/1*.csv: no file fits this pattern",
        "recipe.yaml, line 5: sub-dataset 'mine', validation: b/8.jsonl: there is no such file",
        "recipe.yaml, line 7: sub-dataset 'yours', path: nowhere: there is no such folder",
    ]
    mended = path.read_text().replace("b/1*.csv", "b/*.csv").replace("b/8", "b/9")
    path.write_text(mended.partition("- name: yours")[0])
    refuse_missing_files(load_recipe(path))


def test_columns_are_renamed_and_others_are_not_read() -> None:
    rows = [{"question": "say hi", "answer": " hi", "messages": [{"role": "user"}], "prompt": 7}]
    other = [{"question": "say ho", "answer": " ho"}]
    columns = {"prompt": "question", "completion": "answer"}
    (found,) = load_datasets(recipe(train=rows, validation=other, columns=columns))
    (row,) = found.train
    assert (row.prompt, row.completion, found.format) == (
        "say hi",
        " hi",
        "prompt+completion",
    )
    picked = {"prompt": "q", "choices": "options", "answer": "gold"}
    choices = [{"q": f"which {n}", "options": ["x", "y"], "gold": 1} for n in (1, 2)]
    (found,) = load_datasets(recipe(train=choices[:1], validation=choices[1:], columns=picked))
    assert found.train[0].completion == "y"
    with pytest.raises(DataError, match=r"row 1: columns names 'text', which this row does not"):
        trained(train=rows, columns={**columns, "completion": "text"})


def test_columns_go_together_with_split_by() -> None:
    rows = [{"q": f"{n}", "a": f" {n}", "topic": "xy"[n % 2]} for n in range(8)]
    columns = {"prompt": "q", "completion": "a"}
    spec = {"name": "s", "train": rows, "validation_fraction": 0.3, "columns": columns}
    keys = {"split_by": "topic", "split_min_rows": 1}
    found = load_datasets(
        Recipe.from_mapping({"model_name_or_path": "tiny", "datasets": [spec | keys]})
    )
    assert [each.spec.name for each in found] == ["s.x", "s.y"]


def test_columns_may_name_every_field_of_every_format() -> None:
    needed = {field for form in FORMATS.values() for field in form.needed}
    assert needed | {"input", "tools"} == set(FIELDS)


def test_loss_on_prompts_marks_every_token_of_train_and_none_else() -> None:
    rows: dict[str, Any] = {"train": pairs("x"), "validation": pairs("y")}
    usual = corpus_of(recipe(**rows))
    keys = {"model_name_or_path": "tiny", "datasets": [{"name": "a", **rows}]}
    whole = corpus_of(Recipe.from_mapping({**keys, "completion_only_loss": False}))
    (before,), (after,) = (each.datasets["a"].train.rows for each in (usual, whole))
    assert before.tokens == after.tokens
    assert (sum(before.answer), sum(after.answer)) == (3, len("say x x") + 1)
    assert after.answer_tokens == len("say x x")  # the first token cannot be predicted
    assert usual.datasets["a"].validation == whole.datasets["a"].validation
    assert usual.fingerprint() != whole.fingerprint()


@pytest.mark.parametrize(
    ("weight", "rows", "note"),
    [
        (0.5, 5, "weight 0.5: in each epoch 5 of 10 train rows drawn anew"),
        (2, 20, "weight 2: in each epoch every train row twice"),
        (1.25, 12, "weight 1.25: in each epoch every train row once and 2 of 10 train rows drawn"),
        (0.001, 1, "weight 0.001: in each epoch 1 of 10 train rows drawn anew"),
        (1, 10, ""),
    ],
)
def test_a_weight_gives_rows_per_epoch(weight: float, rows: int, note: str) -> None:
    given = recipe(train=pairs(*"abcdefghij"), weight=weight)
    dataset = corpus_of(given).datasets["a"]
    assert dataset.in_epoch(0) == (rows, rows * len("say a a "))
    assert corpus_of(given).mixture(0).rows == rows
    assert "".join(dataset.notes).startswith(note)
    assert bool(dataset.notes) == bool(note)


def test_rows_from_python_take_the_place_of_files() -> None:
    files = Recipe.from_mapping(
        {
            "model_name_or_path": "tiny",
            "datasets": [
                {"name": "a", "train": "gone.jsonl", "validation_fraction": 0.1, "keep": True},
                {"name": "b", "path": "./gone", "validation": pairs("v")},
            ],
        }
    )
    given = with_rows(
        files,
        {
            "a": {"train": pairs("x"), "validation": pairs("y"), "test": pairs("z")},
            "b": {"train": pairs("q")},
            "c": {"train": pairs("r"), "validation": pairs("s")},
        },
    )
    corpus = corpus_of(given)
    assert {n: len(d.train.rows) for n, d in corpus.datasets.items()} == dict.fromkeys("abc", 1)
    assert corpus.datasets["a"].spec.keep
    other = with_rows(given, {"a": {"train": pairs("w")}})
    assert corpus_of(other).fingerprint() != corpus.fingerprint()
    assert "<1 rows in memory>" in given.to_yaml()
    for wrong, says in (
        (3, "datasets is 3; expected names with their rows"),
        ({"a": pairs("x")}, r"datasets\['a'\] is \[.*; expected its splits"),
        ({"a": {"valid": []}}, r"unknown split of datasets\['a'\]: 'valid'.*'validation'"),
    ):
        with pytest.raises(RecipeError, match=says):
            with_rows(files, wrong)


def test_a_scored_row_without_a_prompt_is_refused_with_its_place(folder: Path) -> None:
    rows = [*pairs("x"), {"prompt": "", "completion": " y"}]
    (folder / "held.jsonl").write_bytes(lines(rows))
    keys: Row = {"folder": folder, "train": "one.jsonl", "test": "held.jsonl"}
    for metric in ("accuracy", "math:dist"):
        with pytest.raises(
            DataError, match=r"held.jsonl, line 2: 1 of 2 rows of test with no .*nll"
        ):
            corpus_of(recipe(**keys, metric=metric))
    assert len(corpus_of(recipe(**keys, metric="nll")).datasets["a"].test.rows) == 2  # type: ignore[union-attr]
    train: Row = {"folder": folder, "train": "held.jsonl"}
    assert len(corpus_of(recipe(**train)).datasets["a"].train.rows) == 2, "learned without one"


def test_a_run_goes_on_with_its_own_rows_only(tmp_path: Path) -> None:
    keys = {"method": "sft", "num_train_epochs": 1, "evals_per_epoch": 1, "train_batch_size": 2}
    spec = {"name": "a", "train": "gone.jsonl", "validation": pairs("v"), "weight": 2}
    given = Recipe.from_mapping({"model_name_or_path": "tiny", **keys, "datasets": [spec]})
    rows = {"a": {"train": pairs("x", "y")}}
    done = msft.train(given, tmp_path / "out", datasets=rows)
    assert done.summary["tokens"]["train"] == 2 * 2 * len("say x x ")
    assert msft.train(given, tmp_path / "out", datasets=rows).summary == done.summary
    with pytest.raises(Diverged, match="this folder holds another run"):
        msft.train(given, tmp_path / "out", datasets={"a": {"train": pairs("x", "z")}})


def test_a_dataset_of_the_hub_library_is_taken_as_it_is() -> None:
    datasets = pytest.importorskip("datasets")
    both = datasets.DatasetDict(
        train=datasets.Dataset.from_list(pairs("x", "y")),
        validation=datasets.Dataset.from_list(pairs("z")),
    )
    files = recipe(train="gone.jsonl")
    plain = with_rows(files, {"a": {"train": pairs("x", "y"), "validation": pairs("z")}})
    assert corpus_of(with_rows(files, {"a": both})).fingerprint() == corpus_of(plain).fingerprint()


def test_rows_to_score_are_looked_for_before_a_model_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "recipe.yaml"
    path.write_text(
        "model_name_or_path: tiny\ndatasets: [{name: a, train: one.jsonl, validation: b/x.jsonl}]\n"
    )
    assert main(["eval", "no/such-model", str(path)]) == 2
    assert capsys.readouterr().err == (
        "msft: no sub-dataset of this recipe has test rows; add `test: FILE` to one, or try "
        "--split validation\n"
    )
    refuse_no_rows(load_recipe(path), "validation")
    refuse_no_rows(load_recipe(path, ["datasets.a.test=b/9.jsonl"]), "test")
    fraction = "datasets=[{name: a, train: one.jsonl, validation_fraction: 0.1}]"
    refuse_no_rows(load_recipe(path, [fraction]), "validation")
    hub = "datasets=[{name: a, path: owner/name, validation_fraction: 0.1}]"
    refuse_no_rows(load_recipe(path, [hub]), "test")  # which nobody knows without asking the hub


def test_validate_shows_what_these_give(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "recipe.yaml"
    (folder / "chat.jsonl").write_bytes(
        lines(
            [
                {"said": [{"role": "user", "content": [{"type": "text", "text": "ping"}]}, answer]}
                for answer in [{"role": "assistant", "content": "pong"}]
            ]
        )
    )
    (folder / "chat.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    path.write_text(
        "model_name_or_path: tiny\n"
        "chat_template: chat.jinja\n"
        "completion_only_loss: false\n"
        "datasets:\n"
        "- name: chat\n"
        "  train: chat.*sonl\n"
        "  columns: {messages: said}\n"
        "  validation: valid.jsonl\n"
        "  weight: 3\n"
    )
    (folder / "valid.jsonl").write_bytes(
        lines([{"said": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}])
    )
    assert main(["validate", str(path), "--show", "1"]) == 0
    out = capsys.readouterr().out
    assert "⟦<user>ping<eos><assistant>pong<eos>⟧" in out
    assert "note: chat: columns: messages from said; other columns are not read" in out
    assert "note: chat: weight 3: in each epoch every train row 3 times" in out
    assert "one epoch: 3 rows, 81 tokens, 1 step" in out
    assert main(["plan", str(path), "--no-calibration", "--json"]) == 0
    epoch = json.loads(capsys.readouterr().out)["epoch"]
    assert (epoch["rows"], epoch["tokens"], epoch["steps"]) == (3, 81, 1)
    assert main(["validate", str(path), "--show", "1", "--set", "completion_only_loss=true"]) == 0
    assert "<user>ping<eos><assistant>⟦pong<eos>⟧" in capsys.readouterr().out


def test_a_template_that_is_not_there_or_is_none(folder: Path) -> None:
    spec = {"name": "a", "train": pairs("x"), "validation": pairs("y")}
    base = {"model_name_or_path": "tiny", "datasets": [spec]}
    (folder / "text.jinja").write_text("no template")
    (folder / "good.jinja").write_text("{{ messages }}")
    for written, says in (
        ("chat", r"'chat', and there is no such file; expected one of ours \(chatml, .*a .jinja"),
        ("text.jinja", "is no chat template: expected Jinja"),
    ):
        given = Recipe.from_mapping({**base, "chat_template": written}, folder=folder)
        with pytest.raises(RecipeError, match=says):
            given.template()
    good = Recipe.from_mapping({**base, "chat_template": "good.jinja"}, folder=folder)
    assert tokenizer_for(good, "tiny").chat_template == "{{ messages }}"
    assert resolved(good).chat_template == str(folder / "good.jinja")
    text = "{{ messages[0]['content'] }}" + " " * 300  # no pattern, and no name of a file
    long = Recipe.from_mapping({**base, "chat_template": text}, folder=folder)
    assert resolved(long).chat_template == text
    inline = Recipe.from_mapping({**base, "chat_template": "{{\n messages }}"})
    assert tokenizer_for(inline, "tiny").chat_template == "{{\n messages }}"
    assert "{{\\n messages }}" in inline.to_yaml()
    assert tiny_tokenizer().chat_template != "{{ messages }}"
