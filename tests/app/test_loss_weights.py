"""Weights by epoch, of rows and of prompts: what is trained, said, resumed and refused."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rank_processes import in_processes
from rank_runs import left_by, train
from toys import read_lines, write_lines

from mortal import quick_folder
from msft.app.terminal.board import Board
from msft.cli import main
from msft.data.corpus import Corpus, load_corpus
from msft.engine.model.tokenizers import tokenizer_for
from msft.errors import DataError, RecipeError
from msft.recipe.recipe import Recipe, load_recipe
from msft.run.folder import read_history
from msft.run.worker import Step
from msft.search.draws import shuffled
from msft.search.feeds import SHUFFLED, FeedContext, Mixture, Part
from msft.testing import promised_log

pytestmark = pytest.mark.usefixtures("no_reports")

Write = Callable[..., str]


def rows_of(name: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{name}{n} is", "completion": f" {n % 5}", "w": [0, 1, 2.5][n % 3], **more}
        for n in range(count)
    ]


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as place:
        for name, count in (("a", 12), ("b", 8), ("v", 4), ("u", 4)):
            write_lines(place / f"{name}.jsonl", rows_of(name, count))
        yield place


@pytest.fixture
def write(folder: Path) -> Write:
    def written(a: Any = None, b: Any = None, **keys: Any) -> str:
        """A recipe; a, b: more keys of the two sub-datasets."""
        usual: dict[str, Any] = {
            "model_name_or_path": "tiny",
            "method": "sft",
            "num_train_epochs": 3,
            "evals_per_epoch": 2,
            "train_batch_size": 4,
            "learning_rate": 3e-3,
            "lr_scheduler_type": "cosine",
            "samples": 1,
        }
        datasets = [
            {
                "name": "a",
                "train": "a.jsonl",
                "validation": "v.jsonl",
                "metric": "nll",
                **(a or {}),
            },
            {
                "name": "b",
                "train": "b.jsonl",
                "validation": "u.jsonl",
                "metric": "nll",
                **(b or {}),
            },
        ]
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump({**usual, **keys, "datasets": datasets}))
        return str(path)

    return written


def corpus_of(file: str) -> Corpus:
    recipe = load_recipe(file)
    return load_corpus(recipe, tokenizer_for(recipe, "tiny"))


CURRICULUM: dict[str, Any] = {
    "a": {"weight": {0: 1, 1: 0}},
    "b": {"weight": {0: 0, 1: 1, 2: 0.5}},
}


# By epoch


def test_a_part_takes_the_rows_of_its_epoch() -> None:
    part = Part.weighted("a", 10, {0: 1, 2: 0.25, 3: 2})
    assert [part.rows_in(epoch) for epoch in range(6)] == [10, 10, 2, 20, 20, 20]
    assert part.epoch(0, 0, 1) == list(range(10))
    assert part.epoch(0, 0, 3) == [*range(10), *range(10)]
    drawn = [tuple(part.epoch(seed, 0, 2)) for seed in range(20)]
    assert len({*drawn}) > 5
    assert {len(set(each)) for each in drawn} == {2}
    assert Part.weighted("a", 10, {0: 0, 1: 0.001}).rows == 0
    assert Part.weighted("a", 10, {0: 0, 1: 0.001}).rows_in(1) == 1


def test_steps_and_ticks_are_counted_by_epoch() -> None:
    """12 rows, then 8, then 4, in steps of 4: 3 + 2 + 1 steps, each epoch in 2 ticks."""
    a = Part.weighted("a", 12, {0: 1, 1: 0})
    b = Part.weighted("b", 8, {0: 0, 1: 1, 2: 0.5})
    mixture = Mixture((a, b))
    place = FeedContext(mixture, 6, 2, 4, seed=20, rollout=0)
    feed = SHUFFLED.open(place)
    batches = [[batch.rows for batch in feed.batches(tick)] for tick in range(1, 7)]
    assert [len(tick) for tick in batches] == [2, 1, 1, 1, 1, 0]
    assert place.steps == mixture.steps(3, 4) == 6
    assert mixture.steps(1.5, 4) == 3 + 1
    names = [Counter(n for rows in tick for n, _ in rows) for tick in batches]
    assert names == [{"a": 8}, {"a": 4}, {"b": 4}, {"b": 4}, {"b": 4}, {}]
    order = shuffled(8, 20, "order", 0, 1)
    expected = [("b", b.epoch(20, 0, 1)[number]) for number in order]
    assert [row for tick in batches[2:4] for rows in tick for row in rows] == expected


def test_an_audit_takes_every_row_of_a_weight_that_changes() -> None:
    part = Part.weighted("a", 10, {0: 0, 1: 2}).among([1, 4, 5])
    assert (part.rows, part.later, part.epoch(0, 0, 0)) == (3, (), [1, 4, 5])


def test_validate_and_plan_say_what_each_epoch_has(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(**CURRICULUM, ema_decay=0.5)
    assert main(["validate", file]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "from epoch 0 on, one epoch: 12 rows" in out
    assert "from epoch 1 on, one epoch: 8 rows" in out
    assert "from epoch 2 on, one epoch: 4 rows, 32 tokens, 1 step" in out
    assert "from epoch 0 on no row, from epoch 1 on every train row once" in out
    assert "an epoch has 1 step but 2 evaluations" in out
    assert main(["validate", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["epoch_rows"], said["steps_per_epoch"]) == (12, 3)
    assert said["later_epochs"]["1"] == {"rows": 8, "tokens": 64, "steps": 2}
    assert main(["plan", file, "--json", "--no-calibration"]) == 0
    plan = json.loads(capsys.readouterr().out)
    case = plan["methods"]["sft"]["worst"]
    assert case["steps"] == 6
    assert case["tokens"]["train"] == sum(len(f"a{n} is 0") + 1 for n in range(12)) + 64 + 32
    assert {*plan["methods"]} == {"sft", "soup"}
    assert "changes by epoch, but method msft" in plan["not_counted"]["msft"]


@pytest.mark.parametrize("method", ["sft", "soup"])
def test_a_curriculum_trains_what_it_says_and_a_resume_goes_on(
    write: Write, folder: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write(**CURRICULUM, method=method), folder / "whole"
    assert main(["train", file, "--out", str(out), "--quiet"]) == 0
    events = read_lines(out / "run.jsonl")
    rollout = next(event for event in events if event["event"] == "rollout")
    assert rollout["active"] == {"a": 12, "b": 0}
    assert rollout["later"] == {"a": {"1": 0}, "b": {"1": 8, "2": 4}}
    points = [event for event in events if event["event"] == "point"]
    assert [point["steps"] for point in points] == [2, 1, 1, 1, 1, 0]
    assert [point["loss"][1] for point in points] == [8, 4, 4, 4, 4, 0]
    steps = read_lines(out / "steps.jsonl")
    assert [[*step["losses"]] for step in steps] == [["a"]] * 3 + [["b"]] * 3
    rates = [step["learning_rate"] for step in steps]
    assert rates[3] == pytest.approx(1.5e-3), "half of the six steps of the cosine are done"
    schedule = json.loads((out / "schedule.json").read_text())
    assert [stage["active"] for stage in schedule["stages"]][:1] == [{"a": 12}]
    lines = (out / "run.jsonl").read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        again = folder / f"kept-{kept}"
        again.mkdir()
        (again / "run.jsonl").write_bytes(b"".join(lines[:kept]))
        (again / "recipe.yaml").write_bytes((out / "recipe.yaml").read_bytes())
        assert main(["train", file, "--out", str(again), "--quiet"]) == 0
        assert promised_log(again / "run.jsonl") == promised_log(out / "run.jsonl")
    other = write(a={"weight": {0: 1, 2: 0}}, b=CURRICULUM["b"], method=method)
    capsys.readouterr()
    assert main(["train", other, "--out", str(out), "--quiet"]) == 2
    assert "datasets.a.weight was" in capsys.readouterr().err


def test_a_schedule_of_a_curriculum_is_replayed_stage_by_stage(write: Write, folder: Path) -> None:
    file = write(**CURRICULUM, method="soup", method_options={"of": "last", "k": 1})
    assert main(["train", file, "--out", str(folder / "run"), "--quiet"]) == 0
    schedule = json.loads((folder / "run" / "schedule.json").read_text())
    stages = [
        (stage["active"], stage["epochs"], stage["optimizer"]) for stage in schedule["stages"]
    ]
    assert stages == [({"a": 12}, 1, "fresh"), ({"b": 8}, 1, "kept"), ({"b": 4}, 1, "kept")]
    assert schedule["datasets"] == {"a": 1.0, "b": 2.0}
    plain = write(lr_scheduler_type="constant")
    words = ["replay", str(folder / "run"), plain, "--out", str(folder / "again"), "--quiet"]
    assert main(words) == 0
    steps = read_lines(folder / "again" / "steps.jsonl")
    assert [[*step["losses"]] for step in steps] == [["a"]] * 3 + [["b"]] * 3


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "msft", **CURRICULUM, "lr_scheduler_type": "constant"}, "method msft"),
    "a method of rows": ({"method": "ies", **CURRICULUM}, "method ies does not train the epochs"),
    "never": (
        {"a": {"weight": {0: 0, 3: 1}}},
        "weight of 'a' is 0 in all of the 3 epochs, so it is never trained",
    ),
    "nobody": (
        {"a": {"weight": {0: 1, 1: 0}}, "b": {"weight": {0: 1, 1: 0, 2: 1}}},
        "in epoch 1 every sub-dataset has the weight 0",
    ),
    "no first": ({"a": {"weight": {1: 1}}}, "epoch 0, the first, has none"),
    "no epoch": ({"a": {"weight": {"x": 1}}}, "'x' is no epoch"),
    "negative": ({"a": {"weight": {0: 1, 1: -1}}}, "in epoch 1 it is -1; expected a number from 0"),
    "always 0": ({"a": {"weight": {0: 0, 1: 0}}}, "it is 0 in every epoch"),
    "zero": ({"a": {"weight": 0}}, "weight is 0; expected more than 0"),
    "prompts": ({"prompt_loss_weight": 1.5}, "prompt_loss_weight is 1.5; expected 0 to 1"),
    "both": (
        {"prompt_loss_weight": 0.5, "completion_only_loss": False},
        "prompt_loss_weight is 0.5, but completion_only_loss: false gives prompts the weight 1",
    ),
    "both, zero": ({"prompt_loss_weight": 0, "completion_only_loss": False}, "keep one of them"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_refused_by_name(
    write: Write, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, said = WRONG[name]
    assert main(["validate", write(**keys)]) == 2
    assert said in capsys.readouterr().err


def test_an_epoch_that_is_never_reached_is_noted(write: Write) -> None:
    notes = load_recipe(write(a={"weight": {0: 1, 7: 0.5}})).notes
    assert any("epoch 7 is never reached, since num_train_epochs is 3" in note for note in notes)


def test_the_board_counts_the_steps_of_each_epoch(write: Write, folder: Path) -> None:
    out = folder / "run"
    assert main(["train", write(**CURRICULUM), "--out", str(out), "--quiet"]) == 0
    history = read_history(out)
    (stage,) = history.stages
    assert [stage.asked.rows_in(epoch) for epoch in range(4)] == [
        {"a": 12, "b": 0},
        {"a": 0, "b": 8},
        {"a": 0, "b": 4},
        {"a": 0, "b": 4},
    ]
    board = Board()
    board.history = history
    board.step(Step(0, 1, 1.0, 4, 30))
    assert board.steps == (7, 6), "six are done, and one that only this board has seen"


# Of rows


def test_a_column_called_weight_changes_nothing(write: Write, folder: Path) -> None:
    plain = corpus_of(write()).fingerprint()
    write_lines(folder / "a.jsonl", rows_of("a", 12, weight=7))
    assert corpus_of(write()).fingerprint() == plain


@pytest.mark.parametrize(
    "columns", [{"weight": "w"}, {"prompt": "prompt", "completion": "completion", "weight": "w"}]
)
def test_columns_name_the_weight_of_a_row(write: Write, columns: dict[str, str]) -> None:
    plain, corpus = corpus_of(write()), corpus_of(write(a={"columns": columns}))
    own = corpus.datasets["a"].train
    assert [row.weight for row in own.rows] == [0, 1, 2.5] * 4
    assert [row.tokens for row in own.rows] == [r.tokens for r in plain.datasets["a"].train.rows]
    scored = corpus.datasets["a"].validation
    assert scored is not None
    assert {row.weight for row in scored.rows} == {1.0}
    assert corpus.fingerprint() != plain.fingerprint()
    notes = corpus.datasets["a"].notes
    assert any("scaled by w: 0 to 2.5, mean 1.17; 4 rows with the weight 0" in n for n in notes)
    assert any("other columns are not read" in n for n in notes) is (len(columns) > 1)


def test_scored_rows_need_no_weight_and_a_table_may_have_text(write: Write, folder: Path) -> None:
    rows = "".join(f"v{n} is,{n}\n" for n in range(4))
    (folder / "v.jsonl").unlink()
    (folder / "v.csv").write_text(f"prompt,completion\n{rows}")
    (folder / "a.csv").write_text("prompt,completion,w\na0 is,0,0.5\na1 is,1,2\n")
    spec = {"train": "a.csv", "validation": "v.csv", "columns": {"weight": "w"}}
    found = corpus_of(write(a=spec)).datasets["a"].train
    assert [row.weight for row in found.rows] == [0.5, 2.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (-1, "w is -1; expected a weight: a number of 0 or more"),
        ("much", "w is 'much'"),
        (None, "w is null"),
        (True, "w is True"),
        (float("nan"), "w is nan"),
        (float("inf"), "w is inf"),
        ([1], "w is [1]"),
    ],
)
def test_a_bad_weight_is_refused_with_file_and_line(
    write: Write, folder: Path, given: Any, said: str
) -> None:
    rows = rows_of("a", 12)
    rows[4]["w"] = given
    write_lines(folder / "a.jsonl", rows)
    with pytest.raises(DataError) as error:
        corpus_of(write(a={"columns": {"weight": "w"}}))
    assert "a.jsonl, line 5: " in str(error.value)
    assert said in str(error.value)


def test_a_missing_weight_and_weights_of_zero_are_refused(write: Write, folder: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: columns names 'x' as the weight"):
        corpus_of(write(a={"columns": {"weight": "x"}}))
    write_lines(folder / "a.jsonl", ({**row, "w": 0} for row in rows_of("a", 12)))
    with pytest.raises(DataError, match="every train row has the weight 0"):
        corpus_of(write(a={"columns": {"weight": "w"}}))


def test_weights_of_one_leave_the_bytes_of_a_run_without(write: Write, folder: Path) -> None:
    write_lines(folder / "a.jsonl", ({**row, "w": 1} for row in rows_of("a", 12)))
    logs = list[Any]()
    for columns in (None, {"weight": "w"}):
        out = folder / f"out-{len(logs)}"
        file = write(a={"columns": columns} if columns else {}, num_train_epochs=1)
        assert main(["train", file, "--out", str(out), "--quiet"]) == 0
        logs.append(promised_log(out / "run.jsonl"))
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "ies", "method_options": {"threshold": 0.9}},
        {"method": "dynamix", "method_options": {"update_every": 2, "lookahead_batch_size": 4}},
        {"method": "msft", "compute_budget": 1, "method_options": {"max_stages": 2}},
    ],
    ids=lambda keys: str(keys["method"]),
)
def test_both_engines_train_weighted_rows_with_every_kind_of_feed(
    write: Write, folder: Path, keys: dict[str, Any]
) -> None:
    found = []
    for engine in ("simple", "fast"):
        more = {"lr_scheduler_type": "constant", "prompt_loss_weight": 0.3, "engine": engine}
        file, out = write(a={"columns": {"weight": "w"}}, **keys, **more), folder / engine
        assert main(["train", file, "--out", str(out), "--quiet"]) == 0
        lines = (out / "steps.jsonl").read_text().splitlines()
        found.append([json.loads(line)["loss"] for line in lines])
    assert len(found[0]) > 4
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_two_processes_leave_the_bytes_of_one(write: Write, folder: Path) -> None:
    a = {**CURRICULUM["a"], "columns": {"weight": "w"}}
    file = write(a=a, b=CURRICULUM["b"], prompt_loss_weight=0.3, lanes=2)
    assert main(train(file, folder / "one")) == 0
    ended = in_processes(2, [train(file, folder / "two")])
    assert ended.codes == [[0]] * 2, ended.said
    assert left_by(folder / "two") == left_by(folder / "one")


# Of prompts


def test_prompts_of_weight_one_are_trained_like_answers(write: Write, folder: Path) -> None:
    prints = list[str]()
    both: list[dict[str, Any]] = [{"prompt_loss_weight": 1.0}, {"completion_only_loss": False}]
    for number, keys in enumerate(both):
        file = write(num_train_epochs=1, **keys)
        prints.append(corpus_of(file).fingerprint())
        assert main(["train", file, "--out", str(folder / f"o{number}"), "--quiet"]) == 0
    assert prints[0] == prints[1] != corpus_of(write()).fingerprint()
    logs = [promised_log(folder / f"o{number}" / "run.jsonl") for number in range(2)]
    assert logs[0] == logs[1]


def test_a_weight_of_prompts_is_resolved_resumed_and_refused_if_it_changes(
    write: Write, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(folder / "out")
    assert main(["train", write(prompt_loss_weight=0.3), "--out", out, "--quiet"]) == 0
    assert main(["train", write(prompt_loss_weight=0.3), "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["train", write(prompt_loss_weight=0.4), "--out", out, "--quiet"]) == 2
    assert "prompt_loss_weight was 0.3, now it is 0.4" in capsys.readouterr().err
    own = corpus_of(write(prompt_loss_weight=0.3)).datasets["a"].train
    assert {row.prompt_weight for row in own.rows} == {0.3}
    assert (
        corpus_of(write(prompt_loss_weight=0.3)).fingerprint() != corpus_of(write()).fingerprint()
    )


@pytest.mark.parametrize("keys", [{"completion_only_loss": False}, {"prompt_loss_weight": 0.3}, {}])
def test_a_resolved_recipe_loads_back(write: Write, folder: Path, keys: dict[str, Any]) -> None:
    recipe = load_recipe(write(**keys, **CURRICULUM))
    (folder / "resolved.yaml").write_text(recipe.to_yaml())
    assert load_recipe(folder / "resolved.yaml") == recipe


def test_a_recipe_made_in_python_cannot_have_both() -> None:
    spec = {"name": "a", "train": "a", "validation": "v"}
    with pytest.raises(RecipeError, match="keep one of them"):
        Recipe("tiny", [spec], completion_only_loss=False, prompt_loss_weight=0.5)
