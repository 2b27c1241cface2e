"""The engine over a Trainer: its model, its optimizer, its `training_step`, one step at a time.

Gradient accumulation, clipping, autocast, callbacks and the logs of the trainer are its own. What
is ours: which rows come next, what is kept, and where training goes back to. Weights are those
that are trained; the frozen ones of an adapter's base never change and are in no checkpoint.
Answers come from our decoder on the trainer's model, with our attention for as long as it runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from msft.engine.decode.decoder import Decoder
from msft.engine.isolation import leak_of, padding_leak
from msft.engine.kernels import HALF
from msft.engine.memory import EVALUATED_TOKENS
from msft.engine.model.folders import write_facts
from msft.engine.model.loading import LoadedModel, end_tokens
from msft.engine.optimizer import refuse_other_model
from msft.engine.packing import NAME as ATTENTION
from msft.engine.packing import RowLayout, logits_of
from msft.engine.saving.model_files import ModelFiles, TorchEngine, Weights
from msft.engine.saving.weight_files import PIECE
from msft.engine.simple import SimplePredictor
from msft.errors import NotANumber, Stopped, UsageError
from msft.example import Encoded
from msft.files import remove
from msft.run.engine import Generated, Likelihoods, StopRow
from msft.run.environment import BaseRecord, version_of
from msft.search.feeds import Batch, Losses, Update

NUMBERS = {int: torch.int64, float: torch.float64}
"""The dtypes in which numbers of an optimizer's state stand beside its tensors, in their files."""


class TrainerOptimizer:
    """A trainer's optimizer and scheduler, which it has once it trains.

    parameters: those that are trained, by name.
    steps: taken since it was fresh.
    """

    def __init__(self, trainer: Any, parameters: Mapping[str, Any]) -> None:
        self._trainer = trainer
        self._parameters = parameters
        self._groups: list[dict[str, Any]] | None = None
        self.steps = 0

    def state(self) -> dict[str, Any]:
        """Steps and tensors, as a copy; UsageError where there is more to it."""
        if self._groups is not None and self._settings() != self._groups:
            raise self._refused_state("numbers that change in its parameter groups")
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            for key, value in self._inner.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{key}:{name}"] = value.detach().clone()
                elif type(value) in NUMBERS:
                    held = torch.tensor(value, dtype=NUMBERS[type(value)])
                    tensors[f"{key}={type(value).__name__}:{name}"] = held
                else:
                    raise self._refused_state(f"a {type(value).__name__} as {key}")
        return {"steps": self.steps, "tensors": tensors}

    def load(self, moments: Mapping[str, Any] | None) -> None:
        """Stand where a state was taken; None: fresh."""
        if self._groups is None:
            self._groups = self._settings()
        self._inner.state.clear()
        self.steps = int(moments["steps"]) if moments else 0
        on_device = {
            parameter
            for group in self._inner.param_groups
            for parameter in group["params"]
            if group.get("fused") or group.get("capturable")
        }
        for text, value in (moments["tensors"] if moments else {}).items():
            key, _, name = text.partition(":")
            key, _, kind = key.partition("=")
            parameter = self._parameters[name]
            stays = key == "step" and parameter not in on_device  # as torch keeps its counts
            place = "cpu" if stays else parameter.device
            held = value.item() if kind else value.to(place, copy=True)
            self._inner.state.setdefault(parameter, {})[key] = held
        self._set_rate()

    def step(self) -> float:
        """Take a step; its learning rate."""
        self._trainer.optimizer.step()
        rate = float(self._trainer._get_learning_rate())
        self.steps += 1
        self._set_rate()
        return rate

    def _set_rate(self) -> None:
        """The learning rate of the next step."""
        scheduler, groups = self._trainer.lr_scheduler, self._inner.param_groups
        for group, base, share in zip(
            groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
        ):
            group["lr"] = base * share(self.steps)
        scheduler.last_epoch = self.steps
        scheduler._last_lr = [group["lr"] for group in groups]

    @property
    def _inner(self) -> Any:
        """The optimizer within Accelerate's."""
        return getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)

    def _settings(self) -> list[dict[str, Any]]:
        """The settings of the optimizer's groups, without parameters and learning rate."""
        apart = ("params", "lr", "initial_lr")
        return [
            {key: value for key, value in group.items() if key not in apart}
            for group in self._inner.param_groups
        ]

    def _refused_state(self, what: str) -> UsageError:
        return UsageError(
            f"optim {self._trainer.args.optim} ({type(self._inner).__name__}) keeps {what}, which "
            "no checkpoint can hold; use an optimizer with tensors and numbers for each weight, "
            'such as optim="adamw_torch"'
        )


