"""The fast engine: fine-tuning of any causal language model on torch and transformers.

One step is one batch of *samples*, whatever the memory: rows are packed, the head and the loss
are computed at answer tokens only, the loss is the mean over all answer tokens of the step, and
micro-batches (when memory asks for them) add up to the same gradient. Small models on a GPU replay
recorded steps (`graphs.py`); the losses of a step come later, so that the next one can be
prepared while it runs. `simple.py` does the same without any of this.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from msft.engine.adapters.lora import Adapted, merged_of
from msft.engine.adapters.seams import files_of, trained_in
from msft.engine.decode.decoder import Decoder
from msft.engine.graphs import PendingLosses, PendingNumbers, recording_of, refuse_not_numbers
from msft.engine.kernels import NO_LABEL, PLAIN_LAYERS, Layers, Paths, Recorder
from msft.engine.memory import BASE_ON_DEVICE
from msft.engine.model.loading import LoadedModel, end_tokens, recompute_activations
from msft.engine.optimizer import AdamW, TrainingSettings, copied
from msft.engine.packing import (
    PackedLayout,
    PackedRows,
    RowLayout,
    TrainingRow,
    attention_way,
    even_batches,
    layout,
    packed,
    row_means,
)
from msft.engine.parallel import OneLane, SyncedPredictor, everywhere, lanes_over
from msft.engine.saving.model_files import averaged, fingerprint_of, refuse_other_model
from msft.errors import is_out_of_memory
from msft.example import Encoded
from msft.ranks import ALONE, Ranks
from msft.run.engine import Predictor
from msft.search.feeds import Batch, Losses, Update


def copies_of(weights: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copies in fp32: on the device where that is cheap, else in host memory."""
    size = 4 * sum(weight.numel() for weight in weights.values())
    if device.type == "cuda" and size > BASE_ON_DEVICE * torch.cuda.mem_get_info(device)[1]:
        return {name: weight.cpu() for name, weight in weights.items()}
    return {name: weight.clone() for name, weight in weights.items()}


