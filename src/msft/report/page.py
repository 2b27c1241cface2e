"""A page: its sections with their figures, the facts at its top, its sample answers, and a template
of this folder, filled in and written as one self-contained file.

Figures are also written as files of their own, by the same code.
"""

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from msft.errors import UsageError
from msft.report.compare.comparison import Comparison
from msft.report.figures.chart import NARROW, PAPER, WIDE, drawing, to_svg, with_mark
from msft.run.environment import begun_on, read_environments, version_of
from msft.run.folder import (
    RunFolder,
    recipe_value,
    seconds_of,
    write_text,
)
from msft.run.history import History, adapter_of
from msft.run.rows import Sample, SamplesByName, read_samples
from msft.search.rollout import BASE
from msft.text import SELECTED_ON_TEST, counted, duration, masked, plain, si

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from matplotlib.figure import Figure


TEMPLATES = Path(__file__).parent
SWITCHES = 16
"""Sub-datasets that a page can switch on and off: so many have curves in one figure."""


@dataclass(frozen=True, slots=True)
class Section:
    """A figure of a page. key: for ids and files. draw: from a width in pixels to a figure."""

    key: str
    title: str
    text: str
    draw: Callable[[float], "Figure"]


WITHOUT_SCORES = ("loss", "flops", "disk", "rows")
"""Beginnings of the keys of figures that show no score and nothing that scores chose."""


def marked(sections: Sequence[Section], on_test: bool) -> list[Section]:
    """Sections whose texts and figures say that test rows selected, where they did."""

    def drawn(section: Section, width: float) -> "Figure":
        return with_mark(section.draw(width), SELECTED_ON_TEST)

    return [
        replace(each, text=f"{SELECTED_ON_TEST} {each.text}".strip(), draw=partial(drawn, each))
        if on_test and not each.key.startswith(WITHOUT_SCORES)
        else each
        for each in sections
    ]


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section with its figure drawn for a screen and for a phone; the page shows one of them."""

    key: str
    title: str
    text: str
    wide: "Markup"
    narrow: "Markup"


def page_sections(sections: Sequence[Section]) -> list[PageSection]:
    """Sections drawn for a page."""
    with drawing():
        return [
            PageSection(
                each.key,
                each.title,
                each.text,
                embedded(each.draw(WIDE), f"{each.key}-w", each.title),
                embedded(each.draw(NARROW), f"{each.key}-n", each.title, pointer=False),
            )
            for each in sections
        ]


def embedded(drawing: "Figure | str", key: str, description: str, pointer: bool = True) -> "Markup":
    """A figure, or an SVG element, as part of the page; the one place where text is taken for
    markup. pointer: as of `to_svg`."""
    from markupsafe import Markup

    svg = drawing if isinstance(drawing, str) else to_svg(drawing, key, description, pointer)
    return Markup(svg)  # noqa: S704  matplotlib escapes, and so does `svg_element`


def write_page(path: Path, template: str, content: Mapping[str, Any]) -> Path:
    """Fill in a template; every text in `content` is escaped."""
    page = _environment().get_template(template).render(content, version=version_of("msft"))
    write_text(path, page)
    return path


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_readable,
    )
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    switches = (
        f"section:has(#on{n}:not(:checked)) .d{n} {{ display: none; }}\n" for n in range(SWITCHES)
    )
    style += "".join(switches)
    environment.globals["style"] = Markup(style)  # noqa: S704  our own
    digest = b64encode(sha256(style.encode()).digest()).decode()
    environment.globals["style_hash"] = f"sha256-{digest}"
    environment.filters["si"] = si
    return environment


def _readable(value: object) -> object:
    from markupsafe import Markup

    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


Fact = tuple[str, str, str]
"""A name, its value, and more about it."""


@dataclass(frozen=True, slots=True)
class RunOnDisk:
    """A run, its folder, and its summary."""

    folder: Path
    history: History
    summary: Mapping[str, Any]


def facts_of(runs: Sequence[RunOnDisk]) -> list[Fact]:
    """The facts of one run, or of several that are compared; unknown facts are left out."""
    starts = [run.history.start for run in runs]
    total, scored = (
        sum(run.summary["flops"][kind] for run in runs) for kind in ("total", "evaluation")
    )
    times = [seconds for run in runs if (seconds := seconds_of(run.folder)) is not None]
    several = f", {len(runs)} runs together" if len(runs) > 1 else ""
    found = [
        (
            "model",
            _either(map(_model, runs)),
            _either(map(_sizes, runs)),
        ),
        (
            "data",
            _either(f"{sum(start.datasets.values()):,} rows" for start in starts),
            _either(f"in {counted(len(start.datasets), 'sub-dataset')}" for start in starts),
        ),
        (
            "learning rate",
            _either(_written(run, "learning_rate") for run in runs),
            _either(map(_schedule, runs)),
        ),
        ("batch", _either(_written(run, "train_batch_size") for run in runs), "rows a step"),
        ("date", *_date(runs)),
        (
            "duration",
            duration(sum(times)) if times else "",
            "to the last step" + _device(runs) + several,
        ),
        (
            "cost",
            si(total),
            "FLOPs" + (f", {scored / total:.0%} of them evaluation" if total else "") + several,
        ),
    ]
    return [fact for fact in found if fact[1]]


def _sizes(run: RunOnDisk) -> str:
    """Weights of the model, and of the adapter where only that is trained."""
    size, adapter = si(run.history.start.num_parameters), adapter_of(run.history)
    return f"{size} parameters" + (f", an adapter of {si(adapter)} trained" if adapter else "")


def _either(texts: Iterable[str]) -> str:
    """One text where all runs have the same, else each of them."""
    return " · ".join(text for text in dict.fromkeys(texts) if text)


def _schedule(run: RunOnDisk) -> str:
    """The course of the learning rate, and the decay of the moving average if there is one."""
    decay = _written(run, "ema_decay")
    averaged = f"ema_decay {decay}" if decay else ""
    return ", ".join(filter(None, (_written(run, "lr_scheduler_type"), averaged)))


def _written(run: RunOnDisk, key: str) -> str:
    value = recipe_value(run.folder, key)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _model(run: RunOnDisk) -> str:
    """The model's name; of a local folder only the last part of its path."""
    name = _written(run, "model_name_or_path")
    path = PurePath(name)
    return masked(path.name if path.is_absolute() or name.startswith((".", "~")) else name)


