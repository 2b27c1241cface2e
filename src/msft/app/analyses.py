"""The paper's analyses that need runs of their own: divergence, compute budget, mixture size.

Each trains what is missing into run folders, which resume as `msft train` does, and folds their
logs into a table and a JSON file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msft.app.older_folders import groups_by_recipe
from msft.app.variants import methods_of, options_of
from msft.errors import UsageError
from msft.layout import WIDTH, cut, table
from msft.recipe.recipe import Recipe
from msft.report import write_comparison
from msft.report.compare.compared_run import ReportSplit
from msft.report.compare.divergence import changes, fork_of, mean_shift
from msft.run.folder import RunFolder, read_history, write_json
from msft.run.history import History
from msft.run.summary import summary_of
from msft.search.rollout import ticks_of
from msft.search.scores import TEST
from msft.text import SELECTED_ON_TEST, counted, epochs, epochs_in_words, si

Runner = Callable[[Recipe, Path], History]
"""Carries a recipe out in a folder, or goes on with it, or finds it done."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What an analysis found: for a program, and as a table with its notes for a person.

    name: of its files, and of its figure among those of its runs.
    report_split: the one that its figure and page are of, as its table is.
    """

    name: str
    content: dict[str, Any]
    rows: list[tuple[str, ...]]
    notes: list[str]
    folders: list[Path]
    report_split: ReportSplit

    def text(self, width: int = WIDTH) -> str:
        """The table and its notes, which are not wrapped."""
        return "\n".join([*table(self.rows, width), "", *self.notes])

    def write(self, out: Path) -> list[Path]:
        """The JSON file, the figure, and a page that compares the runs."""
        from msft.report.compare.compared_run import compared_runs
        from msft.report.figure_files import write_figures
        from msft.report.sections import comparison_figures

        path = out / f"{self.name}.json"
        write_json(path, self.content)
        sections = comparison_figures(compared_runs(self.folders), self.report_split)
        figures = [section for section in sections if self._has(section.key)]
        files = write_figures(figures, out, ("svg", "png"))
        page = write_comparison(self.folders, out, groups_by_recipe, self.report_split)
        return [path, *files, page]

    def _has(self, key: str) -> bool:
        """Whether a figure is its own; of several models it has one of each."""
        each = {"shifts": "divergence-", "budgets": "budgets-"}.get(self.name)
        return key == self.name or (each is not None and key.startswith(each))


def divergence(recipe: Recipe, out: Path, run: Runner) -> Analysis:
    """How optimal compute changes when the first sub-dataset to overfit leaves (paper, Fig. 3)."""
    if len(recipe.datasets) < 2:
        raise UsageError("divergence needs two sub-datasets or more: one leaves, the others stay")
    if recipe.lr_scheduler_type != "constant":
        raise UsageError(
            f"lr_scheduler_type is {recipe.lr_scheduler_type}, but what it is at a fork is not "
            "defined; use constant"
        )
    moments = {"on_rollback": recipe.method_options.get("on_rollback", "restore")}
    branch = replace(
        recipe, method="msft.search.methods.branches:with_everybody", method_options=moments
    )
    with_all = run(branch, out / "with")
    names = [spec.name for spec in recipe.datasets]
    fork = fork_of(with_all, [spec.name for spec in recipe.datasets if not spec.keep] or names)
    if fork is None:
        raise UsageError(
            "no sub-dataset peaked before the end of "
            f"{epochs_in_words(recipe.num_train_epochs)}, so there is none to leave out; raise "
            "num_train_epochs or learning_rate, and give another --out"
        )
    excluded, legs = fork
    method = "msft.search.methods.branches:without_first"
    options = {**moments, "excluded": excluded, "legs": legs}
    without = run(replace(recipe, method=method, method_options=options), out / "without")
    folders = [out / "with", out / "without"]
    content, rows, notes = _diverged(with_all, without, excluded, sum(legs))
    return Analysis("divergence", content, rows, notes, folders, recipe.report_split)


def _diverged(
    with_all: History, without: History, excluded: str, forked: int
) -> tuple[dict[str, Any], list[tuple[str, ...]], list[str]]:
    """What is found, its table, and the notes below it."""
    moved = changes(with_all, without, excluded)
    per_epoch = with_all.evals_per_epoch
    optima = {name: _optima(with_all, without, name, forked) for name in moved}
    open_ended = [name for name, (_, last) in optima.items() if last]
    content = {
        "seed": with_all.start.seed,
        "excluded": excluded,
        "fork_epochs": forked / per_epoch,
        "branch_epochs": with_all.stages[-1].ticks / per_epoch,
        "optimal_compute": {
            name: {"with_all": pair[0], "without": pair[1], "change": moved[name]}
            for name, (pair, _) in optima.items()
        },
        "mean_absolute_change": mean_shift(moved),
        "still_rising": open_ended,
    }
    head = ("sub-dataset", "with all", f"without {cut(excluded, 16)}", "change")
    rows: list[tuple[str, ...]] = [head]
    for name, (pair, _) in optima.items():
        rows.append((name, epochs(pair[0]), epochs(pair[1]), f"{moved[name]:+g}"))
    notes = [
        f"{excluded} overfits first; the branches part at epoch {epochs(forked / per_epoch)}. "
        "Optimal compute in epochs from the base model.",
        f"mean absolute change {mean_shift(moved):.2f} epochs",
    ]
    if with_all.selected_on_test:
        content["selection_split"] = with_all.selection
        notes.append(SELECTED_ON_TEST)
    if open_ended:
        notes.append(
            f"note: at the end of a branch these stood at their best, so their change is a bound "
            f"only: {', '.join(open_ended)}; raise num_train_epochs"
        )
    return content, rows, notes


def _optima(
    with_all: History, without: History, name: str, forked: int
) -> tuple[tuple[float, float], bool]:
    """Optimal compute in both branches, and whether one of them is a branch's end."""
    found: list[float] = []
    at_end = False
    for history in (with_all, without):
        peak = history.rule.peak(history.curve(len(history.stages) - 1, name))
        found.append((forked + peak) / history.evals_per_epoch)
        at_end = at_end or peak == history.stages[-1].ticks
    return (found[0], found[1]), at_end


