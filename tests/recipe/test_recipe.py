"""The recipe: defaults, files, overrides, aliases, and the round trip through YAML."""

import pickle
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msft.data.splits import exemplars_of
from msft.errors import RecipeError, YamlError
from msft.recipe.dataset import DatasetSpec
from msft.recipe.recipe import AdapterOptions, Recipe, load_recipe
from msft.recipe.yaml import MAX_CHARACTERS, dump, parse, parse_scalar
from msft.search.curves import PeakRule
from msft.search.methods import METHODS, FirstRollout
from msft.search.rollout import Run

ROWS = [{"prompt": "1 + 1 =", "completion": " 2"}]
A: dict[str, Any] = {"name": "a", "train": "a.jsonl", "validation": "b.jsonl"}


def recipe(**keys: Any) -> Recipe:
    return Recipe(**({"model_name_or_path": "tiny", "datasets": [A]} | keys))


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


SMALL = "model_name_or_path: tiny\ndatasets:\n- {name: a, train: a.jsonl, validation: b.jsonl}\n"


def own_method(run: Run, *, knob: Any = None) -> None:
    run.rollout(run.base, run.mixture, run.train_ticks)


def test_defaults_are_the_contracts() -> None:
    found = recipe()
    expected = {
        "method": "msft",
        "output_dir": None,
        "seed": 20,
        "compute_budget": 3,
        "num_train_epochs": 10,
        "evals_per_epoch": 4,
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "train_batch_size": 64,
        "max_length": 512,
        "weight_decay": 0.0,
        "max_grad_norm": 0.0,
        "warmup_steps": 0,
        "bf16": "auto",
        "gradient_checkpointing": "auto",
        "optim": "adamw",
        "ema_decay": None,
        "torch_compile": "auto",
        "num_fewshot": None,
        "prompt_style": "letters",
        "choice_norm": "chars",
        "mean": "macro",
        "selection_split": "validation",
        "report_split": "test",
        "score_test": "best",
        "disk_policy": "lean",
        "peaks": {"include_start": True, "smooth": 0, "min_delta": 0.0},
        "method_options": {},
        "options_by_method": {},
        "evaluation_tokens": "computed",
        "micro_batch_tokens": None,
        "deterministic": False,
        "engine": "auto",
        "use_peft": False,
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "lora_target_modules": "all-linear",
        "load_in_4bit": False,
        "fp8": False,
        "use_dora": False,
        "use_rslora": False,
        "merge_adapter": False,
        "lanes": "auto",
        "sharding": "auto",
        "ddp_timeout": 600,
        "rendezvous_timeout": 60,
        "saving_timeout": 7200,
        "export_dtype": "auto",
        "samples": 3,
        "report_to": "none",
        "validation_loss": False,
        "push_to_hub": False,
        "hub_model_id": None,
        "hub_private_repo": True,
        "trust_remote_code": False,
        "exclude_rows": None,
        "early_stopping_patience": None,
        "chat_template": None,
        "completion_only_loss": True,
        "prompt_loss_weight": 0.0,
    }
    assert {key: getattr(found, key) for key in expected} == expected
    assert {f.name for f in fields(Recipe) if f.init} == {
        *expected,
        "model_name_or_path",
        "datasets",
        "data_dir",
        "notes",
        "folder",
        "places",
    }


def test_the_contracts_example_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """\
model_name_or_path: Qwen/Qwen2.5-0.5B   # hub name
method: msft
output_dir: runs/example
seed: 20
compute_budget: 3
num_train_epochs: 10
evals_per_epoch: 4
learning_rate: 1.0e-5
lr_scheduler_type: constant
train_batch_size: 64
max_length: 512
weight_decay: 0.0
num_fewshot: 5
prompt_style: letters
choice_norm: chars
mean: macro
report_split: test
score_test: best
peaks: {include_start: true, smooth: 0, min_delta: 0.0}
method_options: {}
datasets:
  - name: mine
    train: data/mine.train.jsonl
    validation: data/mine.valid.jsonl
    test: data/mine.test.jsonl
    metric: accuracy
    keep: false
""",
    )
    found = load_recipe(path)
    spec = DatasetSpec(
        "mine",
        train="data/mine.train.jsonl",
        validation="data/mine.valid.jsonl",
        test="data/mine.test.jsonl",
    )
    assert found == Recipe(
        "Qwen/Qwen2.5-0.5B", datasets=[spec], output_dir="runs/example", num_fewshot=5
    )
    assert found.folder == tmp_path
    assert ["one sub-dataset only" in note for note in found.notes] == [True]


