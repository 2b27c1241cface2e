"""`report.html` of an audit, from its files alone: first what `audit.json` and `suspects.jsonl`
say, then the page that shows it. `app/terminal/audit.py` says the same on a terminal."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from math import exp, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Len, Predicate

from msft.errors import LogError, UsageError
from msft.files import DAMAGED, kind_of, open_to_read, read_bytes, read_text
from msft.report.figures.chart import (
    GREEN,
    LEFT,
    MUTED,
    NARROW,
    PAPER,
    Entry,
    beside,
    in_page,
    rows_of,
    stacked_axes,
)
from msft.report.page import RunOnDisk, Section, facts_of, page_sections, write_page
from msft.report.tables import EMPTY, Cell, Sign, Table, TableRow
from msft.report.wording import NOTHING, Unit, difference, number, points
from msft.run.folder import RunFolder, read_history
from msft.run.history import History, flops_of
from msft.run.log import is_being_written
from msft.search.curves import Metric
from msft.search.judging import Estimate, Verdict
from msft.text import counted, cut, listed, one_line, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# What an audit found.

VERDICTS: Mapping[Verdict, str] = {
    "spoiled": "spoiled",
    "cannot_tell": "cannot tell",
    "fine": "fine",
}
"""In words, the worst first."""
MOST_SHOWN = 10
"""Suspects of a sub-dataset that the page shows."""
MOST_NAMED, MOST_REASONS, MOST_OPEN = 6, 3, 3
"""Sub-datasets and reasons that sentences name, and spoiled sub-datasets that are not folded."""


def _as_text(value: Any) -> str:
    """A text; of what is none, such as the messages of a conversation, its JSON."""
    return (
        value
        if isinstance(value, str)
        else ""
        if value is None
        else json.dumps(value, ensure_ascii=False)
    )


Real = Annotated[float, Predicate(isfinite)]
Count = Annotated[int, Ge(0)]


@dataclass(frozen=True, slots=True)
class _Found:
    """A sub-dataset as `audit.json` has it; see `AuditedDataset`."""

    verdict: Verdict
    validation: Real | None
    train: Real | None
    gap: Estimate | None
    wrong_share: Estimate | None
    suspects: Count
    rows: Count
    why: str = ""


@dataclass(frozen=True, slots=True)
class _AuditFile:
    """What `audit.json` has that a page shows."""

    rounds: Count
    datasets: Annotated[Mapping[str, _Found], Len(1)]


@dataclass(frozen=True, slots=True)
class AuditedDataset:
    """The finding of an audit on one sub-dataset.

    validation, train: scores of its validation rows and of its own training rows, none of which
        the judge had seen.
    gap: how much worse training rows are, also of nll. wrong_share: None where there is none.
    suspects: rows that the audit named. why: the reason for the verdict.
    """

    name: str
    unit: Metric
    verdict: Verdict
    validation: float | None
    train: float | None
    gap: Estimate | None
    wrong_share: Estimate | None
    suspects: int
    rows: int
    why: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """A training row whose given answer the judges doubt, as a line of `suspects.jsonl` has it. A
    file that a person wrote may have the sub-dataset alone, so all else may be empty.

    where, prompt, given, answer: text; answer: the model's own.
    doubt: how many nats more the judge gives to its own answer than to the given one; where rows
        are not right or wrong, the loss of the given one.
    """

    dataset: str
    row: Count | None = None
    where: Any = ""
    prompt: Any = ""
    given: Any = ""
    answer: Any = ""
    doubt: Real | None = None

    def __post_init__(self) -> None:
        for key in ("where", "prompt", "given", "answer"):
            object.__setattr__(self, key, _as_text(getattr(self, key)))


@dataclass(frozen=True, slots=True)
class Audit:
    """suspects: the first of each sub-dataset, the worst first.
    listed: how many `suspects.jsonl` has of each; None: the file is not there.
    """

    rounds: int
    datasets: Sequence[AuditedDataset]
    suspects: Mapping[str, Sequence[Suspect]]
    listed: Mapping[str, int] | None

    def of(self, verdict: Verdict) -> list[AuditedDataset]:
        """The sub-datasets with a verdict, the worst first."""
        found = [each for each in self.datasets if each.verdict == verdict]
        return sorted(found, key=_badness, reverse=True)

    @property
    def worst_first(self) -> list[AuditedDataset]:
        return [each for verdict in VERDICTS for each in self.of(verdict)]


def _badness(dataset: AuditedDataset) -> tuple[bool, float]:
    share, gap = dataset.wrong_share, dataset.gap
    return share is not None, share.value if share else gap.value if gap else 0.0


def read_audit(folder: Path) -> Audit:
    """The findings of an audit. UsageError before its end, LogError for a damaged file."""
    files = RunFolder(folder)
    if kind_of(files.audit) is None:
        raise UsageError(
            f"{folder} has no audit.json; expected the folder of an audit that has ended: wait for "
            "it, or go on with `msft audit`"
        )
    metrics, data = _metrics(files.recipe), read_bytes(files.audit)
    try:
        content: _AuditFile = _reader(_AuditFile)(data, strict=True)
    except ValueError as error:
        raise LogError(
            f"{files.audit}: {_fault(error)}; expected the file as `msft audit` writes it: "
            "restore it, or run the audit in another folder"
        ) from error
    datasets = [
        AuditedDataset(
            name,
            _unit(name, metrics),
            *(getattr(found, part.name) for part in fields(_Found)),
        )
        for name, found in content.datasets.items()
    ]
    return Audit(content.rounds, datasets, *_suspects_in(files.suspects))


@cache
def _reader(kind: type[Any]) -> Callable[..., Any]:
    """Reads JSON as a dataclass, or raises pydantic's ValidationError, which is a ValueError."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_json


