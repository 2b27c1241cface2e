"""Draws the README's picture from a finished `msft demo`: the scores of six sub-datasets, the
verdict of the audit about each, and where the best checkpoint is.

    msft demo && python bench/readme_picture.py msft-demo docs/images

Four files: for wide and narrow screens, light and dark.
"""

import argparse
from dataclasses import dataclass
from html import escape
from pathlib import Path

from msft.report.audit_page import Audit, AuditedDataset, read_audit
from msft.report.compare.statistics import wilson
from msft.run.folder import read_history
from msft.run.history import History
from msft.search.rollout import BASE

RUN, AUDIT = "sft-ema", "audit"
PALETTES = {
    "light": {
        "ink": "#1f2328",
        "muted": "#59636e",
        "grid": "#d9dee4",
        "line": "#0b63c5",
        "band": "#0b63c5",
        "bad": "#c2410c",
        "good": "#15803e",
        "best": "#59636e",
    },
    "dark": {
        "ink": "#f0f6fc",
        "muted": "#9198a1",
        "grid": "#30363d",
        "line": "#6cb2ff",
        "band": "#6cb2ff",
        "bad": "#fb8a4c",
        "good": "#5fd08a",
        "best": "#9198a1",
    },
}
NAMED = {"spoiled": "bad", "fine": "good", "cannot_tell": "muted"}
"""The colour of each verdict."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Pixels. across: panels in a row. size, small: of letters."""

    width: int
    across: int
    high: int
    size: int
    small: int
    side: int = 34
    head: int = 52
    foot: int = 30
    gap: int = 18

    @property
    def panel(self) -> float:
        return (self.width - self.gap * (self.across - 1)) / self.across


LAYOUTS = {"wide": Layout(960, 3, 140, 19, 15, head=62), "narrow": Layout(380, 2, 96, 15, 12)}


def verdict_of(dataset: AuditedDataset) -> str:
    """A verdict in a few letters: the share of wrong labels where there is one."""
    if dataset.verdict == "spoiled" and dataset.wrong_share:
        return f"audit: {100 * dataset.wrong_share.value:.0f} % wrong labels"
    return f"audit: {dataset.verdict.replace('_', ' ')}"


def drawn_panel(
    history: History, dataset: AuditedDataset, layout: Layout, colours: dict[str, str]
) -> str:
    """The curve of a sub-dataset on validation with its band, and the verdict of the audit."""
    stage = history.stages[0]
    epochs = stage.ticks / history.evals_per_epoch
    left, right = layout.side, layout.panel - 4
    top, bottom = layout.head, layout.head + layout.high

    def x(epoch: float) -> float:
        return left + (right - left) * epoch / epochs

    def y(share: float) -> float:
        return bottom - (bottom - top) * share

    points, low, high = list[str](), list[str](), list[str]()
    for tick, checkpoint in enumerate(stage.checkpoints):
        score = history.known(checkpoint)[dataset.name]
        at = x(tick / history.evals_per_epoch)
        ends = wilson(int(score.total), score.count)
        points.append(f"{at:.1f},{y(float(score.value)):.1f}")
        low.append(f"{at:.1f},{y(ends[0]):.1f}")
        high.append(f"{at:.1f},{y(ends[1]):.1f}")
    best = x(stage.checkpoints.index(history.best or BASE) / history.evals_per_epoch)
    parts = [
        f'<text x="0" y="{layout.size}" font-size="{layout.size}" font-weight="600" '
        f'fill="{colours["ink"]}">{escape(dataset.name)}</text>',
        f'<text x="0" y="{layout.size + layout.small + 6}" font-size="{layout.small}" '
        f'fill="{colours[NAMED[dataset.verdict]]}">{verdict_of(dataset)}</text>',
    ]
    for share in (0, 0.5, 1):
        parts.append(
            f'<path d="M{left} {y(share):.1f}H{right:.1f}" stroke="{colours["grid"]}"/>'
            f'<text x="{left - 6}" y="{y(share) + layout.small / 3:.1f}" text-anchor="end" '
            f'font-size="{layout.small}" fill="{colours["muted"]}">{100 * share:.0f}</text>'
        )
    for epoch in range(0, int(epochs) + 1, 2 if layout.panel > 200 else 4):
        parts.append(
            f'<text x="{x(epoch):.1f}" y="{bottom + layout.small + 6}" text-anchor="middle" '
            f'font-size="{layout.small}" fill="{colours["muted"]}">{epoch}</text>'
        )
    parts.append(
        f'<polygon points="{" ".join([*low, *reversed(high)])}" fill="{colours["band"]}" '
        'fill-opacity="0.18"/>'
        f'<path d="M{best:.1f} {top}V{bottom}" stroke="{colours["best"]}" stroke-width="1.5" '
        'stroke-dasharray="5 4"/>'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colours["line"]}" '
        'stroke-width="2.5" stroke-linejoin="round"/>'
    )
    return "".join(parts)


def picture(history: History, audit: Audit, layout: Layout, colours: dict[str, str]) -> str:
    """All sub-datasets in the order of the recipe."""
    by_name = {each.name: each for each in audit.datasets}
    tall = layout.head + layout.high + layout.foot
    names = [*history.start.datasets]
    rows = -(-len(names) // layout.across)
    height = rows * tall + (rows - 1) * layout.gap + layout.small + 10
    panels = [
        f'<g transform="translate({number % layout.across * (layout.panel + layout.gap):.1f},'
        f'{number // layout.across * (tall + layout.gap)})">'
        f"{drawn_panel(history, by_name[name], layout, colours)}</g>"
        for number, name in enumerate(names)
    ]
    axis = "validation score in % over epochs; dashed: best mean"
    said = (
        f'<text x="{layout.width / 2}" y="{height - 6}" text-anchor="middle" '
        f'font-size="{layout.small}" fill="{colours["muted"]}">{axis}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width} {height}" '
        f'width="{layout.width}" height="{height}" font-family="system-ui, -apple-system, '
        f"'Segoe UI', Roboto, Helvetica, Arial, sans-serif\">{''.join(panels)}{said}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    history, audit = read_history(options.demo / RUN), read_audit(options.demo / AUDIT)
    for width, layout in LAYOUTS.items():
        for light, colours in PALETTES.items():
            path = options.out / f"demo-{width}-{light}.svg"
            path.write_text(picture(history, audit, layout, colours))
            print(path)


if __name__ == "__main__":
    main()
