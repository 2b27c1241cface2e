"""Variants of methods in one comparison: their syntax, their recipes, folders and labels."""

from pathlib import Path

import pytest

import msft
from msft.app.compare import (
    grouped_by_rollout,
    planned,
    rollout_digest,
    run_folders_in,
    shared_folders,
)
from msft.app.variants import Variant, variants_of
from msft.cli import build_parser, main
from msft.errors import UsageError
from msft.recipe.recipe import load_recipe
from msft.report.compare.runs import folder_name, settings_in

RECIPE = """
model_name_or_path: tiny
method: msft
learning_rate: 0.001
train_batch_size: 16
compute_budget: 2
num_train_epochs: 2
evals_per_epoch: 2
seed: 1
method_options: {rehearsal_fraction: 0.25, exclude: {confidence: 0.9}}
datasets:
  - {name: teams, benchmark: demo_teams, train_rows: 32, validation_rows: 8, test_rows: 8}
  - {name: gates, benchmark: demo_gates, train_rows: 32, validation_rows: 8, test_rows: 8}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    return path


def test_words_become_methods_with_settings_in_the_order_of_their_keys() -> None:
    text = "sft, soup[of=[span, last], k=4] ,msft[exclude={confidence: 0.9}],own.module:method"
    assert variants_of(text) == [
        Variant("sft"),
        Variant("soup", {"k": "4", "of": "[span, last]"}),
        Variant("msft", {"exclude": "{confidence: 0.9}"}),
        Variant("own.module:method"),
    ]
    assert str(variants_of(text)[1]) == "soup[k=4,of=[span, last]]"
    assert variants_of(["sft", "soup[of=last,k=4]"])[1] == Variant("soup", {"k": "4", "of": "last"})


@pytest.mark.parametrize(
    ("method", "settings", "name"),
    [
        ("sft", {}, "sft-s7"),
        ("own.module:method", {}, "own.module.method-s7"),
        ("soup", {"k": "4", "of": "last"}, "soup+k=4,of=last-s7"),
        ("msft", {"exclude.confidence": "0.95"}, "msft+exclude.confidence=0.95-s7"),
        ("soup", {"of": "[span, all]"}, "soup+of=%5Bspan%2C%20all%5D-s7"),
        ("sft", {"model_name_or_path": "../a+b=c"}, "sft+model_name_or_path=..%2Fa%2Bb%3Dc-s7"),
    ],
)
def test_a_folder_says_what_is_in_it_whatever_the_values_are(
    method: str, settings: dict[str, str], name: str
) -> None:
    assert folder_name(method, settings, 7) == name
    assert settings_in(name) == settings


def test_folders_of_others_are_no_variants() -> None:
    assert [settings_in(name) for name in ("runs", "a+b", "soup+k=4", "c++=1-s2")] == [{}] * 4


def test_settings_of_the_recipe_and_options_of_the_method_are_told_apart(recipe: Path) -> None:
    words = "sft[lr_scheduler_type=cosine],sft[ema_decay=0.99,num_epochs=4],soup[of=last,k=4]"
    words += ",msft,msft[exclude.confidence=0.95],msft[exclude=null,peaks.smooth=1]"
    runs = [run.recipe for run in planned(recipe, ["seed=9"], words, [3], Path("out"))]
    assert (runs[0].lr_scheduler_type, runs[0].ema_decay) == ("cosine", None)
    assert (runs[1].lr_scheduler_type, runs[1].ema_decay) == ("constant", 0.99)
    assert [run.num_train_epochs for run in runs] == [2, 4, 2, 2, 2, 2]
    assert runs[2].method_options == {"of": "last", "k": 4}
    shared = {"rehearsal_fraction": 0.25}
    assert runs[3].method_options == shared | {"exclude": {"confidence": 0.9}}
    assert runs[4].method_options == shared | {"exclude": {"confidence": 0.95}}
    assert runs[5].method_options == shared | {"exclude": None}
    assert [run.peaks["smooth"] for run in runs] == [0, 0, 0, 0, 0, 1]
    assert {run.seed for run in runs} == {3}


def test_a_key_inside_an_option_leaves_the_others_there(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(recipe.parent))
    (recipe.parent / "nested.py").write_text("def method(run, *, how=None):\n    pass\n")
    sets = ["method=nested:method", "method_options={how: {a: 1, b: 2}}"]
    runs = planned(recipe, sets, "nested:method[how.b=3]", [1], Path("out"))
    assert runs[0].recipe.method_options == {"how": {"a": 1, "b": 3}}
    assert runs[0].name == "nested.method+how.b=3-s1"


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("sft[ema_decai=0.9]", "with method sft[ema_decai=0.9]: unknown setting of sft:"),
        ("soup[off=peaks]", "did you mean 'of'?"),
        ("sft[of=peaks]", "unknown setting of sft: 'of'"),
        ("sft[ema_decay=2]", "ema_decay is 2"),
        ("soup[of=peeks]", "soup: of is 'peeks'"),
        ("msft[lr_scheduler_type=cosine]", "rolls back"),
        ("sft[ema_decay=0.9", "brackets do not close each other"),
        ("sft]ema_decay=0.9[", "brackets do not close each other"),
        ("sft[ema_decay]", "expected settings in brackets behind a method"),
        ("sft[]", "expected settings in brackets behind a method"),
        ("[ema_decay=0.9]", "expected settings in brackets behind a method"),
        ("sft[ema_decay=0.9]x", "--methods has 'sft[ema_decay=0.9]x'"),
        ("sft[k=[1,2]", "brackets do not close each other"),
        ("sft[ema_decay=0.9,ema_decay=0.8]", "has ema_decay twice"),
        ("sft[seed=3]", "name seeds with --seeds"),
        ("sft[datasets.teams.train_rows=3]", "a comparison is of one mixture"),
        ("sft[method=soup]", "name the method before the bracket"),
        ("sft[output_dir=x]", "does not belong into a bracket"),
        ("soup[of=last,k=4],soup[k=4,of=last]", "soup[k=4,of=last] twice"),
        ("mstf[max_stages=3]", "did you mean 'msft'"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(
    methods: str, said: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(recipe), "--out", "out", "--methods", methods]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out").exists()


def test_from_python_methods_and_seeds_are_lists(recipe: Path) -> None:
    with pytest.raises(UsageError, match=r"soup\[of=last\] twice"):
        msft.compare(recipe, "out", methods=["soup[of=last]", "soup[of=last]"], seeds=[1, 2])
    with pytest.raises(UsageError, match="20 twice"):
        msft.compare(recipe, "out", methods=["soup"], seeds=[20, 20])
    with pytest.raises(UsageError, match="expected names between commas"):
        msft.compare(recipe, "out", methods=[])


def test_help_teaches_it_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["compare", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "sft,sft[lr_scheduler_type=cosine],soup[of=last,k=4]" in text
    with pytest.raises(SystemExit):
        build_parser().parse_args(["train", "--help"])
    assert "--shared" not in capsys.readouterr().out


def test_variants_stand_beside_their_methods_in_a_folder(tmp_path: Path) -> None:
    names = ["soup-s1", "sft-s1", "soup+of=peaks-s1", "sft+ema_decay=0.9-s1", "sft-s2"]
    for name in (*names, ".shared", "own.method-s1"):
        (tmp_path / name).mkdir()
    assert [folder.name for folder in run_folders_in(tmp_path)] == [
        "sft-s1",
        "sft-s2",
        "sft+ema_decay=0.9-s1",
        "soup-s1",
        "soup+of=peaks-s1",
        "own.method-s1",
    ]


def test_who_asks_the_same_first_roll_out(recipe: Path) -> None:
    words = (
        "sft,soup,soup[of=peaks,peaks.smooth=1],sro,soft_sro,sft[lr_scheduler_type=cosine],"
        "soup[lr_scheduler_type=cosine],msft,msft[exclude=null],msft[patience=1,exclude=null],"
        "msft[on_rollback=restore],msft[max_epochs=1,exclude=null],sft[num_train_epochs=3],"
        "sft[ema_decay=0.9],sft[learning_rate=0.01],soup[compute_budget=1],dynamix,ies,continual,"
        "sft[score_test=every],soup[mean=pooled]"
    )
    runs = {run.name: run.recipe for run in planned(recipe, [], words, [1, 2], Path("out"))}
    groups: dict[Path, list[str]] = {}
    for name, place in shared_folders(runs, Path("out")).items():
        groups.setdefault(place, []).append(name)
    plain = ["sft", "soup", "soup+of=peaks,peaks.smooth=1", "sro", "soft_sro"]
    plain += ["soup+compute_budget=1", "soup+mean=pooled"]
    cosine = ["sft+lr_scheduler_type=cosine", "soup+lr_scheduler_type=cosine"]
    rolling = ["msft", "msft+exclude=null"]
    assert sorted(map(sorted, groups.values())) == sorted(
        sorted(f"{name}-s{seed}" for name in group)
        for seed in (1, 2)
        for group in (plain, cosine, rolling)
    )
    assert all(place.parent == Path("out/.shared") for place in groups)
    Path("four_ticks.py").write_text(
        "def method(run):\n    run.rollout(run.base, run.mixture, 4)\n"
    )
    assert (
        rollout_digest(load_recipe(recipe, ["method=four_ticks:method", "method_options={}"]))
        is None
    )


def test_those_that_share_follow_each_other() -> None:
    places = {"a": Path("x"), "c": Path("x"), "d": Path("y"), "f": Path("y")}
    assert grouped_by_rollout(["a", "b", "c", "d", "e", "f"], places) == [
        "a",
        "c",
        "b",
        "d",
        "f",
        "e",
    ]