def _fault(error: Any) -> str:
    """The first thing that is wrong, with its place."""
    first = error.errors()[0]
    return one_line(": ".join([*map(str, first["loc"]), first["msg"]]))


def _suspects_in(path: Path) -> tuple[Mapping[str, Sequence[Suspect]], Mapping[str, int] | None]:
    """The first suspects of each sub-dataset and how many it has, as of `Audit`."""
    suspects: dict[str, list[Suspect]] = {}
    amounts: dict[str, int] = {}
    if kind_of(path) is None:
        return suspects, None
    with open_to_read(path) as lines:
        for place, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                suspect: Suspect = _reader(Suspect)(line, strict=True)
            except ValueError as error:
                raise LogError(
                    f"{path}, line {place}: {_fault(error)}; expected one JSON "
                    "object a line, with a sub-dataset as `dataset`: mend the line or delete it"
                ) from error
            amounts[suspect.dataset] = amounts.get(suspect.dataset, 0) + 1
            first = suspects.setdefault(suspect.dataset, [])
            if len(first) < MOST_SHOWN:
                first.append(suspect)
    return suspects, amounts


def _metrics(recipe: Path) -> dict[str, str]:
    """The metric of each sub-dataset, as the recipe says it; those that a sub-dataset was split
    into have its own."""
    try:
        datasets = _yaml(recipe)["datasets"]
        return {str(each["name"]): str(each.get("metric") or "accuracy") for each in datasets}
    except DAMAGED:
        return {}


def _yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML") from error


def _unit(name: str, metrics: Mapping[str, str]) -> Metric:
    owners = [each for each in metrics if name == each or name.startswith(f"{each}.")]
    match metrics[max(owners, key=len)] if owners else "accuracy":
        case "accuracy":
            return "accuracy"
        case "nll":
            return "nll"
        case _:
            return "value"


# What is said of it.


