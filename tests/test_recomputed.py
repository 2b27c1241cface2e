"""What msft says in its summaries, tables and figures, against a second reckoning from the events
of `run.jsonl` that shares no code with it (tests/recomputed.py)."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import isnan
from pathlib import Path
from typing import Any

import pytest

import recomputed
from mortal import quick_folder
from msft.app.analyses import divergence
from msft.cli import main
from msft.recipe.recipe import Recipe, load_recipe
from msft.report.compare.comparison import Comparison, comparison_of
from msft.report.compare.paper import decomposition, mean_parts
from msft.report.compare.runs import compared_runs
from msft.report.figures.costs import moving_losses, path_losses, rows_per_epoch
from msft.report.figures.methods import gains
from msft.report.figures.peaks import peaks_of
from msft.run.folder import read_history, step_losses_of
from msft.run.history import History, schedule_of, summary_of
from msft.search.methods import METHODS
from msft.testing import Learner, simulate

pytestmark = pytest.mark.usefixtures("no_reports")

LABELS = {
    "sft": "SFT",
    "continual": "Continual SFT",
    "dynamix": "DynamixSFT",
    "ies": "IES",
    "sro": "SRO SFT",
    "soft_sro": "Soft SRO SFT",
    "msft": "mSFT",
}
"""The paper's methods under the names of its tables."""

SEEDS = (20, 30, 40)

RECIPE = """
model_name_or_path: tiny
method: msft
seed: 20
compute_budget: 1
num_train_epochs: 2
evals_per_epoch: 2
learning_rate: 1e-2
train_batch_size: 16
num_fewshot: 0
score_test: rollbacks
datasets:
  - {name: teams, benchmark: demo_teams, train_rows: 48, validation_rows: 40, test_rows: 50}
  - {name: shelves, benchmark: demo_shelves, train_rows: 64, validation_rows: 30, test_rows: 50}
  - {name: gates, benchmark: demo_gates, train_rows: 80, validation_rows: 40, test_rows: 50}
"""


def learners(seed: int) -> dict[str, Learner]:
    """Sub-datasets that overfit at different times, and a little differently under each seed."""
    apart = {20: 0.0, 30: 0.03, 40: -0.02}[seed]
    early = Learner(rows=16, limit=0.3, damage=0.6, start=0.21 + apart)
    return {
        "early": early,
        "late": replace(early, passes=2.0, limit=1.5, ceiling=0.8 + 2 * apart),
        "quick": replace(early, rows=8, passes=0.5, damage=1.5, validation_rows=120),
        "slow": replace(early, rows=24, passes=3.0, limit=2.0, start=0.4 - apart),
    }


def run_simulated(folder: Path, method: str, seed: int, **options: Any) -> None:
    folder.mkdir(parents=True)
    settings: dict[str, Any] = {
        "compute_budget": 1.5,
        "num_train_epochs": 5,
        "evals_per_epoch": 2,
        "train_batch_size": 8,
        "score_test": "rollbacks",
    }
    mixture = options.pop("mixture", learners(seed))
    simulate(method, mixture, folder=folder, seed=seed, **{**settings, **options})


@pytest.fixture(scope="module")
def simulated() -> Iterator[Path]:
    """Every method under three seeds, as `msft compare` would name the folders."""
    with quick_folder() as path:
        for method in METHODS:
            for seed in SEEDS:
                run_simulated(path / f"{method}-s{seed}", method, seed)
        yield path


@pytest.fixture(scope="module")
def trained() -> Iterator[Path]:
    """SFT and mSFT on the tiny model, and their tables, by the commands."""
    with quick_folder() as path:
        recipe, runs = path / "recipe.yaml", path / "runs"
        recipe.write_text(RECIPE)
        for method in ("sft", "msft"):
            out = ["--quiet", "--out", str(runs / f"{method}-s20")]
            assert main(["train", str(recipe), *out, "--set", f"method={method}"]) == 0
        assert main(["compare", str(recipe), "--no-run", "--out", str(runs)]) == 0
        yield runs


def assert_summary(folder: Path, said: Mapping[str, Any]) -> recomputed.Run:
    """A summary says what the events say."""
    run = recomputed.Run(folder)
    own = run.summary()
    for part in ("best", "flops", "disk"):
        told = {key: said[part][key] for key in own[part]}
        assert told == pytest.approx(own[part]) if part == "disk" else told == own[part]
    assert said["epochs_trained"] == own["epochs_trained"]
    end = {"event": "end", "by": said["ended_by"], "best": own["best"]["checkpoint"]}
    assert run.events[-1] == end
    back = {rollout: checkpoint for _, _, checkpoint, rollout in own["exits"]}
    for number, stage in enumerate(said["stages"]):
        assert stage["excluded"] == [name for name, _, _, after in own["exits"] if after == number]
        assert stage["peaks"] == run.peaks(number)
        assert stage["ticks"] == len(run.points(number))
        where = recomputed.place_of(back[number]) if number in back else None
        ticks = where and (where[1] if where[0] == number else 0)
        assert stage["rolled_back_to"] == (None if ticks is None else ticks / run.per_epoch)
    return run


