"""The fast engine: fine-tuning of any causal language model on torch and transformers.

One step is one batch of *samples*, whatever the memory: its loss is the mean over all answer tokens
of the batch, and micro-batches (when memory asks for them) add up to the same gradient. What makes
it fast, and where that is:

- Rows are packed into one line without padding, and head and loss are computed at answer tokens
  only (`packing.py`).
- Small models on a GPU replay recorded steps, and the losses of a step come later, so that the next
  one is prepared while it runs (`graphs.py`).
- The model computes with bf16 copies of fp32 masters, and one kernel takes AdamW's step
  (`optimizer.py`).
- Layers are compiled and projections joined (`Layers` in `kernels.py`).
- Evaluation computes shared tokens once (`decode/decoder.py`).

`_step` is a training step from top to bottom: replayed if it can be, else `_gradients` →
`_backward_with_retry` (halves micro-batches where memory runs out) → `_backward_step` (adds
micro-batches up) → `_backward_micro_batch` → `_backward`, and then AdamW. Where several lanes or
processes share a step, `parallel.py` stands between `_gradients` and `_backward_with_retry`; in one
process `OneLane` does. `simple.py` does the same without any of this.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from msft.engine.adapters.adapter_files import AdapterFiles
from msft.engine.adapters.lora import Adapted, MergedModel, merged_of
from msft.engine.decode.decoder import Decoder, batches
from msft.engine.graphs import PendingLosses, PendingNumbers, Recording, refuse_not_numbers
from msft.engine.kernels import NO_LABEL, PLAIN_LAYERS, Layers, Paths, Recorder
from msft.engine.memory import BASE_ON_DEVICE
from msft.engine.model.loading import (
    LoadedModel,
    end_tokens,
    fingerprint_of,
    recompute_activations,
)
from msft.engine.optimizer import AdamW, TrainingSettings, copied
from msft.engine.packing import (
    PackedLayout,
    PackedRows,
    RowLayout,
    TrainingRow,
    attention_way,
    layout,
    packed,
    row_means,
)
from msft.engine.parallel import Backward, DataParallel, Row, Split
from msft.engine.saving.model_files import ModelFiles, TorchEngine
from msft.engine.sharding import FullSharding
from msft.errors import UsageError, is_out_of_memory
from msft.example import Encoded
from msft.ranks import ALONE, Ranks
from msft.run.engine import Predictor
from msft.search.feeds import Batch, Losses, Update


class FastEngine(TorchEngine):
    """A model that this engine suits, trained in packed rows by kernels of its own."""

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
        """rows: those that are trained, by sub-dataset.
        layers: how the model's layers run.
        recorder: makes the recorder of steps; None: the one that this device has.
        adapted: the model with an adapter, which alone is trained; None: all weights are.
        """
        self.model = model = loaded.model
        self._layers = layers
        self.device: torch.device = next(model.parameters()).device
        weighted = any(r.weight != 1 or r.prompt_weight for part in rows.values() for r in part)
        self._rows = {
            name: [TrainingRow.of(row, weighted) for row in part] for name, part in rows.items()
        }
        self._settings = settings
        self._schedule_steps = settings.schedule_steps
        self._micro_batch_tokens = settings.micro_batch_tokens
        self._parameters: dict[str, nn.Parameter] = (
            dict(model.named_parameters()) if adapted is None else adapted.trained
        )
        self.num_trainable = sum(p.numel() for p in self._parameters.values())
        self.num_frozen = adapted.shape.parameters if adapted else 0
        self.num_parameters = self.num_frozen or self.num_trainable
        # Before ranks cut the weights into slices, and before the model computes with bf16 copies.
        fingerprint = adapted.fingerprint if adapted else fingerprint_of(self._parameters)
        ends = end_tokens(loaded)
        alone = settings.lanes == 1 and ranks is ALONE
        self._lanes: OneLane | DataParallel | FullSharding = (
            OneLane(model, self._parameters, settings.bf16)
            if alone
            else lanes_over(model, self._parameters, settings, ranks)
        )
        how = (settings.weight_decay, self._lanes.mixed, settings.half_moments, settings.kernel)
        self._adamw = AdamW(self._lanes.owned, *how, settings.ema_decay)
        self._average = self._adamw.average
        self._lanes.bind(self._adamw)
        if self._lanes.mixed:  # else the optimizer holds the parameters, which must stay apart
            layers.fuse_projections()
        self._base = base = copies_of(self._lanes.gather_owned(self._adamw.masters), self.device)
        where = (self.device, self._lanes)
        self._keep_in(
            AdapterFiles(adapted, base, *where) if adapted else ModelFiles(loaded, base, *where),
            fingerprint,
        )
        # With `sharding: full` and with an adapter, the model that predicts is another one.
        evaluated: tuple[Any, Layers] = (self._lanes.evaluated, PLAIN_LAYERS)
        if self._lanes.evaluated is model:
            evaluated = (model, layers)
        self._merged: MergedModel | None = None
        if adapted is not None:
            self._merged = merged_of(adapted, self._kept_everywhere, layers, ranks)
        if self._merged is not None:
            evaluated = self._merged.evaluated
        tokens = settings.evaluated_tokens
        self._decoder = Decoder(evaluated[0], ends, tokens, layers=evaluated[1])
        if settings.gradient_checkpointing:
            recompute_activations(model)
        self._longest = max((len(r.tokens) for p in self._rows.values() for r in p), default=0)
        work = (self._adamw, self._padded_gradients, self._parameters, not alone)
        self._recording = Recording(settings, *work, self._longest, self.device, recorder)

    def paths(self) -> Paths:
        """Which path each part takes now."""
        attention, steps = attention_way(self.model, self._longest), self._recording.way
        return Paths.of(attention, steps, self._layers.way, self._adamw.way, self._decoder.way)

    def how(self) -> str:
        return str(self.paths())

    def _kept_everywhere(self) -> Mapping[str, Tensor]:
        """The full tensors of the weights that are kept, in every rank."""
        return self._lanes.everywhere(self._adamw.kept)

    # State.

    def load(self, weights: Mapping[str, Tensor] | None) -> None:
        self._lanes.load(self._base if weights is None else weights)
        self._weights_changed()

    def weights(self) -> dict[str, Tensor]:
        return self._lanes.gather_owned(copied(self._adamw.kept))

    def load_optimizer(self, moments: Mapping[str, Any] | None) -> None:
        if moments is None:
            self._adamw.start(0, {})
        else:
            self._adamw.start(int(moments["steps"]), self._lanes.scatter(moments["tensors"]))

    def seed(self, number: int) -> None:
        torch.manual_seed(number)
        self._lanes.seed(number)

    def plan_steps(self, steps: int) -> None:
        self._settings = replace(self._settings, schedule_steps=steps or self._schedule_steps)

    def optimizer(self) -> dict[str, Any]:
        state = self._adamw.state()
        return {"steps": state["steps"], "tensors": self._lanes.gather_owned(state["tensors"])}

    def _weights_changed(self) -> None:
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
        self._weights_changed()
        return Losses(losses, update=Update(rate, PendingNumbers(self._adamw.norm).look)), tokens

    def predictor(self) -> Predictor:
        refresh = self._average.show if self._average is not None else None
        if self._merged is not None:
            refresh = self._merged.refresh
        return self._lanes.predictor(self._decoder, refresh)

    def _step(self, rows: Sequence[TrainingRow], batch: Batch) -> PendingLosses:
        """Take one optimizer step. Losses of the rows before it."""
        replayed = self._replayed(rows, batch)
        if replayed is not None:
            return replayed
        losses = PendingLosses(self._gradients(rows), batch.rows)
        if self.device.type == "cpu":
            losses[0]  # raises before a step that must not be taken
        self._adamw.begin_step(self._settings.rate(self._adamw.steps))
        self._adamw.step(self._settings.max_grad_norm)
        self._lanes.broadcast()
        return losses

    def _replayed(self, rows: Sequence[TrainingRow], batch: Batch) -> PendingLosses | None:
        """Replay a recorded step. None: these rows fit no recorded step, or nothing is recorded."""
        if not self._recording.fits_one_graph(rows, self._micro_batch_tokens):
            return None
        self._adamw.begin_step(self._settings.rate(self._adamw.steps))
        losses = self._recording.step(rows, self._micro_batch_tokens)
        if losses is not None:
            return PendingLosses(losses, batch.rows)
        self._adamw.cancel_step()
        self._clear()
        return None

    def _padded_gradients(
        self, line: PackedRows, longest: int, targets: Tensor | None = None
    ) -> Tensor:
        """The backward pass of a padded line, which a recorded step replays.

        longest: no row is longer.
        targets: mass of the whole step, where the line is a lane of it.
        """
        if targets is None:
            self._adamw.bad.zero_()
            targets = (line.labels != NO_LABEL).sum() if line.mass is None else line.mass.float()
        bounds = line.bounds.to(torch.int32)
        if not self.model.training:  # to tell all modules takes milliseconds
            self.model.train()
        rows = PackedLayout(bounds, len(line.tokens), longest, padded=True)
        with self._layers, layout(rows):
            return self._backward(line, targets)

    def _gradients(self, rows: Sequence[TrainingRow]) -> Tensor:
        """Losses of the rows. The gradient of their weighted losses over their mass is left in the
        parameters, or given to the optimizer where it is a sum over lanes. Without weights it is
        the gradient of the mean over all answer tokens."""
        targets = sum(row.mass for row in rows)
        self._adamw.bad.zero_()
        if not self.model.training:  # to tell all modules takes milliseconds
            self.model.train()
        return self._lanes.gradients(rows, self._backward_with_retry, targets, self._micro_batches)

    def _backward_with_retry(self, rows: Sequence[TrainingRow], targets: float) -> Tensor:
        """Losses of some rows. Their gradient, divided by `targets`, is added to the parameters'.

        If memory does not hold a micro-batch, it is halved for good; the gradient is the same.
        """
        while True:
            try:
                return self._backward_step(rows, targets)
            except (RuntimeError, MemoryError) as error:
                longest = max(len(row.tokens) for row in rows)
                final = self._settings.full_sharding or self._micro_batch_tokens <= longest
                if final or not is_out_of_memory(error):  # slices: other ranks are in this pass too
                    raise
            self._micro_batch_tokens //= 2
            self._clear()

    def _backward_step(self, rows: Sequence[TrainingRow], targets: float) -> Tensor:
        parts = self._micro_batches(rows)
        if len(parts) == 1:
            return self._backward_micro_batch(rows, targets)
        losses: list[Tensor] = []
        for part in parts:
            losses.append(self._backward_micro_batch(part, targets).clone())
            self._lanes.add_up()
        return torch.cat(losses)

    def _backward_micro_batch(self, rows: Sequence[TrainingRow], targets: float) -> Tensor:
        """Losses of a micro-batch, which the next one may overwrite; its gradient is added."""
        replayed = self._recording.part(rows, targets, self._micro_batch_tokens)
        if replayed is not None:
            return replayed
        with self._layers, layout(self._rows_of(rows)):  # checkpointing runs it again
            return self._backward(packed(rows, self.device), targets)

    def _backward(self, line: PackedRows, targets: float | Tensor) -> Tensor:
        """Losses of the rows of a line; its gradient, divided by `targets`, is added."""
        nll = self._nll(line, self.model)
        weighted = nll if line.weights is None else nll * line.weights.float()
        loss = weighted.sum() / targets
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
        """Losses before and after a step that is taken back: weights, moments and random state are
        what they were."""
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
                self._lanes.broadcast()
        after = self._watched(rows)
        self.load(weights)
        if batch.step == "optimizer" or self._average is not None:  # raw weights are there
            self.load_optimizer(moments)
        return Losses(before, after)

    def _nll(self, line: PackedRows, model: Any) -> Tensor:
        """Negative log-likelihood of each target, in fp32."""
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


def copies_of(weights: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copies in fp32: on the device where that is cheap, else in host memory."""
    size = 4 * sum(weight.numel() for weight in weights.values())
    if device.type == "cuda" and size > BASE_ON_DEVICE * torch.cuda.mem_get_info(device)[1]:
        return {name: weight.cpu() for name, weight in weights.items()}
    return {name: weight.clone() for name, weight in weights.items()}