def test_a_list_of_all_linear_is_all_linear_as_in_trl() -> None:
    found = recipe(use_peft=True, lora_target_modules=["all-linear"])
    assert found.lora_target_modules == "all-linear"


def test_rows_in_memory_are_taken_and_not_written() -> None:
    found = Recipe(
        model_name_or_path="tiny",
        datasets=[{"name": "a", "train": ROWS, "validation_fraction": 0.5}],
    )
    assert found.datasets[0].train == tuple(ROWS)
    assert "train: <1 rows in memory>" in found.to_yaml()
    with pytest.raises(
        RecipeError,
        match=r"yaml: sub-dataset 'a': train is '<1 rows in memory>'",
    ):
        Recipe.from_mapping(parse(found.to_yaml()).value, "recipe.yaml")


def test_paths_may_be_path_objects() -> None:
    found = recipe(datasets=[A | {"train": Path("x") / "a.jsonl"}], output_dir=Path("runs"))
    assert (found.datasets[0].train, found.output_dir) == (str(Path("x") / "a.jsonl"), "runs")


def test_a_recipe_is_a_value() -> None:
    options = {"patience": 3}
    found = recipe(method_options=options)
    options["patience"] = 4
    assert found.method_options == {"patience": 3}
    assert replace(found, seed=20) == found != replace(found, seed=30)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
    with pytest.raises(AttributeError):
        found.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "1.0e-5", ".00001", "0.00001"])
def test_a_learning_rate_is_a_number(tmp_path: Path, text: str) -> None:
    assert load_recipe(written(tmp_path, f"{SMALL}learning_rate: {text}\n")).learning_rate == 1e-5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("010", 10),
        ("1_800", 1800),
        ("12:30", "12:30"),
        ("1.", 1.0),
        ("~", None),
        ("True", True),
        ("1e", "1e"),
        ("e5", "e5"),
        (".", "."),
        ("9" * 500, float("inf")),
    ],
)
def test_plain_scalars(text: str, value: Any) -> None:
    assert parse_scalar(text) == value


def test_bom_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_recipe(path) == recipe()


def test_overrides(tmp_path: Path) -> None:
    path = written(
        tmp_path, SMALL + "- {name: a.b, train: c.jsonl, validation: d.jsonl}\nnum_epochs: 5\n"
    )
    found = load_recipe(
        path,
        [
            "learning_rate=2e-5",
            "peaks.smooth=1",
            "method_options.patience=3",
            "datasets.a.train_rows=100",
            "datasets.a.b.keep=true",
            "num_train_epochs=2",
            "output_dir=runs/a=b",
            "seed=1",
            "seed=2",
            "options_by_method.ies.track_excluded=false",
            "options_by_method.ies.threshold=0.02",
        ],
    )
    assert found.options_by_method == {"ies": {"track_excluded": False, "threshold": 0.02}}
    assert (found.learning_rate, found.seed, found.num_train_epochs) == (2e-5, 2, 2)
    assert found.output_dir == "runs/a=b"
    assert (found.peaks["smooth"], found.method_options) == (1, {"patience": 3})
    assert found.datasets[0].train_rows == 100
    assert found.datasets[1].keep
    assert load_recipe(path, ["output_dir="]).output_dir is None
    assert load_recipe(path, ["base_model=other"]).model_name_or_path == "other"


def test_an_override_reaches_the_keys_of_an_option(tmp_path: Path) -> None:
    sure = "method_options.exclude.confidence=0.9"
    path = written(tmp_path, SMALL)
    options = {"exclude": {"confidence": 0.9}}
    assert load_recipe(path, [sure]).method_options == options
    assert load_recipe(path, ["method_options.exclude=null", sure]).method_options == options
    path = written(tmp_path, SMALL + "method_options: {patience: 4, exclude: {confidence: 0.8}}\n")
    assert load_recipe(path, [sure]).method_options == {"patience": 4, **options}