class TrainerPredictor:
    """A `msft.run.engine.Predictor`. Where our attention does not suit the model, transformers
    generates.

    more_ends: tokens that end an answer, besides those that the model knows.
    """

    def __init__(self, loaded: LoadedModel, more_ends: Sequence[int], bf16: bool) -> None:
        model = loaded.model
        self._model = inner_model(model)
        parameter = next(self._model.parameters())
        self._device: str = parameter.device.type
        self._bf16 = bf16 and parameter.dtype == torch.float32
        most = EVALUATED_TOKENS.get(self._device, EVALUATED_TOKENS["cpu"])
        plain = LoadedModel(self._model, loaded.tokenizer, loaded.name)
        ends = sorted({*end_tokens(plain), *more_ends})
        self._decoder: Decoder | SimplePredictor = Decoder(self._model, ends, most)
        with self._attention(exact=True), _in_fp32(self._model) as half:
            self._leak = leak_of(self._model, half)
        self._padding: str | None = None
        if self._leak is not None:
            self._decoder = SimplePredictor(plain, most, self._bf16, more_ends)
            with self._attention(exact=True), _in_fp32(self._model):
                self._padding = padding_leak(plain)
            plain = replace(plain, padded=self._padding is None)
            self._decoder = SimplePredictor(plain, most, self._bf16, more_ends)

    def how(self) -> str:
        """The name of the decoder, for people."""
        if self._leak is None:
            return "msft's decoder answers"
        alone = f"; one row at a time: {self._padding}" if self._padding else ""
        return f"transformers generates, which is slower ({self._leak}{alone})"

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        leaves: StopRow,
        groups: Sequence[int],
    ) -> Generated:
        with self._attention():
            return self._decoder.generate(prompts, limits, leaves, groups)

    def measure(self, rows: Sequence[Encoded], groups: Sequence[int]) -> Callable[[], Likelihoods]:
        with self._attention():
            found = self._decoder.measure(rows, groups)()
        return lambda: found

    @contextmanager
    def _attention(self, exact: bool = False) -> Iterator[None]:
        """Our attention in the model, and the precision in which the trainer computes; exact: that
        of the weights."""
        config, training = self._model.config, self._model.training
        theirs = config._attn_implementation
        if isinstance(self._decoder, Decoder):
            config._attn_implementation = ATTENTION
        bf16 = self._bf16 and not exact
        precision = torch.autocast(self._device, torch.bfloat16, enabled=bf16, cache_enabled=False)
        try:
            with precision:
                yield
        finally:
            config._attn_implementation = theirs
            self._model.train(training)