def budgets(recipe: Recipe, out: Path, run: Runner, values: Sequence[float]) -> Analysis:
    """Accuracy and FLOPs of mSFT over its compute budget C, beside SFT (paper, Fig. 6)."""
    for each in values:
        try:
            ticks_of(each, recipe.evals_per_epoch, "--budgets")
        except ValueError as error:
            raise UsageError(str(error)) from error
    folders = [out / "sft", *(out / f"c{each:g}" for each in values)]
    straight = _measured(run(_as(recipe, "sft"), folders[0]), recipe)
    found = {
        each: _measured(run(replace(_as(recipe, "msft"), compute_budget=each), folder), recipe)
        for each, folder in zip(values, folders[1:], strict=True)
    }
    rows: list[tuple[str, ...]] = [
        ("run", "score", "gain", "epochs trained", "FLOPs", "against SFT"),
        _cells("sft", straight, straight),
        *(_cells(f"msft C={each:g}", result, straight) for each, result in found.items()),
    ]
    content = {
        "sft": straight,
        "msft": [
            {"compute_budget": each, **result, "gain": _gain(result, straight)}
            for each, result in found.items()
        ],
    }
    return Analysis("budgets", content, rows, _about([straight]), folders, recipe.report_split)


def sizes(
    recipe: Recipe,
    out: Path,
    run: Runner,
    values: Sequence[int],
    methods: str = "msft",
) -> Analysis:
    """Gain of methods over SFT on the first n sub-datasets (paper, Fig. 5).

    methods: as on the command line, names between commas.
    """
    most = len(recipe.datasets)
    for each in values:
        if not 1 <= each <= most:
            raise UsageError(
                f"--sizes has {each}, but the recipe has {counted(most, 'sub-dataset')}; expected "
                f"1 to {most}"
            )
    others = [method for method in methods_of(methods) if method != "sft"]
    if not others:
        raise UsageError("--methods has sft alone; name another one, such as msft")
    variants = {method: _as(recipe, method) for method in ("sft", *others)}
    for variant in variants.values():
        variant.prepared()  # what is wrong comes up before anything is trained
    rows: list[tuple[str, ...]] = [
        ("sub-datasets", "method", "score", "gain", "epochs trained", "FLOPs", "against SFT")
    ]
    found: list[dict[str, Any]] = []
    folders: list[Path] = []
    for each in values:
        results: dict[str, dict[str, Any]] = {}
        for method, variant in variants.items():
            folders.append(out / f"n{each}-{method.replace(':', '.')}")
            part = replace(variant, datasets=recipe.datasets[:each])
            results[method] = _measured(run(part, folders[-1]), recipe)
            rows.append((str(each), *_cells(method, results[method], results["sft"])))
        for method in others:
            results[method]["gain"] = _gain(results[method], results["sft"])
        names = [spec.name for spec in recipe.datasets[:each]]
        found.append({"size": each, "datasets": names, **results})
        if "msft" in results:
            found[-1]["gain"] = results["msft"]["gain"]
    notes = _about([result["sft"] for result in found])
    return Analysis("sizes", {"sizes": found}, rows, notes, folders, recipe.report_split)