def test_what_follows_from_the_keys_follows_those_of_a_copy() -> None:
    found = recipe(method="msft", compute_budget=2, peaks={"smooth": 1})
    assert found.first_rollout == FirstRollout(8, "contenders", plain=True)
    assert (found.peak_rule, found.adapter, found.packages) == (PeakRule(smooth=1), None, ())
    copy = replace(found, method="sft", num_train_epochs=3, use_peft=True, load_in_4bit=True)
    assert (copy.prepared.name, copy.first_rollout) == ("sft", FirstRollout(12, "best", plain=True))
    assert copy.peak_rule == found.peak_rule
    assert copy.adapter == AdapterOptions(r=16, alpha=32, four_bit=True, seed=20)
    assert copy.packages == ("peft", "bitsandbytes")


def test_options_of_several_methods_stand_in_one_recipe() -> None:
    by = {"msft": {"patience": 3, "drop_ties": "all"}, "ies": {"threshold": 0.1}}
    found = recipe(options_by_method=by, method_options={"patience": 5})
    assert found.options_of("msft") == {"patience": 5, "drop_ties": "all"}, "its own come first"
    assert found.options_of("ies") == {"threshold": 0.1}
    assert found.options_of("sft") == {}
    prepared = found.prepared
    assert (prepared.rollout_options.patience, dict(prepared.options)) == (5, {"drop_ties": "all"})
    other = recipe(options_by_method=by, method="ies")
    assert dict(other.prepared.options) == {"threshold": 0.1}
    assert Recipe.from_mapping(parse(found.to_yaml()).value) == found


@pytest.mark.parametrize(
    ("given", "says", "place"),
    [
        ([], "options_by_method is []; expected options of methods", ()),
        ({"ies": 3}, "options_by_method.ies is 3; expected options such as", ("ies",)),
        ({"iess": {}}, "options_by_method.iess: unknown method 'iess'; did you mean", ("iess",)),
        ({"ies": {"treshold": 1}}, "did you mean 'threshold'", ("ies", "treshold")),
        ({"ies": {"threshold": 0}}, "threshold is 0", ("ies", "threshold")),
        (
            {"ies": {"threshold": float("nan")}},
            "options_by_method.ies.threshold",
            ("ies", "threshold"),
        ),
        ({"msft": {"patience": -1}}, "patience", ("msft", "patience")),
    ],
)
def test_wrong_options_of_another_method_are_refused(
    given: Any, says: str, place: tuple[str, ...]
) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(options_by_method=given)
    assert says in str(refused.value)
    assert refused.value.place == ("options_by_method", *place)


def test_aliases_are_read_with_a_note(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        SMALL.replace("model_name_or_path", "base_model")
        + "cutoff_len: 128\nnum_epochs: 2\nmicro_batch_size: 1\n",
    )
    found = load_recipe(path)
    assert found == recipe(max_length=128, num_train_epochs=2)
    assert found.notes[0] == f"{path}, line 1: base_model was read as model_name_or_path"
    assert [note.split(": ")[0] for note in found.notes[:-1]] == [
        f"{path}, line {n}" for n in (1, 4, 5, 6, 5)
    ]
    assert found.notes[-1].startswith("there is one sub-dataset only, so msft has nothing")
    assert "micro_batch_size is ignored" in found.notes[3]
    assert "train_batch_size (64) samples" in found.notes[3]
    assert "train_batch_size (8) samples" in load_recipe(path, ["train_batch_size=8"]).notes[3]
    wrong = written(tmp_path, SMALL + "sequence_len: 0\n")
    with pytest.raises(RecipeError, match="line 4: max_length is 0; expected 2 or more"):
        load_recipe(wrong)


