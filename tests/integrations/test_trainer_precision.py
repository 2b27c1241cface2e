"""Trainers that compute in 16 bits: our decoder answers, as the model itself does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trainers import TOKENIZER, answers, mixture, plain_trainer, sft_trainer, tokenized

from msft.engine.model.loading import LoadedModel, tiny_model
from msft.engine.packing import NAME
from msft.example import Encoded
from msft.integrations.engine import TrainerPredictor
from msft.integrations.trainer import train

pytestmark = pytest.mark.usefixtures("no_reports")

OURS = "msft's decoder answers"


def said_by(model: Any, prompt: str, bf16: bool) -> str:
    """What transformers itself generates."""
    tokens = torch.tensor([TOKENIZER.encode(prompt)])
    model.eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16), torch.inference_mode():
        found = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=4, do_sample=False
        )
    return str(TOKENIZER.decode(found[0, tokens.shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_trainer_with_bf16_is_scored_by_our_decoder(tmp_path: Path, lora: bool) -> None:
    """Autocast is around the whole model, or around the base of an adapter."""
    told: list[str] = []
    data = {"mul": mixture()["mul"]}
    data["mul"]["validation"] = answers("mul", 100, 104, 2) + answers("mul", 104, 108, 7)
    trainer = sft_trainer(tmp_path, lora, bf16=True, num_train_epochs=2)
    keys: dict[str, Any] = {"method": "sft", "evals_per_epoch": 1, "quiet": True}
    result = train(trainer, data, tmp_path / "run", notice=told.append, **keys)
    assert any(note.endswith(OURS) for note in told)
    right = [
        said_by(trainer.model, row["prompt"], bf16=True) == row["completion"]
        for row in data["mul"]["validation"]
    ]
    scores = result.summary["best"]["validation"]["datasets"]
    assert scores == {"mul": sum(right) / 8}
    assert 0 < sum(right) < 8
    if not lora:  # no proof in fp32 under an autocast of somebody else's
        trainer.model._original_forward = torch.autocast("cpu", torch.bfloat16)(
            trainer.model._original_forward
        )
        assert predictor_of(trainer.model, bf16=True).how() == OURS


def test_a_model_in_bf16_has_the_losses_of_the_trainer(tmp_path: Path) -> None:
    """A plain Trainer over bf16 weights; the proof leaves every bit as it was."""
    trainer = plain_trainer(tmp_path)
    trainer.model.bfloat16()
    before = {name: p.clone() for name, p in trainer.model.state_dict().items()}
    predictor = predictor_of(trainer.model)
    assert predictor.how() == OURS
    after = trainer.model.state_dict()
    assert all(p.dtype == after[n].dtype and torch.equal(p, after[n]) for n, p in before.items())
    rows = tokenized(mixture()["mul"]["validation"])
    encoded = [Encoded(tuple(r["input_ids"]), tuple(n >= 0 for n in r["labels"])) for r in rows]
    sums = predictor.measure(encoded, [0] * len(rows))().rows
    mean = sum(sums) / sum(row.answer_tokens for row in encoded)
    theirs = trainer.evaluate(rows.remove_columns("source"))["eval_loss"]
    assert mean == pytest.approx(theirs, rel=1e-2)


class Halved(nn.Module):
    """A projection that is less where the model's own attention computes with it."""

    def __init__(self, inner: nn.Module, config: Any) -> None:
        super().__init__()
        self.inner, self.config = inner, config

    def forward(self, states: Tensor) -> Any:
        return self.inner(states) * (1.0 if self.config._attn_implementation == NAME else 0.98)


class Neighbour(nn.Module):
    """Lets each token see a little of the one before it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: Tensor) -> Any:
        return self.inner(states + 1e-6 * states.roll(1, 1))


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float32], ids=["weights", "autocast"])
def test_what_rounding_would_hide_is_found_out_all_the_same(
    tmp_path: Path, weights: torch.dtype
) -> None:
    prepare = plain_trainer(tmp_path, bf16=True).accelerator.prepare_model
    other = tiny_model(len(TOKENIZER))
    attention = other.model.layers[0].self_attn
    attention.v_proj = Halved(attention.v_proj, other.config)
    leaking = tiny_model(len(TOKENIZER))
    leaking.model.layers[0].mlp = Neighbour(leaking.model.layers[0].mlp)
    reasons = {"by the model's own attention": other, "packed rows see each other": leaking}
    for reason, model in reasons.items():
        model.to(weights)
        assert reason in predictor_of(model, bf16=True).how()  # as the base of an adapter is
        forward = prepare(model).forward
        assert reason in predictor_of(model, bf16=True).how()
        assert model.forward == forward != model._original_forward


def predictor_of(model: Any, bf16: bool = False) -> TrainerPredictor:
    return TrainerPredictor(LoadedModel(model, TOKENIZER, "tiny"), [], bf16)