def cells(path: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    """The cells of `compare.csv` by table, row and column."""
    with path.open() as file:
        return {(row["table"], row["row"], row["column"]): row for row in csv.DictReader(file)}


def comparison(folder: Path) -> Comparison:
    return comparison_of(compared_runs(sorted(path for path in folder.iterdir() if path.is_dir())))


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


@pytest.mark.parametrize("method", METHODS)
def test_the_summary_of_every_method(simulated: Path, method: str) -> None:
    folder = simulated / f"{method}-s20"
    history = read_history(folder)
    run = assert_summary(folder, summary_of(history))
    assert len(run.exits) == {"msft": 4, "continual": 4}.get(method, len(run.exits))
    trained = schedule_of(history)["datasets"]
    path = [recomputed.place_of(tick)[0] for tick in run.path(run.best)]
    for name in run.names:
        ticks = sum(name in run.rollouts[rollout]["active"] for rollout in path)
        assert trained[name] == ticks / run.per_epoch


@pytest.mark.parametrize(
    ("peaks", "options"),
    [
        ({"smooth": 1, "include_start": False}, {}),
        ({"min_delta": 0.04}, {}),
        ({"by": "probability"}, {"patience": 2}),
        ({}, {"score_excluded": "rollback", "rehearsal_fraction": 0.5}),
    ],
)
def test_the_summary_under_every_rule_of_peaks(
    peaks: dict[str, Any], options: dict[str, Any]
) -> None:
    with quick_folder() as path:
        run_simulated(path / "msft", "msft", 20, peaks=peaks, method_options=options)
        assert_summary(path / "msft", summary_of(read_history(path / "msft")))


def test_of_equal_checkpoints_the_earliest_is_the_best() -> None:
    coarse = {name: replace(each, validation_rows=2) for name, each in learners(20).items()}
    for method in ("sft", "msft"):
        with quick_folder() as path:
            settings: dict[str, Any] = {"num_train_epochs": 5, "compute_budget": 1.5}
            simulate(method, coarse, folder=path, evals_per_epoch=4, train_batch_size=8, **settings)
            run = assert_summary(path, summary_of(read_history(path)))
            best = run.height(run.best)
            assert sum(run.height(each) == best for each in run.candidates) > 1


def test_the_files_of_a_run_on_the_tiny_model(trained: Path) -> None:
    for name in ("sft-s20", "msft-s20"):
        said = json.loads((trained / name / "summary.json").read_text())
        run = assert_summary(trained / name, said)
        counted = 0
        for checkpoint, split, dataset, rows in run.verdicts():
            assert run.scores(checkpoint, split)[dataset] == [rows.count("1"), len(rows)]
            counted += 1
        assert counted == sum(len(event.get("scores", ())) for event in run.events)
        assert run.scores(run.best, "test")["gates"][1] == 50


def test_the_tables_of_a_comparison_on_the_tiny_model(trained: Path) -> None:
    table = cells(trained / "compare.csv")
    runs = {name: recomputed.Run(trained / f"{name.lower()}-s20") for name in ("SFT", "mSFT")}
    sft = runs["SFT"]
    for label, run in runs.items():
        for key, split in (("datasets", "test"), ("datasets-validation", "validation")):
            for name in run.names:
                score, other = (100 * float(r.value(r.best, name, split)) for r in (run, sft))
                cell = table[key, name, label]
                assert float(cell["value"]) == pytest.approx(score)
                if run is not sft:
                    assert float(cell["difference"]) == pytest.approx(score - other)
        score = 100 * float(run.mean(run.best, "test"))
        assert float(table["main", label, "mean"]["value"]) == pytest.approx(score)
        assert float(table["main", label, "Ep."]["value"]) == run.epochs
    base = 100 * float(sft.mean("base", "test"))
    assert float(table["main", "Base", "mean"]["value"]) == pytest.approx(base)


def test_the_tables_over_seeds(simulated: Path) -> None:
    recipe = simulated / "recipe.yaml"
    recipe.write_text(RECIPE)
    assert main(["compare", str(recipe), "--no-run", "--out", str(simulated)]) == 0
    table, split = cells(simulated / "compare.csv"), "test"
    runs = {
        label: [recomputed.Run(simulated / f"{method}-s{seed}") for seed in SEEDS]
        for method, label in LABELS.items()
    }
    sft = runs["SFT"]
    every = [recomputed.Run(path) for path in sorted(simulated.iterdir()) if path.is_dir()]
    for label, own in runs.items():

        def said(key: str, column: str, row: str = label, what: str = "value") -> float:
            return float(table[key, row, column][what])

        scores = [100 * float(run.mean(run.best, split)) for run in own]
        assert said("main", "mean") == pytest.approx(mean(scores))
        assert said("main", "Ep.") == pytest.approx(mean([run.epochs for run in own]))
        for kind, column in [(k, k.replace("looka", "look-a")) for k in own[0].flops()]:
            assert said("flops", column) == pytest.approx(mean([r.flops()[kind] for r in own]))
        times = sum(r.flops()["total"] for r in own) / sum(r.flops()["total"] for r in sft)
        assert said("flops", "× SFT") == pytest.approx(times)
        deviation = mean([100 * recomputed.spread(run, split) for run in own])
        assert said("spread", "sd") == pytest.approx(deviation)
        assert said("honesty", "chosen from") == mean([run.chosen_from for run in own])
        disk = mean([run.disk()["mean_copies"] for run in own])
        assert said("disk", "mean") == pytest.approx(disk)
        assert said("disk", "most") == mean([run.disk()["peak_copies"] for run in own])
        if label == "mSFT":
            bounds = (said("disk", "(N + 5)/2"), said("disk", "N + 1"))
            assert bounds == own[0].disk_bounds()
        by_seed = recomputed.seed_table(own, sft, split)
        assert [said("seeds", f"seed {seed}") for seed in SEEDS] == pytest.approx(scores)
        assert said("seeds", "mean") == pytest.approx(by_seed["mean"])
        assert said("seeds", "sd") == pytest.approx(by_seed["sd"])
        places = 0
        for seed in SEEDS:
            rivals = [run for run in every if run.head["seed"] == seed]
            mine = [run.folder for run in rivals].index(own[SEEDS.index(seed)].folder)
            places += recomputed.first_places(rivals, split)[mine]
        assert said("places", "first places") == places
        if label == "SFT":
            continue
        if by_seed["p"] is None:
            assert table["seeds", label, "p"]["value"] == ""
        else:
            assert said("seeds", "p") == pytest.approx(by_seed["p"])
        gap = mean(scores) - mean([100 * float(run.mean(run.best, split)) for run in sft])
        assert said("main", "mean", what="difference") == pytest.approx(gap)
        if label in ("mSFT", "SRO SFT", "Soft SRO SFT"):
            assert said("ablation", "mean") == pytest.approx(mean(scores))
            assert said("ablation", "Ep.") == said("main", "Ep.")


def test_peaks_and_distances_of_fig_2(simulated: Path, trained: Path) -> None:
    for folder in (simulated / "sft-s20", simulated / "msft-s30", trained / "msft-s20"):
        run, found = recomputed.Run(folder), peaks_of(read_history(folder))
        assert found is not None
        assert found.peaks == run.peaks(0)
        assert {name: found.distance(name) for name in found.peaks} == run.distances()
    assert len({*recomputed.Run(simulated / "sft-s20").distances().values()}) > 1


def test_gains_of_fig_7_and_parts_of_fig_8(simulated: Path, trained: Path) -> None:
    found = comparison(simulated)
    place = [method.name for method in found.others].index("msft")
    runs = [recomputed.Run(simulated / f"msft-s{seed}") for seed in SEEDS]
    sfts = [recomputed.Run(simulated / f"sft-s{seed}") for seed in SEEDS]
    for name, row in gains(found).items():
        apart: list[float] = [
            float(run.value(run.best, name, found.split) - sft.value(sft.best, name, found.split))
            for run, sft in zip(runs, sfts, strict=True)
        ]
        assert row[place] == pytest.approx(100 * mean(apart))
    for folder in (simulated, trained):
        sft, msft = (recomputed.Run(folder / f"{name}-s20") for name in ("sft", "msft"))
        for split in ("validation", "test"):
            own = recomputed.decomposition(sft, msft, split)
            assert len(own) == len(msft.names)
            told = decomposition(read_history(sft.folder), read_history(msft.folder), split)
            for name, parts in told.items():
                assert (parts.gain, parts.prevention, parts.forgetting) == own[name]
            whole = mean_parts([*told.values()])
            means = [sum(part, Fraction(0)) / len(own) for part in zip(*own.values(), strict=True)]
            assert [whole.gain, whole.prevention, whole.forgetting] == means


def test_shifts_of_fig_3() -> None:
    """Over the simulated engine; the one who leaves has half of the rows, so others peak sooner."""
    mixture = {
        "quick": Learner(rows=320, limit=0.6, damage=0.4),
        "middle": Learner(rows=96, limit=1.2),
        "slow": Learner(rows=80, limit=1.9),
        "slowest": Learner(rows=128, limit=2.4),
    }

    def run(recipe: Recipe, folder: Path) -> History:
        folder.mkdir()
        settings: dict[str, Any] = {"compute_budget": 2, "num_train_epochs": 6}
        settings |= {"train_batch_size": 16, "method_options": recipe.method_options}
        return simulate(recipe.method, mixture, folder=folder, **settings)

    with quick_folder() as path:
        (path / "recipe.yaml").write_text(RECIPE)
        recipe = load_recipe(path / "recipe.yaml")
        specs = [replace(recipe.datasets[0], name=name) for name in mixture]
        said = divergence(replace(recipe, datasets=specs), path, run).content
        moved = recomputed.shifts(recomputed.Run(path / "with"), recomputed.Run(path / "without"))
    told = {name: each["change"] for name, each in said["optimal_compute"].items()}
    assert told == pytest.approx(moved)
    assert sum(moved.values()) != 0
    assert said["mean_absolute_change"] == pytest.approx(mean([abs(c) for c in moved.values()]))


def test_losses_of_fig_9_and_rows_of_ies(simulated: Path, trained: Path) -> None:
    for folder in (simulated / "msft-s20", trained / "msft-s20"):
        run, (kept, gone) = recomputed.Run(folder), path_losses(read_history(folder))
        drawn = {loss for loss in (*kept[1], *gone[1]) if not isnan(loss)}
        assert drawn == {*run.losses().values()}
        best = [run.losses()[tick] for tick in run.path(run.rollouts[-1]["start"])]
        assert [loss for loss in kept[1] if not isnan(loss)][: len(best)] == best
    msft = recomputed.Run(trained / "msft-s20")
    told = moving_losses(read_history(msft.folder), step_losses_of(msft.folder))
    for number in range(len(msft.rollouts)):
        assert [loss for _, loss in told[number]] == pytest.approx(msft.moving_losses(number))
    ies = simulated / "ies-s20"
    rows = recomputed.Run(ies).rows_per_epoch()
    assert rows_per_epoch(read_history(ies)) == rows
    assert rows[-1] < rows[0]


def test_the_second_reckoning_does_not_import_msft(trained: Path) -> None:
    script = Path(recomputed.__file__)
    alone = [sys.executable, "-I", "-S"]  # without site-packages: the standard library only
    done = subprocess.run(
        [*alone, str(script), str(trained / "sft-s20")],
        capture_output=True,
        text=True,
        check=True,
    )
    best = json.loads((trained / "sft-s20" / "summary.json").read_text())["best"]
    assert json.loads(done.stdout)["best"]["checkpoint"] == best["checkpoint"]


def test_the_average_over_models() -> None:
    """Two models: the same methods in two folders, whose sub-datasets learn differently."""
    models, methods = ("one", "two"), {"sft": "SFT", "ies": "IES", "msft": "mSFT"}
    with quick_folder() as path:
        for model, seed in zip(models, SEEDS, strict=False):
            for method in methods:
                folder = path / model / f"{method}-s20"
                run_simulated(folder, method, 20, mixture=learners(seed))
                (folder / "recipe.yaml").write_text(RECIPE.replace(": tiny", f": {model}"))
        (path / "recipe.yaml").write_text(RECIPE)
        named = ["--models", ",".join(models), "--methods", ",".join(methods), "--no-run"]
        assert main(["compare", str(path / "recipe.yaml"), *named, "--out", str(path)]) == 0
        with (path / "compare.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["block"] == "Average"]
        table = {(row["table"], row["row"], row["column"]): row for row in rows}
        runs = {m: [recomputed.Run(path / each / f"{m}-s20") for each in models] for m in methods}
        scores = {m: [100 * float(r.mean(r.best, "test")) for r in own] for m, own in runs.items()}
        totals = {m: [run.flops()["total"] for run in own] for m, own in runs.items()}
    for method, label in methods.items():
        cell = table["main", label, "mean"]
        assert float(cell["value"]) == pytest.approx(mean(scores[method]))
        epochs = mean([run.epochs for run in runs[method]])
        assert float(table["main", label, "Ep."]["value"]) == pytest.approx(epochs)
        assert float(table["flops", label, "total"]["value"]) == mean(totals[method])
        times = [own / sft for own, sft in zip(totals[method], totals["sft"], strict=True)]
        assert float(table["flops", label, "× SFT"]["value"]) == pytest.approx(mean(times))
        if method != "sft":
            gap = mean(scores[method]) - mean(scores["sft"])
            assert float(cell["difference"]) == pytest.approx(gap)