class FastEngine:
    """A model and AdamW, a `msft.run.engine.Engine`; `recorder` makes what records steps."""

    def __init__(
        self,
        loaded: LoadedModel,
        rows: Mapping[str, Sequence[Encoded]],
        settings: TrainingSettings,
        layers: Layers = PLAIN_LAYERS,
        recorder: Callable[[], Recorder] | None = None,
        adapted: Adapted | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """adapted: the model with an adapter, which alone is trained."""
        self.model = model = loaded.model
        self._layers = layers
        self.device: torch.device = next(model.parameters()).device
        self._rows = {name: [TrainingRow.of(row) for row in part] for name, part in rows.items()}
        self._settings = settings
        self._micro_batch_tokens = settings.micro_batch_tokens
        self._parameters = trained_in(model, adapted)
        self.num_trainable = sum(p.numel() for p in self._parameters.values())
        self.num_frozen = adapted.shape.parameters if adapted else 0
        self.num_parameters = self.num_frozen or self.num_trainable
        whole = fingerprint_of(self._parameters)
        self._lanes = lanes_over(model, self._parameters, settings, ranks)
        how = (settings.weight_decay, self._lanes.mixed, settings.half_moments, settings.kernel)
        self._adamw = AdamW(self._lanes.owned, *how, settings.ema_decay)
        self._average = self._adamw.average
        self._lanes.serve(self._adamw)
        if self._lanes.mixed:
            layers.fuse_projections()
        self._base = copies_of(self._lanes.out(self._adamw.masters), self.device)
        files = files_of(loaded, adapted, self._base, self.device, self._lanes, whole)
        self.codec, self.export, self.memory = files.codec, files.export, files.memory
        self.fingerprint, self.average = files.fingerprint, averaged
        self.bytes_a_weight = files.bytes_a_weight
        if files.links:
            self.link = files.link
        ends, tokens = end_tokens(loaded), settings.evaluated_tokens
        kept = partial(everywhere, self._lanes, self._adamw.kept)
        self._merged = merged_of(adapted, kept, layers, ranks)
        shown = layers if self._lanes.evaluated is model else PLAIN_LAYERS
        evaluated = (self._lanes.evaluated, shown)
        if self._merged is not None:
            evaluated = self._merged.evaluated
        self._decoder = Decoder(evaluated[0], ends, tokens, layers=evaluated[1])
        if settings.gradient_checkpointing:
            recompute_activations(model)
        self._longest = max((len(r.tokens) for p in self._rows.values() for r in p), default=0)
        in_lanes = not isinstance(self._lanes, OneLane)
        work = (self._adamw, self._padded_gradients, self._parameters, in_lanes)
        self._recording = recording_of(settings, *work, self._longest, self.device, recorder)

    def paths(self) -> Paths:
        """Which path each part takes now."""
        attention, steps = attention_way(self.model, self._longest), self._recording.way
        ways = (attention, steps, self._layers.way, self._adamw.way, self._decoder.way)
        return Paths.of(*ways)

    def how(self) -> str:
        return str(self.paths())

    # State.

    def load(self, weights: Mapping[str, Tensor] | None) -> None:
        source = self._base if weights is None else weights
        refuse_other_model(source, self._lanes.like(self._adamw.masters))
        self._adamw.load(self._lanes.back(source))
        self._lanes.spread()
        self._moved()

    def weights(self) -> dict[str, Tensor]:
        return self._lanes.out(copied(self._adamw.kept))

    def load_optimizer(self, moments: Mapping[str, Any] | None) -> None:
        if moments is None:
            self._adamw.start(0, {})
        else:
            self._adamw.start(int(moments["steps"]), self._lanes.back(moments["tensors"]))

    def seed(self, number: int) -> None:
        torch.manual_seed(number)
        self._lanes.seed(number)

    def optimizer(self) -> dict[str, Any]:
        state = self._adamw.state()
        return {"steps": state["steps"], "tensors": self._lanes.out(state["tensors"])}

    def _moved(self) -> None:
        if self._merged is not None:
            self._merged.outdate()

    # Work.

    def work(self, batch: Batch) -> tuple[Losses, int]:
        if self._average is not None:
            self._average.show_raw()
        rows = [self._rows[name][number] for name, number in batch.rows]
        tokens = sum(len(row.tokens) for row in rows)
        if batch.use == "track":
            return Losses(self._watched(rows)), tokens
        if batch.use == "look_ahead":
            return self._look_ahead(rows, batch), tokens
        losses, rate = self._step(rows, batch), self._settings.rate(self._adamw.steps - 1)
        self._moved()
        return Losses(losses, update=Update(rate, PendingNumbers(self._adamw.norm).look)), tokens

    def predictor(self) -> Predictor:
        predictor = self._lanes.predictor(self._decoder)
        if self._merged is not None:  # ranks meet there, also one that has no row
            return SyncedPredictor(predictor, self._merged.refresh)
        if self._average is not None:
            return SyncedPredictor(predictor, self._average.show)
        return predictor

    def _step(self, rows: Sequence[TrainingRow], batch: Batch) -> PendingLosses:
        """One optimizer step: losses of the rows before it."""
        replayed = self._replayed(rows, batch)
        if replayed is not None:
            return replayed
        losses = PendingLosses(self._gradients(rows), batch.rows)
        if self.device.type == "cpu":
            losses[0]  # raises before a step that must not be taken
        self._adamw.ready(self._settings.rate(self._adamw.steps))
        self._adamw.step(self._settings.max_grad_norm)
        self._lanes.spread()
        return losses

    def _replayed(self, rows: Sequence[TrainingRow], batch: Batch) -> PendingLosses | None:
        """The same by a recorded step; None: it has to be taken as it comes."""
        if not self._recording.is_whole(rows, self._micro_batch_tokens):
            return None
        self._adamw.ready(self._settings.rate(self._adamw.steps))
        losses = self._recording.step(rows, self._micro_batch_tokens)
        if losses is not None:
            return PendingLosses(losses, batch.rows)
        self._adamw.unready()
        self._clear()
        return None

    def _padded_gradients(
        self, line: PackedRows, longest: int, targets: Tensor | None = None
    ) -> Tensor:
        """targets: of the whole step, where the line is a lane of it."""
        if targets is None:
            self._adamw.bad.zero_()
            targets = (line.labels != NO_LABEL).sum()
        bounds = line.bounds.to(torch.int32)
        if not self.model.training:  # to tell all modules takes milliseconds
            self.model.train()
        rows = PackedLayout(bounds, len(line.tokens), longest, padded=True)
        with self._layers, layout(rows):
            return self._backward(line, targets)

    def _gradients(self, rows: Sequence[TrainingRow]) -> Tensor:
        """Losses of the rows; the gradient of their token mean is left in the parameters, or with
        the optimizer where it is a sum over lanes."""
        targets = sum(len(row.targets) for row in rows)
        self._adamw.bad.zero_()
        if not self.model.training:  # to tell all modules takes milliseconds
            self.model.train()
        return self._lanes.gradients(rows, self._accumulated, targets, self._micro_batches)

    def _accumulated(self, rows: Sequence[TrainingRow], targets: float) -> Tensor:
        """The gradient of some rows, over so many targets.

        If memory does not hold a micro-batch, it is halved for good; the gradient is the same.
        """
        while True:
            try:
                return self._added_up(rows, targets)
            except (RuntimeError, MemoryError) as error:
                longest = max(len(row.tokens) for row in rows)
                final = self._settings.full_sharding or self._micro_batch_tokens <= longest
                if final or not is_out_of_memory(error):  # slices: other ranks are in this pass too
                    raise
            self._micro_batch_tokens //= 2
            self._clear()

    def _added_up(self, rows: Sequence[TrainingRow], targets: float) -> Tensor:
        parts = self._micro_batches(rows)
        if len(parts) == 1:
            return self._added(rows, targets)
        losses: list[Tensor] = []
        for part in parts:
            losses.append(self._added(part, targets).clone())
            self._lanes.add_up()
        return torch.cat(losses)

    def _added(self, rows: Sequence[TrainingRow], targets: float) -> Tensor:
        """Losses of a micro-batch, until the next one; its gradient is added."""
        replayed = self._recording.part(rows, targets, self._micro_batch_tokens)
        if replayed is not None:
            return replayed
        with self._layers, layout(self._rows_of(rows)):  # checkpointing runs it again
            return self._backward(packed(rows, self.device), targets)

    def _backward(self, line: PackedRows, targets: float | Tensor) -> Tensor:
        """Row losses of a line; its share of the gradient is added to the parameters'."""
        nll = self._nll(line, self.model)
        loss = nll.sum() / targets
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self._adamw.bad.add_(~loss.isfinite()).clamp_(max=1)
        return row_means(nll.detach(), line)

    def _watched(self, rows: Sequence[TrainingRow]) -> list[float]:
        """Losses of the rows, without dropout and without a gradient."""
        self._lanes.evaluated.eval()
        with torch.inference_mode():
            return self._lanes.losses(rows, self._measured).tolist()

    def _measured(self, rows: Sequence[TrainingRow]) -> Tensor:
        losses: list[Tensor] = []
        for part in self._micro_batches(rows):
            line = packed(part, self.device)
            with layout(self._rows_of(part)):
                losses.append(row_means(self._nll(line, self._lanes.evaluated), line))
        return torch.cat(losses)

    def _look_ahead(self, rows: Sequence[TrainingRow], batch: Batch) -> Losses:
        """Losses before and after a virtual step; everything is as it was afterwards."""
        weights, moments = self.weights(), self.optimizer()
        before = self._watched(rows)
        refuse_not_numbers(before, batch.rows)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self._lanes:
            if batch.step == "optimizer":
                self._step(rows, batch)
            else:
                self._gradients(rows)
                self._adamw.sgd(self._settings.rate(self._adamw.steps))
                self._lanes.spread()
        after = self._watched(rows)
        self.load(weights)
        if batch.step == "optimizer" or self._average is not None:  # raw weights are there
            self.load_optimizer(moments)
        return Losses(before, after)

    def _nll(self, line: PackedRows, model: Any) -> Tensor:
        """Negative log-likelihood of each answer token, in fp32."""
        logits: Tensor = model(
            input_ids=line.tokens[None],
            position_ids=line.positions[None],
            logits_to_keep=line.targets,
            use_cache=False,
        ).logits
        return self._layers.losses(logits.squeeze(0), line.labels)

    def _micro_batches(self, rows: Sequence[TrainingRow]) -> list[list[TrainingRow]]:
        room = self._recording.room(self._micro_batch_tokens)
        groups = even_batches([len(row.tokens) for row in rows], room)
        return [[rows[number] for number in group] for group in groups]

    def _rows_of(self, rows: Sequence[TrainingRow]) -> RowLayout:
        return RowLayout([len(row.tokens) for row in rows], self.device)

    def _clear(self) -> None:
        self._lanes.forget()
        torch.cuda.empty_cache()
