"""How other teams train (paper, Tab. 1): the same number of epochs for every sub-dataset."""

from collections.abc import Mapping
from dataclasses import dataclass

HOMOGENEOUS = "homogeneous"


@dataclass(frozen=True, slots=True)
class Team:
    """What a report says of a model's SFT.

    epochs: by what they were trained on; none where a search finds them.
    source: the report, as the paper cites it.
    """

    model: str
    type: str
    epochs: Mapping[str, int]
    source: str

    @property
    def epochs_in_words(self) -> str:
        if len(self.epochs) == 1:
            return str(*self.epochs.values())
        return " + ".join(f"{number} ({what})" for what, number in self.epochs.items()) or "dynamic"


TEAMS = (
    Team("Magistral", HOMOGENEOUS, {"all": 2}, "rastogi2025magistral"),
    Team("OLMo", HOMOGENEOUS, {"all": 3}, "groeneveld-etal-2024-olmo"),
    Team("OLMo 2", HOMOGENEOUS, {"all": 2}, "walsh2025"),
    Team("OLMo 3", HOMOGENEOUS, {"all": 2}, "olmo2025olmo"),
    Team("DeepSeek-V3", HOMOGENEOUS, {"all": 2}, "liu2024deepseek"),
    Team("DeepSeek-R1", HOMOGENEOUS, {"all": 2}, "guo2025deepseek"),
    Team("Qwen2.5", HOMOGENEOUS, {"all": 2}, "qwen2025qwen25technicalreport"),
    Team("Qwen3", HOMOGENEOUS, {"all": 2}, "yang2025qwen3technicalreport"),
    Team(
        "Nemotron-4",
        f"multi-stage {HOMOGENEOUS}",
        {"code": 1, "general": 3},
        "nvidia2024nemotron4340btechnicalreport",
    ),
    Team("mSFT", "heterogeneous", {}, "the paper"),
)
"""The rows of the table, as printed."""

TEAMS_NOTE = (
    "As the paper prints it; --json has its citations. Homogeneous: every sub-dataset is trained "
    "for the same number of epochs."
)
