"""Rows as people have them: what each format becomes, and what is told of rows that fit none."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from msft.app.terminal.validate import marked
from msft.cli import main
from msft.data.corpus import FEWEST_ROWS, Corpus, load_corpus
from msft.data.exclusions import row_sha256
from msft.data.formats import FORMATS, example_of, format_of
from msft.data.splits import load_datasets
from msft.engine.model.loading import ENDS
from msft.engine.model.tokenizers import tokenizer_for
from msft.errors import DataError, RecipeError
from msft.example import Message
from msft.recipe.recipe import Recipe
from msft.recipe.templates import TEMPLATES, fitted, missing_end
from msft.recipe.yaml import parse

Row = dict[str, Any]


def turn(role: str, content: str) -> Row:
    return {"role": role, "content": content}


def recipe(*specs: Row, **keys: Any) -> Recipe:
    held = [{"name": f"d{n}", **spec} for n, spec in enumerate(specs)]
    return Recipe.from_mapping({"model_name_or_path": "tiny", "datasets": held, **keys})


def corpus_of(*specs: Row, **keys: Any) -> Corpus:
    given = recipe(*specs, **keys)
    return load_corpus(given, tokenizer_for(given, "tiny"))


def shown(corpus: Corpus, name: str = "d0", split: str = "train") -> list[str]:
    """Rows as text, what is trained of them between brackets."""
    tokenizer = tokenizer_for(recipe({"train": [1], "validation": [1]}), "tiny")
    rows = corpus.datasets[name].rows_of(split).rows
    return [marked(row, tokenizer).replace("⟦", "[").replace("⟧", "]") for row in rows]


def sha256_of(said: Any) -> str:
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# format: chat


def test_prompt_and_completion_are_turns_under_the_models_template() -> None:
    rows = [{"prompt": "1 + 1?", "completion": "2"}]
    held = [{"prompt": "2 + 2?", "completion": "4"}]
    plain = corpus_of({"train": rows, "validation": held})
    chat = corpus_of({"train": rows, "validation": held, "format": "chat"})
    turns = [{"messages": [turn("user", "1 + 1?"), turn("assistant", "2")]}]
    others = [{"messages": [turn("user", "2 + 2?"), turn("assistant", "4")]}]
    written = corpus_of({"train": turns, "validation": others})
    assert shown(plain) == ["1 + 1?[2<eos>]"]
    assert shown(chat) == ["user: 1 + 1?\nassistant: [2<eos>]"] == shown(written)
    assert chat.datasets["d0"].validation is not None
    assert (
        chat.datasets["d0"].validation.rows[0].prompt
        == written.datasets["d0"].rows_of("validation").rows[0].prompt
    )
    assert (plain.datasets["d0"].format, chat.datasets["d0"].format) == (
        "prompt+completion",
        "prompt+completion, chat",
    )
    assert plain.fingerprint() != chat.fingerprint()


def test_alpaca_rows_are_turns_without_alpacas_words() -> None:
    rows = [
        {"instruction": "Add.", "input": "1, 2", "output": "3"},
        {"instruction": "Sing.", "input": "", "output": "La"},
        {"instruction": "Hum.", "output": "Mm"},
    ]
    spec = {"train": rows, "validation_fraction": 0.3, "format": "chat"}
    (found,) = load_datasets(recipe(spec))
    asked = {row.completion: row.messages[0] for row in (*found.train, *found.validation)}
    assert asked == {
        "3": Message("user", "Add.\n1, 2"),
        "La": Message("user", "Sing."),
        "Mm": Message("user", "Hum."),
    }


@pytest.mark.parametrize("chat", [False, True])
def test_a_row_is_known_by_what_was_read_not_by_the_template(chat: bool) -> None:
    row = {"prompt": "Ünd?", "completion": " ja"}
    example, _ = example_of(row, "here", chat=chat)
    assert bool(example.messages) is chat
    assert row_sha256(example) == sha256_of(["Ünd?", " ja"])


def test_every_new_format_has_its_hash() -> None:
    turns = [turn("user", "a"), turn("assistant", "b")]
    example, _ = example_of({"prompt": turns[:1], "completion": turns[1:]}, "here")
    assert row_sha256(example) == sha256_of(turns)
    text, _ = example_of({"text": "Once upon"}, "here")
    assert row_sha256(text) == sha256_of(["", "Once upon"])
    alpaca, _ = example_of({"instruction": "A", "input": "B", "output": "C"}, "here", chat=True)
    assert row_sha256(alpaca) == sha256_of(["A\nB", "C"])


def test_system_prompts_do_not_change_hashes_or_what_is_asked() -> None:
    rows = [{"prompt": "p", "completion": "c"}]
    held = [{"prompt": "q", "completion": "c"}]
    spec = {"train": rows, "validation": held, "format": "chat", "system_prompt": "Be brief."}
    (found,) = load_datasets(recipe(spec))
    assert row_sha256(found.train[0]) == sha256_of(["p", "c"])
    overlapping = {**spec, "validation": rows}
    with pytest.raises(DataError, match="are also in train"):
        load_datasets(recipe(overlapping))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "Q", "choices": ["a", "b"], "answer": 0}, "this row is choices, which has no"),
        ({"text": "Once"}, "this row is text, which has no turns"),
        ({"prompt": " ", "completion": "c"}, "prompt is ' '; expected text that is not blank"),
    ],
)
def test_what_has_no_turns_is_refused_under_format_chat(row: Row, says: str) -> None:
    with pytest.raises(DataError, match=f"here: {says}"):
        example_of(row, "here", chat=True)


def test_conversations_are_the_same_under_format_chat() -> None:
    row = {"messages": [turn("user", "a"), turn("assistant", "b")]}
    assert example_of(row, "here", chat=True) == example_of(row, "here")


# Turns as prompt and completion


def test_answers_in_a_prompt_of_turns_are_read_and_not_learned() -> None:
    prompt = [turn("user", "one"), turn("assistant", "old"), turn("user", "two")]
    completion = [turn("assistant", "new"), turn("user", "three"), turn("assistant", "end")]
    spec = {"train": [{"prompt": prompt, "completion": completion}]}
    held = {"validation": [{"prompt": [turn("user", "x")], "completion": [turn("assistant", "y")]}]}
    corpus = corpus_of({**spec, **held})
    assert shown(corpus) == [
        "user: one\nassistant: old<eos>user: two\nassistant: [new<eos>]user: three\n"
        "assistant: [end<eos>]"
    ]
    assert corpus.datasets["d0"].format == "prompt+completion turns"
    whole = corpus_of(
        {
            "train": [{"messages": prompt + completion}],
            **held | {"validation": [{"messages": [turn("user", "x"), turn("assistant", "y")]}]},
        }
    )
    assert "[old<eos>]" in shown(whole)[0]


@pytest.mark.parametrize(
    ("prompt", "completion", "says"),
    [
        ([turn("user", "a")], "b", "completion is 'b', but prompt is a list of turns"),
        ("a", [turn("assistant", "b")], "prompt is 'a', but completion is a list of turns"),
        ([turn("user", "a")], [turn("user", "b")], "completion begins with one of the user"),
        ([], [turn("assistant", "b")], r"prompt is \[\]; expected a list of turns"),
        ([turn("user", "a"), turn("assistant", "x")], [turn("assistant", "b")], "prompt ends with"),
        ([turn("human", "a")], [turn("assistant", "b")], r"prompt\[0\].role is 'human'"),
    ],
)
def test_turns_that_are_no_prompt_and_completion(prompt: Any, completion: Any, says: str) -> None:
    with pytest.raises(DataError, match=f"^here: .*{says}"):
        example_of({"prompt": prompt, "completion": completion}, "here")


# Plain text


def test_plain_text_is_trained_whole_and_scored_by_its_loss() -> None:
    spec = {"train": [{"text": "Once upon"}, {"text": "x" * 40}], "validation": [{"text": "Then"}]}
    corpus = corpus_of(spec, max_length=20)
    dataset = corpus.datasets["d0"]
    assert shown(corpus) == ["[Once upon<eos>]"]
    assert shown(corpus, split="validation") == ["[Then<eos>]"]
    assert dataset.spec.metric == "nll" == corpus.tasks(recipe(spec))["d0"].metric
    assert dataset.train.rows[0].answer_tokens == len("Once upon")
    notes = " ".join(dataset.notes)
    assert "plain text: the loss is on all tokens, and the metric is nll" in notes
    assert "1 of 2 rows are longer than max_length 20 and are left out" in notes
    assert "plain text is not cut: divide long texts into rows" in notes


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"metric": "math:dist"}, "metric is math:dist, but its rows are plain text"),
        ({"num_fewshot": 2}, "num_fewshot is 2, but its rows are plain text"),
        ({"system_prompt": "x"}, "system_prompt is given, but its rows are text, which go through"),
    ],
)
def test_keys_that_plain_text_cannot_have(keys: Row, says: str) -> None:
    spec = {"train": [{"text": "Once"}], "validation": [{"text": "Then"}], **keys}
    with pytest.raises(DataError, match=says):
        corpus_of(spec)


def test_a_pooled_mean_of_plain_text_and_answers_is_refused() -> None:
    text = {"train": [{"text": "Once"}], "validation": [{"text": "Then"}]}
    asked = {"train": [{"prompt": "p", "completion": "c"}]}
    asked |= {"validation": [{"prompt": "q", "completion": "c"}]}
    with pytest.raises(DataError, match=r"mean is pooled, but .* accuracy, nll"):
        corpus_of(text, asked, mean="pooled")
    losses = [{**spec, "metric": "nll"} for spec in (text, asked)]
    assert [*corpus_of(*losses, mean="pooled").datasets] == ["d0", "d1"]


# Rows that fit no format


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"question": "q", "answer": "a"}, {"prompt": "question", "completion": "answer"}),
        ({"input": "q", "output": "a", "id": 3}, {"prompt": "input", "completion": "output"}),
        ({"Question": "q", "Response": "a"}, {"prompt": "Question", "completion": "Response"}),
        ({"prompt": "q", "response": "a"}, {"prompt": "prompt", "completion": "response"}),
        ({"document": "d", "summary": "s"}, {"prompt": "document", "completion": "summary"}),
        ({"text": "t", "label": "pos"}, {"prompt": "text", "completion": "label"}),
        ({"Frage": "q", "Antwort": "a"}, {"prompt": "Frage", "completion": "Antwort"}),
        ({"a: b": "q", "1": "a"}, {"prompt": "a: b", "completion": "1"}),
        (
            {"question": "q", "options": ["a", "b"], "answer": 1},
            {"prompt": "question", "choices": "options", "answer": "answer"},
        ),
        (
            {"instruction": "i", "context": "c", "response": "r", "category": "x"},
            {"instruction": "instruction", "input": "context", "output": "response"},
        ),
        ({"dialog": [turn("user", "a"), turn("assistant", "b")]}, {"messages": "dialog"}),
        (
            {"turns": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            {"conversations": "turns"},
        ),
    ],
)
def test_rows_of_other_columns_are_answered_with_a_line_that_works(
    row: Row, columns: dict[str, str]
) -> None:
    with pytest.raises(DataError) as caught:
        format_of(row)
    _, found, line = str(caught.value).partition("columns: {")
    assert found, str(caught.value)
    pasted = parse("columns: {" + line.partition("}")[0] + "}").value["columns"]
    assert pasted == columns
    spec = {"train": [row], "validation": [row], "columns": pasted}
    (found_row, form) = example_of({ours: row[theirs] for ours, theirs in pasted.items()}, "here")
    assert form in FORMATS
    assert found_row.completion in ("a", "b", "s", "pos", "r")
    assert recipe(spec).datasets[0].columns == columns


def test_a_line_that_is_not_enough_says_what_is_missing() -> None:
    with pytest.raises(DataError, match=r"its label must be text, not 1\), or columns: {text: te"):
        format_of({"text": "t", "label": 1})
    with pytest.raises(DataError, match="YOUR_COLUMN, completion: YOUR_COLUMN"):
        format_of({"a": "1", "b": "2", "c": "3"})


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "prompt: prompt, completion: chosen"),
        ({"question": "p", "chosen": "a", "rejected": "b"}, "prompt: question, completion: chosen"),
        ({"chosen": [turn("user", "x")], "rejected": []}, "messages: chosen"),
    ],
)
def test_preference_data_is_refused_by_name(row: Row, line: str) -> None:
    with pytest.raises(DataError, match=r"preference data .* DPO.* does not train") as caught:
        format_of(row)
    assert f"columns: {{{line}}}" in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        {"text": "t"},
        {"text": "t", "url": "u", "timestamp": "now", "source": "web"},
        {"text": "t", "title": "T", "id": 7, "meta": {}},
    ],
)
def test_text_alone_is_plain_text(row: Row) -> None:
    assert format_of(row) == "text"


def test_text_beside_the_fields_of_a_format_changes_nothing() -> None:
    assert format_of({"instruction": "i", "output": "o", "text": "all"}) == "alpaca"


def test_turns_of_the_other_style_are_told_which_column_they_are() -> None:
    row = {"conversations": [turn("user", "a"), turn("assistant", "b")]}
    with pytest.raises(DataError, match=r"write columns: {messages: conversations}"):
        example_of(row, "here")
    row = {"messages": [{"from": "human", "value": "a"}]}
    with pytest.raises(DataError, match=r"write columns: {conversations: messages}"):
        example_of(row, "here")


# Bad rows


def bad_file(folder: Path, bad: int, good: int = 3) -> Row:
    rows: list[Row] = [{"prompt": f"p{n}", "completion": "c"} for n in range(good)]
    rows += [{"prompt": f"b{n}", "completion": None} for n in range(bad)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = [{"prompt": "held", "completion": "c"}]
    return {"train": str(folder / "a.jsonl"), "validation": held}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (1, "line 4: completion is null; expected text; or skip_bad_rows: true at the sub-dataset"),
        (3, "3 of 6 rows are bad; mend them (skip_bad_rows: true"),
        (5, "5 of 8 rows are bad; mend them (skip_bad_rows: true"),
    ],
)
def test_all_bad_rows_are_counted_and_the_first_are_shown(
    tmp_path: Path, bad: int, says: str
) -> None:
    with pytest.raises(DataError) as caught:
        load_datasets(recipe(bad_file(tmp_path, bad)))
    head, *lines = str(caught.value).split("\n  ")
    assert says in head
    places = [line.rpartition(", ")[2].partition(":")[0] for line in lines]
    shown_rows = [f"line {number}" for number in (4, 5, 6)]
    assert places == {1: [], 3: shown_rows, 5: [*shown_rows, "… and 2 more"]}[bad]


def test_rows_that_are_all_bad_are_told_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="in all 4 rows: none can be read") as caught:
        load_datasets(recipe(bad_file(tmp_path, 4, good=0)))
    assert "skip_bad_rows" not in str(caught.value)


def test_skipped_rows_are_counted_and_change_the_fingerprint_by_their_absence(
    tmp_path: Path,
) -> None:
    spec = bad_file(tmp_path, 2)
    skipping = corpus_of({**spec, "skip_bad_rows": True})
    (note,) = [note for note in skipping.datasets["d0"].notes if "bad" in note]
    assert note.startswith("train: 2 bad rows skipped (first: ")
    assert "line 4: completion is null" in note
    clean = corpus_of(bad_file(tmp_path, 0))
    assert corpus_of({**bad_file(tmp_path, 0), "skip_bad_rows": True}).fingerprint() == (
        clean.fingerprint()
    )
    assert skipping.fingerprint() == clean.fingerprint()
    mended = corpus_of(bad_file(tmp_path, 0, good=5))
    assert mended.fingerprint() != skipping.fingerprint()


# Files


def test_tabs_separate_the_columns_of_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('prompt\tcompletion\np, 1\t"c\td"\nq\te\n')
    spec = {"train": str(tmp_path / "a.tsv"), "validation": [{"prompt": "v", "completion": "w"}]}
    (found,) = load_datasets(recipe(spec))
    assert [(row.prompt, row.completion) for row in found.train] == [("p, 1", "c\td"), ("q", "e")]
    (tmp_path / "a.tsv").write_text("prompt,completion\na,b\n")
    with pytest.raises(DataError, match=r"separated by ','\? expected tabs"):
        load_datasets(recipe(spec))
    (tmp_path / "a.tsv").write_text("prompt\tcompletion\na\tb\tc\n")
    with pytest.raises(DataError, match=r"3 fields; expected 2 .* quote fields that hold a tab"):
        load_datasets(recipe(spec))
    (tmp_path / "a.csv").write_text("prompt\tcompletion\na\tb\n")
    with pytest.raises(DataError, match=r"expected commas: name it \.tsv"):
        load_datasets(recipe({**spec, "train": str(tmp_path / "a.csv")}))


def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": f"p{n}", "completion": f"c{n}"} for n in range(100)]
    whole = datasets.Dataset.from_list(rows).shuffle(seed=1)
    whole.save_to_disk(tmp_path / "one", num_shards=3)
    parts = datasets.DatasetDict(
        {"train": whole.select(range(60)), "validation": whole.select(range(60, 80))}
    )
    parts.save_to_disk(tmp_path / "both")
    ordered = [row["prompt"] for row in whole]
    (both,) = load_datasets(recipe({"path": str(tmp_path / "both")}))
    assert [row.prompt for row in both.train] == ordered[:60]
    assert [row.prompt for row in both.validation] == ordered[60:80]
    assert both.train[4].where == f"{tmp_path}/both/train, row 5"
    held = {"validation": [{"prompt": "v", "completion": "w"}]}
    for spec in (
        {"train": str(tmp_path / "one"), **held},
        {"path": str(tmp_path / "one"), "validation_fraction": 0.1},
    ):
        (one,) = load_datasets(recipe(spec))
        assert {row.prompt for row in (*one.train, *one.validation)} >= {*ordered}
    with pytest.raises(DataError, match="has splits; write path: instead of train:"):
        load_datasets(recipe({"train": str(tmp_path / "both"), **held}))
    broken = sorted((tmp_path / "one").glob("*.arrow"))
    broken[2].write_bytes(broken[2].read_bytes()[:300])
    unreadable = "datasets cannot read this folder of save_to_disk after row 0"
    with pytest.raises(DataError, match=unreadable):
        load_datasets(recipe({"train": str(tmp_path / "one"), **held}))
    broken[1].unlink()
    with pytest.raises(DataError, match=unreadable):
        load_datasets(recipe({"train": str(tmp_path / "one"), **held}))
    (tmp_path / "one/state.json").write_text("{}")
    with pytest.raises(DataError, match=unreadable):
        load_datasets(recipe({"train": str(tmp_path / "one"), **held}))


# Notes


def test_a_mixture_of_plain_prompts_and_a_chat_template_is_noted() -> None:
    chat = {"train": [{"messages": [turn("user", "a"), turn("assistant", "b")]}]}
    chat |= {"validation": [{"messages": [turn("user", "c"), turn("assistant", "d")]}]}
    alpaca = {"train": [{"instruction": "i", "output": "o"}]}
    alpaca |= {"validation": [{"instruction": "j", "output": "o"}]}

    def said(*specs: Row) -> list[str]:
        notes = corpus_of(*specs).notes
        return [note for note in notes if "trained as plain text, beside" in note]

    assert said(chat) == said(alpaca) == said(chat, {**alpaca, "format": "chat"}) == []
    (note,) = said(chat, alpaca)
    assert note.startswith("d1: its rows are trained as plain text, beside conversations")
    assert "(d0); format: chat" in note


def test_too_few_validation_rows_are_noted() -> None:
    def said(count: int) -> str:
        rows = [{"prompt": f"v{n}", "completion": "w"} for n in range(count)]
        spec = {"train": [{"prompt": "p", "completion": "c"}], "validation": rows}
        return " ".join(corpus_of(spec).remarks)

    assert said(FEWEST_ROWS) == ""
    assert said(20).startswith(
        "validation has fewer than 30 rows (d0 20): one row is up to 5% of a score"
    )
    rows = [{"prompt": f"v{n}", "completion": "w"} for n in range(FEWEST_ROWS)]
    watched = {"validation": [{"prompt": "x", "completion": "w"}]}
    both = {"train": [{"prompt": "p", "completion": "c"}], "validation": rows}
    assert corpus_of(both, watched).remarks == (), "what is only watched chooses nothing"


# Templates, system prompts and variables of a sub-dataset


CHAT = {"train": [{"prompt": "p", "completion": "c"}], "format": "chat"}
CHAT |= {"validation": [{"prompt": "v", "completion": "w"}]}
THINKING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if mode is defined %}({{ mode }}){% endif %}"
    "{% endif %}"
)


def test_each_sub_dataset_has_its_own_template_and_system_prompt() -> None:
    asked = "Be “brief”.\n{{ 1 }} {% x %}"
    corpus = corpus_of(
        CHAT,
        {**CHAT, "chat_template": "chatml"},
        {**CHAT, "system_prompt": asked},
        {**CHAT, "chat_template": "gemma", "system_prompt": "S"},
    )
    assert [shown(corpus, name)[0] for name in corpus.datasets] == [
        "user: p\nassistant: [c<eos>]",
        "<|im_start|>user\np<eos>\n<|im_start|>assistant\n[c<eos>\n]",
        f"system: {asked}\nuser: p\nassistant: [c<eos>]",
        "<start_of_turn>user\nS\n\np<eos>\n<start_of_turn>model\n[c<eos>\n]",
    ]
    given = recipe(CHAT, {**CHAT, "chat_template": "chatml"})
    tokenizer = tokenizer_for(given, "tiny")
    before = tokenizer.chat_template
    load_corpus(given, tokenizer)
    assert tokenizer.chat_template == before, "the model's own is not changed"
    notes = " ".join(corpus.notes)
    assert (
        "chat_template gemma: the tokenizer has no token <end_of_turn>, so its end-of-text" in notes
    )


def test_a_row_with_a_system_turn_keeps_it() -> None:
    own = [{"messages": [turn("system", "own"), turn("user", "a"), turn("assistant", "b")]}]
    held = [{"messages": [turn("user", "x"), turn("assistant", "y")]}]
    corpus = corpus_of({"train": own, "validation": held, "system_prompt": "S"})
    assert shown(corpus) == ["system: own\nuser: a\nassistant: [b<eos>]"]
    assert shown(corpus, split="validation") == ["system: S\nuser: x\nassistant: [y<eos>]"]


def test_variables_of_a_template_have_a_value_for_a_sub_dataset() -> None:
    template = THINKING.replace("<assistant>{% if", "<assistant>{% if").replace(
        "<{{ m.role }}>",
        "<{{ m.role }}>{% if m.role == 'assistant' and mode is defined %}({{ mode }}){% endif %}",
    )
    for value, written in (("off", "(off)"), (True, "(True)"), (None, "(None)"), ([1], "([1])")):
        spec = {**CHAT, "chat_template": template, "chat_template_kwargs": {"mode": value}}
        assert shown(corpus_of(spec)) == [f"<user>p<eos><assistant>{written}[c<eos>]"]
    assert shown(corpus_of({**CHAT, "chat_template": template})) == [
        "<user>p<eos><assistant>[c<eos>]"
    ]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, "does not ask for"),
        (
            {
                "chat_template": "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}"
                "{% endif %}{% endfor %}",
                "system_prompt": "S",
            },
            "does not write a system prompt",
        ),
        ({"format": "auto", "chat_template": "chatml"}, "chat_template is given, but its rows are"),
    ],
)
def test_keys_that_would_do_nothing_are_refused(keys: Row, says: str) -> None:
    with pytest.raises(DataError, match=f"d0: .*{says}"):
        corpus_of({**CHAT, **keys})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"format": "chatml"}, "format is 'chatml'; expected 'auto' or 'chat'"),
        ({"system_prompt": ""}, "system_prompt is ''; expected text"),
        ({"chat_template_kwargs": {}}, "expected variables of the chat template"),
        ({"chat_template_kwargs": {"messages": 1}}, "'messages' is no variable that can be given"),
        ({"chat_template_kwargs": {"a-b": 1}}, "'a-b' is no variable"),
        ({"chat_template": 3}, r"expected a template of ours \(chatml, qwen, llama3"),
    ],
)
def test_wrong_values_of_these_keys(keys: Row, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        recipe({**CHAT, **keys})


def test_a_benchmark_goes_through_no_template() -> None:
    for key, value in (("format", "chat"), ("system_prompt", "S"), ("chat_template", "chatml")):
        with pytest.raises(RecipeError, match=f"both benchmark and {key}; a benchmark has prompts"):
            recipe({"benchmark": "sciq", key: value})


def test_the_keys_of_other_levels_are_told_where_they_belong() -> None:
    with pytest.raises(RecipeError, match="key of each sub-dataset; write it under datasets"):
        recipe(CHAT, system_prompt="S")


def test_a_chat_run_trains_resumes_and_refuses_another_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(
        json.dumps({"instruction": f"say {n}", "output": f"{n}"}) + "\n" for n in range(12)
    )
    (tmp_path / "a.jsonl").write_text(rows)
    (tmp_path / "r.yaml").write_text(
        "model_name_or_path: tiny\nmethod: sft\nnum_train_epochs: 1\nevals_per_epoch: 1\n"
        "train_batch_size: 4\nchat_template: chatml\ndatasets:\n"
        "- {name: a, train: a.jsonl, validation_fraction: 0.3, format: chat, system_prompt: S}\n"
    )
    assert main(["train", "r.yaml", "--out", "run", "--quiet"]) == 0
    assert main(["train", "r.yaml", "--out", "run", "--quiet"]) == 0
    other = ["--set", "datasets.a.system_prompt=T"]
    assert main(["train", "r.yaml", "--out", "run", "--quiet", *other]) == 2
    assert "data" in capsys.readouterr().err
    saved = tmp_path / "run/best/chat_template.jinja"
    written = (
        saved.read_text()
        if saved.exists()
        else json.loads((tmp_path / "run/best/tokenizer_config.json").read_text())["chat_template"]
    )
    assert "<|im_start|>" in written
    assert "set end = eos_token" in written, "as the rows were written"


def test_every_named_template_tells_answers_apart() -> None:
    rows = [turn("system", "S"), turn("user", "a"), turn("assistant", "b")]
    rows += [turn("user", "c"), turn("assistant", "d")]
    held = [{"messages": [turn("user", "x"), turn("assistant", "y")]}]
    for name in TEMPLATES:
        corpus = corpus_of({"train": [{"messages": rows}], "validation": held}, chat_template=name)
        (text,) = shown(corpus)
        answers = [part.partition("]")[0].strip() for part in text.split("[")[1:]]
        assert [a.replace(" ", "") for a in answers if "INST" not in a and a != "/INST"] == [
            "b<eos>",
            "d<eos>",
        ], (name, text)
        assert text.count("S") >= 1


def test_a_generation_stops_at_the_end_of_a_turn_of_every_named_template() -> None:
    class Knowing:
        """A tokenizer that has every token."""

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [0]

    for name, template in TEMPLATES.items():
        end = missing_end(template, tokenizer_for(recipe(CHAT), "tiny"))
        assert end in {"", *ENDS}, name
        assert missing_end(template, Knowing()) == ""
        assert fitted(template, Knowing()) == template