@pytest.mark.parametrize(
    ("lines", "overrides", "said"),
    [
        ("num_train_epochs: 2", [], "line 4: num_train_epochs is not used by msft; compute_budget"),
        (
            "num_epochs: 2",
            [],
            "line 4: num_train_epochs is not used by msft; compute_budget (3) is",
        ),
        ("num_train_epochs: 2", ["method=continual"], "not used by continual; compute_budget (3)"),
        (
            "compute_budget: 2",
            ["method=sft"],
            "compute_budget is not used by sft; num_train_epochs",
        ),
        (
            "compute_budget: 2.5",
            ["num_train_epochs=1"],
            "not used by msft; compute_budget (2.5) is",
        ),
        ("compute_budget: 2\nnum_train_epochs: 1", [], None),
        ("num_train_epochs: 2", ["method=sro"], None),
        ("compute_budget: 2", [], None),
        ("num_train_epochs: 2", [f"method={__name__}:own_method"], None),
    ],
)
def test_a_length_that_the_method_does_not_use_is_noted(
    tmp_path: Path, lines: str, overrides: list[str], said: str | None
) -> None:
    found = load_recipe(written(tmp_path, f"{SMALL}{lines}\n"), overrides)
    unused = [note for note in found.notes if "is not used by" in note]
    assert len(unused) == (said is not None)
    assert said is None or said in unused[0]


def test_few_shot_is_for_benchmarks() -> None:
    specs = [A, A | {"name": "c", "num_fewshot": 2}, {"name": "g", "benchmark": "gsm8k"}]
    found = recipe(datasets=specs)
    assert [exemplars_of(found, spec) for spec in found.datasets] == [0, 2, 5]
    found = replace(found, num_fewshot=3)
    assert [exemplars_of(found, spec) for spec in found.datasets] == [0, 2, 3]
    with pytest.raises(RecipeError, match="unknown benchmark 'gsm8'; did you mean 'gsm8k'"):
        recipe(datasets=[{"name": "g", "benchmark": "gsm8"}])


def test_models_are_looked_for_here_then_beside_the_recipe_then_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here / "one", beside / "one", beside / "two"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)

    def local(name: str) -> str:
        return recipe(model_name_or_path=name, folder=beside).model()

    assert local("one") == "one"
    assert local("two") == str(beside / "two")
    assert local("owner/three") == "owner/three"
    for missing in ("./three", "../three", "/three", "three.gguf"):
        with pytest.raises(RecipeError, match="does not exist"):
            local(missing)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_recipe(method: str) -> None:
    assert recipe(method=method).prepared.name == method


def test_short_and_long_budgets_are_no_contradiction() -> None:
    recipe(evals_per_epoch=1, peaks={"include_start": False})
    recipe(evals_per_epoch=3, compute_budget=1e6, num_train_epochs=1e6)


def test_a_method_of_the_users_own() -> None:
    name = f"{__name__}:own_method"
    found = recipe(method=name, method_options={"knob": {"x": [1, "1e-5", None]}})
    assert Recipe.from_mapping(parse(found.to_yaml()).value) == found