def result_in_words(audit: Audit) -> str:
    """The result in one or two sentences."""
    spoiled, unclear = audit.of("spoiled"), audit.of("cannot_tell")
    many = len(audit.datasets)
    if many == 1:
        name = audit.datasets[0].name
        if unclear:
            return f"The audit cannot tell whether {name} is spoiled."
        return f"{name} is fine." if not spoiled else f"{name} is spoiled. {_worst(spoiled)}"
    if spoiled:
        are = "is" if len(spoiled) == 1 else "are"
        names = _listed([each.name for each in spoiled])
        return f"{len(spoiled)} of {many} sub-datasets {are} spoiled: {names}. {_worst(spoiled)}"
    if len(unclear) == many:
        return f"The audit cannot tell whether any of the {many} sub-datasets is spoiled."
    if unclear:
        return (
            f"No sub-dataset was found spoiled: {many - len(unclear)} of {many} are fine, and of "
            f"{len(unclear)} the audit cannot tell ({_listed([each.name for each in unclear])})."
        )
    return f"No sub-dataset is spoiled: all {many} are fine."


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence; of many, the first."""
    if len(names) <= MOST_NAMED:
        return listed(names)
    return listed([*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"])


def _worst(spoiled: Sequence[AuditedDataset]) -> str:
    """The share of wrong answers, or the gap, of the worst sub-dataset."""
    worst = spoiled[0]
    if worst.wrong_share is not None:
        wrong = f"{100 * worst.wrong_share.value:.0f}\u00a0%"
        return f"About {wrong} of the answers of {worst.name} are wrong."
    said = f"Training rows of {worst.name} are worse than its validation rows"
    if worst.gap is None:
        return f"{said}."
    gap = difference(worst.gap.value, worst.unit).removeprefix("+")
    unit = {"accuracy": " points", "nll": " nats a token", "value": ""}[worst.unit]
    return f"{said} by {gap}{unit}."


def unclear_in_words(audit: Audit) -> list[str]:
    """The sub-datasets of which the audit cannot tell, by the reason; of many, the first."""
    reasons: dict[str, list[str]] = {}
    for each in audit.of("cannot_tell"):
        reasons.setdefault(each.why, []).append(each.name)
    shown = [*reasons.items()][:MOST_REASONS]
    texts = [f"Cannot tell about {_listed(names)}. {why}".strip() for why, names in shown]
    others = len(audit.of("cannot_tell")) - sum(len(names) for _, names in shown)
    return [*texts, *[f"Cannot tell about {others} more: report.html says why."] * bool(others)]


def doubt_in_words(suspect: Suspect, unit: Unit) -> str:
    """The doubt of the judge about the given answer, in words."""
    if suspect.doubt is None:
        return ""
    if unit != "accuracy":
        return f"a loss of {suspect.doubt:.2f} nats a token"
    if suspect.doubt < 0.05:
        return "the model prefers no other answer"
    if suspect.doubt > 6.9:
        return "the model prefers its own answer by more than 1,000 to 1"
    ratio = exp(suspect.doubt)
    return f"the model prefers its own answer {ratio:.{0 if ratio >= 9.5 else 1}f} to 1"


def excluded_file(folder: Path) -> str:
    """The file whose rows `clean.yaml` leaves out; one of this folder by its name alone."""
    try:
        path = Path(str(_yaml(RunFolder(folder).clean)["exclude_rows"]))
        return path.name if path.parent == folder.resolve() else str(path)
    except DAMAGED:
        return RunFolder(folder).suspects.name


# The page.

COLOURS: Mapping[Verdict, str] = {"spoiled": LEFT, "cannot_tell": MUTED, "fine": GREEN}
_SIGNS: Mapping[Verdict, Sign] = {"spoiled": "down", "fine": "up"}
_LEAST_SHARE, _MOST_SHARE = -25.0, 100.0
"""Per cent between which shares are drawn; intervals of very few rows go beyond."""
_ROW, _VALUES = 30, 74
"""Pixels: of a sub-dataset, and of the values right of the axes."""


def write_audit_page(folder: Path, refresh_seconds: int | None) -> Path:
    """Write `report.html` of an audit; of one that has not ended yet, a short one.

    refresh_seconds: as of `write_report`.
    """
    files = RunFolder(folder)
    history, unreadable = _history(folder)
    content: dict[str, Any] = {
        "title": f"Audit · {folder.resolve().name}",
        "eyebrow": f"Audit · {folder.resolve().name}"
        + (f" · seed {history.start.seed}" if history else ""),
        "unreadable": unreadable,
        "facts": _facts(folder, history),
        "cost": _cost(history),
        "refresh_seconds": refresh_seconds,
    }
    if kind_of(files.audit) is None:
        status = "running" if is_being_written(files.log) else "stopped"
        scored = len(history.stages) if history else 0
        content |= {"status": status, "begun": counted(scored, "judge")}
    else:
        content |= {"status": "finished", **_content(read_audit(folder), excluded_file(folder))}
    return write_page(files.report, "audit.html", content)


def _history(folder: Path) -> tuple[History | None, str]:
    """The log if it is there, or why it cannot be read; the page can do without."""
    try:
        return (read_history(folder) if kind_of(RunFolder(folder).log) else None), ""
    except (LogError, UsageError) as error:
        return None, str(error)


def _facts(folder: Path, history: History | None) -> list[tuple[str, str, str]]:
    if history is None:
        return []
    return facts_of([RunOnDisk(folder, history, {"flops": asdict(flops_of(history))})])


def _cost(history: History | None) -> str:
    if history is None:
        return ""
    flops, tokens = flops_of(history), history.tokens
    return (
        f"Training the judges took {si(flops.train)} FLOPs over {tokens.train:,} tokens, and "
        f"scoring rows {si(flops.evaluation)} FLOPs over {tokens.evaluation:,} tokens."
    )


def _content(audit: Audit, excluded: str) -> dict[str, Any]:
    spoiled = audit.of("spoiled")
    drawn = [each for each in audit.worst_first if _estimate_of(each)]
    return {
        "audit": audit,
        "sentence": result_in_words(audit),
        "unclear": unclear_in_words(audit),
        "glance": page_sections([glance_section(audit)])[0] if drawn else None,
        "glance_text": _glance_text(drawn),
        "verdicts": verdict_table(audit),
        "numbers": _numbers_table(audit),
        "spoiled": [_shown_dataset(audit, each) for each in spoiled],
        "excluded": excluded,
        "most_open": MOST_OPEN,
    }


def _glance_text(drawn: Sequence[AuditedDataset]) -> str:
    shares = [each for each in drawn if each.wrong_share]
    texts = ["The share of wrong answers in the training rows of each sub-dataset."] * bool(shares)
    if len(shares) < len(drawn):
        where = "Where there is no such share, the" if shares else "The"
        texts.append(f"{where} gap: how much worse training rows are than validation rows.")
    return " ".join([*texts, "The lines are 95\u00a0% intervals."])


@dataclass(frozen=True, slots=True)
class SuspectView:
    """A suspect as the page shows it; ends: of a prompt that is folded."""

    number: int
    where: str
    prompt: str
    ends: str
    given: str
    answer: str
    doubt: str


_LONG_PROMPT, _SHOWN_OF_PROMPT = 300, 160
"""Characters of a prompt that is not folded, and of one that is."""


def _shown_dataset(audit: Audit, dataset: AuditedDataset) -> dict[str, Any]:
    """A spoiled sub-dataset with its first suspects."""
    amounts = {} if audit.listed is None else audit.listed
    there = amounts.get(dataset.name, 0)
    first = audit.suspects.get(dataset.name, ())
    which = f"the first {len(first)} of {counted(there, 'suspect')}"
    if len(first) == there:
        which = "all " * (there > 1) + counted(there, "suspect")
    title, gone = f"{dataset.name}: {which}", dataset.suspects - there
    if gone > 0:
        are = "is" if gone == 1 else "are"
        title += f"; {gone} of those that the audit named {are} no longer in suspects.jsonl"
    return {
        "title": title,
        "suspects": [
            _view(place, suspect, dataset.unit) for place, suspect in enumerate(first, start=1)
        ],
    }


def _view(place: int, suspect: Suspect, unit: Unit) -> SuspectView:
    prompt = suspect.prompt
    is_long = len(prompt) > _LONG_PROMPT or prompt.count("\n") > 6
    ends = cut(" ".join(prompt.split()), _SHOWN_OF_PROMPT) if is_long else ""
    where = suspect.where or (f"row {suspect.row}" if suspect.row is not None else "")
    doubt = doubt_in_words(suspect, unit)
    given, answer = suspect.given.strip(), suspect.answer.strip()
    return SuspectView(place, where, prompt, ends, given, answer, doubt)


def verdict_table(audit: Audit) -> Table:
    """Every sub-dataset, the worst first."""
    rows = []
    for each in audit.worst_first:
        share = each.wrong_share
        cells = (
            Cell(number(each.validation, each.unit)),
            Cell(number(each.train, each.unit)),
            _with_interval(each.gap, each.unit, signed=True),
            _with_interval(share, "accuracy") if share else EMPTY,
            Cell(VERDICTS[each.verdict], sign=_SIGNS.get(each.verdict, "")),
            Cell(each.why.replace(" %", "\u00a0%")),
        )
        rows.append(TableRow(each.name, cells))
    head = ("sub-dataset", "validation", "own training rows", "gap", "wrong answers, %")
    return Table("verdicts", "", _note(audit), (*head, "verdict", "why"), tuple(rows))


def _with_interval(estimate: Estimate | None, unit: Unit, signed: bool = False) -> Cell:
    if estimate is None:
        return EMPTY
    value, low, high = (
        difference(each, unit) if signed else number(each, unit).replace("-", "−")
        for each in (estimate.value, estimate.low, estimate.high)
    )
    return Cell(value, more=f"({low} to {high})")


def _note(audit: Audit) -> str:
    units = {each.unit for each in audit.datasets}
    texts = []
    if "accuracy" in units:
        texts.append("Scores are per cent of rows right, and their gaps are points.")
    if "nll" in units:
        texts.append("Scores of nll are nats a token, and lower is better.")
    if "value" in units:
        texts.append("Scores of own metrics are in their own unit.")
    texts.append(
        "A gap above 0 means that training rows are worse. In brackets: 95\u00a0% intervals."
    )
    return " ".join(texts)


def _numbers_table(audit: Audit) -> Table:
    """All numbers of `audit.json`, in score units."""
    rows = []
    for each in audit.datasets:
        parts: list[float | None] = [each.validation, each.train]
        for estimate in (each.gap, each.wrong_share):
            parts += [estimate.value, estimate.low, estimate.high] if estimate else [None] * 3
        texts = [NOTHING if part is None else f"{part:.5g}".replace("-", "−") for part in parts]
        counts = (f"{each.rows:,}", f"{each.suspects:,}")
        rows.append(TableRow(each.name, tuple(map(Cell, (*texts, *counts)))))
    head = ("sub-dataset", "validation", "training", "gap", "from", "to", "wrong share", "from")
    note = "In score units: an accuracy of 1 is all rows right."
    return Table("numbers", "", note, (*head, "to", "training rows", "suspects"), tuple(rows))


def _estimate_of(dataset: AuditedDataset) -> Estimate | None:
    """The estimate that the figure shows: the share of wrong answers, else the gap."""
    return dataset.wrong_share or dataset.gap


def glance_section(audit: Audit) -> Section:
    return Section("glance", "At a glance", "", partial(_glance, audit))


def _glance(audit: Audit, width: float) -> "Figure":
    """A row for each sub-dataset, the worst first; those with another unit below each other."""
    parts: dict[str, list[AuditedDataset]] = {}
    axis_of = {
        "accuracy": "gap, points",
        "nll": "gap, nats a token",
        "value": "gap of the own metric",
    }
    for each in audit.worst_first:
        if _estimate_of(each):
            axis = "wrong answers, %" if each.wrong_share else axis_of[each.unit]
            parts.setdefault(axis, []).append(each)
    entries = [
        Entry(VERDICTS[verdict], COLOURS[verdict], "dot")
        for verdict in VERDICTS
        if audit.of(verdict)
    ]
    rows = [([one.name for one in each], rows_of(len(each))) for each in parts.values()]
    figure, every = stacked_axes(width, rows, _ROW, entries)
    for axes, (axis, datasets), (_, layout) in zip(every, parts.items(), rows, strict=True):
        box = axes.get_position()
        axes.set_position((box.x0, box.y0, box.width - _VALUES / width, box.height))
        ends = [0.0]
        for row, place in layout.places:
            ends += _draw_row(axes, row, datasets[place])
        low, high = min(ends), max(ends)
        if datasets[0].wrong_share:
            low, high = max(low, _LEAST_SHARE), min(max(high, 50.0), _MOST_SHARE)
        more = 0.04 * (high - low or 1.0)
        axes.set_xlim(low - more, high + more)
        axes.axvline(0, color=MUTED, linewidth=1, zorder=0.9)
        axes.set_xlabel(axis)
        axes.locator_params(axis="x", nbins=4 if width <= NARROW else 8)
    return figure


def _draw_row(axes: "Axes", row: int, dataset: AuditedDataset) -> tuple[float, float]:
    """Draw a sub-dataset; the ends of its interval."""
    estimate = _estimate_of(dataset)
    assert estimate is not None, "only those with an estimate are drawn"
    unit: Unit = "accuracy" if dataset.wrong_share else dataset.unit
    value, low, high = (points(each, unit) for each in asdict(estimate).values())
    colour = COLOURS[dataset.verdict]
    axes.hlines([row], low, high, color=colour, linewidth=5, alpha=0.35)
    hollow = dataset.verdict == "cannot_tell"
    face = PAPER if hollow else colour
    axes.plot([value], [row], "o", markersize=9, color=face, markeredgecolor=colour)
    shown_value = f"{number(estimate.value, unit).replace('-', '−')}\u00a0%"
    text = shown_value if dataset.wrong_share else difference(estimate.value, unit)
    edge = axes.get_yaxis_transform()
    beside(axes, (1, row), text, gap=10, size=11.5, colour=colour, within=edge)
    band = axes.axhspan(row - 0.5, row + 0.5, color=PAPER, alpha=0, zorder=10)
    in_page(band, [_title(dataset)])
    return low, high


def _title(dataset: AuditedDataset) -> str:
    """The text for a pointer over a row of the figure."""
    texts = [f"{dataset.name}: {VERDICTS[dataset.verdict]}"]
    if dataset.wrong_share:
        share = _with_interval(dataset.wrong_share, "accuracy")
        texts.append(f"{share.text} % of the answers are wrong {share.more}")
    if dataset.gap:
        gap = _with_interval(dataset.gap, dataset.unit, signed=True)
        texts.append(f"gap {gap.text} {gap.more}")
    return "; ".join(texts)
