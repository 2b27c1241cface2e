"""The demo: SFT, an average and mSFT on the embedded mixture, side by side on unseen rows, and an
audit that finds the sub-datasets with wrong labels."""

import sys
import time
from pathlib import Path

from msft.app.jobs import Job, in_background
from msft.app.terminal.audit import audit_text
from msft.app.terminal.screen import show, show_path, width
from msft.benchmarks.synthetic import MISLABELLED, WRONG
from msft.errors import UsageError
from msft.planning.admission import refuse_unwritable
from msft.recipe.recipe import load_recipe
from msft.report import comparison_text, write_comparison
from msft.report.audit_page import Audit, read_audit
from msft.report.findings import no_exclusion_text, sft_epochs
from msft.report.sections import search_section
from msft.run.folder import RunFolder, read_history
from msft.run.history import History
from msft.run.log import RunEvent
from msft.text import listed
from msft.threads import usable_cores

RECIPE = Path(__file__).parent / "tiny.yaml"
SFT = ["method=sft", "method_options={}"]
METHODS: dict[str, tuple[str, list[str]]] = {
    "sft": (
        "SFT with cosine decay (the schedule that is best for it here)",
        [*SFT, "ema_decay=null", "lr_scheduler_type=cosine"],
    ),
    "sft-ema": ("SFT with a constant rate and a moving average of its weights", SFT),
    "msft": ("mSFT on a moving average; a sub-dataset that surely falls leaves", []),
}
"""The runs: a folder's name, what it is in words, and how it differs from the recipe."""


SHOWN = "msft"
"""The run that the terminal follows."""
AUDIT = "audit"
"""The folder of the audit."""
FIRST = 2
"""Suspects of each spoiled sub-dataset that the terminal shows."""


def run_demo(out: Path, seed: int, recipe: Path = RECIPE, cores: int | None = None) -> None:
    """The runs into `out`, resuming or skipping what is done, and the comparison.

    With two cores or more the runs of SFT train in processes of their own beside mSFT's.
    """
    begun = time.monotonic()
    refuse_unwritable(out)
    folders = [out / method for method in METHODS]
    missing = [name for name in (AUDIT, *METHODS) if not _is_finished(out / name, seed)]
    if missing:
        print("Six synthetic sub-datasets, a random model of 410,000 weights, three methods.\n")
        apart = [name for name in missing if name != SHOWN]
        if (usable_cores() if cores is None else cores) < 2:
            apart = []
        if apart:
            said = ["an audit of the rows" if n == AUDIT else METHODS[n][0] for n in apart]
            show(f"In processes of their own: {listed(said)}.")
        with in_background([_job(name, seed, recipe, out) for name in apart]):
            if SHOWN in missing and apart:
                _run(SHOWN, seed, recipe, out)
        for name in missing:
            if not _is_finished(out / name, seed):
                _run(name, seed, recipe, out)
        print(f"the three runs and the audit took {time.monotonic() - begun:.0f} s\n")
    audit, searched = read_audit(out / AUDIT), read_history(out / SHOWN)
    told = [_planted(seed), _excluded(searched), _audited(audit)]
    figures, links = [search_section(searched)], [(AUDIT, out / AUDIT)]
    page = write_comparison(folders, out, told=told, figures=figures, links=links)
    show(comparison_text(folders, width()))
    show(" ".join(told))
    print()
    show(
        "The audit trains two models, each on half of the rows, and has each judge the other half:"
    )
    show(audit_text(audit, out / AUDIT, width()))
    for line in first_suspects(audit):
        show(line)
    show_path("Look at", page)
    show_path("and at", RunFolder(out / AUDIT).report)


def _job(name: str, seed: int, recipe: Path, out: Path) -> Job:
    """A run in a process of its own. If it fails, it is taken up again here, where errors show."""
    what = ["audit", "--rounds", "1"] if name == AUDIT else ["train"]
    command = [sys.executable, "-m", "msft", *what, str(recipe), "--quiet"]
    command += ["--out", str(out / name)]
    command += [part for each in _overrides(name, seed) for part in ("--set", each)]
    return Job(name, tuple(command), out / f"{name}.log")


def _overrides(name: str, seed: int) -> list[str]:
    return [*([] if name == AUDIT else METHODS[name][1]), f"seed={seed}"]


def _planted(seed: int) -> str:
    return (
        f"The mixture is synthetic (seed {seed}). About {100 * WRONG:.0f} % of the training labels "
        f"of {listed(MISLABELLED)} are wrong, which no method is told."
    )


def _excluded(history: History) -> str:
    """The sub-datasets that mSFT excluded, those with wrong labels among them, and whether an
    exclusion is on the path to the best."""
    names = [exclusion.name for exclusion in history.exclusions]
    if not names:
        return "mSFT excluded none."
    hit = sum(name in MISLABELLED for name in names)
    said = f"mSFT excluded {listed(names)}: {hit} of {len(names)} are among these."
    epochs = sft_epochs(history)
    return said if epochs is None else f"{said} {no_exclusion_text(epochs)}"


def _audited(audit: Audit) -> str:
    """The sub-datasets with wrong labels that the audit found and missed."""
    found = {each.name for each in audit.of("spoiled")}
    if found == {*MISLABELLED}:
        shares = [each.wrong_share.value for each in audit.of("spoiled") if each.wrong_share]
        ends = dict.fromkeys(f"{100 * share:.0f}" for share in (min(shares), max(shares)))
        estimate = f"It estimates that {' to '.join(ends)} % are wrong."
        return f"The audit found all of them and no other. {estimate}"
    missed = [name for name in MISLABELLED if name not in found]
    falsely = sorted(found - {*MISLABELLED})
    return " ".join(
        [
            f"The audit missed {listed(missed)}." if missed else "The audit found all of them.",
            *([f"It also named {listed(falsely)}, falsely."] if falsely else []),
        ]
    )


def _run(name: str, seed: int, recipe: Path, out: Path) -> None:
    from msft.app.audit import audit
    from msft.app.terminal.progress import ShownAudit, ShownRun
    from msft.training import train

    asked = load_recipe(recipe, _overrides(name, seed))
    if name == AUDIT:
        audit(asked, out / name, rounds=1, observers=[ShownAudit()])
    else:
        print(f"{METHODS[name][0]}:")
        train(asked, out / name, [ShownRun(f"{name} on the demo mixture")])
    print()


def first_suspects(audit: Audit) -> list[str]:
    """The first suspects of each spoiled sub-dataset, with what the model would say instead."""
    return [
        f"  {each.where}: {each.prompt} {each.given.strip()}   (the model: {each.answer.strip()})"
        for dataset in audit.of("spoiled")
        for each in audit.suspects[dataset.name][:FIRST]
    ]


def _is_finished(folder: Path, seed: int) -> bool:
    run = RunFolder(folder)
    opened = run.events()[:1]
    if opened and isinstance(opened[0], RunEvent) and opened[0].seed != seed:
        raise UsageError(
            f"{folder} holds a run with seed {opened[0].seed}; give another --out, or that --seed"
        )
    return run.is_finished()
