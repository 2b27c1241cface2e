"""All mistakes of a recipe at once, and keys of other tools by name."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from msft.errors import RecipeError
from msft.recipe.dataset import DatasetSpec
from msft.recipe.foreign_keys import ALIASES, FOREIGN, FOREIGN_OF_DATASETS, Foreign
from msft.recipe.recipe import Recipe, load_recipe, recipe_keys
from msft.search.options import option_names

SMALL = """\
model_name_or_path: tiny
method: msft
datasets:
- {name: a, train: a.jsonl, validation: b.jsonl}
- name: b
  train: c.jsonl
  validation: d.jsonl
"""


def refused(folder: Path, text: str, overrides: Sequence[str] = ()) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value).replace(f"{folder}/", "")


def said(message: str) -> list[str]:
    """The place of each mistake and the first word of what is said about it."""
    head, *lines = message.split("\n  ")
    assert head == f"{len(lines)} mistakes in the recipe:"
    return [line.replace("recipe.yaml, line ", "") for line in lines]


def test_every_mistake_is_told_at_once_with_its_line_in_the_order_of_the_file(
    tmp_path: Path,
) -> None:
    text = """\
method: msft
sead: 3
learning_rate: high
deepspeed: zero3.json
lr_scheduler_type: cosine
compute_budget: 0.3
peaks:
  smooth: -1
  smoth: 1
method_options:
  patience: 0
  xyz: 1
datasets:
- name: a/b
  train: a.jsonl
  validation_fraction: 2
- trian: c.jsonl
  name: b
  metric: f2
- name: c
"""
    found = said(refused(tmp_path, text))
    starts = [
        "2: unknown key 'sead'; did you mean 'seed'?",
        "3: learning_rate is 'high'; expected a number",
        "4: unknown key 'deepspeed'; write sharding: optimizer",
        "5: lr_scheduler_type is cosine, but method msft rolls back",
        "6: compute_budget is 0.3 epochs",
        "8: peaks.smooth is -1",
        "9: unknown option of peaks: 'smoth'",
        "11: method msft: patience is 0",
        "12: unknown option of method msft: 'xyz'",
        "14: name is 'a/b'",
        "16: sub-dataset 'a/b': validation_fraction is 2",
        "17: sub-dataset 'b': neither validation nor validation_fraction",
        "17: unknown key of a sub-dataset: 'trian'; did you mean 'train'?",
        "19: sub-dataset 'b': metric is 'f2'",
        "20: sub-dataset 'c': neither train, path nor benchmark",
        "20: sub-dataset 'c': neither validation nor validation_fraction",
        "recipe.yaml: model_name_or_path is missing",
    ]
    assert [line[: len(start)] for line, start in zip(found, starts, strict=True)] == starts


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        # a wrong method: its options and schedule may be right
        (
            ("method: msft", "method: msfd\nlr_scheduler_type: cosine\nmethod_options: {of: last}"),
            1,
        ),
        (("method: msft", "method: sft\nlr_scheduler_type: cosin\nwarmup_steps: 5"), 1),
        (("method: msft", "evals_per_epoch: x\ncompute_budget: 0.1"), 1),
        (("train: c.jsonl", "metric: f2\n  train: c.jsonl\nmean: pooled"), 0),  # not YAML
        (("train: c.jsonl", "tran: c.jsonl"), 1),  # and not that train is missing
        (("model_name_or_path: tiny", "model: tiny"), 1),
        (("name: b", "name: a"), 1),
        (("method: msft", "num_epochs: 0.1\nseed: x"), 2),
        (("datasets:\n", "datasets:\n- 3\n- 4\n"), 2),
    ],
)
def test_what_follows_from_a_mistake_is_not_another_one(
    tmp_path: Path, change: tuple[str, str], lines: int
) -> None:
    message = refused(tmp_path, SMALL.replace(*change))
    assert message.count("\n  ") == (lines if lines > 1 else 0), message


def test_an_option_is_wrong_where_it_stands(tmp_path: Path) -> None:
    """Of the recipe's own method, and of one beside it."""
    text = SMALL + "options_by_method:\n  msft: {max_stages: 0}\n  ies: {threshold: 0, foo: 1}\n"
    assert [line.split("; ")[0] for line in said(refused(tmp_path, text))] == [
        "9: method msft: max_stages is 0",
        "10: options_by_method.ies: method ies: threshold is 0",
        "10: options_by_method.ies: unknown option of method ies: 'foo' (known: threshold, "
        "smoothing_window, permanent, track_excluded)",
    ]


