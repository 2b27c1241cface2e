"""The methods of the study by their labels: what pages call them, and what the paper reports."""

from collections.abc import Mapping

Names = Mapping[str, tuple[str, float | None]]
"""The name of each on a page, and the paper's difference to SFT; the first is the reference."""
SEEDS = {70, 71, 72}
REFERENCE = "sft-cosine-lr1e-4-e3"
SURE_EMA = "msft-sure-ema-lr1e-4-d0.99"
SOUPS = ("", "-peaks", "-random", "-last")
METHODS: Names = {
    REFERENCE: ("SFT, cosine over 3 epochs", None),
    "sft-lr1e-4-e5": ("SFT, constant rate, 5 epochs", 0.0),
    "sft-ema-lr1e-4-e5-d0.99": ("SFT with `ema_decay: 0.99`", None),
    "soup-lr1e-4-e5": ("soup, `span`", None),
    "soup-peaks-lr1e-4-e5": ("soup, `peaks`", None),
    "soup-random-lr1e-4-e5": ("soup, random ticks (control)", None),
    "soup-last-lr1e-4-e5": ("soup, last ticks (control)", None),
    "msft-lr1e-4": ("mSFT, C = 3", 1.8),
    "msft-one": ("mSFT, C = 1", None),
    "msft-sure-lr1e-4": ("mSFT, sure exclusion", None),
    SURE_EMA: ("mSFT, sure exclusion, `ema_decay: 0.99`", None),
    "sro": ("SRO", 1.5),
    "soft-sro": ("Soft SRO", 0.2),
    "ies": ("IES", 0.6),
    "dynamix": ("DynamixSFT", 0.2),
    "continual": ("Continual SFT", -2.2),
}
"""Clean and noisy mixture; the paper's is the mean of six models."""
_C = {"msft-one": "1", "msft-c2": "2", "msft-lr1e-4": "3", "msft-c5": "5"}
BUDGETS: Names = {
    REFERENCE: METHODS[REFERENCE],
    **{label: (f"mSFT, C = {c}", None) for label, c in _C.items()},
}
BIGBENCH: Names = {**METHODS, "msft-lr1e-4-m30": ("mSFT, C = 3, `max_epochs: 30`", None)}
MEDMCQA: Names = {**METHODS, "msft-lr1e-4": ("mSFT, C = 3", 1.86)}
GEMMA: Names = {
    "sft-cosine-lr5e-5-e3": METHODS[REFERENCE],
    "sft-lr5e-5": ("SFT, constant rate, 5 epochs", None),
    "sft-ema-lr5e-5-d0.99": METHODS["sft-ema-lr1e-4-e5-d0.99"],
    **{f"soup{kind}-lr5e-5": METHODS[f"soup{kind}-lr1e-4-e5"] for kind in SOUPS},
    "msft-lr5e-5": ("mSFT, C = 3", None),
    "msft-sure-ema-lr5e-5-d0.99": METHODS[SURE_EMA],
}
QWEN: Names = {
    "sft-cosine-e3": METHODS[REFERENCE],
    "sft-e5": METHODS["sft-lr1e-4-e5"],
    "sft-ema-e5-d0.99": METHODS["sft-ema-lr1e-4-e5-d0.99"],
    **{f"soup{kind}-e5": METHODS[f"soup{kind}-lr1e-4-e5"] for kind in SOUPS},
    "msft": METHODS["msft-lr1e-4"],
    "msft-sure-ema-d0.99": METHODS[SURE_EMA],
}
BY_TASK = (
    *("sft-lr1e-4-e5", "sft-ema-lr1e-4-e5-d0.99", "soup-lr1e-4-e5", "msft-lr1e-4", "msft-one"),
    *("sro", "soft-sro", "dynamix", "continual"),
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
DISK = {"msft-lr1e-4": 4.44, "msft-one": 4.44}
"""The paper's mean copies on disk, over its runs with C = 1 and 3."""
