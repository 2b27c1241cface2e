"""The table of FLOPs in a comparison, and what is counted."""

from collections.abc import Sequence

from msft.report.compare.contest import Contest
from msft.report.tables import EMPTY, Cell, Table, TableRow
from msft.report.wording import flops_counted
from msft.run.summary import adapter_of, first_rollout_flops
from msft.text import listed, si


def flops_table(contest: Contest) -> Table:
    """What was computed, and for what."""
    kinds = ("train", "evaluation", "look-ahead", "total", "kept", "discarded")
    against = contest.flops(contest.baseline, "total")
    rows: list[TableRow] = []
    for entrant in contest.entrants:
        amounts = [contest.flops(entrant, kind.replace("-", "")) for kind in kinds]
        cells = [Cell(si(float(amount)), value=float(amount)) for amount in amounts]
        share = float(contest.flops(entrant, "total") / against) if against else None
        times = EMPTY if share is None else Cell(f"{share:.2f}", value=share)
        rows.append(TableRow(entrant.label, (*cells, times)))
    return Table(
        "flops",
        "FLOPs",
        flops_note([contest]),
        ("method", *kinds, f"× {contest.baseline.label}"),
        tuple(rows),
    )


def flops_note(contests: Sequence[Contest]) -> str:
    """What is counted."""
    adapter = any(adapter_of(run.history) for contest in contests for run in contest.runs)
    return (
        f"{flops_counted(adapter)}. Kept is the training on the path to the reported checkpoint, "
        "discarded is all other training; kept + discarded = train + look-ahead. Time and memory "
        f"are not in it.{_shared_text(contests)}"
    )


def _shared_text(contests: Sequence[Contest]) -> str:
    """What was computed once for several runs, where some of them took it over."""
    runs = [run for contest in contests for run in contest.runs]
    takers = [run for run in runs if run.rollout_from]
    if not takers:
        return ""
    total = sum(run.summary["flops"]["total"] for run in runs)
    spared = sum(first_rollout_flops(run.history) for run in takers)
    labels = dict.fromkeys(
        entrant.label
        for contest in contests
        for entrant in contest.entrants
        if any(run in takers for run in entrant.runs.values())
    )
    return (
        f" Each line is what the method costs by itself. {listed(labels)} took the first roll-out "
        f"over from a run that had asked the same, so of {si(total)} FLOPs of all runs "
        f"{si(total - spared)} were really computed."
    )