def runner(quiet: bool, say: Callable[[str], None]) -> Runner:
    """Trains what is missing, here and now; `say` is told what a person should know."""

    def carry_out(recipe: Recipe, folder: Path) -> History:
        from msft.app.admission import refuse_changed
        from msft.app.terminal.progress import progress
        from msft.app.train import train

        files = RunFolder(folder)
        refuse_changed(recipe, files)
        if files.is_finished() and files.report.exists():
            say(f"{folder} is finished already")
            return read_history(folder)
        say(f"{folder}: {recipe.method} on {recipe.model_name_or_path}")
        kept = [spec.name for spec in recipe.datasets if spec.keep]
        with progress(folder.name, quiet, kept, folder) as shown:
            kept_here = replace(recipe, push_to_hub=False)
            train(kept_here, folder, shown, lambda text: say(f"note: {text}"))
        return read_history(folder)

    return carry_out


def _as(recipe: Recipe, method: str) -> Recipe:
    """The recipe with another method, as `msft compare` runs it."""
    return replace(recipe, method=method, method_options=options_of(method, recipe))


def _measured(history: History, recipe: Recipe) -> dict[str, Any]:
    """What is compared: the reported split's mean, epochs and FLOPs.

    unit: accuracy, nll or value; none where metrics are mixed and the mean is one of gains.
    """
    summary = summary_of(history)
    on_test = (summary["best"]["test"] or {"mean": None})["mean"]
    tested = recipe.report_split == TEST and on_test is not None
    split = "test" if tested or history.selected_on_test else "validation"
    return {
        "split": split,
        **({"selection_split": history.selection} if history.selected_on_test else {}),
        "unit": history.mean_unit,
        "mean": summary["best"][split]["mean"],
        "validation": summary["best"]["validation"]["mean"],
        "test": on_test,
        "epochs": summary["best"]["epochs"],
        "epochs_trained": summary["epochs_trained"],
        "candidates": summary["best"]["candidates"],
        "flops": summary["flops"],
    }


def _about(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the scores of a table are."""
    splits = sorted({str(result["split"]) for result in results})
    notes = [f"scores on {' and '.join(splits)}"]
    if any("selection_split" in result for result in results):
        notes.append(SELECTED_ON_TEST)
    if any(result["unit"] is None for result in results):
        notes.append(
            "where metrics differ between sub-datasets, a score is the mean gain over the base"
        )
    return notes


def _gain(result: Mapping[str, Any], straight: Mapping[str, Any]) -> float:
    """By how much the mean is better; of losses that is lower."""
    gain: float = result["mean"] - straight["mean"]
    return -gain if result["unit"] == "nll" else gain


def _cells(label: str, result: dict[str, Any], straight: dict[str, Any]) -> tuple[str, ...]:
    return (
        label,
        f"{result['mean']:.4f}",
        f"{_gain(result, straight):+.4f}",
        f"{result['epochs_trained']:g}",
        si(result["flops"]["total"]),
        f"{result['flops']['total'] / straight['flops']['total']:.2f}x",
    )
