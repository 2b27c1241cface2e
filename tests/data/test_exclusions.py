"""Rows that `exclude_rows` names: how they are known, that they leave, and what is said."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from msft.data.corpus import Corpus, load_corpus
from msft.data.exclusions import row_sha256
from msft.data.formats import ALPACA_WITH_INPUT, example_of
from msft.engine.model.tokenizers import tiny_tokenizer
from msft.errors import DataError, RecipeError
from msft.planning.admission import refuse_absent, resolved
from msft.recipe.recipe import Recipe, load_recipe, with_rows
from msft.search.feeds import Part

WORDS = ["one", "two", "three", "four"]
DOCS = Path(__file__).parents[2] / "docs" / "exclude-rows.md"


def sha256_of(said: Any) -> str:
    """As docs/exclude-rows.md has it."""
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def pairs(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"prompt": f"é {n}:", "completion": f" {n}"} for n in range(start, start + count)]


def choices(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"prompt": f"Which is {n}?", "choices": [f" {w} {n}" for w in WORDS], "answer": n % 4}
        for n in range(start, start + count)
    ]


def line(row: dict[str, Any], dataset: str = "a") -> dict[str, str]:
    said = row["choices"][row["answer"]] if "choices" in row else row["completion"]
    return {"dataset": dataset, "sha256": sha256_of([row["prompt"], said])}


def write(file: Path, lines: Sequence[Any]) -> Path:
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return file


def recipe_of(file: Path | None, **keys: Any) -> Recipe:
    spec: dict[str, Any] = {"name": "a", "train": pairs(12), "validation": pairs(4, 100)}
    given = {"model_name_or_path": "tiny", "datasets": [{**spec, **keys.pop("spec", {})}], **keys}
    return Recipe(**given, exclude_rows=str(file) if file else None)


def corpus_of(file: Path | None, **keys: Any) -> Corpus:
    return load_corpus(recipe_of(file, **keys), tiny_tokenizer())


def trained(corpus: Corpus, name: str = "a") -> list[str]:
    return [row.prompt for row in corpus.datasets[name].train.examples]


TURNS = [{"role": "user", "content": "Hé?"}, {"role": "assistant", "content": "Hi"}]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}
ALPACA_ROW = {"instruction": "Add.", "input": "2, 2", "output": "4"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (pairs(1)[0], ["é 0:", " 0"]),
        (choices(3)[2], ["Which is 2?", " three 2"]),
        ({"prompt": "q", "choices": ["x", "y"], "answer": "y", "id": 3}, ["q", "y"]),
        ({"messages": TURNS}, TURNS),
        ({"messages": [dict(reversed(turn.items())) for turn in TURNS], "tools": []}, TURNS),
        (
            {"conversations": [{"from": "human", "value": "Hé?"}, {"from": "gpt", "value": "Hi"}]},
            TURNS,
        ),
        (
            {
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "s"}]},
                    {"role": "assistant", "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "7", "name": "f", "content": "18"},
                    TURNS[1],
                ]
            },
            [
                {"role": "system", "content": "s"},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "content": "18", "name": "f", "tool_call_id": "7"},
                TURNS[1],
            ],
        ),
        (ALPACA_ROW, [ALPACA_WITH_INPUT.format(instruction="Add.", input="2, 2"), "4"]),
    ],
)
def test_a_row_is_known_by_a_hash_that_anybody_can_compute(row: Any, said: Any) -> None:
    example, _ = example_of(row, "row 1")
    assert row_sha256(example) == sha256_of(said)


def test_the_lines_of_python_in_the_docs_give_the_hash_of_the_line_before_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = DOCS.read_text()
    shown = re.findall(r'"sha256": "(\w{64})"', page)
    by_hand, of_any_format = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(by_hand, {})  # noqa: S102  our own page
    assert capsys.readouterr().out.split() == shown
    exec(of_any_format, {})  # noqa: S102
    assert capsys.readouterr().out.split() == [row_sha256(example_of(ALPACA_ROW, "")[0])]


def test_rows_that_are_named_leave_with_their_equals_and_the_others_keep_their_numbers(
    tmp_path: Path,
) -> None:
    rows = [*pairs(8), pairs(8)[2], *pairs(2, 50)]
    long = {"prompt": "x " * 600, "completion": " y"}
    rows.insert(1, long)
    more = {"dataset": "a", "sha256": line(pairs(3)[2])["sha256"].upper(), "why": ["bad", 1]}
    file = write(tmp_path / "out", [line(rows[6]), more])
    spec = {"train": rows}
    corpus, whole = corpus_of(file, spec=spec), corpus_of(None, spec=spec)
    mine, before = corpus.datasets["a"], whole.datasets["a"]
    assert trained(corpus) == [rows[n]["prompt"] for n in (0, 2, 4, 5, 7, 8, 10, 11)]
    assert mine.train.numbers == (0, 2, 4, 5, 7, 8, 10, 11), "the row that is too long counts"
    assert before.train.numbers == (0, *range(2, 12))
    assert mine.excluded is not None
    assert mine.excluded.numbers == (3, 6, 9)
    for number, row in zip(mine.train.numbers, mine.train.examples, strict=True):
        assert row.where.endswith(f"row {number + 1}")
        assert (
            mine.train.rows[mine.train.numbers.index(number)]
            == (before.train.rows[before.train.numbers.index(number)])
        )
    assert (mine.validation, mine.test) == (before.validation, before.test)
    assert mine.notes[-1:] == before.notes[-1:], "too long, as ever"
    assert "exclude_rows: 3 of 12 train rows are not trained" in mine.notes


def test_lines_that_fit_no_row_are_counted_with_the_first_of_them(tmp_path: Path) -> None:
    lines = [line(pairs(1)[0]), line(pairs(1, 100)[0]), line({"prompt": "p", "completion": "c"})]
    file = write(tmp_path / "out.jsonl", [*lines, lines[0]])
    assert corpus_of(file).datasets["a"].notes == (
        "exclude_rows: 1 of 12 train rows is not trained",
        "exclude_rows: 2 of 4 lines fit no train row (first: line 2); the row was edited, or is "
        "not trained",
    )


def test_weight_counts_the_rows_that_are_left(tmp_path: Path) -> None:
    file = write(tmp_path / "out", [line(row) for row in pairs(2)])
    dataset = corpus_of(file, spec={"weight": 1.5}).datasets["a"]
    assert dataset.part == Part("a", 10, 15, anew=True)
    tokens = sum(len(row.tokens) for row in dataset.train.rows)
    assert dataset.in_epoch(0) == (15, round(tokens * 1.5))
    assert dataset.notes[-1].startswith(
        "weight 1.5: in each epoch every train row once and 5 of 10"
    )


def test_train_rows_and_held_out_rows_are_drawn_before_rows_leave(tmp_path: Path) -> None:
    spec = {"validation": None, "validation_fraction": 0.25, "train_rows": 6}
    before = corpus_of(None, spec=spec)
    first = trained(before)[0]
    file = write(tmp_path / "out", [line(r) for r in pairs(12) if r["prompt"] == first])
    after = corpus_of(file, spec=spec)
    assert trained(after) == trained(before)[1:], "no other row takes its place"
    assert after.datasets["a"].train.numbers == (1, 2, 3, 4, 5)
    assert after.datasets["a"].validation == before.datasets["a"].validation


def test_a_noisy_row_is_known_by_its_wrong_answer(tmp_path: Path) -> None:
    spec = {"train": choices(20), "validation": choices(4, 100), "label_noise": 0.3}
    noisy = corpus_of(None, spec=spec).datasets["a"].train.examples
    right = {row["prompt"]: row["choices"][row["answer"]] for row in choices(20)}
    wrong = [row for row in noisy if row.completion != right[row.prompt]]
    assert len(wrong) == 6
    said = [{"dataset": "a", "sha256": sha256_of([r.prompt, r.completion])} for r in wrong]
    left = corpus_of(write(tmp_path / "noisy", said), spec=spec).datasets["a"].train.examples
    assert left == tuple(row for row in noisy if row not in wrong), "who is noisy did not change"
    clean = write(tmp_path / "clean", [line(row) for row in choices(20)])
    kept = corpus_of(clean, spec=spec).datasets["a"].train.examples
    assert list(kept) == wrong


def test_exemplars_do_not_change_and_cannot_be_left_out(tmp_path: Path) -> None:
    spec = {"num_fewshot": 3}
    before = corpus_of(None, spec=spec).datasets["a"]
    shots = [{"dataset": "a", "sha256": row_sha256(row)} for row in before.exemplars]
    gone = {"dataset": "a", "sha256": row_sha256(before.train.examples[0])}
    after = corpus_of(write(tmp_path / "out", [*shots, gone]), spec=spec).datasets["a"]
    assert after.exemplars == before.exemplars
    assert after.train.examples == before.train.examples[1:]
    assert "exclude_rows: 3 of 4 lines fit no train row (first: line 1)" in after.notes[-1]


def test_pieces_of_a_split_are_named_as_they_are(tmp_path: Path) -> None:
    rows = [{**row, "kind": "x" if n % 2 else "y"} for n, row in enumerate(pairs(12))]
    held = [{**row, "kind": kind} for row, kind in zip(pairs(2, 90), "xy", strict=True)]
    spec = {"train": rows, "validation": held, "split_by": "kind", "split_min_rows": 1}
    file = write(tmp_path / "out", [line(rows[1], "a.x")])
    corpus = corpus_of(file, spec=spec)
    assert trained(corpus, "a.x") == [row["prompt"] for row in rows[3::2]]
    assert trained(corpus, "a.y") == [row["prompt"] for row in rows[::2]]
    with pytest.raises(DataError, match=r"line 1: unknown sub-dataset 'a'.* \(known: a.x, a.y\)"):
        corpus_of(write(file, [line(rows[1])]), spec=spec)


def test_conversations_and_columns(tmp_path: Path) -> None:
    rows = [{"q": f"ask {n}", "a": f" {n}", "prompt": "no"} for n in range(5)]
    spec = {
        "train": rows[:4],
        "validation": rows[4:],
        "columns": {"prompt": "q", "completion": "a"},
    }
    said = {"dataset": "a", "sha256": sha256_of(["ask 1", " 1"])}
    corpus = corpus_of(write(tmp_path / "out", [said]), spec=spec)
    assert trained(corpus) == ["ask 0", "ask 2", "ask 3"]
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    talks = [[{"role": "user", "content": f"hi {n}"}, TURNS[1]] for n in range(4)]
    spec = {"train": [{"messages": t} for t in talks[:3]], "validation": [{"messages": talks[3]}]}
    said = {"dataset": "a", "sha256": sha256_of(talks[1])}
    recipe = recipe_of(write(tmp_path / "out", [said]), spec=spec, chat_template=template)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    (found,) = load_corpus(recipe, tokenizer).datasets.values()
    assert [row.messages[0].content for row in found.train.examples] == ["hi 0", "hi 2"]


def test_rows_in_memory_take_part(tmp_path: Path) -> None:
    file = write(tmp_path / "out", [line(pairs(1, 30)[0], "b")])
    recipe = with_rows(recipe_of(file), {"b": {"train": pairs(3, 30), "validation": pairs(2, 200)}})
    assert trained(load_corpus(recipe, tiny_tokenizer()), "b") == ["é 31:", "é 32:"]


def test_scored_rows_that_only_excluded_rows_repeat_are_no_leak_between_sub_datasets(
    tmp_path: Path,
) -> None:
    asked = {"prompt": "what is the capital city of France?", "completion": " Paris"}
    other = {"name": "b", "train": pairs(3, 60), "validation": [asked]}
    spec = {"train": [asked, *pairs(5)], "validation": pairs(2, 200)}
    plain = recipe_of(None, spec=spec)
    both = Recipe(model_name_or_path="tiny", datasets=[*plain.datasets, other])
    leaks = load_corpus(both, tiny_tokenizer()).datasets["b"].notes
    assert any("what trained rows of a ask" in note for note in leaks)
    file = write(tmp_path / "out", [line(asked)])
    both = replace(both, exclude_rows=str(file))
    assert load_corpus(both, tiny_tokenizer()).datasets["b"].notes == ()


# What the fingerprint of the data says


def test_the_fingerprint_has_the_file_and_the_rows_as_they_were_without_it(tmp_path: Path) -> None:
    spec = {"train": [*pairs(6), {"prompt": "x " * 600, "completion": " y"}, *pairs(3, 50)]}
    plain = corpus_of(None, spec=spec)
    lines = [line(row) for row in (*pairs(2, 1), pairs(2, 51)[0])]
    file = write(tmp_path / "out", lines)
    one = corpus_of(file, spec=spec)
    fewer = corpus_of(write(file, lines[:2]), spec=spec)
    idle = corpus_of(write(file, [*lines, line({"prompt": "p", "completion": "c"})]), spec=spec)
    prints = [corpus.fingerprint() for corpus in (plain, one, fewer, idle)]
    assert len({*prints}) == 4
    assert {corpus.fingerprint(with_excluded=True) for corpus in (plain, one, fewer, idle)} == {
        plain.fingerprint()
    }


def test_without_the_key_the_fingerprint_is_that_of_earlier_versions() -> None:
    found = corpus_of(None, spec={"test": pairs(2, 300)}).fingerprint()
    assert found == "2cb597b9f4178c2d4fadd05f677c560801eee0d06d275df3e2b782eec7b63845"


# What is refused


BAD = {
    "hello\n": "line 1: not valid JSON",
    '{"dataset": "a", "sha256": "%s"}\n{"sha256": 1}\n' % ("0" * 64): "line 2: dataset is missing",
    '{"dataset": "a"}\n': "line 1: sha256 is missing (found ['dataset']); add it",
    '\n{"dataset": "a", "sha256": "12ab"}\n': "line 2: sha256 is '12ab'; expected 64 hex digits",
    '{"dataset": "a", "sha256": "%s"}\n' % ("g" * 64): "expected 64 hex digits",
    '{"dataset": "a", "sha256": 7}\n': "line 1: sha256 is 7; expected 64 hex digits",
    '{"dataset": ["a"], "sha256": "12"}\n': "line 1: dataset is ['a']; expected an object such as",
    '"a"\n': "line 1: found 'a'; expected an object such as",
    "": "has no lines; expected one at least",
    "\n\n": "has no lines; expected one at least",
}


@pytest.mark.parametrize("text", BAD)
def test_a_line_that_says_nothing_is_refused_before_rows_are_read(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "out.jsonl").write_text(text)
    (tmp_path / "r.yaml").write_text(
        "model_name_or_path: tiny\nexclude_rows: out.jsonl\ndatasets:\n"
        f"- {{name: a, train: {tmp_path}/a.jsonl, validation_fraction: 0.5}}\n"
    )
    write(tmp_path / "a.jsonl", pairs(4))
    recipe = load_recipe(tmp_path / "r.yaml")
    with pytest.raises(DataError) as caught:
        refuse_absent(recipe, "tiny")
    at = f"{tmp_path}/r.yaml, line 2: exclude_rows: {tmp_path}/out.jsonl"
    assert str(caught.value).startswith(at)
    assert BAD[text] in str(caught.value)


def test_a_file_that_is_not_there_is_refused_with_the_line_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "model_name_or_path: tiny\nexclude_rows: nope.jsonl\ndatasets:\n"
        "- {name: a, train: a.jsonl, validation_fraction: 0.5}\n"
    )
    for given in ("nope.jsonl", str(tmp_path)):
        recipe = load_recipe(tmp_path / "r.yaml", [f"exclude_rows={given}"])
        with pytest.raises(RecipeError, match=r"--set exclude_rows=.*no such file; expected JSON"):
            refuse_absent(recipe, "tiny")
    with pytest.raises(RecipeError, match=r"r.yaml, line 2: exclude_rows is 'nope.jsonl', and "):
        refuse_absent(load_recipe(tmp_path / "r.yaml"), "tiny")


def test_an_unknown_sub_dataset_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path / "out", [line(pairs(1)[0]), line(pairs(1)[0], "aa")])
    with pytest.raises(DataError, match=r"line 2: unknown sub-dataset 'aa'; did you mean 'a'\?"):
        corpus_of(file)


def test_a_file_of_which_no_line_fits_is_refused(tmp_path: Path) -> None:
    held_out = write(tmp_path / "out", [line(row) for row in pairs(4, 100)])
    with pytest.raises(DataError, match=r"no line fits a train row \(found 4\)"):
        corpus_of(held_out)


def test_a_sub_dataset_without_rows_to_train_is_refused_by_name(tmp_path: Path) -> None:
    file = write(tmp_path / "out", [line(row) for row in pairs(12)])
    with pytest.raises(DataError, match=r"names every train row of a \(12\), so nothing would be"):
        corpus_of(file)
    long = {"prompt": "x " * 600, "completion": " y"}
    with pytest.raises(DataError, match="a: every train row that exclude_rows leaves is longer"):
        corpus_of(file, spec={"train": [*pairs(12), long]})


# Where the file is looked for


def noted(recipe: Recipe) -> Sequence[str]:
    return load_corpus(recipe, tiny_tokenizer()).notes


def test_the_file_is_found_from_here_and_beside_the_recipe_and_stays_the_same_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    write(tmp_path / "out.jsonl", [line(pairs(1)[0])])
    write(tmp_path / "a.jsonl", pairs(6))
    (tmp_path / "r.yaml").write_text(
        "model_name_or_path: tiny\nexclude_rows: out.jsonl\ndatasets:\n"
        "- {name: a, train: a.jsonl, validation_fraction: 0.2}\n"
    )
    placed = resolved(load_recipe("../r.yaml"))
    assert placed.exclude_rows == str(tmp_path / "out.jsonl")
    (tmp_path / "sub" / "clean.yaml").write_text(placed.to_yaml())
    monkeypatch.chdir("/")
    again = load_recipe(tmp_path / "sub" / "clean.yaml")
    assert again.exclusions_file() == tmp_path / "out.jsonl"
    monkeypatch.chdir(tmp_path / "sub")
    write(tmp_path / "sub" / "out.jsonl", [])
    here = load_recipe("../r.yaml").exclusions_file()
    assert here.resolve() == tmp_path / "sub" / "out.jsonl", "from here first"
    assert not any("is read, and not" in each for each in noted(again)), "it has the whole path"
    write(tmp_path / "sub" / "out.jsonl", [line(row) for row in pairs(2)])
    assert (
        f"exclude_rows: {tmp_path}/sub/out.jsonl is read, and not the file of this name beside the "
        "recipe"
    ) in noted(load_recipe("../r.yaml"))
    assert resolved(recipe_of(None)).exclude_rows is None


def test_an_epoch_has_the_other_rows_and_no_row_twice(tmp_path: Path) -> None:
    file = write(tmp_path / "out", [line(row) for row in pairs(5)])
    corpus = corpus_of(file)
    (part,) = corpus.mixture(0).parts
    assert sorted(part.epoch(20, 0, 0)) == list(range(7))
    assert [trained(corpus)[n] for n in sorted(part.epoch(20, 0, 1))] == [
        row["prompt"] for row in pairs(12)[5:]
    ]
