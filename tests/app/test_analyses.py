"""The paper's analyses on simulated sub-datasets, whose peaks move when others leave."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from msft.app.analyses import Analysis, Runner, budgets, divergence, sizes
from msft.cli import main
from msft.errors import UsageError
from msft.recipe.recipe import Recipe
from msft.report.compare.paper import fork_of
from msft.run.history import History, summary_of
from msft.run.rows import Scored
from msft.search.curves import nll
from msft.search.rollout import CheckpointId
from msft.testing import scripted
from msft.testing.simulated import Learner, SimulatedEngine, simulate

LEARNERS = {
    "quick": Learner(rows=320, limit=0.6, damage=0.4),
    "middle": Learner(rows=96, limit=1.2),
    "slow": Learner(rows=80, limit=1.9),
    "slowest": Learner(rows=128, limit=2.4),
}


def recipe_of(learners: Mapping[str, Learner] = LEARNERS, **keys: Any) -> Recipe:
    datasets = [
        {"name": name, "train": "rows.jsonl", "validation_fraction": 0.1, "keep": learner.keep}
        for name, learner in learners.items()
    ]
    options = {"compute_budget": 2, "num_train_epochs": 6, "train_batch_size": 16}
    return Recipe(**{"model_name_or_path": "tiny", **options, **keys}, datasets=datasets)


class Simulation:
    """Runs recipes over the simulated engine, and remembers which."""

    def __init__(
        self,
        learners: Mapping[str, Learner] = LEARNERS,
        engine: type[SimulatedEngine] = SimulatedEngine,
    ) -> None:
        self._learners = learners
        self._engine = engine
        self.folders: list[str] = []
        self.recipes: list[Recipe] = []
        self.histories: list[History] = []

    def __call__(self, recipe: Recipe, folder: Path) -> History:
        self.folders.append(folder.name)
        self.recipes.append(recipe)
        folder.mkdir(parents=True, exist_ok=True)
        learners = {spec.name: self._learners[spec.name] for spec in recipe.datasets}
        history = simulate(
            recipe.method,
            learners,
            engine=self._engine(learners),
            compute_budget=recipe.compute_budget,
            num_train_epochs=recipe.num_train_epochs,
            evals_per_epoch=recipe.evals_per_epoch,
            train_batch_size=recipe.train_batch_size,
            seed=recipe.seed,
            peaks=recipe.peaks,
            method_options=recipe.method_options,
            score_test="best",
            folder=folder,
        )
        self.histories.append(history)
        return history


def simulated(learners: Mapping[str, Learner] = LEARNERS) -> Simulation:
    run: Runner = Simulation(learners)
    assert isinstance(run, Simulation)
    return run


def test_the_branches_part_where_the_first_sub_dataset_peaks(tmp_path: Path) -> None:
    run = simulated()
    found = divergence(recipe_of(), tmp_path, run)
    assert run.folders == ["with", "without"]
    with_all, without = run.histories
    first = with_all.stages[0]
    peaks = {name: with_all.rule.peak(with_all.curve(0, name)) for name in first.asked.active}
    assert min(peaks, key=lambda name: peaks[name]) == "quick" == found.content["excluded"]
    forked = peaks["quick"]
    assert found.content["fork_epochs"] == forked / 4
    assert with_all.stages[1].asked.start == CheckpointId(f"r0-t{forked}")
    assert without.stages[1].asked.start == CheckpointId(f"r0-t{forked}")
    assert with_all.stages[1].asked.active.keys() == LEARNERS.keys()
    assert without.stages[1].asked.active.keys() == LEARNERS.keys() - {"quick"}
    for history in (with_all, without):
        assert history.stages[1].ticks == 6 * 4 - forked, "to the end of num_train_epochs"
        assert history.stages[1].asked.optimizer == "kept", "training goes on"
    for tick in range(forked):
        assert with_all.stages[0].points[tick].scores == without.stages[0].points[tick].scores


def test_the_change_is_the_difference_of_optimal_compute(tmp_path: Path) -> None:
    run = simulated()
    found = divergence(recipe_of(), tmp_path, run)
    optima = found.content["optimal_compute"]
    assert optima.keys() == LEARNERS.keys() - {"quick"}
    fork = found.content["fork_epochs"]
    for name, each in optima.items():
        assert each["change"] == each["without"] - each["with_all"]
        assert fork <= each["without"] <= 6
        without = run.histories[1]
        assert each["without"] == fork + without.rule.peak(without.curve(1, name)) / 4
    moved = [each["change"] for each in optima.values()]
    assert any(moved), "with fewer others to dilute them, the rest memorise sooner"
    assert found.content["mean_absolute_change"] == sum(map(abs, moved)) / 3
    assert found.content["still_rising"] == [
        name for name, each in optima.items() if 6 in (each["with_all"], each["without"])
    ]


def test_files_table_figure_and_page(tmp_path: Path) -> None:
    found = divergence(recipe_of(), tmp_path, simulated())
    paths = found.write(tmp_path)
    names = [path.name for path in paths]
    assert names == ["divergence.json", "divergence.svg", "divergence.png", "report.html"]
    assert all(path.stat().st_size > 100 for path in paths)
    assert json.loads(paths[0].read_text()) == found.content
    lines = found.text().splitlines()
    assert lines[0].split() == ["sub-dataset", "with", "all", "without", "quick", "change"]
    assert [line.split()[0] for line in lines[1:4]] == ["middle", "slow", "slowest"]
    assert "quick overfits first" in found.text()


def test_a_second_call_finds_the_runs_done(tmp_path: Path) -> None:
    first = divergence(recipe_of(), tmp_path, simulated())
    logs = [(tmp_path / name / "run.jsonl").read_bytes() for name in ("with", "without")]
    again = divergence(recipe_of(), tmp_path, simulated())
    assert again.content == first.content
    assert [(tmp_path / n / "run.jsonl").read_bytes() for n in ("with", "without")] == logs


def test_the_search_goes_on_until_somebody_peaks(tmp_path: Path) -> None:
    """As mSFT does where nobody overfits within C; the trunk then has two legs."""
    run = simulated()
    recipe = recipe_of(compute_budget=0.25, num_train_epochs=6)
    found = divergence(recipe, tmp_path, run)
    with_all, without = run.histories
    assert len(with_all.stages) > 2
    assert len(without.stages) == len(with_all.stages)
    starts = [[stage.asked.start for stage in h.stages] for h in (with_all, without)]
    assert starts[0] == starts[1]
    path = sum(ticks for _, ticks in with_all.path(with_all.stages[-1].asked.start))
    assert found.content["fork_epochs"] == path / 4


def test_a_peak_at_the_very_start_forks_at_the_base_model(tmp_path: Path) -> None:
    learners = {**LEARNERS, "quick": Learner(limit=0.0, damage=3.0)}
    run = simulated(learners)
    found = divergence(recipe_of(learners), tmp_path, run)
    assert found.content["fork_epochs"] == 0
    with_all, without = run.histories
    assert with_all.stages[1].asked.start == without.stages[1].asked.start == "base"
    assert without.stages[0].ticks == 1, "trained only so that both branches have one number"


def test_a_kept_sub_dataset_is_not_the_one_to_leave(tmp_path: Path) -> None:
    learners = {**LEARNERS, "quick": Learner(limit=0.6, damage=0.4, keep=True)}
    found = divergence(recipe_of(learners), tmp_path, simulated(learners))
    assert found.content["excluded"] == "middle"


def test_the_moments_are_the_recipes_choice(tmp_path: Path) -> None:
    run = simulated()
    recipe = recipe_of(method_options={"on_rollback": "reset", "patience": 2})
    divergence(recipe, tmp_path, run)
    history = run.histories[1]
    assert history.stages[1].asked.optimizer == "fresh"
    assert "patience" not in run.recipes[0].method_options, "it would cut the branches short"


def test_nobody_overfits(tmp_path: Path) -> None:
    learners = {name: Learner(limit=99.0, passes=20.0, validation_rows=10000) for name in LEARNERS}
    for number, said in ((6, "6 epochs, so"), (1, "1 epoch, so")):
        recipe = recipe_of(learners, num_train_epochs=number)
        with pytest.raises(UsageError, match=f"no sub-dataset peaked before the end of {said}"):
            divergence(recipe, tmp_path / str(number), simulated(learners))


@pytest.mark.parametrize(
    ("learners", "keys", "says"),
    [
        ({"only": Learner()}, {}, "two sub-datasets"),
        (LEARNERS, {"method": "sft", "lr_scheduler_type": "linear"}, "use constant"),
    ],
)
def test_what_cannot_diverge_is_refused_before_anything_runs(
    tmp_path: Path, learners: dict[str, Learner], keys: dict[str, Any], says: str
) -> None:
    run = simulated(learners)
    with pytest.raises(UsageError, match=says):
        divergence(recipe_of(learners, **keys), tmp_path, run)
    assert run.folders == []


def test_the_fork_is_found_again_from_the_log_alone() -> None:
    def answer(
        index: int, start: str, active: tuple[str, ...], ticks: int
    ) -> dict[str, list[float]]:
        rising = [index + n / 100 for n in range(ticks + 1)]
        falling = [2.0 - abs(n - 3) / 100 for n in range(ticks + 1)]
        return {"a": rising, "b": falling if index else rising, "c": falling if index else rising}

    out = scripted(
        "msft.search.methods.branches:with_everybody", ["a", "b", "c"], answer, compute_budget=2
    )
    assert fork_of(out.history, ["a", "b", "c"]) == ("b", [8, 3])
    assert out.rollouts[2][0] == "r1-t3"
    assert out.rollouts[2][2] == 40 - 11
    assert out.excluded == [], "in this branch nobody leaves"


def test_ticks_without_a_step_are_no_fork() -> None:
    """With one step an epoch all peak at the first of its four ticks, where the last step is."""
    rising = Learner(rows=8, limit=99.0, passes=10.0, validation_rows=10**6)
    history = simulate(
        "msft.search.methods.branches:with_everybody",
        {"a": rising, "b": rising},
        train_batch_size=16,
        compute_budget=1,
        num_train_epochs=3,
    )
    begun = [(stage.asked.start, stage.ticks) for stage in history.stages]
    assert begun == [("base", 4), ("r0-t4", 4), ("r1-t4", 4)]
    assert history.ended is not None
    assert history.ended.by == "max_epochs"
    assert fork_of(history, ["a", "b"]) is None


def test_budgets_compare_msft_with_sft(tmp_path: Path) -> None:
    run = simulated()
    found = budgets(recipe_of(), tmp_path, run, [1.0, 2.0])
    assert run.folders == ["sft", "c1", "c2"]
    assert [recipe.method for recipe in run.recipes] == ["sft", "msft", "msft"]
    assert [recipe.compute_budget for recipe in run.recipes[1:]] == [1, 2]
    for entry, history in zip(found.content["msft"], run.histories[1:], strict=True):
        summary = summary_of(history)
        assert entry["test"] == summary["best"]["test"]["mean"] == entry["mean"]
        assert entry["flops"] == summary["flops"]
        assert entry["gain"] == entry["mean"] - found.content["sft"]["mean"]
    assert _first_column(found) == ["run", "sft", "msft", "msft"]
    assert [path.name for path in found.write(tmp_path)][:2] == ["budgets.json", "budgets.svg"]


def test_sizes_take_the_first_sub_datasets(tmp_path: Path) -> None:
    run = simulated()
    found = sizes(recipe_of(report_split="selection"), tmp_path, run, [2, 4])
    assert run.folders == ["n2-sft", "n2-msft", "n4-sft", "n4-msft"]
    small, large = found.content["sizes"]
    assert small["datasets"] == ["quick", "middle"]
    assert large["datasets"] == list(LEARNERS)
    gain = small["msft"]["validation"] - small["sft"]["validation"]
    assert small["gain"] == small["msft"]["gain"] == gain
    assert small["sft"]["split"] == "validation", "the paper's protocol was asked for"
    assert _first_column(found) == ["sub-datasets", "2", "2", "4", "4"]
    assert [path.name for path in found.write(tmp_path)][:2] == ["sizes.json", "sizes.svg"]


def test_sizes_have_every_method_that_is_named(tmp_path: Path) -> None:
    run = simulated()
    methods = "continual,sft,ies,msft"
    found = sizes(recipe_of(method_options={"patience": 3}), tmp_path, run, [2, 3], methods)
    order = ["sft", "continual", "ies", "msft"]
    assert run.folders == [f"n{n}-{method}" for n in (2, 3) for method in order]
    assert [recipe.method for recipe in run.recipes] == order * 2
    patient = {recipe.method for recipe in run.recipes if "patience" in recipe.method_options}
    assert patient == {"continual", "msft"}, "the shared options, as msft compare has them"
    means = [summary_of(history)["best"]["test"]["mean"] for history in run.histories]
    for number, entry in enumerate(found.content["sizes"]):
        straight, *others = means[4 * number : 4 * number + 4]
        gains = [entry[method]["gain"] for method in order[1:]]
        assert gains == [mean - straight for mean in others]
        assert "gain" not in entry["sft"]
    rows = [row[:4] for row in found.rows[1:]]
    assert [row[1] for row in rows] == order * 2
    assert [float(row[3]) for row in rows] == pytest.approx(
        [mean - means[number // 4 * 4] for number, mean in enumerate(means)], abs=5e-5
    )
    found.write(tmp_path)
    labels = [text for text in ("Continual SFT", "IES", "mSFT") if text in _drawn_texts(tmp_path)]
    assert labels == ["Continual SFT", "IES", "mSFT"]


def _drawn_texts(folder: Path) -> str:
    root = ElementTree.parse(folder / "sizes.svg").getroot()  # noqa: S314  our own
    return "\n".join(root.itertext())


def _first_column(found: Analysis) -> list[str]:
    return [line.split()[0] for line in found.text().splitlines()[: len(found.rows)]]


def test_wrong_values_are_refused_before_anything_runs(tmp_path: Path) -> None:
    run = simulated()
    with pytest.raises(UsageError, match=r"--budgets is 0\.3 epochs"):
        budgets(recipe_of(), tmp_path, run, [1.0, 0.3])
    with pytest.raises(UsageError, match=r"--sizes has 5, but the recipe has 4 sub-datasets"):
        sizes(recipe_of(), tmp_path, run, [2, 5])
    with pytest.raises(UsageError, match="--methods has sft alone"):
        sizes(recipe_of(), tmp_path, run, [2], "sft")
    with pytest.raises(ValueError, match="unknown method 'mstf'"):
        sizes(recipe_of(), tmp_path, run, [2], "ies,mstf")
    assert run.folders == []


@pytest.mark.parametrize(
    "wrong",
    [
        ["analyze"],
        ["analyze", "convergence", "recipe.yaml"],
        ["analyze", "size", "recipe.yaml"],
        ["analyze", "size", "recipe.yaml", "--sizes", "2,two"],
        ["analyze", "size", "recipe.yaml", "--sizes", "2.5"],
        ["analyze", "size", "recipe.yaml", "--sizes", "2,2"],
        ["analyze", "budget", "recipe.yaml", "--budgets", "0"],
        ["analyze", "budget", "recipe.yaml", "--budgets", "nan"],
    ],
)
def test_wrong_words_on_the_command_line(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(wrong)
    assert refused.value.code == 2


def test_a_recipe_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "divergence", "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err


class Losses(SimulatedEngine):
    """Counts what is wrong instead of what is right."""

    def score(self, names: Sequence[str], split: str) -> Scored:
        right = super().score(names, split)
        wrong = {n: nll(float(s.count - s.total), s.count) for n, s in right.scores.items()}
        return Scored(wrong, right.tokens)


def test_a_lower_loss_is_a_gain(tmp_path: Path) -> None:
    accurate = sizes(recipe_of(), tmp_path / "right", simulated(), [4]).content["sizes"][0]
    lossy = sizes(recipe_of(), tmp_path / "wrong", Simulation(engine=Losses), [4])
    found = lossy.content["sizes"][0]
    assert (accurate["sft"]["unit"], found["sft"]["unit"]) == ("accuracy", "nll")
    assert found["sft"]["mean"] == pytest.approx(1 - accurate["sft"]["mean"])
    gain = found["msft"]["gain"]
    assert gain == pytest.approx(accurate["msft"]["gain"])
    assert abs(gain) > 0.001


class Mixed(SimulatedEngine):
    """One sub-dataset has a loss, the others shares of right rows."""

    def score(self, names: Sequence[str], split: str) -> Scored:
        right = super().score(names, split)
        scores = dict(right.scores)
        if "slow" in scores:
            scores["slow"] = nll(scores["slow"].count - scores["slow"].total + 1.0, 10)
        return Scored(scores, right.tokens)


def test_the_tables_say_when_a_score_is_a_mean_of_gains(tmp_path: Path) -> None:
    found = sizes(recipe_of(), tmp_path / "mixed", Simulation(engine=Mixed), [2, 4])
    assert [each["sft"]["unit"] for each in found.content["sizes"]] == ["accuracy", None]
    assert "a score is the mean gain over the base" in found.text()
    alike = sizes(recipe_of(), tmp_path / "alike", simulated(), [2])
    assert "mean gain" not in alike.text()
