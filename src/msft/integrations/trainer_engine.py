"""The engine over a Trainer: its model, its optimizer, its `training_step`, one step at a time.

Gradient accumulation, clipping, autocast, callbacks and the logs of the trainer are its own. What
is ours: which rows come next, what is kept, and where training goes back to. Weights are those
that are trained; the frozen ones of an adapter's base never change and are in no checkpoint.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from msft.engine.model.base_files import write_facts
from msft.engine.model.loading import LoadedModel
from msft.engine.saving.model_files import ModelFiles, Weights, averaged, refuse_other_model
from msft.engine.saving.safetensors_codec import PIECE
from msft.errors import NotANumber, Stopped, UsageError
from msft.example import Encoded
from msft.files import remove
from msft.integrations.trainer_optimizer import TrainerOptimizer
from msft.integrations.trainer_predictor import TrainerPredictor
from msft.run.environment import BaseRecord, version_of
from msft.search.feeds import Batch, Losses, Update


class TrainerEngine:
    """A Trainer as a `msft.run.engine.Engine`.

    rows: what the trainer's collator takes, by sub-dataset and number.
    encoded: the tokens of the same rows.
    ends: tokens that end an answer, besides those that the model knows.
    start: where the first weights of an adapter are kept. They are random, so a process that
        resumes takes them from there.
    """

    def __init__(
        self,
        trainer: Any,
        rows: Mapping[str, Any],
        encoded: Mapping[str, Sequence[Encoded]],
        ends: Sequence[int],
        start: Path | None,
    ) -> None:
        self._trainer = trainer
        self._rows = rows
        self._tokens = {name: [len(row.tokens) for row in part] for name, part in encoded.items()}
        self._ends = ends
        self._model = model = trainer.model
        every = dict(model.named_parameters())
        self._parameters = {name: p for name, p in every.items() if p.requires_grad}
        self._frozen = {name: p for name, p in every.items() if not p.requires_grad}
        self.num_trainable = sum(map(_numbers, self._parameters.values()))
        frozen = sum(map(_numbers, self._frozen.values()))
        self.num_frozen = frozen if self._is_adapted() else 0
        self.num_parameters = self.num_frozen or frozen + self.num_trainable
        self._loaded = LoadedModel(model, trainer.processing_class, type(model).__name__)
        files = ModelFiles(self._loaded, {}, _device(self._parameters))
        self.codec, self.memory, self.average = files.codec, files.memory, averaged
        if start is not None:
            self._begin_at(start)
        self._base = self.weights()
        self._first: str | None = None
        if self._is_whole():  # checkpoints are what `best/` needs, so it links them
            self.link: Callable[[Path, Path], None] = files.link
        held = TrainerOptimizer(trainer, self._parameters)
        self._optimizer, self.optimizer, self.load_optimizer = held, held.state, held.load

    def _begin_at(self, start: Path) -> None:
        """Take the weights that are kept there; where there are none, keep these."""
        if not start.is_dir():
            unfinished = start.with_name(f".{start.name}.tmp")
            remove(unfinished)
            unfinished.mkdir(parents=True)
            self.codec().write(self.weights(), unfinished)
            unfinished.rename(start)
        self.load(self.codec().read(start))

    def how(self) -> str:
        kind = type(self._trainer).__name__
        with_trl = type(self._trainer).__module__.startswith("trl.")
        packages = ["trl"] * with_trl + ["peft"] * self._is_adapted()
        if packages:
            kind += f" ({', '.join(f'{each} {version_of(each)}' for each in packages)})"
        frozen = sum(map(_numbers, self._frozen.values()))
        share = f", {self.num_trainable:,} weights trained beside {frozen:,} frozen ones"
        return f"engine over {kind}{share if self._frozen else ''}; {self._predictor.how()}"

    def fingerprint(self) -> str:
        """Name, shape and up to 4,096 numbers of every tensor, as they are in memory."""
        if self._first is not None:
            return self._first
        digest = sha256()
        for name, flat in self._begins_with():
            sample = flat[:: max(1, len(flat) // 4096)].cpu().contiguous().view(torch.uint8)
            digest.update(name)
            digest.update(sample.numpy().tobytes())
        return digest.hexdigest()

    def base_record(self) -> BaseRecord:
        """The model that was handed over, all of it: nobody knows whether it is what a file has."""
        digest, size = sha256(), 0
        for name, flat in self._begins_with():
            whole = flat.contiguous().view(torch.uint8)
            digest.update(name)
            for first in range(0, len(whole), PIECE):
                digest.update(whole[first : first + PIECE].cpu().numpy().data)
            size += len(whole)
        return {"the weights in memory": [size, digest.hexdigest(), None]}

    def _begins_with(self) -> Iterator[tuple[bytes, Tensor]]:
        """Name and shape, and the numbers of every tensor before training."""
        for name, weight in {**self._frozen, **self._base}.items():
            yield repr((name, tuple(weight.shape))).encode(), weight.detach().flatten()

    def recognise(self, result: Weights, first: str) -> None:
        """Go for the first weights of a finished run, whose fingerprint this is, if the model has
        every bit of that run's result: the same call has put it there."""
        same = result.keys() == self._parameters.keys() and all(
            torch.equal(mine, result[name].to(mine)) for name, mine in self._parameters.items()
        )
        self._first = first if same else None

    # State.

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._parameters.items()}

    def load(self, weights: Weights | None) -> None:
        source = self._base if weights is None else weights
        refuse_other_model(source, self._parameters)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(source[name])

    def seed(self, number: int) -> None:
        from transformers import set_seed

        set_seed(number % 2**32)

    # Work.

    def work(self, batch: Batch) -> tuple[Losses, int]:
        """One step of the trainer, with its callbacks and its logs."""
        if batch.use != "train":
            raise UsageError(
                f"this method asks for a {batch.use}, which takes losses of single rows, but "
                "compute_loss of a Trainer gives one number for a batch; use another method"
            )
        trainer, handler = self._trainer, self._trainer.callback_handler
        parts = self._collated(batch)
        where = (trainer.args, trainer.state)
        trainer.control = handler.on_step_begin(*where, trainer.control)
        loss = self._gradients(parts)
        if not isfinite(loss):
            raise NotANumber(
                f"the loss of step {trainer.state.global_step + 1} is not a number; lower "
                "learning_rate or set max_grad_norm"
            )
        norm = (
            trainer._clip_grad_norm(trainer.model_wrapped) if trainer.args.max_grad_norm else None
        )
        norm = float(trainer._get_grad_norm(trainer.model_wrapped, grad_norm=norm))
        trainer.control = handler.on_pre_optimizer_step(*where, trainer.control)
        rate = self._optimizer.step()
        trainer.control = handler.on_optimizer_step(*where, trainer.control)
        trainer.model_wrapped.zero_grad()
        state = trainer.state
        state.global_step += 1
        state.max_steps = max(state.max_steps, state.global_step + 1)  # the method says when to end
        state.epoch = (state.epoch or 0) + len(batch.rows) / self._all_rows
        trainer.control = handler.on_step_end(*where, trainer.control)
        self._log(norm, rate)
        if trainer.control.should_training_stop:
            raise Stopped("a callback of the trainer; the same call goes on")
        tokens = sum(self._tokens[name][number] for name, number in batch.rows)
        update = Update(rate, lambda: norm)
        return Losses([loss] * len(batch.rows), update=update, apart=False), tokens

    def predictor(self) -> TrainerPredictor:
        self._predictor = TrainerPredictor(self._loaded, self._ends, bool(self._trainer.args.bf16))
        return self._predictor

    def export(self, weights: Weights | None, folder: Path) -> None:
        with self._holding(weights), _no_bars():
            self._model.save_pretrained(folder)
        if self._is_adapted():
            write_facts(folder)
        self._trainer.processing_class.save_pretrained(folder)

    @contextmanager
    def _holding(self, weights: Weights | None) -> Iterator[None]:
        """Other weights in the model for a while; bit by bit the same ones afterwards."""
        mine = self.weights()
        self.load(weights)
        try:
            yield
        finally:
            self.load(mine)

    def _collated(self, batch: Batch) -> list[Any]:
        """The batch in the parts that the trainer takes at a time."""
        size = self._trainer.args.per_device_train_batch_size
        rows = [dict(self._rows[name][number]) for name, number in batch.rows]
        return [
            self._trainer.data_collator(rows[first : first + size])
            for first in range(0, len(rows), size)
        ]

    def _gradients(self, parts: Sequence[Any]) -> float:
        """The loss of all parts; its gradient is in the parameters."""
        trainer = self._trainer
        count = trainer._get_num_items_in_batch(parts, trainer.args.device)
        trainer.current_gradient_accumulation_steps = len(parts)
        loss = torch.zeros((), device=trainer.args.device)
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            trainer.accelerator.gradient_state._set_sync_gradients(last)
            loss += trainer.training_step(trainer.model_wrapped, part, count)
            trainer.current_flos += float(trainer.floating_point_ops(part))
            trainer._track_num_input_tokens(part)
            if not last:
                where = (trainer.args, trainer.state, trainer.control)
                trainer.control = trainer.callback_handler.on_substep_end(*where)
        trainer._tr_loss += loss
        return float(loss)

    def _log(self, norm: float, rate: float) -> None:
        """What the trainer logs; saving and evaluating are ours."""
        trainer = self._trainer
        trainer.control.should_evaluate = trainer.control.should_save = False
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss, norm, trainer.model_wrapped, None, 0, None, None, learning_rate=rate
        )

    @property
    def _all_rows(self) -> int:
        return sum(map(len, self._tokens.values()))

    def _is_whole(self) -> bool:
        """Whether a checkpoint has all weights of the model, as a plain model folder has them."""
        plain = all(p.dtype == torch.float32 for p in self._parameters.values())
        return plain and not self._frozen and not self._is_adapted()

    def _is_adapted(self) -> bool:
        return hasattr(self._model, "peft_config")


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without progress bars of transformers; the trainer's own stays."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _numbers(parameter: Any) -> int:
    """Weights in a parameter; of a quantized one, those that it stands for."""
    state = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if state is None else state.shape.numel())


def _device(parameters: Mapping[str, Any]) -> torch.device:
    device: torch.device = next(iter(parameters.values())).device
    return device
