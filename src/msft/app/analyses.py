"""`msft analyze`: the paper's analyses, on one base model or several, and those that train nothing.

Divergence, compute budget and mixture size train what is missing into run folders, which resume as
`msft train` does, and fold their logs into a table and a JSON file. With several models each has
its runs in a folder of its own. Headroom, grid, compute and practice read logs or embedded numbers.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

from msft.app.terminal.screen import emit, say
from msft.app.variants import methods_of, model_folder, options_of
from msft.errors import UsageError
from msft.planning.admission import refuse_untrainable, refuse_unwritable
from msft.recipe.recipe import Recipe
from msft.report import write_comparison
from msft.report.compare.comparison import comparisons_of
from msft.report.compare.paper import (
    BASE_STAGES,
    OLMO_2,
    POST_STAGES,
    TEAMS,
    TEAMS_NOTE,
    Training,
    changes,
    disk_bounds,
    fork_of,
    mean_shift,
)
from msft.report.compare.runs import (
    ReportSplit,
    budget_of,
    compared_runs,
    refuse_mixed_selection,
)
from msft.report.figures.costs import path_losses
from msft.report.figures.grids import RunPanel, grid_section, panels_of
from msft.report.figures.methods import share_section
from msft.report.figures.peaks import peaks_of
from msft.report.page import write_figures
from msft.report.sections import comparison_figures
from msft.run.folder import (
    RunFolder,
    read_history,
    refuse_audit,
    row_tokens_of,
    verdicts_of,
    write_json,
)
from msft.run.history import History, disk_of, summary_of
from msft.search.curves import TEST
from msft.search.options import ticks_of
from msft.text import (
    SELECTED_ON_TEST,
    WIDTH,
    counted,
    cut,
    epochs,
    epochs_in_words,
    listed,
    si,
    table,
)

Runner = Callable[[Recipe, Path], History]
"""Carries a recipe out in a folder, or goes on with it, or finds it done."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of an analysis: `content` for a program, a table and its notes for a person.

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
        path = out / f"{self.name}.json"
        write_json(path, self.content)
        sections = comparison_figures(compared_runs(self.folders), self.report_split)
        # of several models it has a figure of each beside its own
        each = {"shifts": "divergence-", "budgets": "budgets-"}.get(self.name, self.name)
        figures = [s for s in sections if s.key == self.name or s.key.startswith(each)]
        files = write_figures(figures, out, ("svg", "png"))
        page = write_comparison(self.folders, out, self.report_split)
        return [path, *files, page]


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
    """The content for programs, the table, and the notes below it."""
    moved, per_epoch = changes(with_all, without, excluded), with_all.evals_per_epoch
    optima: dict[str, dict[str, float]] = {}
    open_ended: list[str] = []
    rows: list[tuple[str, ...]] = [
        ("sub-dataset", "with all", f"without {cut(excluded, 16)}", "change")
    ]
    for name, change in moved.items():
        peaks = [h.rule.peak(h.curve(len(h.stages) - 1, name)) for h in (with_all, without)]
        first, second = ((forked + peak) / per_epoch for peak in peaks)
        optima[name] = {"with_all": first, "without": second, "change": change}
        rows.append((name, epochs(first), epochs(second), f"{change:+g}"))
        if peaks[0] == with_all.stages[-1].ticks or peaks[1] == without.stages[-1].ticks:
            open_ended.append(name)
    content = {
        "seed": with_all.start.seed,
        "excluded": excluded,
        "fork_epochs": forked / per_epoch,
        "branch_epochs": with_all.stages[-1].ticks / per_epoch,
        "optimal_compute": optima,
        "mean_absolute_change": mean_shift(moved),
        "still_rising": open_ended,
    }
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


def runner(quiet: bool) -> Runner:
    """Trains what is missing, here and now."""

    def tell(text: str) -> None:
        say(text, quiet)

    def carry_out(recipe: Recipe, folder: Path) -> History:
        from msft.app.terminal.progress import ShownRun
        from msft.planning.admission import refuse_changed
        from msft.training import train

        files = RunFolder(folder)
        refuse_changed(recipe, files)
        if files.is_finished() and files.report.exists():
            tell(f"{folder} is finished already")
            return read_history(folder)
        tell(f"{folder}: {recipe.method} on {recipe.model_name_or_path}")
        kept = [spec.name for spec in recipe.datasets if spec.keep]
        shown = [] if quiet else [ShownRun(folder.name, kept)]
        kept_here = replace(recipe, push_to_hub=False)
        train(kept_here, folder, shown, lambda text: tell(f"note: {text}"))
        return read_history(folder)

    return carry_out


def _as(recipe: Recipe, method: str) -> Recipe:
    """The recipe with another method, as `msft compare` runs it."""
    return replace(recipe, method=method, method_options=options_of(method, recipe))


