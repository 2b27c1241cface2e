"""`msft audit`, and `msft train --audit`: which sub-datasets and rows spoil the model, and what
training without these rows gives.

An audit goes through the stages of `training.py` and ends with findings instead of a model. What
is decided stands in its log; the files for people and for the next training are made from that.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from msft.data.encoding import EncodedSplit
from msft.data.exclusions import row_sha256
from msft.data.readers import json_lines
from msft.errors import UsageError, explaining
from msft.files import FOLDER, kind_of, read_text, refuse_other_kind
from msft.observers.hub import push
from msft.observers.observer import Observer
from msft.planning.admission import Job, Notice, admit, resolved, run_folder
from msft.ranks import Ranks, all_or_fail, from_rank0, lost_ranks_named
from msft.recipe.dataset import SPLITS, names_files
from msft.recipe.recipe import Recipe, load_recipe, with_rows
from msft.report import write_report
from msft.run.folder import RunFolder, read_history, write_json, write_text
from msft.run.history import History
from msft.run.log import RunEvent
from msft.run.result import Result
from msft.run.rows import Judgments
from msft.scoring.evaluation import prompt_of
from msft.search.curves import TEST
from msft.search.judging import Estimate, Finding
from msft.search.methods import AUDIT, prepared_audit
from msft.text import counted, listed
from msft.training import build, judge, meet, prepare, read, train

ROUNDS = 2
EXCLUDED = "excluded.jsonl"
"""Beside an audit's `clean.yaml`, where other rows leave than the suspects: also those that the
recipe excludes itself, or not the last suspect of a sub-dataset of which all rows are suspects."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """A finished audit.

    content: what `audit.json` has.
    folder: it also has `report.html`, and as files that are named here:
    suspects: the rows to look at, the worst first.
    clean: the recipe without them, ready for `msft train`.
    was_finished: the audit had ended before; nothing was trained.
    """

    content: dict[str, Any]
    folder: Path
    was_finished: bool = False

    def __repr__(self) -> str:
        return f"AuditResult(folder={str(self.folder)!r}, spoiled={list(self.spoiled)!r})"

    @property
    def suspects(self) -> Path:
        return RunFolder(self.folder).suspects

    @property
    def clean(self) -> Path:
        return RunFolder(self.folder).clean

    @property
    def spoiled(self) -> tuple[str, ...]:
        """The spoiled sub-datasets, in recipe order."""
        datasets = self.content["datasets"]
        return tuple(name for name, found in datasets.items() if found["verdict"] == "spoiled")


@explaining()
def audit(
    recipe: Recipe,
    out: Path | str | None = None,
    rounds: int = ROUNDS,
    observers: Sequence[Observer] = (),
    notice: Notice = lambda text: None,
    datasets: Mapping[str, Any] | None = None,
    ranks: Ranks | None = None,
) -> AuditResult:
    """Audit a recipe's training rows, or go on with it: the same call on the same folder resumes.

    out: the folder of the audit (default: `audit` in the recipe's `output_dir`).
    """
    with lost_ranks_named():
        if ranks is None:
            ranks, recipe = meet(lambda: recipe)
        asked = with_rows(recipe, datasets) if datasets is not None else recipe
        folder = Path(out) if out is not None else run_folder(asked, None).path / AUDIT

        def admitted() -> Job:
            refuse_unauditable(asked, rounds)
            refuse_other_rounds(folder, rounds)
            return admit(asked, folder, notice, None, None, None, ranks, prepared_audit(rounds))

        job = all_or_fail(ranks, "what is asked for", admitted)
        rows = read(job)
        plan = prepare(job, rows)
        built = build(job, rows, plan)
        for note in rows.notes:
            job.notice(note)
        history, judgments = judge(job, rows, plan, built, observers)
        content = content_of(history)

        def leave() -> None:
            trained = {name: each.train for name, each in rows.corpus.datasets.items()}
            suspects = suspect_lines(history, judgments, trained)
            files = job.folder
            # a finished audit keeps its suspects: people delete the lines of right rows
            if not job.finished or kind_of(files.suspects) is None:
                write_lines(files.suspects, suspects)
            if not job.finished or kind_of(files.clean) is None:
                write_clean(asked, files, suspects, sparing(suspects, trained))
            write_json(files.audit, content)
            write_report(files.path)

        from_rank0(ranks, "findings", leave)
        return AuditResult(content, job.folder.path, job.finished)


def refuse_other_rounds(folder: Path, rounds: int) -> None:
    """UsageError where an audit in this folder was begun with other rounds."""
    run = RunFolder(folder)
    opened = run.events()[:1] if run.is_audit() else []
    if opened and isinstance(opened[0], RunEvent):
        begun = opened[0].settings["method"]["rounds"]
        if begun != rounds:
            raise UsageError(
                f"{folder} holds an audit of {counted(begun, 'round')}; give --rounds {begun}, or "
                "another --out"
            )


def refuse_unauditable(recipe: Recipe, rounds: int) -> None:
    """UsageError where an audit could not say anything."""
    if rounds < 1:
        raise UsageError(f"{rounds} rounds were asked for; expected 1 or more")
    if recipe.selection_split == TEST:
        raise UsageError(
            "an audit compares training rows with validation rows, but this recipe has "
            "selection_split: test and reads none; leave selection_split out"
        )


# What an audit leaves behind.


def content_of(history: History) -> dict[str, Any]:
    """The content of `audit.json`: the findings of the last round, which has the verdicts of the
    first."""
    findings = history.found[-1].findings
    return {
        "rounds": len(history.found),
        "datasets": {name: _content(finding) for name, finding in findings.items()},
    }


def _content(finding: Finding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict,
        "validation": finding.validation,
        "train": finding.train,
        "gap": _estimate(finding.gap),
        "wrong_share": finding.wrong_share and _estimate(finding.wrong_share),
        "suspects": len(finding.suspects),
        "rows": finding.rows,
        "why": finding.why,
    }


def _estimate(estimate: Estimate) -> dict[str, float | None]:
    """JSON has no infinity: a side of which the rows say nothing is null."""
    return {key: value if isfinite(value) else None for key, value in asdict(estimate).items()}


def suspect_lines(
    history: History, judgments: Judgments, trained: Mapping[str, EncodedSplit]
) -> list[dict[str, Any]]:
    """The suspects, the worst first, sub-dataset by sub-dataset, with what the judge said that
    ranked them. A row has the number that it has among all training rows, those of `exclude_rows`
    included."""
    judges = len(history.stages) // len(history.found)
    said: list[dict[str, dict[int, tuple[float, str | None]]]] = [{} for _ in history.found]
    for number, stage in enumerate(history.stages):
        judged, of_round = judgments.at(stage.checkpoints[-1]), said[number // judges]
        for name, rows in judged.rows.items():
            pairs = zip(rows.doubts, judged.answers[name], strict=True)
            of_round.setdefault(name, {}).update(zip(rows.numbers, pairs, strict=True))
    lines: list[dict[str, Any]] = []
    for name, finding in history.found[-1].findings.items():
        # a task that the judges of a later round do not know has the suspects of an earlier one
        ranked = next(n for n, each in enumerate(history.found) if each.findings[name] == finding)
        for rank, place in enumerate(finding.suspects, start=1):
            example, (doubt, answer) = trained[name].examples[place], said[ranked][name][place]
            lines.append(
                {
                    "dataset": name,
                    "row": trained[name].numbers[place],
                    "where": example.where,
                    "sha256": row_sha256(example),
                    "prompt": prompt_of(example),
                    "given": example.completion,
                    "answer": answer,
                    "doubt": doubt,
                    "rank": rank,
                }
            )
    return lines


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def sparing(
    suspects: Sequence[Mapping[str, Any]], trained: Mapping[str, EncodedSplit]
) -> list[Mapping[str, Any]]:
    """The suspects without those that are like the least doubted one of a sub-dataset of which all
    rows are suspects, since a sub-dataset without rows cannot be trained."""
    last = {line["dataset"]: line["sha256"] for line in suspects}
    spared = set()
    for name, kept in last.items():
        named = {line["sha256"] for line in suspects if line["dataset"] == name}
        if named.issuperset(map(row_sha256, trained[name].examples)):
            spared.add((name, kept))
    return [line for line in suspects if (line["dataset"], line["sha256"]) not in spared]


def write_clean(
    recipe: Recipe,
    folder: RunFolder,
    suspects: Sequence[Mapping[str, Any]],
    leaving: Sequence[Mapping[str, Any]],
) -> None:
    """Write the recipe without the rows that leave, with paths that hold from the folder of the
    audit. Rows that the recipe excludes itself stay excluded.

    leaving: all suspects, or fewer.
    """
    placed = resolved(recipe)
    own = placed.exclude_rows
    named = folder.suspects.name  # beside it, so that both may be moved
    if suspects and (own is not None or len(leaving) < len(suspects)):
        named = EXCLUDED
        before = [line for _, line in json_lines(Path(own))] if own is not None else []
        write_lines(folder.path / named, [*before, *leaving])
    out = f"{run_folder(recipe, None).path}-clean"
    clean = replace(placed, exclude_rows=named if suspects else own, output_dir=out)
    splits = {each.name: [getattr(each, key) for key in SPLITS] for each in placed.datasets}
    given = [n for n, each in splits.items() if any(s and not names_files(s) for s in each)]
    note = ""
    if given:
        note = (
            f"# The rows of {listed(given)} were given from Python and are not in any file. Train\n"
            "# them as before, with the exclude_rows of this file in your recipe.\n"
        )
    write_text(folder.clean, note + clean.to_yaml())


# Training with and without the suspects.

ALL, CLEAN = "all", "clean"
CHOICE = "choice.json"


@dataclass(frozen=True, slots=True)
class Choice:
    """The training that validation prefers, of that on all rows and that without the suspects.

    content: what `choice.json` has.
    runs: by what they were trained on; without suspects there is one.
    best: a copy of the model that was chosen.
    """

    content: dict[str, Any]
    audit: AuditResult
    runs: Mapping[str, Result]
    best: Path


@explaining()
def train_audited(
    recipe: Recipe,
    out: Path | str | None = None,
    shown: Callable[[str, Recipe], Sequence[Observer]] = lambda what, recipe: (),
    say: Callable[[str], None] = lambda text: None,
    notice: Notice = lambda text: None,
    ranks: Ranks | None = None,
) -> Choice:
    """Audit, train on all rows, train without the suspects, and choose by validation; the same call
    on the same folder goes on.

    shown: who watches a part of it: `audit`, `all` or `clean`.
    say: is told what comes next.
    """
    if ranks is None:
        ranks, recipe = meet(lambda: recipe)
    folder = run_folder(recipe, out).path
    all_or_fail(ranks, "folder", lambda: refuse_taken(folder))
    audited = audit(recipe, folder / AUDIT, ROUNDS, shown(AUDIT, recipe), notice, ranks=ranks)
    lines = from_rank0(ranks, "suspects", lambda: lines_in(audited.suspects))
    recipes = {ALL: replace(recipe, push_to_hub=False)}
    if lines:
        clean = load_recipe(audited.clean, ["push_to_hub=false"])
        # its own file, whatever has this name in the current directory
        excluding = str((audited.folder / str(clean.exclude_rows)).resolve())
        recipes[CLEAN] = replace(clean, exclude_rows=excluding)
    runs: dict[str, Result] = {}
    for what, asked in recipes.items():
        left = f" without {lines:,} suspects" if what == CLEAN else " on all rows"
        say(f"training{left}, into {folder / what}")
        runs[what] = train(asked, folder / what, shown(what, asked), notice, ranks=ranks)
    content = choice_of(runs, audited, lines)
    chosen = runs[content["chosen"]]

    def leave() -> None:
        put_best(chosen.best, folder / "best")
        write_json(folder / CHOICE, content)
        if recipe.push_to_hub:
            push(recipe, RunFolder(folder), chosen.summary["best"]["checkpoint"], notice)

    from_rank0(ranks, "choice", leave)
    return Choice(content, audited, runs, folder / "best")


def refuse_taken(folder: Path) -> None:
    """UsageError where something else has the names that `msft train --audit` needs."""
    files = RunFolder(folder)
    refuse_other_kind(files.best, FOLDER)
    refuse_other_kind(folder / CHOICE)
    taken = files.log if files.log.exists() else files.best
    if taken.exists() and (taken == files.log or not RunFolder(folder / AUDIT).log.exists()):
        raise UsageError(
            f"{folder} has {taken.name}, which is that of something else; `msft train --audit` "
            f"makes {AUDIT}, {ALL}, {CLEAN} and best in its folder: give another --out"
        )


def lines_in(suspects: Path) -> int:
    """The number of rows in a file of suspects; a person may have deleted some."""
    return sum(bool(line.strip()) for line in read_text(suspects).split("\n"))


def choice_of(runs: Mapping[str, Result], audited: AuditResult, suspects: int) -> dict[str, Any]:
    """The content of `choice.json`. Equal means choose all rows."""
    best = {what: run.summary["best"] for what, run in runs.items()}
    validation = {what: float(each["validation"]["mean"]) for what, each in best.items()}
    test = {what: (each["test"] or {}).get("mean") for what, each in best.items()}
    chosen, why = (
        ALL,
        "the audit found no spoiled sub-dataset, so there is one training, on all rows",
    )
    if CLEAN in validation:
        everything, clean = validation[ALL], validation[CLEAN]
        sign = -1 if read_history(runs[ALL].folder).mean_unit == "nll" else 1  # a loss
        what, scores = "on all rows", f"{everything:.4f} against {clean:.4f}"
        if sign * clean > sign * everything:
            chosen, scores = CLEAN, f"{clean:.4f} against {everything:.4f}"
            what = f"without {suspects:,} suspects of {listed([*audited.spoiled])}"
        why = f"training {what} is better on validation: {scores}"
        if clean == everything:
            why = f"both trainings are level on validation ({clean:.4f}), so all rows stay"
    return {
        "chosen": chosen,
        "why": why,
        "validation": validation,
        "test": test,
        "suspects": suspects,
        "spoiled": [*audited.spoiled],
    }


def put_best(source: Path, target: Path) -> None:
    """A copy of a model folder, as links where the disk can; what was there before goes."""
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)

    def linked(file: str, copy: str) -> None:
        try:
            os.link(file, copy)
        except OSError:
            shutil.copy2(file, copy)

    shutil.copytree(source, fresh, copy_function=linked)
    if target.is_dir():
        shutil.rmtree(target)
    fresh.rename(target)
