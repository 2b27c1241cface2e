"""The share of SFT in training compute (paper, Fig. 1 and Appendix A): OLMo 2, worked out.

Training costs 6·|theta| FLOPs per token. The appendix states the tokens of mid-training (and of the
32B model's pre-training), so these cells are computed here. It does not state the other
pre-training tokens nor the mean lengths of SFT and DPO rows, and its RLVR cells follow from about
2,714 tokens per episode instead of the 4,096 of its formula: those cells are taken as printed, and
`implied_tokens` says which length they stand for.
"""

from dataclasses import dataclass

from msft.run.flops import INFERENCE, TRAIN, train_flops

EPISODES = 10_000_000
BASE_STAGES = ("pre-training", "mid-training")
POST_STAGES = ("SFT", "DPO", "RLVR-grad", "RLVR-roll")


@dataclass(frozen=True, slots=True)
class Training:
    """A model's way from nothing to the released one.

    tokens: of the stages of which the appendix states them.
    printed: FLOPs of the others, as printed.
    sft_rows, preference_pairs: rows of SFT (2 epochs) and of DPO (1 epoch).
    gradient_passes: passes of RLVR with gradients; PPO trains a policy and a value model.
    """

    name: str
    num_parameters: int
    tokens: dict[str, int]
    printed: dict[str, float]
    sft_rows: int
    preference_pairs: int
    gradient_passes: int

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
    def total(self) -> float:
        return sum(self.flops.values())

    @property
    def post(self) -> float:
        return sum(self.flops[stage] for stage in POST_STAGES)

    @property
    def post_to_base(self) -> float:
        """What the appendix prints as "Post / Total": its numbers are post over pre + mid."""
        return self.post / sum(self.flops[stage] for stage in BASE_STAGES)

    @property
    def sft_to_post(self) -> float:
        return self.flops["SFT"] / self.post

    def share(self, stage: str, factor: float = 1.0) -> float:
        """The share of a stage in all training compute, if that stage cost `factor` as much."""
        cost = self.flops[stage] * factor
        return cost / (self.total - self.flops[stage] + cost)

    def implied_tokens(self, stage: str) -> float:
        """Mean tokens of a row or episode that a printed post-training cell stands for."""
        rows = {
            "SFT": TRAIN * 2 * self.sft_rows,
            "DPO": TRAIN * 2 * self.preference_pairs,
            "RLVR-grad": TRAIN * self.gradient_passes,
            "RLVR-roll": INFERENCE * 2 * EPISODES,  # the policy and the frozen reference
        }
        return self.flops[stage] / (self.num_parameters * rows[stage])


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
        sft_rows=939_334,
        preference_pairs=366_700,
        gradient_passes=2 * EPISODES // 32,
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
        sft_rows=939_334,
        preference_pairs=377_700,
        gradient_passes=2 * EPISODES // 32,
    ),
    Training(
        name="OLMo 2 32B",
        num_parameters=32_000_000_000,
        tokens={"pre-training": 6_060 * 10**9, "mid-training": (6_600 - 6_060) * 10**9},
        printed={"SFT": 1.20e20, "DPO": 1.26e20, "RLVR-grad": 3.26e20, "RLVR-roll": 3.47e21},
        sft_rows=866_138,
        preference_pairs=377_900,
        gradient_passes=EPISODES // 16,
    ),
)
"""The three models of the appendix."""