def _measured(history: History, recipe: Recipe) -> dict[str, Any]:
    """The numbers of a run that are compared: the reported split's mean, epochs and FLOPs.

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
    """Notes on the scores of a table: their split and their unit."""
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
    """The gain of a mean over that of SFT; for losses its reduction."""
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


def with_models(recipe: Recipe, models: Sequence[str]) -> dict[str, Recipe]:
    """The recipe for each model; what cannot be trained is refused here, before anything starts."""
    from msft.engine.model.tokenizers import load_rows

    found = {model: replace(recipe, model_name_or_path=model) for model in models}
    for each in found.values():
        refuse_untrainable(each)
        load_rows(each)
    return found


def shifts(recipes: dict[str, Recipe], out: Path, run: Runner) -> Analysis:
    """The mean absolute change of optimal compute of each model.

    A model on which no sub-dataset overfits has none: it is named and left out.
    """
    found: dict[str, Analysis] = {}
    without: dict[str, str] = {}
    for model, recipe in recipes.items():
        try:
            found[model] = divergence(recipe, out / model_folder(model), run)
        except UsageError as error:
            without[model] = str(error)
    if not found:
        raise UsageError("; ".join(f"{model}: {why}" for model, why in without.items()))
    moved = {model: each.content["mean_absolute_change"] for model, each in found.items()}
    rows: list[tuple[str, ...]] = [("model", "overfits first", "at epoch", "mean |change|")]
    notes = [
        f"mean absolute change {fmean(moved.values()):.2f} epochs over "
        f"{counted(len(found), 'model')}, {min(moved.values()):.2f} to {max(moved.values()):.2f}"
    ]
    if any("selection_split" in each.content for each in found.values()):
        notes.append(SELECTED_ON_TEST)
    notes += [f"note: {model} is left out: {why}" for model, why in without.items()]
    for model, each in found.items():
        at = epochs(each.content["fork_epochs"])
        rows.append((model, each.content["excluded"], at, f"{moved[model]:.2f}"))
        if rising := each.content["still_rising"]:
            notes.append(
                f"note: {model}: still rising at the end of a branch, so their changes are bounds: "
                + ", ".join(rising)
            )
    content = {"left_out": without, "mean_absolute_change": fmean(moved.values())}
    return _of_models("shifts", found, content, rows, notes)


def _of_models(
    name: str,
    found: Mapping[str, Analysis],
    content: Mapping[str, Any],
    rows: list[tuple[str, ...]],
    notes: list[str],
) -> Analysis:
    """The analyses of several models as one."""
    models = [{"model": model, **each.content} for model, each in found.items()]
    folders = [folder for each in found.values() for folder in each.folders]
    split = next(iter(found.values())).report_split
    return Analysis(name, {"models": models, **content}, rows, notes, folders, split)


def budgets_on_models(
    recipes: Mapping[str, Recipe], out: Path, run: Runner, values: Sequence[float]
) -> Analysis:
    """Accuracy and FLOPs of mSFT over its compute budget C on each model, and their mean."""
    found = {
        model: budgets(recipe, out / model_folder(model), run, values)
        for model, recipe in recipes.items()
    }
    first = next(iter(found.values()))
    rows: list[tuple[str, ...]] = [("model", *first.rows[0])]
    rows += [(model, *row) for model, each in found.items() for row in each.rows[1:]]
    notes, average = [*first.notes], list[dict[str, float]]()
    contents = [each.content for each in found.values()]
    for place, budget in enumerate(values):
        searches = [each["msft"][place] for each in contents]
        gain = fmean(search["gain"] for search in searches)
        flops = fmean(
            search["flops"]["total"] - each["sft"]["flops"]["total"]
            for search, each in zip(searches, contents, strict=True)
        )
        average.append({"compute_budget": budget, "gain": gain, "flops": flops})
        notes.append(
            f"C = {epochs(budget)}, mean over {counted(len(found), 'model')}: gain {gain:+.4f}, "
            f"{si(abs(flops))} FLOPs {'more' if flops > 0 else 'less'} than SFT"
        )
    return _of_models("budgets", found, {"mean": average}, rows, notes)


def grid(options: argparse.Namespace) -> None:
    """One figure with a panel of each finished run, and what its panels say as a table."""
    out, kind = Path(options.out), options.kind
    folders = [found for folder in options.folders for found in _runs_below(Path(folder))]
    runs = compared_runs([*dict.fromkeys(folders)])
    panels = panels_of(kind, runs)
    if not panels:
        wanted = "with a first roll-out of the whole mixture" if kind == "peaks" else "of msft"
        raise UsageError(
            f"none of the {counted(len(runs), 'run')} is a finished one {wanted}; name folders "
            "that have one, such as those of `msft compare`"
        )
    if kind == "peaks":
        refuse_mixed_selection([panel.run for panel in panels])
    refuse_unwritable(out)
    section = grid_section(kind, panels)
    files = write_figures([section], out, ("svg", "png"))
    content = [{"title": panel.title, **_panel(kind, panel)} for panel in panels]
    unfinished = [run.label for run in runs if run.history.ended is None]
    found = {"grid": kind, "panels": content, "unfinished": unfinished, **_written(out, files)}
    notes = [f"not finished, and so left out: {listed(unfinished)}"] if unfinished else []
    _emit(options, found, _panel_rows(kind, content), [*notes, section.text], files)


def _emit(
    options: argparse.Namespace,
    content: Mapping[str, Any],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    paths: Sequence[Path] = (),
) -> None:
    """Print the content for a program, or the table and its notes for a person."""
    emit(options, content, lambda width: "\n".join([*table(rows, width), "", *notes]), paths)


def _written(out: Path, files: Sequence[Path]) -> dict[str, Any]:
    return {"folder": str(out), "files": [str(each) for each in files]}


def _runs_below(folder: Path) -> list[Path]:
    """A run's folder itself, or every run below a folder that is none."""
    if RunFolder(folder).log.is_file():
        return [folder]
    found = [log.parent for log in sorted(folder.rglob("run.jsonl"))]
    found = [each for each in found if not RunFolder(each).is_audit()]
    hidden = [any(part.startswith(".") for part in p.relative_to(folder).parts) for p in found]
    shown = [each for each, left_out in zip(found, hidden, strict=True) if not left_out]
    if not shown:
        raise UsageError(f"{folder} is not a run folder, and has none in it: no run.jsonl")
    return shown


