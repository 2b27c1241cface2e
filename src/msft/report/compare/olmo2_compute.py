"""The share of SFT in training compute (paper, Fig. 1 and Appendix A): OLMo 2, worked out.

Training costs 6·|theta| FLOPs per token. The appendix states the tokens of mid-training (and of the
32B model's pre-training), so these cells are computed here. It does not state the other
pre-training tokens nor the mean lengths of SFT and DPO rows, and its RLVR cells follow from about
2,714 tokens per episode instead of the 4,096 of its formula: those cells are taken as printed.
"""

from dataclasses import dataclass

from msft.run.summary import train_flops

BASE_STAGES = ("pre-training", "mid-training")
POST_STAGES = ("SFT", "DPO", "RLVR-grad", "RLVR-roll")


@dataclass(frozen=True, slots=True)
class Training:
    """A model's way from nothing to the released one.

    tokens: of the stages of which the appendix states them.
    printed: FLOPs of the others, as printed.
    """

    name: str
    num_parameters: int
    tokens: dict[str, int]
    printed: dict[str, float]

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs of each stage, in the order of training."""
        return {
            stage: (
                float(train_flops(self.num_parameters, self.tokens[stage]))
                if stage in self.tokens
                else self.printed[stage]
            )
            for stage in BASE_STAGES + POST_STAGES
        }

    @property
    def base(self) -> float:
        """FLOPs of pre- and mid-training."""
        return sum(self.flops[stage] for stage in BASE_STAGES)

    @property
    def post(self) -> float:
        """FLOPs of post-training."""
        return sum(self.flops[stage] for stage in POST_STAGES)

    @property
    def total(self) -> float:
        return sum(self.flops.values())

    def share(self, stage: str, factor: float = 1.0) -> float:
        """The share of a stage in all training compute, if that stage cost `factor` as much."""
        cost = self.flops[stage] * factor
        return cost / (self.total - self.flops[stage] + cost)


OLMO_2 = (
    Training(
        name="OLMo 2 7B",
        num_parameters=7_000_000_000,
        tokens={"mid-training": 3 * 50 * 10**9},
        printed={
            "pre-training": 1.64e23,
            "SFT": 2.85e19,
            "DPO": 1.94e19,
            "RLVR-grad": 7.12e19,
            "RLVR-roll": 7.60e20,
        },
    ),
    Training(
        name="OLMo 2 13B",
        num_parameters=13_000_000_000,
        tokens={"mid-training": (3 * 100 + 300) * 10**9},
        printed={
            "pre-training": 3.90e23,
            "SFT": 5.29e19,
            "DPO": 3.70e19,
            "RLVR-grad": 1.32e20,
            "RLVR-roll": 1.41e21,
        },
    ),
    Training(
        name="OLMo 2 32B",
        num_parameters=32_000_000_000,
        tokens={"pre-training": 6_060 * 10**9, "mid-training": (6_600 - 6_060) * 10**9},
        printed={"SFT": 1.20e20, "DPO": 1.26e20, "RLVR-grad": 3.26e20, "RLVR-roll": 3.47e21},
    ),
)
"""The three models of the appendix."""