@dataclass
class OneLane:
    """The whole batch in one process, which has nothing to divide: the plain case of what
    `DataParallel` and `FullSharding` do between lanes and ranks (`Lanes` in `parallel.py`).

    evaluated: the model that predicts.
    owned: the parameters whose masters and moments are here: all.
    mixed: the optimizer makes bf16 copies of the weights, for a model that computes so.
    """

    evaluated: Any
    owned: Mapping[str, nn.Parameter]
    mixed: bool
    ranks: Ranks = ALONE

    @property
    def names(self) -> Collection[str]:
        return self.owned

    def bind(self, optimizer: AdamW) -> None:
        """Let the optimizer have the gradients and the weights."""
        self.add_up, self.forget, self.load = optimizer.add_up, optimizer.forget, optimizer.load

    def gradients(
        self, rows: Sequence[Row], backward: Backward[Row], targets: float, split: Split[Row]
    ) -> Tensor:
        return backward(rows, targets)

    def losses(self, rows: Sequence[Row], measured: Callable[[Sequence[Row]], Tensor]) -> Tensor:
        return measured(rows)

    def predictor(self, decoder: Decoder, refresh: Callable[[], None] | None) -> Predictor:
        decoder.refresh = refresh
        return decoder

    def gather_owned(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors

    def scatter(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return tensors

    def everywhere(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return owned

    def whole(self, owned: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        return owned

    def broadcast(self) -> None: ...

    def seed(self, seed: int) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def lanes_over(
    model: Any, parameters: Mapping[str, nn.Parameter], settings: TrainingSettings, ranks: Ranks
) -> DataParallel | FullSharding:
    """What divides a step between lanes and ranks, by the recipe's `sharding`.

    UsageError where there is not a tensor for each process to own.
    """
    if ranks.world > len(parameters):
        raise UsageError(
            f"{ranks.world} processes were started, but only {len(parameters)} tensors are "
            f"trained, and each process needs one; start at most {len(parameters)}"
        )
    if settings.full_sharding:
        return FullSharding(model, settings.lanes, ranks, settings.bf16)
    return DataParallel(model, parameters, settings.lanes, ranks, settings.bf16)


def even_batches(sizes: Sequence[int], most: int) -> list[list[int]]:
    """As few batches as `batches` makes, the largest of them as small as it can be."""
    count = len(batches(sizes, most))
    least = max(sizes) if count > 1 else most
    while least < most:
        middle = (least + most) // 2
        if len(batches(sizes, middle)) > count:
            least = middle + 1
        else:
            most = middle
    return batches(sizes, most)