def _panel(kind: str, panel: RunPanel) -> dict[str, Any]:
    """The numbers of a panel, for a program."""
    run = panel.run
    history = run.history
    searches = run.method == "msft"
    found: dict[str, Any] = {
        "run": str(run.folder),
        "model": run.model,
        "method": run.method,
        "compute_budget": budget_of(history) if searches else None,
        "sub_datasets": len(run.names),
        "seed": run.seed,
        **({"selection_split": history.selection} if history.selected_on_test else {}),
    }
    match kind:
        case "peaks":
            peaks = peaks_of(history)
            assert peaks is not None, "panels_of leaves out what has no peaks"
            return {**found, "peaks": dict(peaks.peaks), "peak_of_mean": peaks.mean}
        case "loss":
            both = [(run, "last"), *([(panel.sft, "sft_last")] if panel.sft else [])]
            losses = {key: path_losses(each.history)[0][1] for each, key in both}
            ends = {
                key: next((loss for loss in reversed(line) if not isnan(loss)), None)
                for key, line in losses.items()
            }
            left = len(history.exclusions)
            beside = str(panel.sft.folder) if panel.sft else None
            return {**found, "sft": beside, "left": left, "sft_last": None, **ends}
        case _:
            bounds = disk_bounds(history)
            assert bounds is not None, "mSFT has bounds"
            copies = {key: disk_of(history)[key] for key in ("mean_copies", "peak_copies")}
            return {**found, **copies, "paper_mean": bounds.mean, "paper_most": bounds.most}


