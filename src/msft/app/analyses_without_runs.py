"""Analyses that train nothing: headroom of a finished run, OLMo 2's training compute, and how
other teams train. `grids.py` has the one that draws many runs."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msft.app.admission import refuse_unwritable
from msft.app.grids import grid
from msft.app.terminal.screen import show, show_paths, width
from msft.errors import UsageError
from msft.layout import table
from msft.report.compare.compared_run import compared_runs
from msft.report.compare.contest import contests_of
from msft.report.compare.olmo2_compute import BASE_STAGES, OLMO_2, POST_STAGES, Training
from msft.report.compare.other_teams import TEAMS, TEAMS_NOTE
from msft.report.figure_files import write_figures
from msft.report.figures.olmo2_share import share_section
from msft.run.folder import RunFolder, read_history, row_tokens_of, verdicts_of, write_json
from msft.text import listed


def headroom(options: argparse.Namespace) -> None:
    """What stopping each sub-dataset at its own peak would gain, from the logs of a run alone."""
    from msft.report.compare.headroom import headroom_of
    from msft.report.headroom_in_words import headroom_content, headroom_text

    folder = Path(options.folder)
    _refuse_no_run(folder)
    history = read_history(folder)
    found = headroom_of(history, verdicts_of(folder), row_tokens_of(folder))
    if options.json:
        print(json.dumps(headroom_content(history, found), indent=2, ensure_ascii=False))
    else:
        show(headroom_text(history, found, width()))


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
    if options.json:
        found = {**content, "folder": str(out), "files": [str(each) for each in files]}
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    show("\n".join([*table(_rows(factors), width()), "", *_notes(), section.text]))
    show_paths(*files)


def homogeneous(options: argparse.Namespace) -> None:
    """The paper's table of how other teams train: the same epochs for every sub-dataset."""
    if options.json:
        print(json.dumps({"teams": [asdict(each) for each in TEAMS]}, indent=2))
        return
    rows = [("model", "type", "epochs")]
    rows += [(each.model, each.type, each.epochs_in_words) for each in TEAMS]
    show("\n".join([*table(rows, width()), "", TEAMS_NOTE]))


WITHOUT_RUNS: dict[str, Callable[[argparse.Namespace], None]] = {
    "headroom": headroom,
    "compute": compute,
    "grid": grid,
    "homogeneous": homogeneous,
}
"""The analyses that train nothing; each prints what it found."""


def factors_of(folders: Sequence[Path]) -> dict[str, float]:
    """How many times the FLOPs of SFT each other method cost, in the largest mixture with both."""
    for folder in folders:
        _refuse_no_run(folder)
    contests = contests_of([run for run in compared_runs(folders) if run.history.ended])
    rivals = [contest for contest in contests if contest.sft and contest.others]
    if not rivals:
        raise UsageError(
            "these folders have no finished run of sft with one of another method on the same "
            "sub-datasets; name both, or none for the paper's table alone"
        )
    contest = rivals[-1]
    assert contest.sft is not None
    own = float(contest.flops(contest.sft, "total")) or 1.0
    return {each.label: float(contest.flops(each, "total")) / own for each in contest.others}


def _refuse_no_run(folder: Path) -> None:
    if not RunFolder(folder).log.is_file():
        raise UsageError(f"{folder} is not a run folder: it has no run.jsonl")


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


def _notes() -> list[str]:
    computed = listed([f"{stage} of {m.name.split()[-1]}" for m in OLMO_2 for stage in m.tokens])
    return [
        f"FLOPs of training. Computed from the tokens that the paper states: {computed}; ° as "
        "printed there.",
        "The paper prints post / (pre + mid) as Post / Total. Sums of printed cells may differ in "
        "the last digit.",
    ]