def test_mistakes_of_overrides_stand_with_the_others(tmp_path: Path) -> None:
    found = said(refused(tmp_path, SMALL + "sed: 1\n", ["seed=x", "datasets.b.keep=7"]))
    assert [line.split(": ")[0] for line in found] == [
        "8",
        "--set seed=x",
        "--set datasets.b.keep=7",
    ]


def test_rows_in_memory_survive_the_search_for_mistakes() -> None:
    rows = [{"prompt": "p", "completion": "c"}]
    with pytest.raises(RecipeError, match="2 mistakes"):
        Recipe.from_mapping(
            {"model_name_or_path": 1, "sed": 2, "datasets": [{"name": "a", "train": rows}] * 1}
            | {"datasets": [{"name": "a", "train": rows, "validation": rows}]}
        )


TABLES: list[tuple[dict[str, Foreign], list[str]]] = [
    (FOREIGN, recipe_keys()),
    (FOREIGN_OF_DATASETS, option_names(DatasetSpec)),
]


def test_the_tables_know_the_keys_of_others_and_none_of_ours() -> None:
    assert len(FOREIGN) >= 150
    for table, ours in TABLES:
        assert [key for key in table if key in ours or key in ALIASES] == []
        assert {entry.ours for entry in table.values()} <= {*ours, ""}


def test_no_key_of_another_tool_has_two_answers() -> None:
    table = files("msft.recipe").joinpath("foreign_keys.txt").read_text("utf-8")
    _, *levels = table.split("\n[")
    for level, read in zip(levels, (FOREIGN, FOREIGN_OF_DATASETS), strict=True):
        lines = [line for line in level.splitlines() if line.startswith("    ")]
        assert sorted(" ".join(lines).split()) == sorted(read)


def test_keys_of_other_tools_are_answered_by_name(tmp_path: Path) -> None:
    """Each alone, as a user would meet it."""
    wrong = dict[str, str]()
    for line, what, table in (
        ("{}: 1\n", "key", FOREIGN),
        ("  {}: 1\n", "key of a sub-dataset:", FOREIGN_OF_DATASETS),
    ):
        for key, foreign in table.items():
            message = refused(tmp_path, SMALL + line.format(key))
            if message != f"recipe.yaml, line 8: unknown {what} {key!r}; {foreign.answer}":
                wrong[f"{what} {key}"] = message
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("lr: 1", "write learning_rate"),
        ("save_steps: 1", "checkpoints are not saved by steps"),
        ("eval_steps: 1", "write evals_per_epoch"),
        ("hub_token: hf_x", "run `hf auth login`"),
        ("train_on_inputs: true", "write completion_only_loss: false"),
        ("template: qwen", "write chat_template: chatml, qwen, llama3"),
        ("sample_packing: true", "packs rows by itself"),
        ("finetuning_type: full", "all weights are trained"),
        ("train_rows: 3", "a key of each sub-dataset; write it under datasets"),
        ("  seed: 3", "a key of the recipe; write it outside of datasets"),
        ("  lora_rank: 3", "write lora_r"),
    ],
)
def test_what_is_answered(tmp_path: Path, line: str, says: str) -> None:
    assert says in refused(tmp_path, SMALL + line + "\n")


def test_one_sub_dataset_is_taken_with_a_word() -> None:
    one = {"name": "a", "train": "a.jsonl", "validation": "b.jsonl"}

    def notes(method: str, **more: str) -> tuple[str, ...]:
        recipe = {"model_name_or_path": "tiny", "method": method, "datasets": [one | more]}
        return Recipe.from_mapping(recipe).notes

    (note,) = notes("msft")
    assert note == (
        "there is one sub-dataset only, so msft has nothing to weigh against it; method: sft gives "
        "the best checkpoint too, and costs less"
    )
    assert (notes("sft"), notes("soup"), notes("msft", split_by="topic")) == ((), (), ())