def test_recipes_import_neither_torch_nor_what_is_for_tests() -> None:
    code = (
        "import sys; from msft.recipe.recipe import Recipe; import msft.data.corpus\n"
        "Recipe('tiny', datasets=[{'name': 'a', 'train': 't', 'validation': 'v'}])\n"
        "print(sys.modules.keys() & {'torch', 'datasets', 'msft.testing', 'msft.run.recorded_run'})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


names = st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True).filter(
    lambda name: name.upper()[:3] not in ("CON", "PRN", "AUX", "NUL", "COM", "LPT")
)
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40).filter(
    lambda text: bool(text.strip()) and "rows in memory" not in text
)
numbers = st.floats(min_value=1e-300, max_value=1e300)
specs: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": names, "train": texts, "validation": texts},
    optional={
        "test": texts,
        "train_rows": st.integers(1, 10**9),
        "metric": st.sampled_from(["accuracy", "nll", "my.module:function"]),
        "keep": st.booleans(),
        "skip_bad_rows": st.booleans(),
    },
)
recipes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "model_name_or_path": texts,
        "datasets": st.lists(specs, min_size=1, max_size=3, unique_by=lambda s: s["name"].lower()),
    },
    optional={
        "output_dir": texts,
        "seed": st.integers(0, 2**63 - 1),
        "learning_rate": numbers,
        "weight_decay": numbers,
        "evals_per_epoch": st.integers(1, 8),
        "bf16": st.sampled_from(["auto", True, False]),
        "peaks": st.fixed_dictionaries({"min_delta": numbers}, optional={"smooth": st.just(2)}),
        "method_options": st.fixed_dictionaries({}, optional={"patience": st.integers(1, 9)}),
    },
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(recipes)
def test_to_yaml_loads_back(keys: dict[str, Any]) -> None:
    found = Recipe(**keys)
    assert Recipe.from_mapping(parse(found.to_yaml()).value) == found


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from(["1e-5", "no", "~", "", "1_0", "0x1", "*a", "!x", "- a", "a: b", "#", "<<"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab: #'\"1"), inner),
    max_leaves=8,
)


@given(values)
def test_dump_and_parse_are_inverse(value: Any) -> None:
    assert parse(dump(value)).value == value


@given(st.text(st.sampled_from("a1-: \n\t[]{}#&*!|>'\"%@`,?~.\x00é")))
def test_parse_never_fails_otherwise(text: str) -> None:
    line: int | None = None
    try:
        parse(text)
    except YamlError as error:
        line = error.line
    assert line is None or 1 <= line <= text.count("\n") + 1


def test_a_bomb_is_refused_in_time() -> None:
    with pytest.raises(YamlError, match="characters"):
        parse("a" * (MAX_CHARACTERS + 1))
    with pytest.raises(YamlError, match="levels deep"):
        parse("[" * 10_000)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"output_dir": ""}, "output_dir is ''; expected text, or leave the key out"),
        ({"data_dir": 7}, "data_dir is 7; expected text; put it in quotes"),
        ({"seed": "7"}, "seed is '7'; expected a whole number; write it without quotes"),
        ({"seed": "x"}, "seed is 'x'; expected a whole number"),
        ({"lanes": 0}, "lanes is 0; expected 1 or more"),
        ({"lanes": "two"}, "lanes is 'two'; expected 'auto' or a whole number"),
        ({"micro_batch_tokens": 1.5}, "micro_batch_tokens is 1.5; expected a whole number or null"),
        ({"bf16": "yes"}, "bf16 is 'yes'; expected 'auto' or true or false"),
    ],
)
def test_a_message_says_what_was_found_and_what_would_fit(keys: Any, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(**keys)
    assert (str(refused.value), refused.value.place) == (message, (*keys,))


def test_bounds_refuse_what_is_not_a_number() -> None:
    for key in ("learning_rate", "weight_decay", "compute_budget", "max_grad_norm"):
        for value in (float("nan"), float("inf"), -1.0, True, "1", None):
            with pytest.raises(RecipeError, match=key):
                recipe(**{key: value})


def test_every_lane_has_a_row_and_an_engine_that_sums() -> None:
    with pytest.raises(RecipeError, match=r"lanes is 80, but .* train_batch_size \(64\) rows"):
        recipe(lanes=80)
    with pytest.raises(RecipeError, match="lanes is 2, but engine simple has one"):
        recipe(lanes=2, engine="simple")
    assert recipe(lanes=64).lanes == 64


def test_where_test_rows_select_validation_rows_are_neither_needed_nor_used() -> None:

    def read(mapping: dict[str, Any]) -> tuple[str, ...]:
        return Recipe.from_mapping(mapping).notes

    keys = {"selection_split": "test", "report_split": "selection"}
    rows = {"train": "a.jsonl", "test": "c.jsonl"}
    plain = {"model_name_or_path": "tiny"}
    assert read({**plain, **keys, "datasets": [{"name": "a", **rows}, {"name": "b", **rows}]}) == ()
    datasets = [
        {"name": "a", **rows, "validation": "b.jsonl"},
        {"name": "b", **rows, "validation_fraction": 0.1, "validation_rows": 5},
        {"name": "c", **rows},
    ]
    (note,) = read({**plain, **keys, "datasets": datasets})
    assert note == (
        "validation, validation_fraction and validation_rows of a and b are not used: "
        "selection_split is test, so no validation rows are read or held out"
    )
    assert read({**plain, "datasets": datasets[:2]}) == ()
