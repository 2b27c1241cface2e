"""The simple engine: a model of transformers, padded rows, torch's AdamW. Read this file first.

It does what `msft.run.engine.Engine` asks for in the plainest way, with the model's own attention
and mask, so it runs any decoder-only text model of transformers. The fast engine (`fast.py` and
`decode/`) must give the same losses and texts; tests compare the two. A recipe chooses this one by
`engine: simple`; where the fast one does not suit a model, `engine: auto` does so by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from msft.engine.adapters.adapter_files import AdapterFiles
from msft.engine.adapters.lora import Adapted, MergedModel, merged_of
from msft.engine.decode.decoder import GeneratedRows, batches
from msft.engine.graphs import refuse_not_numbers
from msft.engine.kernels import NO_LABEL, PLAIN_LAYERS
from msft.engine.model.loading import LoadedModel, end_tokens, fingerprint_of, recompute_activations
from msft.engine.optimizer import RAW, MovingAverage, TrainingSettings, refuse_other_model
from msft.engine.saving.model_files import ModelFiles, TorchEngine, Weights
from msft.example import Encoded
from msft.run.engine import Generated, Likelihoods, StopRow
from msft.search.feeds import Batch, Losses, Update

MOMENTS = ("exp_avg", "exp_avg_sq")


class SimpleEngine(TorchEngine):
    """Any decoder-only model of transformers, trained in padded batches."""

    def __init__(
        self,
        loaded: LoadedModel,
        rows: Mapping[str, Sequence[Encoded]],
        settings: TrainingSettings,
        adapted: Adapted | None = None,
    ) -> None:
        """adapted: the model with an adapter, which alone is trained."""
        self._loaded, self._model = loaded, loaded.model
        self._rows = rows
        self._settings = settings
        self._schedule_steps = settings.schedule_steps
        self._parameters: dict[str, nn.Parameter] = (
            dict(self._model.named_parameters()) if adapted is None else adapted.trained
        )
        self.num_trainable = sum(p.numel() for p in self._parameters.values())
        self.num_frozen = adapted.shape.parameters if adapted else 0
        self.num_parameters = self.num_frozen or self.num_trainable
        self._raw = {name: p.detach() for name, p in self._parameters.items()}
        self._average: MovingAverage | None = None
        if settings.ema_decay is not None:
            self._average = MovingAverage(self._raw, self._parameters, settings.ema_decay)
        self._base = self.weights()
        if settings.gradient_checkpointing:
            recompute_activations(self._model)
        self.load_optimizer(None)
        device = self._model.device
        if adapted is None:
            self._keep_in(ModelFiles(loaded, self._base, device), fingerprint_of(self._base))
        else:
            self._plain = adapted.evaluated
            self._keep_in(AdapterFiles(adapted, self._base, device), adapted.fingerprint)
        self._merged: MergedModel | None = None
        if adapted is not None:
            kept = self._raw if self._average is None else self._average.tensors
            self._merged = merged_of(adapted, lambda: kept, PLAIN_LAYERS)

    def weights(self) -> dict[str, Tensor]:
        kept = self._raw if self._average is None else self._average.tensors
        return {name: weight.clone() for name, weight in kept.items()}

    def load(self, weights: Weights | None) -> None:
        source = self._base if weights is None else weights
        refuse_other_model(source, self._parameters)
        for name, weight in self._raw.items():
            weight.copy_(source[name])
        if self._average is not None:
            self._average.restart()
        self._weights_changed()

    def seed(self, number: int) -> None:
        torch.manual_seed(number)

    def optimizer(self) -> dict[str, Any]:
        state = self._adamw.state
        moving = [(name, state[p]) for name, p in self._parameters.items() if p in state]
        tensors = {f"{n}.{kind}": held[kind].clone() for n, held in moving for kind in MOMENTS}
        if self._average is not None:
            tensors |= {f"{name}.{RAW}": weight.clone() for name, weight in self._raw.items()}
        return {"steps": self._steps, "tensors": tensors}

    def load_optimizer(self, moments: Mapping[str, Any] | None) -> None:
        parameters = list(self._parameters.values())
        self._adamw = torch.optim.AdamW(parameters, weight_decay=self._settings.weight_decay)
        self._steps = int(moments["steps"]) if moments else 0
        tensors = moments["tensors"] if moments else {}
        for name, p in self._parameters.items():
            if f"{name}.{MOMENTS[0]}" in tensors:
                held = {kind: tensors[f"{name}.{kind}"].to(p.device, copy=True) for kind in MOMENTS}
                self._adamw.state[p] = {"step": torch.tensor(float(self._steps)), **held}
        if self._average is not None:
            self._average.take_raw(tensors)

    def plan_steps(self, steps: int) -> None:
        self._settings = replace(self._settings, schedule_steps=steps or self._schedule_steps)

    def work(self, batch: Batch) -> tuple[Losses, int]:
        if self._average is not None:
            self._average.show_raw()
        rows = [self._rows[name][number] for name, number in batch.rows]
        tokens = sum(len(row.tokens) for row in rows)
        if batch.use == "track":
            return Losses(self._losses(rows)), tokens
        if batch.use == "look_ahead":
            return self._look_ahead(rows, batch), tokens
        return self._step(rows, batch), tokens

    def _step(self, rows: Sequence[Encoded], batch: Batch) -> Losses:
        """One optimizer step: losses of the rows before it."""
        losses = self._losses(rows, gradients=True)
        refuse_not_numbers(losses, batch.rows)
        most, rate = self._settings.max_grad_norm or inf, self._settings.rate(self._steps)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), most)
        self._adamw.param_groups[0]["lr"] = rate
        self._adamw.step()
        self._steps += 1
        if self._average is not None:
            self._average.move()
        self._weights_changed()
        return Losses(losses, update=Update(rate, lambda: float(norm)))

    def _losses(self, rows: Sequence[Encoded], gradients: bool = False) -> list[float]:
        """Losses of the rows. If asked for, the gradient of their weighted losses over their mass;
        without weights that is the mean over all answer tokens."""
        self._model.train(gradients)
        self._adamw.zero_grad()
        mass = sum(row.mass for row in rows)
        losses: list[float] = []
        for part in _padded_batches(rows, self._settings.micro_batch_tokens, self._loaded.padded):
            with torch.set_grad_enabled(gradients):
                if gradients and any(row.weight != 1 or row.prompt_weight for row in part):
                    sums, loss = weighted_nll(self._model, part, self._settings.bf16)
                else:
                    sums = answer_nll(self._model, part, self._settings.bf16)
                    loss = sums.sum()
                if gradients:
                    (loss / mass).backward()  # type: ignore[no-untyped-call]
            pairs = zip(sums.tolist(), part, strict=True)
            losses += [loss / max(1, row.answer_tokens) for loss, row in pairs]
        return losses

    def _look_ahead(self, rows: Sequence[Encoded], batch: Batch) -> Losses:
        """Losses before and after a virtual step; everything is as it was afterwards."""
        weights, moments = self.weights(), self.optimizer()
        before = self._losses(rows)
        refuse_not_numbers(before, batch.rows)
        device = self._model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if batch.step == "optimizer":
                self._step(rows, batch)
            else:
                self._losses(rows, gradients=True)
                rate = self._settings.rate(self._steps)
                torch.optim.SGD(self._parameters.values(), lr=rate).step()
        after = self._losses(rows)
        self.load(weights)
        self.load_optimizer(moments)
        return Losses(before, after)

    def how(self) -> str:
        rows = "padded rows" if self._loaded.padded else "one row at a time"
        return f"simple engine: the model's own attention, {rows}, torch's AdamW"

    def _weights_changed(self) -> None:
        if self._merged is not None:
            self._merged.outdate()

    def predictor(self) -> "SimplePredictor":
        tokens, bf16 = self._settings.evaluated_tokens, self._settings.bf16
        if self._merged is not None:
            return SimplePredictor(self._plain, tokens, bf16, refresh=self._merged.refresh)
        refresh = self._average.show if self._average is not None else None
        return SimplePredictor(self._loaded, tokens, bf16, refresh=refresh)


class SimplePredictor:
    """Likelihoods of padded rows, and `generate` over prompts of equal length; one row at a time
    where the model is not what it is alone (`LoadedModel.padded`).

    more_ends: tokens that end a text, besides those that the model knows.
    refresh: called before every question; brings the model's weights up to date.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        most_tokens: int,
        bf16: bool = False,
        more_ends: Sequence[int] = (),
        refresh: Callable[[], None] | None = None,
    ) -> None:
        self._refresh = refresh or (lambda: None)
        self._model, self._padded = loaded.model, loaded.padded
        self._ends = sorted({*end_tokens(loaded), *more_ends})
        self._most_tokens = most_tokens
        self._bf16 = bf16

    @torch.inference_mode()
    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        self._refresh()
        self._model.eval()
        sums: list[float] = []
        for part in _padded_batches(rows, self._most_tokens, self._padded):
            sums += answer_nll(self._model, part, self._bf16).tolist()
        likelihoods = Likelihoods(sums, sum(len(row.tokens) for row in rows))
        return lambda: likelihoods

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        self._refresh()
        self._model.eval()
        texts = GeneratedRows(frozenset(self._ends), limits, leaves)
        for length in sorted({len(prompt) for prompt in prompts}):
            numbers = [n for n, prompt in enumerate(prompts) if len(prompt) == length]
            most = self._most_tokens if self._padded else 0
            for places in batches((length + limits[n] for n in numbers), most):
                part = [numbers[place] for place in places]
                tokens = torch.tensor([prompts[n] for n in part], device=self._model.device)
                said = self._said(tokens, max(limits[n] for n in part))
                for number, text in zip(part, said.tolist(), strict=True):
                    texts.add(number, text)
        pairs = zip(prompts, texts.rows, strict=True)
        return Generated(texts.rows, sum(len(prompt) + len(text) - 1 for prompt, text in pairs))

    def _said(self, tokens: Tensor, most: int) -> Tensor:
        """Greedy, whatever habits (penalties, temperatures) the model has of its own."""
        from transformers import GenerationConfig

        ends = {"eos_token_id": self._ends, "pad_token_id": self._ends[0]}
        habits = self._model.generation_config
        self._model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        try:
            with _autocast(self._model, self._bf16):
                whole: Tensor = self._model.generate(
                    tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=most, **ends
                )
        finally:
            self._model.generation_config = habits
        return whole[:, tokens.shape[1] :]