def inner_model(model: Any) -> Any:
    """The model of transformers, with the layers of its adapter in it: of a PeftModel the one that
    it wraps; one with `add_adapter` is that already."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def _in_fp32(model: Any) -> Iterator[bool]:
    """The model in fp32 for a while, as rounding in 16 bits would hide what is to be proved.

    True: it computes in 16 bits all the same, since memory does not hold it in fp32, four bits are
    computed in 16, or somebody else's autocast is around it.
    """
    wrapped = vars(model).get("forward")
    before = vars(model).get("_original_forward")  # what accelerate has put autocast around
    every = (*model.parameters(), *model.buffers())
    halves = [(tensor, tensor.dtype) for tensor in every if tensor.dtype in HALF]
    try:
        try:
            for tensor, _ in halves:
                tensor.data = tensor.data.float()
        except torch.OutOfMemoryError:
            _restore_dtypes(halves)
        if before is not None:
            model.forward = before
        yield _computes_in_half(model)
    finally:
        if before is not None:
            model.forward = wrapped
        _restore_dtypes(halves)


def _computes_in_half(model: Any) -> bool:
    """Whether a layer of the model computes in 16 bits."""
    found: set[Any] = {getattr(module, "compute_dtype", None) for module in model.modules()}

    def look(module: Any, inputs: Any, output: Any) -> None:
        found.add(getattr(output, "dtype", None))

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    tokens = torch.tensor([2, 3], device=model.device)
    places = torch.arange(2, device=model.device)
    try:
        with torch.no_grad():
            logits_of(model, tokens, places, RowLayout([2], model.device), places)
    except Exception:  # leak_of says why it does not run
        found.clear()
    finally:
        for hook in hooks:
            hook.remove()
    return not found.isdisjoint(HALF)


def _restore_dtypes(halves: Sequence[tuple[Any, torch.dtype]]) -> None:
    """Every tensor in its own precision again, bit by bit the same."""
    for tensor, kind in halves:
        tensor.data = tensor.data.to(kind)


class TrainerEngine(TorchEngine):
    """A Trainer as an engine.

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
        self.num_trainable = sum(map(_count, self._parameters.values()))
        frozen = sum(map(_count, self._frozen.values()))
        self.num_frozen = frozen if self._is_adapted() else 0
        self.num_parameters = self.num_frozen or frozen + self.num_trainable
        self._loaded = LoadedModel(model, trainer.processing_class, type(model).__name__)
        self._files = files = ModelFiles(self._loaded, {}, _device(self._parameters))
        self._optimizer = TrainerOptimizer(trainer, self._parameters)
        if start is not None:
            self._begin_at(start)
        self._base = self.weights()
        self._first: str | None = None
        adapted, weight = self._is_adapted(), next(iter(self._parameters.values()))
        self.bytes_a_weight = 0 if adapted else weight.element_size()  # an adapter is small
        self.links = self._is_whole() and files.links  # checkpoints are what `best/` needs

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
        frozen = sum(map(_count, self._frozen.values()))
        share = f", {self.num_trainable:,} weights trained beside {frozen:,} frozen ones"
        return f"engine over {kind}{share if self._frozen else ''}; {self._predictor.how()}"

    def fingerprint(self) -> str:
        """Name, shape and up to 4,096 numbers of every tensor, as they are in memory."""
        if self._first is not None:
            return self._first
        digest = sha256()
        for name, flat in self._first_weights():
            sample = flat[:: max(1, len(flat) // 4096)].cpu().contiguous().view(torch.uint8)
            digest.update(name)
            digest.update(sample.numpy().tobytes())
        return digest.hexdigest()

    def base_record(self) -> BaseRecord:
        """A digest of the whole model in memory, which may differ from any file of it."""
        digest, size = sha256(), 0
        for name, flat in self._first_weights():
            whole = flat.contiguous().view(torch.uint8)
            digest.update(name)
            for first in range(0, len(whole), PIECE):
                digest.update(whole[first : first + PIECE].cpu().numpy().data)
            size += len(whole)
        return {"the weights in memory": [size, digest.hexdigest(), None]}

    def _first_weights(self) -> Iterator[tuple[bytes, Tensor]]:
        """Name and shape, and the numbers of every tensor before training."""
        for name, weight in {**self._frozen, **self._base}.items():
            yield repr((name, tuple(weight.shape))).encode(), weight.detach().flatten()

    def recognise(self, result: Weights, first: str) -> None:
        """Take over the fingerprint of a finished run's first weights if the model has every bit of
        the run's result, which the same call has put there."""
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

    def optimizer(self) -> dict[str, Any]:
        return self._optimizer.state()

    def load_optimizer(self, moments: Mapping[str, Any] | None) -> None:
        self._optimizer.load(moments)

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
        every = sum(map(len, self._tokens.values()))
        state.epoch = (state.epoch or 0) + len(batch.rows) / every
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
        with self._with_weights(weights), _no_bars():
            self._model.save_pretrained(folder)
        if self._is_adapted():
            write_facts(folder)
        self._trainer.processing_class.save_pretrained(folder)

    @contextmanager
    def _with_weights(self, weights: Weights | None) -> Iterator[None]:
        """Hold other weights in the model; afterwards it has its own again, bit by bit."""
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
        """Let the trainer log; msft saves and evaluates."""
        trainer = self._trainer
        trainer.control.should_evaluate = trainer.control.should_save = False
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss, norm, trainer.model_wrapped, None, 0, None, None, learning_rate=rate
        )

    def _is_whole(self) -> bool:
        """Whether a checkpoint has all weights of the model, as a plain model folder has them."""
        plain = all(p.dtype == torch.float32 for p in self._parameters.values())
        return plain and not self._frozen and not self._is_adapted()

    def _is_adapted(self) -> bool:
        return hasattr(self._model, "peft_config")


@contextmanager
def _no_bars() -> Iterator[None]:
    """Hide the progress bars of transformers; the trainer's own stays."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _count(parameter: Any) -> int:
    """Weights in a parameter; of a quantized one, those that it stands for."""
    state = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if state is None else state.shape.numel())


def _device(parameters: Mapping[str, Any]) -> torch.device:
    device: torch.device = next(iter(parameters.values())).device
    return device
