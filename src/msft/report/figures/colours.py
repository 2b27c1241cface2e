"""The colours of figures by what they stand for; in the page each is a CSS variable of its name."""

COLOURS = {
    "ink": "#1d2127",
    "muted": "#5c6570",
    "grid": "#e3e6ea",
    "faint": "#aeb6bf",
    "paper": "#fefefe",
    "best": "#0b63c5",
    "went-on": "#6e7883",
    "left": "#c2410c",
    "other": "#8b5cf7",
    "green": "#15803e",
    "gold": "#a16208",
    "teal": "#0e7491",
    "pink": "#be185e",
}
INK, MUTED, GRID, FAINT, PAPER, BEST, WENT_ON, LEFT, OTHER, GREEN, GOLD, TEAL, PINK = (
    COLOURS.values()
)
VARIABLES = {colour: name for name, colour in COLOURS.items()}
SERIES = (WENT_ON, BEST, LEFT, GREEN, OTHER, GOLD, TEAL, PINK)
"""Colours of the runs of a comparison, in order."""


def colour_at(place: int) -> str:
    """The colour of the run or method at a place of a comparison."""
    return SERIES[place % len(SERIES)]


def variable(colour: str) -> str:
    """A colour as the page's CSS has it."""
    return f"var(--{VARIABLES[colour]})"
