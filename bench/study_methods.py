"""The methods of the study by their labels: what pages call them, and what the paper reports."""

import re
from collections.abc import Mapping

from study_rows import SETTING
from study_tables import Entry, Study, variant_of

from msft.report.compare.statistics import mean

Names = Mapping[str, tuple[str, float | None]]
"""The name of each on a page, and the paper's difference to SFT; the first is the reference."""
SEEDS = {70, 71, 72, 73, 74}
REFERENCE = "sft-cosine-lr1e-4-e3"
SURE_EMA = "msft-sure-ema-lr1e-4-d0.99"
SOUPS = ("", "-peaks", "-all", "-random", "-last")
CONSTANT = "sft-lr1e-4-e5"
METHODS: Names = {
    REFERENCE: ("SFT, cosine over 3 epochs", None),
    "sft-linear-lr1e-4-e3": ("SFT, linear over 3 epochs (control)", None),
    CONSTANT: ("SFT, constant rate, 5 epochs", 0.0),
    "sft-ema-lr1e-4-e5-d0.99": ("SFT with `ema_decay: 0.99`", None),
    "soup-lr1e-4-e5": ("soup, `span`", None),
    "soup-peaks-lr1e-4-e5": ("soup, `peaks`", None),
    "soup-all-lr1e-4-e5": ("soup, all ticks (control)", None),
    "soup-random-lr1e-4-e5": ("soup, random ticks (control)", None),
    "soup-last-lr1e-4-e5": ("soup, last ticks (control)", None),
    "msft-lr1e-4": ("mSFT, C = 3", 1.8),
    "msft-one": ("mSFT, C = 1", 3.4),
    "msft-sure-lr1e-4": ("mSFT, sure exclusion", None),
    SURE_EMA: ("mSFT, sure exclusion, `ema_decay: 0.99`", None),
    "sro": ("SRO", 1.5),
    "soft-sro": ("Soft SRO", 0.2),
    "ies": ("IES", 0.6),
    "dynamix": ("DynamixSFT", 0.2),
    "continual": ("Continual SFT", -2.2),
}
"""Clean and noisy mixture; the paper's is the mean of six models, and of C = 1 of four."""
BUDGETS: Names = {
    REFERENCE: METHODS[REFERENCE],
    "msft-c2": ("mSFT, C = 2", None),
    "msft-c5": ("mSFT, C = 5", None),
}
"""Budgets beside those of METHODS."""
BY_TASK = (
    *(CONSTANT, "sft-ema-lr1e-4-e5-d0.99", "soup-lr1e-4-e5", "msft-lr1e-4", "sro", "continual"),
)
"""Those with a row in the table by task."""
FLOPS = {
    "sft-ema-lr1e-4-e5-d0.99": 1.0,
    "continual": 1.05,
    "dynamix": 1.68,
    "ies": 0.58,
    "sro": 1.40,
    "soft-sro": 1.94,
    "msft-lr1e-4": 1.37,
    "msft-one": 0.48,
}
"""The paper's FLOPs over those of SFT with ten epochs: means of its six models, for C = 1 of the
four that it reports (its Tab. 7)."""
VARIANTS = {
    "sft-cosine": "SFT, cosine over {e} epochs",
    "sft-linear": "SFT, linear over {e} epochs (control)",
    "sft": "SFT, constant rate, {e} epochs",
    "sft-ema": "SFT with `ema_decay: {d}`",
    "soup": "soup, `span`",
    "soup-peaks": "soup, `peaks`",
    "soup-all": "soup, all ticks (control)",
    "soup-random": "soup, random ticks (control)",
    "soup-last": "soup, last ticks (control)",
    "msft": "mSFT, C = {c}",
    "msft-one": "mSFT, C = 1",
    "msft-sure": "mSFT, sure exclusion",
    "msft-sure-ema": "mSFT, sure exclusion, `ema_decay: {d}`",
    "sro": "SRO",
    "soft-sro": "Soft SRO",
    "ies": "IES",
    "dynamix": "DynamixSFT",
    "continual": "Continual SFT",
}
"""What a page calls a label of a mixture whose settings are those of its rows."""
PAPER_QWEN = {"sft": 0.0, "continual": 0.0, "dynamix": -0.1, "ies": -0.3, "msft": 0.9}
PAPER_MEDMCQA = {"sft": 0.0, "msft": 1.86, "ies": 0.29}
"""The paper's differences to SFT by variant: Qwen2.5-1.5B (its Tab. 2), and MedMCQA with
Qwen2.5-3B (its Fig. 7)."""


def names_in(study: Study, paper: Mapping[str, float] | None = None) -> Names:
    """The names of whatever a mixture has, in the order of VARIANTS.

    Of a variant with several settings the best on validation is first, so the reference is the best
    cosine schedule. What all have in common, such as the number of rows, is left to the page.
    """
    found: dict[str, dict[str, tuple[str, float | None]]] = {each: {} for each in VARIANTS}
    several_sizes = len({_settings(label).get("r") for label in study}) > 1
    for label in sorted(study, key=lambda label: (-_validation(study[label]), label)):
        variant = variant_of(label)
        if variant not in VARIANTS:
            continue
        line = next(iter(study[label].values())).line
        settings = {"c": "3", "d": "0.99", "e": f"{line['num_train_epochs']:g}"}
        settings |= _settings(label)
        name = VARIANTS[variant].format_map(settings)
        if "m" in settings:
            name += f", `max_epochs: {settings['m']}`"
        if several_sizes and "r" in settings:
            name += f", {settings['r']} rows a task"
        found[variant][label] = (name, (paper or {}).get(variant))
    return {label: names for several in found.values() for label, names in several.items()}


def _validation(seeds: Mapping[int, Entry]) -> float:
    return float(mean([entry.validation for entry in seeds.values()]))


def _settings(label: str) -> dict[str, str]:
    return dict(re.findall(f"-{SETTING}", label))