def _date(runs: Sequence[RunOnDisk]) -> tuple[str, str]:
    """The day on which the first began, and the last if that is another one; and the time."""
    begun = sorted(filter(None, (begun_on(RunFolder(run.folder).environment) for run in runs)))
    if not begun:
        return "", ""
    days = dict.fromkeys(each.partition(" ")[0] for each in (begun[0], begun[-1]))
    return " to ".join(days), f"begun at {begun[0].partition(' ')[2]} UTC"


def _device(runs: Sequence[RunOnDisk]) -> str:
    devices = [
        environment["device"].split(", threads")[0]
        for run in runs
        for environment in read_environments(RunFolder(run.folder).environment)
        if "device" in environment
    ]
    return f", on {_either(devices)}" if devices else ""


BASE_MODEL = "base model"


@dataclass(frozen=True, slots=True)
class AnswerView:
    """who: the base model, the result, or a method. mark: what the answer was worth."""

    who: str
    text: str
    mark: str


@dataclass(frozen=True, slots=True)
class SampleView:
    """A row with what everybody answered."""

    prompt: str
    reference: str
    answers: Sequence[AnswerView]


SampleViews = Mapping[str, Sequence[SampleView]]
"""By sub-dataset."""


def run_samples(folder: Path, history: History) -> SampleViews:
    """The base model's answers beside those of the best checkpoint."""
    held = read_samples(RunFolder(folder).samples)
    best = history.best or BASE
    spoken = {BASE_MODEL: held.get(BASE, {})}
    if best != BASE:
        spoken[f"best, {best}"] = held.get(best, {})
    names = [*history.start.datasets]
    losses = {name for name in names if history.unit_of(name) == "nll"}
    return _views(names, spoken, losses)


def comparison_samples(comparison: Comparison) -> SampleViews:
    """The base model's answers beside those of each method, under its first seed."""
    spoken: dict[str, SamplesByName] = {}
    for method in comparison.methods:
        run = method.over(comparison.seeds)[0]
        held = read_samples(RunFolder(run.folder).samples)
        spoken.setdefault(BASE_MODEL, held.get(BASE, {}))
        spoken[method.label] = held.get(run.best, {})
    losses = {name for name in comparison.names if comparison.unit([name]) == "nll"}
    return _views(comparison.names, spoken, losses)


def _views(
    names: Sequence[str], spoken: Mapping[str, SamplesByName], losses: Collection[str]
) -> SampleViews:
    found: dict[str, Sequence[SampleView]] = {}
    for name in names:
        answers: dict[tuple[int, str, str], list[AnswerView]] = {}
        for who, samples in spoken.items():
            for each in samples.get(name, ()):
                key = (each.row, each.prompt, each.reference)
                answers.setdefault(key, []).append(
                    AnswerView(who, each.answer or "", _mark(each, name in losses))
                )
        if answers:
            found[name] = [
                SampleView(prompt, reference, said)
                for (_, prompt, reference), said in sorted(answers.items())
            ]
    return found


def _mark(sample: Sample, loss: bool) -> str:
    if isinstance(sample.worth, bool):
        return "right" if sample.worth else "wrong"
    return f"loss of the reference {sample.worth:.3f}" if loss else f"{sample.worth:.3g}"


FORMATS: dict[str, dict[str, Any]] = {
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 144, "metadata": {"Software": None}},
    "pdf": {"metadata": {"CreationDate": None}},
}
"""What each format needs to be the same bytes whenever it is written."""

_PAGE: dict[str, Any] = {"facecolor": PAPER, "bbox_inches": "tight", "pad_inches": 1 / 6}

FOLDER = "figures"


def formats_of(named: str | Sequence[str]) -> tuple[str, ...]:
    """The formats that an option names, in order."""
    words = named.split(",") if isinstance(named, str) else named
    formats = tuple(dict.fromkeys(part.strip().lower() for part in words if part.strip()))
    wrong = [name for name in formats if name not in FORMATS]
    if wrong or not formats:
        found = f"{wrong[0]!r}" if wrong else "nothing"
        raise UsageError(
            f"--figures has {found}; expected one or more of {', '.join(FORMATS)}, e.g. "
            "--figures svg,pdf"
        )
    return formats


def write_figures(
    sections: Sequence[Section], folder: Path, formats: Sequence[str], width: float = WIDE
) -> list[Path]:
    """Each figure on paper white, named by its key."""
    paths: list[Path] = []
    if sections:
        folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        with drawing():
            figure = section.draw(width)
            figure.patch.set_visible(True)
            for name in formats:
                path = folder / f"{section.key}.{name}"
                figure.savefig(path, format=name, **_PAGE, **FORMATS[name])
                paths.append(path)
    return paths