def _panel_rows(kind: str, panels: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A table of the panels' numbers, for a person."""
    rows: list[tuple[str, ...]]
    if kind == "peaks":
        rows = [("run", "first peak", "last peak", "peak of the mean")]
        for panel in panels:
            peaks = panel["peaks"].values()
            ends = (min(peaks), max(peaks), panel["peak_of_mean"])
            rows.append((panel["title"], *map(epochs, ends)))
    elif kind == "loss":
        rows = [("run", "sub-datasets left", "last loss", "of SFT")]
        for panel in panels:
            losses = (panel["last"], panel["sft_last"])
            cells = ("–" if loss is None else f"{loss:.4f}" for loss in losses)
            rows.append((panel["title"], str(panel["left"]), *cells))
    else:
        rows = [("run", "mean", "most", "paper's mean", "paper's most")]
        keys = ("mean_copies", "peak_copies", "paper_mean", "paper_most")
        for panel in panels:
            rows.append((panel["title"], *(f"{panel[key]:.4g}" for key in keys)))
        means = [panel["mean_copies"] for panel in panels]
        rows.append(("mean of all", f"{sum(means) / len(means):.4g}", "", "", ""))
    return rows


def headroom(options: argparse.Namespace) -> None:
    """The gain if each sub-dataset stopped at its own peak, from the logs of a run alone."""
    from msft.report.headroom import headroom_content, headroom_of, headroom_text

    folder = Path(options.folder)
    _refuse_no_run(folder)
    history = read_history(folder)
    found = headroom_of(history, verdicts_of(folder), row_tokens_of(folder))
    content = headroom_content(history, found)
    emit(options, content, lambda width: headroom_text(history, found, width))


def compute(options: argparse.Namespace) -> None:
    """The paper's table of OLMo 2's training compute by stage, and its Fig. 1 as files.

    Runs of SFT and other methods add what SFT would take if it cost as they did.
    """
    folders, out = [Path(folder) for folder in options.folders], Path(options.out)
    factors = factors_of(folders) if folders else {}
    refuse_unwritable(out)
    content = {
        "models": {model.name: _content(model, factors) for model in OLMO_2},
        "factors": factors,
    }
    section = share_section(factors)
    path = out / "compute.json"
    files = [path, *write_figures([section], out, ("svg", "png"))]
    write_json(path, content)
    computed = listed([f"{stage} of {m.name.split()[-1]}" for m in OLMO_2 for stage in m.tokens])
    notes = [
        f"FLOPs of training. Computed from the tokens that the paper states: {computed}; ° as "
        "printed there.",
        "The paper prints post / (pre + mid) as Post / Total. Sums of printed cells may differ in "
        "the last digit.",
        section.text,
    ]
    _emit(options, {**content, **_written(out, files)}, _rows(factors), notes, files)


def homogeneous(options: argparse.Namespace) -> None:
    """The paper's table of how other teams train: the same epochs for every sub-dataset."""
    rows = [("model", "type", "epochs")]
    rows += [(each.model, each.type, each.epochs_in_words) for each in TEAMS]
    _emit(options, {"teams": [asdict(each) for each in TEAMS]}, rows, [TEAMS_NOTE])


WITHOUT_RUNS: dict[str, Callable[[argparse.Namespace], None]] = {
    "headroom": headroom,
    "compute": compute,
    "grid": grid,
    "homogeneous": homogeneous,
}
"""The analyses that train nothing; each prints its result."""


def factors_of(folders: Sequence[Path]) -> dict[str, float]:
    """FLOPs of each other method over those of SFT, in the largest mixture that has both."""
    for folder in folders:
        _refuse_no_run(folder)
    comparisons = comparisons_of([run for run in compared_runs(folders) if run.history.ended])
    rivals = [comparison for comparison in comparisons if comparison.sft and comparison.others]
    if not rivals:
        raise UsageError(
            "these folders have no finished run of sft with one of another method on the same "
            "sub-datasets; name both, or none for the paper's table alone"
        )
    comparison = rivals[-1]
    assert comparison.sft is not None
    own = float(comparison.flops(comparison.sft, "total")) or 1.0
    return {each.label: float(comparison.flops(each, "total")) / own for each in comparison.others}


def _refuse_no_run(folder: Path) -> None:
    if not RunFolder(folder).log.is_file():
        raise UsageError(f"{folder} is not a run folder: it has no run.jsonl")
    refuse_audit(folder)


def _content(model: Training, factors: dict[str, float]) -> dict[str, Any]:
    """A model's cells; `post_to_base` is what the paper prints as Post / Total."""
    return {
        "parameters": model.num_parameters,
        "flops": model.flops,
        "computed": list(model.tokens),
        "post": model.post,
        "total": model.total,
        "post_to_base": model.post / model.base,
        "post_to_total": model.post / model.total,
        "sft_to_post": model.flops["SFT"] / model.post,
        "sft_to_total": model.share("SFT"),
        "sft_to_total_at": {name: model.share("SFT", each) for name, each in factors.items()},
    }


def _rows(factors: dict[str, float]) -> list[tuple[str, ...]]:
    rows = [("stage", *(model.name for model in OLMO_2))]
    for stage in BASE_STAGES + POST_STAGES:
        marks = ["" if stage in model.tokens else "°" for model in OLMO_2]
        cells = (
            f"{model.flops[stage]:.2e}{mark or ' '}"
            for model, mark in zip(OLMO_2, marks, strict=True)
        )
        rows.append((stage, *cells))
    rows.append(("post-training", *(f"{model.post:.2e} " for model in OLMO_2)))
    shares = {
        "post / (pre + mid)": [model.post / model.base for model in OLMO_2],
        "post / total": [model.post / model.total for model in OLMO_2],
        "SFT / post": [model.flops["SFT"] / model.post for model in OLMO_2],
        "SFT / total": [model.share("SFT") for model in OLMO_2],
    }
    for name, factor in factors.items():
        shares[f"SFT / total, × {factor:.2f} {name}"] = [m.share("SFT", factor) for m in OLMO_2]
    for name, values in shares.items():
        rows.append((name, *(f"{100 * value:.3g} % " for value in values)))
    return rows
