"""Wrong recipes and wrong data: each is refused with one readable message that says where."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from msft.data.splits import load_datasets
from msft.errors import DataError, RecipeError
from msft.recipe.dataset import DatasetSpec
from msft.recipe.recipe import Recipe, load_recipe

GOOD = """\
model_name_or_path: tiny
method: msft
datasets:
- name: a
  train: a.jsonl
  validation: b.jsonl
"""
KEYS = (
    "model_name_or_path: tiny\nmethod: {method}\ndatasets: [{{name: a, train: t, validation: v}}]\n"
)


def key(line: str, method: str = "msft") -> str:
    """A good recipe with one more line, the fourth."""
    return KEYS.format(method=method) + line + "\n"


def spec(lines: str) -> str:
    """A good recipe with one more line in its sub-dataset, the seventh."""
    return GOOD + lines + "\n"


def name(written: str) -> str:
    return GOOD.replace("name: a", f"name: {written}")


def second(lines: str) -> str:
    return GOOD + lines


RECIPES: list[tuple[str, str, int | None, tuple[str, ...]]] = [
    # what is wrong, the file, the line, what the message says
    ("unknown key", key("learning_rat: 1"), 4, ("'learning_rat'", "did you mean 'learning_rate'")),
    (
        "adapter",
        key("adapter: qlora"),
        4,
        ("unknown key 'adapter'; write use_peft: true for LoRA",),
    ),
    ("LoRA as a switch", key("use_lora: true"), 4, ("'use_lora'; write use_peft: true for LoRA",)),
    ("number of GPUs", key("num_gpus: 8"), 4, ("`torchrun` or `accelerate launch` says how many",)),
    ("rank", key("lora_rank: 8"), 4, ("unknown key 'lora_rank'; write lora_r",)),
    ("rank alone", key("lora_r: 8"), 4, ("lora_r is 8", "add use_peft: true", "leave lora_r out")),
    ("quantised", key("load_in_4bit: true"), 4, ("load_in_4bit is True", "add use_peft: true")),
    ("FP8", key("fp8: true"), 4, ("fp8 is True, but FP8 is for frozen", "add use_peft: true")),
    (
        "FP8 and four bits",
        key("use_peft: true\nfp8: true\nload_in_4bit: true"),
        5,
        ("fp8 is true and load_in_4bit is True", "leave one of them out"),
    ),
    (
        "FP8 and fp32",
        key("use_peft: true\nfp8: true\nbf16: false"),
        5,
        ("fp8 is true and bf16 is False", "products in FP8 give bf16"),
    ),
    ("merged", key("merge_adapter: true"), 4, ("merge_adapter is True", "add use_peft: true")),
    ("no rank", key("use_peft: true\nlora_r: 0"), 5, ("lora_r is 0; expected 1 to 4096",)),
    (
        "all dropped",
        key("use_peft: true\nlora_dropout: 1"),
        5,
        ("lora_dropout is 1; expected 0 or more, below 1",),
    ),
    (
        "layers as text",
        key("use_peft: true\nlora_target_modules: q_proj"),
        5,
        ("'q_proj'; expected all-linear, or a list",),
    ),
    (
        "a layer twice",
        key("use_peft: true\nlora_target_modules: [q_proj, q_proj]"),
        5,
        ("name each layer once",),
    ),
    ("eight bits", key("load_in_8bit: true"), 4, ("write load_in_4bit: true",)),
    (
        "Axolotl's fraction",
        key("val_set_size: 0.1"),
        4,
        ("write validation_fraction in each sub-dataset",),
    ),
    ("key of another level", key("train_rows: 3"), 4, ("unknown key 'train_rows'",)),
    ("unknown key of a sub-dataset", spec("  trian_rows: 3"), 7, ("mean 'train_rows'",)),
    ("duplicate key", key("method: sft"), 4, ("'method' is given twice", "line 2")),
    ("duplicate key below", spec("  train: x"), 7, ("'train' is given twice", "line 5")),
    ("bad indentation", key(" seed: 1"), 4, ("not valid YAML",)),
    ("unclosed bracket", key("peaks: {smooth: 1"), 5, ("not valid YAML",)),
    ("tab", key("peaks:\n\tsmooth: 1"), 5, ("not valid YAML", "blanks")),
    ("control character", key("output_dir: a\x07b"), 4, ("'\\x07'", "not allowed")),
    ("anchor", key("seed: &x 1"), 4, ("'&x'", "anchor")),
    ("alias", key("seed: *x"), 4, ("'*x'", "alias")),
    ("python tag", key("seed: !!python/object/apply:os.getpid []"), 4, ("YAML tag", "os.getpid")),
    ("own tag", key("seed: !x 1"), 4, ("YAML tag '!x'",)),
    ("second document", key("---\nseed: 1"), 4, ("second YAML document",)),
    ("key that is a list", key("[a]: 1"), 4, ("a key that is not text",)),
    ("deep nesting", key("peaks: " + "[" * 50 + "]" * 50), 4, ("levels deep",)),
    ("empty file", "# nothing\n", None, ("empty", "msft init")),
    ("not a mapping", "- a\n- b\n", None, ("found ['a', 'b']", "expected keys and values")),
    ("no model", key("").replace("model_name_or_path: tiny\n", ""), None, ("_path is missing",)),
    ("no datasets", "model_name_or_path: tiny\n", None, ("datasets is empty", "at least one")),
    ("empty datasets", "model_name_or_path: tiny\ndatasets: []\n", 2, ("datasets is empty",)),
    ("datasets is text", "model_name_or_path: t\ndatasets: a\n", 2, ("datasets is 'a'", "a list")),
    ("sub-dataset is text", "model_name_or_path: t\ndatasets: [a]\n", 2, ("is 'a'; expected",)),
    ("null model", GOOD.replace("tiny", ""), 1, ("model_name_or_path is None", "text")),
    ("number as text", key("learning_rate: '1e-5'"), 4, ("'1e-5'", "without quotes")),
    ("word for a number", key("learning_rate: high"), 4, ("learning_rate is 'high'", "a number")),
    ("text as number", key("output_dir: 7"), 4, ("output_dir is 7", "put it in quotes")),
    ("no decay", key("ema_decay: 1"), 4, ("ema_decay is 1; expected more than 0, below 1",)),
    ("decay of 0", key("ema_decay: 0.0"), 4, ("ema_decay is 0.0; expected more than 0, below 1",)),
    ("decay that is a word", key("ema_decay: off"), 4, ("ema_decay is ", "expected a number")),
    ("fraction for a count", key("train_batch_size: 1.5"), 4, ("is 1.5", "a whole number")),
    ("yes for true", key("deterministic: yes"), 4, ("is 'yes'", "true or false")),
    ("list for a number", key("seed: [1, 2]"), 4, ("seed is [1, 2]",)),
    ("negative seed", key("seed: -1"), 4, ("seed is -1; expected 0 to",)),
    ("zero learning rate", key("learning_rate: 0"), 4, ("expected more than 0",)),
    ("nan", key("learning_rate: .nan"), 4, ("learning_rate is nan",)),
    ("inf", key("weight_decay: .inf"), 4, ("weight_decay is inf",)),
    ("overflow", key("learning_rate: 1e999"), 4, ("learning_rate is inf",)),
    ("empty batch", key("train_batch_size: 0"), 4, ("expected 1 or more",)),
    ("unknown choice", key("mean: micro"), 4, ("mean is 'micro'", "'macro' or 'pooled'")),
    ("unknown tracker", key("report_to: neptune"), 4, ("report_to is 'neptune'", "'wandb'")),
    ("unknown schedule", key("lr_scheduler_type: polynomial"), 4, ("'constant' or",)),
    ("schedule with roll-back", key("lr_scheduler_type: cosine"), 4, ("rolls back", "constant")),
    ("schedule for continual", key("lr_scheduler_type: linear", "continual"), 4, ("rolls back",)),
    ("warm-up of nothing", key("warmup_steps: 10", "sft"), 4, ("constant_with_warmup",)),
    ("half a tick", key("compute_budget: 0.3"), 4, ("compute_budget is 0.3", "multiple of 1/4")),
    ("epochs off the grid", key("num_train_epochs: 2.1"), 4, ("num_train_epochs is 2.1",)),
    ("unknown method", key("", "msfd"), 2, ("unknown method 'msfd'", "mean 'msft'")),
    ("method not importable", key("", "no.such:f"), 2, ("cannot be imported",)),
    ("method without a signature", key("", "builtins:dict"), 2, ("cannot be imported",)),
    ("quoted option", key("method_options: {patience: '3'}"), 4, ("'3'", "without quotes")),
    ("method is no function", key("", "math:pi"), 2, ("not a function",)),
    ("unknown option", key("method_options: {paitence: 3}"), 4, ("mean 'patience'",)),
    ("option of another", key("method_options: {patience: 3}", "sft"), 4, ("method sft",)),
    (
        "unknown option after one whose name the message lists",
        key("method_options:\n  patience: 3\n  xyz: 1"),
        6,
        ("unknown option of method msft: 'xyz'", "patience"),
    ),
    (
        "contradiction inside a method, the other way round",
        key("method_options:\n  track_excluded: false\n  permanent: false", "ies"),
        6,
        ("permanent: false contradicts",),
    ),
    ("option out of range", key("method_options:\n  patience: 0"), 5, ("patience is 0",)),
    (
        "option of an option",
        key("method_options:\n  exclude:\n    confidence: 2"),
        6,
        ("exclude: confidence is 2; expected 0.5 or more, below 1",),
    ),
    ("option without its options", key("method_options: {exclude: 0.9}"), 4, ("of the keys",)),
    ("options is a list", key("method_options: [1]"), 4, ("method_options is [1]",)),
    ("option is nan", key("method_options: {max_epochs: .nan}"), 4, ("is nan", "finite")),
    ("option off the grid", key("method_options: {max_epochs: 0.3}"), 4, ("max_epochs is 0.3",)),
    (
        "contradiction inside a method",
        key("method_options:\n  permanent: false\n  track_excluded: false", "ies"),
        5,
        ("permanent: false contradicts",),
    ),
    (
        "nobody could ever leave",
        key("compute_budget: 0.25\npeaks: {include_start: false}"),
        4,
        ("could ever be excluded",),
    ),
    ("unknown peak option", key("peaks: {smoth: 1}"), 4, ("'smoth'", "mean 'smooth'")),
    ("negative smoothing", key("peaks:\n  smooth: -1"), 5, ("peaks.smooth is -1",)),
    ("unknown curve", key("peaks:\n  by: luck"), 5, ("by is 'luck'", "'score' or 'probability'")),
    (
        "probabilities of no choices",
        GOOD + "  metric: nll\npeaks:\n  by: probability\n",
        9,
        ("peaks.by is probability, but sub-dataset 'a' has the metric nll", "use peaks.by: score"),
    ),
    ("too much noise", spec("  label_noise: 1.5"), 7, ("label_noise is 1.5; expected 0 to 1",)),
    (
        "wrong labels of a benchmark without choices",
        "model_name_or_path: t\ndatasets:\n- name: a\n  benchmark: gsm8k\n  label_noise: 0.4\n",
        5,
        ("label_noise is 0.4, but the rows of gsm8k have no choices", "leave label_noise out"),
    ),
    (
        "wrong labels of a benchmark that code makes",
        "model_name_or_path: t\ndatasets:\n- {name: a, benchmark: demo_teams, label_noise: 0.4}\n",
        3,
        ("the rows of demo_teams have no choices",),
    ),
    ("peaks is a number", key("peaks: 3"), 4, ("peaks is 3",)),
    ("alias beside its key", key("max_length: 9\ncutoff_len: 9"), 5, ("cutoff_len means max_len",)),
    ("name missing", GOOD.replace("name: a", "keep: true"), 4, ("name is missing",)),
    ("name is a number", name("7"), 4, ("name is 7", "quotes")),
    ("name with a path", name("../x"), 4, ("'../x'", "A-Z")),
    ("absolute name", name("/etc/x"), 4, ("'/etc/x'",)),
    ("name of dots", name(".."), 4, ("'..'",)),
    ("name with a line break", name('"a\\n"'), 4, ("'a\\n'",)),
    ("empty name", name("''"), 4, ("name is ''",)),
    (
        "same name",
        second("- {name: a, train: t, validation: v}\n"),
        7,
        ("name 'a' is taken",),
    ),
    (
        "same name up to case",
        second("- name: b\n  train: t\n  validation: v\n- train: t\n  validation: v\n  name: B\n"),
        12,
        ("name 'B' is taken by 'b'", "case"),
    ),
    ("two validations", spec("  validation_fraction: 0.1"), 7, ("both validation and",)),
    (
        "whole fraction",
        GOOD.replace("validation: b.jsonl", "validation_fraction: 1"),
        6,
        ("0.999",),
    ),
    ("no validation", GOOD.replace("  validation: b.jsonl\n", ""), 4, ("neither validation nor",)),
    (
        "no test rows",
        "selection_split: test\n" + GOOD,
        5,
        ("no test, but selection_split is test",),
    ),
    (
        "unknown selection",
        "selection_split: tests\n" + GOOD,
        1,
        ("selection_split is 'tests'", "'validation' or 'test'"),
    ),
    (
        "test rows that do not select",
        f"selection_split: test\nscore_test: every\n{GOOD}  test: c.jsonl\n",
        2,
        ("score_test is every, but selection_split is test",),
    ),
    (
        "a loss of rows that are not read",
        f"selection_split: test\nvalidation_loss: true\n{GOOD}  test: c.jsonl\n",
        2,
        ("validation_loss is true, but selection_split is test",),
    ),
    ("unknown policy", "disk_policy: papre\n" + GOOD, 1, ("'papre'", "'lean' or 'paper'")),
    ("no source", GOOD.replace("train: a.jsonl", "keep: true"), 4, ("neither train, path nor",)),
    ("watch and train", spec("  watch: true"), 7, ("both watch and train", "leave one of the two")),
    (
        "only watched",
        GOOD.replace("  train: a.jsonl\n", ""),
        4,
        ("datasets: a is only watched, so there is nothing to train",),
    ),
    ("watched and nothing", GOOD + "- {name: w, watch: true}\n", 7, ("it names no rows",)),
    (
        "a weight of what is watched",
        GOOD + "- {name: w, watch: true, validation: w, weight: 2}\n",
        7,
        ("sub-dataset 'w': weight is 2.0, but it is only watched", "leave weight out"),
    ),
    (
        "held out of what is watched",
        GOOD + "- {name: w, watch: true, test: w, validation_fraction: 0.5}\n",
        7,
        ("sub-dataset 'w': validation_fraction is 0.5, but it is only watched",),
    ),
    (
        "a guard of test rows",
        GOOD + "- {name: w, test: w.jsonl, guard: {max_drop: 0.1}}\n",
        7,
        ("sub-dataset 'w': guard, but no validation rows",),
    ),
    ("a guard below 0", spec("  guard: {max_drop: -0.1}"), 7, ("max_drop is -0.1; expected 0",)),
    ("a guard of what", spec("  guard: {drop: 0.1}"), 7, ("unknown option of guard: 'drop'",)),
    ("a guard of nothing", spec("  guard: {}"), 7, ("guard",)),
    ("a guard is a number", spec("  guard: 0.1"), 7, ("guard is 0.1; expected keys and values",)),
    (
        "a guard on test",
        f"selection_split: test\n{GOOD}  test: c.jsonl\n  guard: {{max_drop: 0.1}}\n",
        9,
        ("guard, but selection_split is test",),
    ),
    (
        "watched without test rows where test selects",
        f"selection_split: test\n{GOOD}  test: c.jsonl\n- {{name: w, validation: w}}\n",
        9,
        ("sub-dataset 'w': no test, but selection_split is test",),
    ),
    (
        "patience on test",
        f"selection_split: test\nearly_stopping_patience: 2\nnum_train_epochs: 1\n"
        f"{GOOD.replace('method: msft', 'method: sft')}  test: c.jsonl\n",
        2,
        ("early_stopping_patience is 2, but selection_split is test",),
    ),
    ("no patience", key("early_stopping_patience: 0", "sft"), 4, ("is 0; expected 1 or more",)),
    *(
        (
            f"patience of {method}",
            key("early_stopping_patience: 3", method),
            4,
            (f"early_stopping_patience is 3, but method {method} does not take it", "leave it out"),
        )
        for method in ("msft", "continual", "sro", "soft_sro")
    ),
    ("train and path", spec("  path: data"), 7, ("both train and path",)),
    ("benchmark and train", GOOD.replace("validation: b.jsonl", "benchmark: gsm8k"), 5, ("both",)),
    ("a file twice", GOOD.replace("a.jsonl", "[a.jsonl, a.jsonl]"), 5, ("a.jsonl twice",)),
    ("no files", GOOD.replace("a.jsonl", "[]"), 5, ("train is []", "a list of files")),
    ("rows", GOOD.replace("a.jsonl", "[{prompt: p}]"), 5, ("write them to a .jsonl file",)),
    ("columns of nothing", spec("  columns: {}"), 7, ("columns is {}", "{prompt: question")),
    ("unknown field", spec("  columns:\n    promt: q"), 8, ("'promt'; did you mean 'prompt'?",)),
    ("column is a number", spec("  columns:\n    prompt: 1"), 8, ("prompt is 1; expected the",)),
    (
        "columns of a benchmark",
        "model_name_or_path: t\ndatasets:\n- name: a\n  benchmark: sciq\n  columns: {prompt: q}\n",
        5,
        ("both benchmark and columns",),
    ),
    ("weight of nothing", spec("  weight: 0"), 7, ("weight is 0; expected more than 0",)),
    (
        "too heavy",
        spec("  weight: 1001"),
        7,
        ("weight is 1001; expected more than 0, 1000 at most",),
    ),
    (
        "template is a number",
        key("chat_template: 1"),
        4,
        ("chat_template is 1; expected a template of ours",),
    ),
    ("loss on prompts in words", key("completion_only_loss: no"), 4, ("'no'", "true or false")),
    ("rows of memory", GOOD.replace("a.jsonl", "<3 rows in memory>"), 5, ("rows in memory",)),
    ("no rows wanted", spec("  train_rows: 0"), 7, ("train_rows is 0", "sub-dataset 'a'")),
    ("unknown metric", spec("  metric: f2"), 7, ("metric is 'f2'", "accuracy, nll")),
    (
        "pooled mean of two metrics",
        "mean: pooled\n" + GOOD + "- {name: b, train: t, validation: v, metric: nll}\n",
        1,
        ("accuracy, nll", "mean: macro"),
    ),
    ("escape sequence", GOOD.replace("a.jsonl", '"\\e[31mred"'), 5, ("'\\x1b[31mred'",)),
    ("half a character", GOOD.replace("a.jsonl", '"\\uD800"'), 5, ("'\\ud800'",)),
]


@pytest.mark.parametrize(
    ("text", "line", "said"), [r[1:] for r in RECIPES], ids=[r[0] for r in RECIPES]
)
def test_a_wrong_recipe(tmp_path: Path, text: str, line: int | None, said: tuple[str, ...]) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    readable(str(caught.value), str(path), line, said)


def readable(message: str, path: str, line: int | None, said: tuple[str, ...]) -> None:
    start = path if line is None else f"{path}, line {line}: "
    assert message.startswith(start)
    assert [part for part in said if part not in message] == [], message
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 800


@pytest.mark.parametrize(
    ("text", "near"), [(key("learning_rat: 1"), "learning_rate"), (spec("  metrc: x"), "metric")]
)
def test_the_nearest_key_stands_without_the_list_of_all(
    tmp_path: Path, text: str, near: str
) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError, match=rf"; did you mean '{near}'\?$"):
        load_recipe(tmp_path / "recipe.yaml")


def test_a_good_recipe_is_the_control(tmp_path: Path) -> None:
    for text in (GOOD, key("seed: 1"), spec("  keep: true")):
        (tmp_path / "recipe.yaml").write_text(text)
        load_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "expected key=value"),
        ("=1", "expected key=value"),
        ("sed=1", "did you mean 'seed'"),
        ("seed=x", "seed is 'x'"),
        ("seed={", "not valid YAML"),
        ("seed=&a 1", "anchor"),
        ("peaks.smooth=x", "smooth is 'x'"),
        ("datasets.b.keep=true", "no sub-dataset 'b' (there are: a)"),
        ("datasets.a.kep=true", "did you mean 'keep'"),
        ("datasets.a.train_rows=0", "train_rows is 0"),
        ("optimizer.lr=1", "no key with keys inside"),
        ("method_options.exclude.confidence=2", "confidence is 2"),
        ("method_options.exclude.confidenc=0.9", "did you mean 'confidence'"),
        ("method_options.patience.exclude.confidence=1", "patience is {"),
        ("num_epochs=0.1", "num_train_epochs is 0.1"),
    ],
)
def test_a_wrong_override(tmp_path: Path, override: str, said: str) -> None:
    (tmp_path / "recipe.yaml").write_text(GOOD)
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "recipe.yaml", [override])
    readable(str(caught.value), f"--set {override}", None, (said,))


def test_an_override_of_a_key_inside_a_value_that_has_none(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(key("method_options: {patience: 4}"))
    with pytest.raises(RecipeError, match=r"method_options\.patience is 4, which has no keys"):
        load_recipe(tmp_path / "recipe.yaml", ["method_options.patience.much=1"])


def test_recipes_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    with pytest.raises(RecipeError, match=r"recipe\.yaml: there is no such file"):
        load_recipe(path)
    path.mkdir()
    with pytest.raises(RecipeError, match=r"recipe\.yaml: this is a folder"):
        load_recipe(path)
    path.rmdir()
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"seed: 1\nmethod: \xe9\n")
    with pytest.raises(RecipeError, match=r"latin\.yaml, line 2: not UTF-8"):
        load_recipe(latin)
    with pytest.raises(RecipeError, match=r"did you mean .*latin\.yaml"):
        load_recipe(tmp_path / "latim.yaml")
    with pytest.raises(RecipeError, match=r"folder; did you mean .*latin\.yaml"):
        load_recipe(tmp_path)


def row(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


BOMB = gzip.compress((b" " * 999_999 + b"\n") * 101, 1)
FINE = row(prompt="one", completion="1")
TURN = {"role": "user", "content": "hi"}
REPLY = {"role": "assistant", "content": "ho"}


def chat(*turns: object) -> bytes:
    return row(messages=[TURN, REPLY]) + row(messages=list(turns))


def choice(**fields: object) -> bytes:
    return row(prompt="p", choices=["x", "y"], answer=0) + row(**fields)


DATA: list[tuple[str, str, bytes, int | None, tuple[str, ...]]] = [
    # what is wrong, the file's name, its content, the line, what the message says
    ("bad JSON", "a.jsonl", FINE + b'{"prompt": \n', 2, ("not valid JSON", "one JSON object")),
    ("a list per line", "a.jsonl", FINE + b"[1]\n", 2, ("found [1]", "an object")),
    ("lists", "a.jsonl", b"[1]\n[2]\n", 2, ("not valid JSON", "per line, or one list of them")),
    ("NUL byte", "a.jsonl", FINE + b'{"prompt": "\x00"}\n', 2, ("NUL byte",)),
    ("escaped NUL", "a.jsonl", FINE + row(prompt="a\0", completion="b"), 2, ("NUL",)),
    ("lone surrogate", "a.jsonl", b'{"prompt":"\\ud800","completion":"x"}', 1, ("'\\ud800'",)),
    ("not UTF-8", "a.jsonl", FINE + b'{"prompt": "\xe9"}', 2, ("not UTF-8", "byte 13")),
    ("UTF-16", "a.jsonl", FINE.decode().encode("utf-16"), 1, ("UTF-16",)),
    ("gzip", "a.jsonl", gzip.compress(FINE), None, ("gzip", "unpack")),
    ("null", "a.jsonl", FINE + row(prompt=None, completion="x"), 2, ("prompt is null",)),
    ("wrong type", "a.jsonl", row(prompt=["a"], completion="x"), 1, ("prompt is ['a']", "text")),
    ("missing field", "a.jsonl", FINE + row(prompt="a"), 2, ("completion is missing",)),
    (
        "field given twice",
        "a.jsonl",
        b'{"prompt":"a","prompt":"b","completion":"c"}',
        1,
        ("twice",),
    ),
    (
        "unknown format",
        "a.jsonl",
        row(question="q", answer="a"),
        1,
        ("fit no format", "'question'"),
    ),
    ("two formats", "a.jsonl", row(prompt="", completion="", messages=[]), 1, ("messages",)),
    ("mixed formats", "a.jsonl", FINE + row(messages=[TURN, REPLY]), 2, ("the first was prompt+",)),
    ("empty file", "a.jsonl", b"", None, ("the file is empty",)),
    ("blank file", "a.jsonl", b"\n\n  \n", None, ("no rows",)),
    ("empty row", "a.jsonl", FINE + row(prompt="", completion=""), 2, ("completion is ''",)),
    ("blank answer", "a.jsonl", FINE + row(prompt="q", completion=" \n"), 2, ("completion is",)),
    ("deep nesting", "a.jsonl", FINE + b'{"prompt": ' + b"[" * 100_000, 2, ("nested too deep",)),
    (
        "deep value",
        "a.jsonl",
        b'{"completion":"","prompt":' + b"[" * 400 + b"]" * 400 + b"}",
        1,
        (),
    ),
    ("huge number", "a.jsonl", b'{"prompt": ' + b"9" * 5000 + b"}", 1, ("digits",)),
    ("long line", "a.jsonl", FINE + b"x" * 10_000_001, 2, ("10,000,000 bytes",)),
    ("no turns", "a.jsonl", chat(), 2, ("messages is []",)),
    ("no assistant", "a.jsonl", chat(TURN), 2, ("no turn of the assistant",)),
    ("question last", "a.jsonl", chat(REPLY, TURN), 2, ("ends with a turn of the user",)),
    ("unknown role", "a.jsonl", chat({**TURN, "role": "bot"}), 2, ("'bot'", "assistant")),
    ("turn without text", "a.jsonl", chat({"role": "user"}), 2, ("messages[0] is",)),
    ("null turn", "a.jsonl", chat({**TURN, "content": None}), 2, ("messages[0].content is null",)),
    ("blank reply", "a.jsonl", chat({**REPLY, "content": ""}), 2, ("messages[0].content is ''",)),
    (
        "answer too high",
        "a.jsonl",
        choice(prompt="p", choices=["x", "y"], answer=2),
        2,
        ("0 to 1",),
    ),
    ("answer below 0", "a.jsonl", choice(prompt="p", choices=["x", "y"], answer=-1), 2, ("is -1",)),
    (
        "answer is true",
        "a.jsonl",
        choice(prompt="p", choices=["x", "y"], answer=True),
        2,
        ("True",),
    ),
    (
        "answer is no choice",
        "a.jsonl",
        choice(prompt="p", choices=["x", "y"], answer="z"),
        2,
        ("'z'",),
    ),
    ("one choice", "a.jsonl", choice(prompt="p", choices=["x"], answer=0), 2, ("two or more",)),
    (
        "same choices",
        "a.jsonl",
        choice(prompt="p", choices=["x", "x"], answer=0),
        2,
        ("different",),
    ),
    (
        "choices as text",
        "a.jsonl",
        choice(prompt="p", choices="xy", answer=0),
        2,
        ("choices is 'xy'",),
    ),
    ("alpaca without output", "a.jsonl", row(instruction="i", output=""), 1, ("output is ''",)),
    ("sharegpt role", "a.jsonl", row(conversations=[{"from": "bot", "value": "x"}]), 1, ("'bot'",)),
    ("JSON of one row", "a.json", FINE, None, ("expected a list",)),
    ("lines in .json", "a.json", FINE + FINE, 2, ("not valid JSON", ".jsonl")),
    ("bad .json", "a.json", b'[\n{"prompt": }]', 2, ("not valid JSON",)),
    ("bytes in .json", "a.json", b'[\n"\xe9"]', 2, ("not UTF-8",)),
    ("no row in .json", "a.json", b"[]", None, ("no rows",)),
    ("ragged CSV", "a.csv", b"prompt,completion\na,b\nc\n", 3, ("line 3: 1 field; expected 2",)),
    ("CSV without columns", "a.csv", b"a,b\n1,2\n", 2, ("fit no format",)),
    ("CSV of semicolons", "a.csv", b"prompt;completion\na;b, c\n", 1, ("separated by ';'?",)),
    ("CSV column twice", "a.csv", b"prompt,prompt\n1,2\n", 1, ("different names",)),
    ("CSV quote", "a.csv", b'prompt,completion\n"a"b,c\n', 2, ("not valid CSV",)),
    ("CSV of bytes", "a.csv", b"prompt,completion\n\xe9,b\n", 2, ("not UTF-8",)),
    ("CSV header only", "a.csv", b"prompt,completion\n", None, ("no rows",)),
    ("no Parquet", "a.parquet", FINE, None, ("no Parquet file",)),
    ("broken Parquet", "a.parquet", b"PAR1 and nothing", None, ("not a readable Parquet",)),
    ("Parquet named .jsonl", "a.jsonl", b"PAR1 and nothing", None, ("a Parquet file",)),
    ("unknown suffix", "a.txt", FINE, None, ("unknown kind of file", ".jsonl")),
    ("packed twice", "a.parquet.gz", gzip.compress(FINE), None, ("unknown kind", "unpack")),
    ("not packed", "a.jsonl.gz", FINE, None, ("this is no gzip file, but named .gz",)),
    ("cut", "a.jsonl.gz", gzip.compress(FINE)[:-9], None, ("a damaged gzip file",)),
    ("changed", "a.jsonl.gz", gzip.compress(FINE)[:-8] + b"12345678", None, ("damaged gzip",)),
    ("packed UTF-16", "a.csv.gz", gzip.compress(FINE.decode().encode("utf-16")), 1, ("UTF-16",)),
    ("bomb", "a.jsonl.gz", BOMB, None, ("unpacks to more than 100,000,000",)),
    ("bomb in JSON", "a.json.gz", BOMB, None, ("unpacks to more than 100,000,000",)),
]


@pytest.mark.parametrize(
    ("file", "content", "line", "said"), [d[1:] for d in DATA], ids=[d[0] for d in DATA]
)
def test_wrong_data(
    tmp_path: Path, file: str, content: bytes, line: int | None, said: tuple[str, ...]
) -> None:
    (tmp_path / file).write_bytes(content)
    spec = DatasetSpec("a", train=file, validation=file)
    with pytest.raises(DataError) as caught:
        load_datasets(Recipe("tiny", [spec], folder=tmp_path))
    readable(str(caught.value), str(tmp_path / file), line, said)


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    for file in ("mine.train.jsonl", "other.csv", "notes.txt"):
        (tmp_path / file).write_text("x")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "both").mkdir()
    for file in ("train.jsonl", "train.csv"):
        (tmp_path / "both" / file).write_text("x")
    (tmp_path / "none").mkdir()
    cases: list[tuple[Callable[[], DatasetSpec], str]] = [
        (lambda: _train("mine.trian.jsonl"), "no such file; did you mean mine.train.jsonl?"),
        (lambda: _train("gone/mine.jsonl"), "there is no folder"),
        (lambda: _train("folder.jsonl"), "this is a folder"),
        (lambda: _train("none"), "this is a folder; use path:"),
        (lambda: _path("mine.train.jsonl"), "path is a file"),
        (lambda: _path("./gone"), "there is no such folder"),
        (lambda: _path("gone.jsonl"), "there is no such folder"),
        (lambda: _path("both"), "both train.jsonl and train.csv"),
        (lambda: _path("none"), "no train file in this folder"),
    ]
    for make, said in cases:
        with pytest.raises(DataError) as caught:
            load_datasets(Recipe("tiny", [make()], folder=tmp_path))
        readable(str(caught.value), str(tmp_path), None, (said,))


def _train(file: str) -> DatasetSpec:
    return DatasetSpec("a", train=file, validation_fraction=0.5)


def _path(path: str) -> DatasetSpec:
    return DatasetSpec("a", path=path, validation_fraction=0.5)