def answer_nll(model: Any, rows: Sequence[Encoded], bf16: bool = False) -> Tensor:
    """-log p of each row's answer tokens, summed in fp32; rows are padded on the right."""
    answer = _padded([row.answer for row in rows], model.device).bool()
    return _token_nll(model, rows, answer, bf16).sum(1)


def weighted_nll(model: Any, rows: Sequence[Encoded], bf16: bool = False) -> tuple[Tensor, Tensor]:
    """As `answer_nll`; and the losses of all tokens of all rows with their weights, summed."""
    shares = _padded(
        [[1.0 if answer else row.prompt_weight for answer in row.answer] for row in rows],
        model.device,
    )
    answer = _padded([row.answer for row in rows], model.device).bool()
    weights = torch.tensor([row.weight for row in rows], device=model.device)
    nll = _token_nll(model, rows, shares > 0, bf16)
    return (nll * answer[:, 1:]).sum(1), (nll * shares[:, 1:] * weights[:, None]).sum()


def _token_nll(model: Any, rows: Sequence[Encoded], counted: Tensor, bf16: bool) -> Tensor:
    """-log p of each token but the first, in fp32; 0 where it is not counted."""
    tokens = _padded([row.tokens for row in rows], model.device)
    mask = _padded([[1] * len(row.tokens) for row in rows], model.device)
    with _autocast(model, bf16):
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    labels = tokens.masked_fill(~counted, NO_LABEL)[:, 1:]
    logits = logits[:, :-1].float().transpose(1, 2)
    return functional.cross_entropy(logits, labels, reduction="none")


def _padded(rows: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)


def _padded_batches(rows: Sequence[Encoded], most_tokens: int, padded: bool) -> list[list[Encoded]]:
    """Rows in their order, in batches whose tokens with padding are at most so many; where rows
    cannot be padded, each is a batch."""
    longest = max(len(row.tokens) for row in rows)
    places = batches([longest] * len(rows), most_tokens if padded else 0)
    return [[rows[place] for place in part] for part in places]


def _autocast(model: Any, bf16: bool) -> torch.autocast:
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=bf16)
