"""The optimizer: learning rates, AdamW on fp32 master weights, and their moving average.

**Masters.** At a learning rate of 1e-5 most updates of a bf16 weight round to nothing. So the
weights that are trained, stored and handed out are fp32 masters; a bf16 model computes with their
rounded copy. Masters, moments and gradients lie in fixed tensors, where a recorded step
(`graphs.py`) finds them again.

**A step** is `begin_step` on the host, then `step`, which a graph may have recorded: so everything
that changes from step to step (rate, count, whether a loss was NaN) is a tensor on the device. With
gradient g, moments m and v, count t, rate η and decay λ it is

    m ← β₁ m + (1 - β₁) g        v ← β₂ v + (1 - β₂) g²
    w ← (1 - ηλ) w - η · (m / (1 - β₁ᵗ)) / (√(v / (1 - β₂ᵗ)) + ε)

There are three ways to take it, with the same numbers but for rounding:

- *One kernel* (`_new_update`, `_numbers`; `accel/adamw_kernel.py`) for bf16 models on CUDA. It
  reads gradients in bf16 or fp32. In one pass it writes masters, moments, working copy and average.
- *torch's fused AdamW* (`_fused_step`) with fp32 moments where there is no kernel.
- *By hand, tensor by tensor* (`_halved_step`) with bf16 moments where there is no kernel.

The last two leave working copy and average to `refresh` and `MovingAverage.move`.

**The average.** With `ema_decay` training moves the raw weights, and their exponential moving
average is scored, kept and returned. Raw weights and average are fp32 tensors of their own. The
model's parameters show one of the two at a time: as a copy where the model computes in bf16, else
as the tensors themselves.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any, Literal

import torch
from torch import Tensor, nn

from msft.engine.kernels import KernelChoice, optimizer_way, update_of

Schedule = Literal["constant", "constant_with_warmup", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The optimizer's side of a recipe; defaults are the paper's.

    bf16: compute with bf16 copies of the fp32 weights.
    micro_batch_tokens: the most tokens of one forward pass with a gradient.
    evaluated_tokens: the most tokens of one that keeps nothing.
    batch_rows: the most rows of a step, for recorded steps; 0: none are recorded.
    half_moments: the optimizer's moments in bf16.
    kernel: whether one kernel takes the optimizer's step; None: where this machine has it.
    ema_decay: what is kept and scored is the moving average of the weights with this decay; None:
        the weights themselves.
    lanes: parts of a batch whose gradients are summed in a fixed order (`parallel.py`).
    full_sharding: each rank has a slice of every master (`sharding.py`).
    """

    learning_rate: float = 1e-5
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    schedule_steps: int = 1
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    bf16: bool = False
    gradient_checkpointing: bool = False
    micro_batch_tokens: int = 16384
    evaluated_tokens: int = 32768
    batch_rows: int = 0
    half_moments: bool = False
    kernel: bool | None = None
    ema_decay: float | None = None
    lanes: int = 1
    full_sharding: bool = False

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule in ("constant", "constant_with_warmup"):
            return self.learning_rate
        left = max(1, self.schedule_steps - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / left)
        share = 1 - done if self.schedule == "linear" else (1 + cos(pi * done)) / 2
        return self.learning_rate * share


VECTOR = 64
"""A multiple of the numbers that a CPU computes at a time."""


def pad_to_simd(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the CPU whose size does not fill SIMD vectors, flat and padded with zeros.

    torch's fused AdamW takes what does not fill a vector number by number, and that rounds
    differently: a slice of a tensor would not get the bits that the whole gets.
    """
    return [
        nn.functional.pad(tensor.reshape(-1), (0, -tensor.numel() % VECTOR))
        if tensor.device.type == "cpu" and tensor.numel() % VECTOR
        else tensor
        for tensor in tensors
    ]


def take_back(tensors: Sequence[Tensor], whole: Sequence[Tensor]) -> None:
    """Copy what became of padded tensors back into the tensors."""
    for tensor, padded in zip(tensors, whole, strict=True):
        if padded is not tensor:
            tensor.copy_(padded[: tensor.numel()].view_as(tensor))


RAW = "raw"
"""Beside moments, `<name>.raw` is the raw weight of that name."""


class MovingAverage:
    """average ← d · average + (1 − d) · raw, after every step and for every weight.

    raw: in fp32; the optimizer changes them in place.
    parameters: the model's, which show the raw weights at first.
    """

    def __init__(
        self, raw: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], decay: float
    ) -> None:
        self.tensors = {name: weight.clone() for name, weight in raw.items()}
        self.share = 1 - decay
        self._raw = raw
        self._parameters = parameters
        self._shown: Mapping[str, Tensor] | None = raw
        self.told: Callable[[], None] = lambda: None
        """Called when the parameters show other weights, which other ranks must then see too."""

    def restart(self) -> None:
        """Set the average to the raw weights."""
        torch._foreach_copy_(list(self.tensors.values()), list(self._raw.values()))
        self._shown = None

    def take_raw(self, moments: Mapping[str, Tensor]) -> None:
        """Take the raw weights that are kept beside these moments, if there are any."""
        given = [moments[key] for name in self._raw if (key := f"{name}.{RAW}") in moments]
        if given:
            torch._foreach_copy_(list(self._raw.values()), given, non_blocking=True)
            self._shown = None

    def move(self, bad: Tensor | None = None, done: Collection[str] = ()) -> None:
        """Follow a step, unless `bad` is 1. done: weights that the step itself has moved."""
        left = [name for name in self.tensors if name not in done]
        share = self.share * (1 - bad) if left and bad is not None else self.share
        for name in left:
            self.tensors[name].lerp_(self._raw[name], share)

    def show(self) -> None:
        """Let the model have the average."""
        self._bring(self.tensors)

    def show_raw(self) -> None:
        """Let the model have the raw weights."""
        self._bring(self._raw)

    def _bring(self, weights: Mapping[str, Tensor]) -> None:
        """Let the parameters show these weights, unless they do already."""
        if weights is self._shown:
            return
        shown: list[Tensor] = [self._parameters[name] for name in weights]
        if shown[0].dtype == torch.float32:
            for parameter, weight in zip(shown, weights.values(), strict=True):
                parameter.data = weight
        else:
            with torch.no_grad():
                torch._foreach_copy_(shown, list(weights.values()))
        self._shown = weights
        self.told()


def refuse_other_model(weights: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """ValueError if the names or shapes of weights are not those of a model."""
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())
        raise ValueError(f"these weights are of another model: tensor {odd[0]!r} differs")
    for name, parameter in parameters.items():
        if weights[name].shape != parameter.shape:
            raise ValueError(
                f"these weights are of another model: {name!r} has shape "
                f"{tuple(weights[name].shape)}, expected {tuple(parameter.shape)}"
            )


BETAS = (0.9, 0.999)
EPSILON = 1e-8
KINDS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """Masters, moments, the step, and the masters' moving average where there is one.

    working: the model's parameters, in fp32 when given.
    mixed: the model computes in bf16 from now on.
    halved: moments are kept in bf16, rounded at random so that small changes are not lost on
        average; for models whose fp32 moments do not fit.
    kernel: whether one kernel takes a step; None: where this machine has it. `way` says which.
    ema_decay: of the average; None: there is none.
    """

    def __init__(
        self,
        working: Mapping[str, nn.Parameter],
        weight_decay: float = 0.0,
        mixed: bool = False,
        halved: bool = False,
        kernel: bool | None = None,
        ema_decay: float | None = None,
    ) -> None:
        self._working = dict(working)
        self._mixed = mixed
        self.masters: dict[str, Tensor] = {name: p.detach() for name, p in working.items()}
        if mixed:
            for parameter in self._working.values():
                parameter.data = parameter.data.bfloat16()
        self.average: MovingAverage | None = None
        if ema_decay is not None:
            self.average = MovingAverage(self.masters, self._working, ema_decay)
        dtype = torch.bfloat16 if halved else torch.float32
        self.moments = {
            f"{name}.{kind}": torch.zeros_like(master, dtype=dtype)
            for name, master in self.masters.items()
            for kind in KINDS
        }
        device = next(iter(self.masters.values())).device
        self.way = optimizer_way(device, mixed)
        if kernel is not None:
            self.way = KernelChoice("kernel" if kernel else "torch")
        elif not all(master.is_contiguous() for master in self.masters.values()):
            self.way = KernelChoice("torch", "weights with gaps")
        self._kernel = self.way.path == "kernel"
        self._update: Any = None
        self._halved = halved
        self._decay = weight_decay
        self._count = torch.zeros((), device=device)
        exact = torch.float64 if device.type == "cpu" else torch.float32  # as the kernels read it
        self._rate = torch.zeros((), device=device, dtype=exact)
        self._steps = 0
        self._sums: dict[str, Tensor] = {}
        self.bad = torch.zeros((), device=device)
        """A flag that is set when a loss is NaN or infinite; then the step changes nothing."""
        self.norm_of: Callable[[Mapping[str, Tensor]], Tensor] = _norm
        """The norm of gradients: where ranks own the weights between them, over all ranks."""
        self.reseed: Callable[[int, str], None] | None = None
        """Called with the step and the name of the tensor that is rounded at random next."""
        self.norm = torch.zeros((), device=device)
        """The norm of the gradient of the last step, before clipping."""

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def kept(self) -> dict[str, Tensor]:
        """What is stored and handed out: the average where there is one, else the masters."""
        return self.masters if self.average is None else self.average.tensors

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Masters and average from these weights; ValueError if they are of another model."""
        refuse_other_model(weights, self.masters)
        with torch.no_grad():
            given = [weights[name] for name in self.masters]
            torch._foreach_copy_(list(self.masters.values()), given, non_blocking=True)
            if self.average is None:
                self.refresh()
            else:
                self.average.restart()

    def start(self, steps: int, moments: Mapping[str, Tensor]) -> None:
        """Go on from moments, and from the raw weights beside them; with steps 0, afresh."""
        self._steps = steps
        self._count.fill_(steps)
        held = list(self.moments.values())
        if steps:
            torch._foreach_copy_(held, [moments[name] for name in self.moments], non_blocking=True)
        else:
            torch._foreach_zero_(held)
        if self.average is not None:
            self.average.take_raw(moments)

    def refresh(self) -> None:
        """The working weights from the masters."""
        if self._mixed:
            torch._foreach_copy_(list(self._working.values()), list(self.masters.values()))

    def begin_step(self, rate: float) -> None:
        """Hand over what a step needs from the host, before it is taken or replayed."""
        self._rate.fill_(rate)
        self._steps += 1
        if self._kernel:
            self._update = self._update or self._new_update()
            self._update.ready()

    def cancel_step(self) -> None:
        """Take `begin_step` back: the step was not taken."""
        self._steps -= 1

    def forget(self) -> None:
        """Drop all gradients."""
        self._sums.clear()
        for parameter in self._working.values():
            parameter.grad = None

    def add_up(self) -> None:
        """Add a micro-batch's gradients in fp32; fp32 models do so by themselves."""
        if not self._halved:
            add_up(self._working, self._sums)

    def take(self, gradients: Mapping[str, Tensor]) -> None:
        """Use these gradients for the next step. The kernel widens them to fp32 by itself."""
        self._sums = {n: g if self._kernel else g.float() for n, g in gradients.items()}

    def step(self, max_grad_norm: float) -> None:
        """Take a step with the gradients of the working weights, and drop them."""
        with torch.no_grad():
            gradients = self._gradients()
            self.norm.copy_(self.norm_of(gradients))
            shrink = _shrink(self.norm, max_grad_norm)
            self._count += 1 - self.bad
            if self._kernel:
                numbers = self._numbers(shrink)
                self._update.take(gradients, numbers, self._decay, self.bad)
                if self.average is not None:  # the kernel has moved those with a gradient
                    self.average.move(self.bad, done=gradients)
            else:
                if shrink is not None:
                    torch._foreach_mul_(list(gradients.values()), shrink)
                if self._halved:
                    self._halved_step(gradients)
                else:
                    self._fused_step(gradients)
                self.refresh()
                if self.average is not None:
                    self.average.move(self.bad)
        self.forget()

    def sgd(self, rate: float) -> None:
        """Take a plain step down the gradients, and drop them; moments stay."""
        with torch.no_grad():
            for name, gradient in self._gradients().items():
                self.masters[name].sub_(gradient, alpha=rate)
            self.refresh()
        self.forget()

    def _gradients(self) -> dict[str, Tensor]:
        """The gradients of this step, in fp32 where the moments are and no kernel widens them."""
        if self._sums:
            return dict(self._sums)
        gradients = {n: p.grad for n, p in self._working.items() if p.grad is not None}
        if not self._mixed or self._halved or self._kernel:
            return gradients
        wide = {name: torch.empty_like(self.masters[name]) for name in gradients}
        torch._foreach_copy_(list(wide.values()), list(gradients.values()))
        return wide

    def _new_update(self) -> Any:
        means, squares = ([self.moments[f"{n}.{kind}"] for n in self.masters] for kind in KINDS)
        working = [self._working[name] for name in self.masters]
        tensors = (self.masters, means, squares, working)
        if self.average is None:
            return update_of(*tensors, BETAS, EPSILON)
        averages = [self.average.tensors[name] for name in self.masters]
        return update_of(*tensors, BETAS, EPSILON, averages, self.average.share)

    def _numbers(self, shrink: Tensor | None) -> Tensor:
        """What the kernel reads from the device: rate, bias corrections, clipping."""
        count, rate = self._count.double(), self._rate.double()
        first, second = (1 - beta**count for beta in BETAS)
        by = torch.ones_like(rate) if shrink is None else shrink.double()
        return torch.stack([rate, rate / first, second.sqrt(), by]).float()

    def _fused_step(self, gradients: dict[str, Tensor]) -> None:
        moments = ([self.moments[f"{name}.{kind}"] for name in gradients] for kind in KINDS)
        moved = [[self.masters[name] for name in gradients], *moments]
        masters, means, squares = stepped = [pad_to_simd(tensors) for tensors in moved]
        torch._fused_adamw_(
            masters,
            pad_to_simd(list(gradients.values())),
            means,
            squares,
            [],
            [self._count] * len(gradients),
            lr=self._rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self._decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=self.bad,
        )
        for tensors, whole in zip(moved, stepped, strict=True):
            take_back(tensors, whole)

    def _halved_step(self, gradients: dict[str, Tensor]) -> None:
        good = 1 - self.bad
        count = self._count.clamp(min=1)
        first, second = (1 - beta**count for beta in BETAS)
        rate = (self._rate * good).to(torch.float32)
        for name in list(gradients):
            gradient = torch.where(good > 0, gradients.pop(name).float(), 0)
            self._working[name].grad = None
            mean, square = (self.moments[f"{name}.{kind}"] for kind in KINDS)
            wide_mean = mean.float().lerp_(gradient, (1 - BETAS[0]) * good)
            wide_square = square.float().lerp_(gradient.square_(), (1 - BETAS[1]) * good)
            width = (wide_square / second).sqrt_().add_(EPSILON)
            master = self.masters[name]
            master.mul_(1 - rate * self._decay)
            master.sub_(wide_mean.div(width).mul_(rate / first))
            if self.reseed is not None:
                self.reseed(self._steps, name)
            mean.copy_(stochastic_round(wide_mean))
            square.copy_(stochastic_round(wide_square))

    def state(self) -> dict[str, Any]:
        """A private copy of the moments, and of the masters where what is kept is their average."""
        tensors = copied(self.moments) if self._steps else {}
        if self.average is not None:
            tensors |= copied({f"{name}.{RAW}": master for name, master in self.masters.items()})
        return {"steps": self._steps, "tensors": tensors}


def add_up(parameters: Mapping[str, nn.Parameter], sums: dict[str, Tensor]) -> None:
    """Add the gradients of parameters that are not in fp32 to fp32 sums, and drop them."""
    for name, parameter in parameters.items():
        if parameter.grad is None or parameter.dtype == torch.float32:
            continue
        if name in sums:
            sums[name] += parameter.grad
        else:
            sums[name] = parameter.grad.float()
        parameter.grad = None


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors of one dtype: parts of one tensor, made by a few launches for all.

    In host memory, if the device has no room.
    """
    held = list(tensors.values())
    size, dtype = sum(tensor.numel() for tensor in held), held[0].dtype
    try:
        whole = torch.empty(size, dtype=dtype, device=held[0].device)
    except torch.OutOfMemoryError:
        whole = torch.empty(size, dtype=dtype)
    copies = torch._utils._unflatten_dense_tensors(whole, held)  # type: ignore[no-untyped-call]
    torch._foreach_copy_(copies, held)
    return dict(zip(tensors, copies, strict=True))


def _norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """The common norm of gradients, as torch has it."""
    norms = torch._foreach_norm(list(gradients.values()), 2, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _shrink(norm: Tensor, most: float) -> Tensor | None:
    """The factor that brings a norm down to `most`, as torch computes it; None: no clipping."""
    return (most / (norm + 1e-6)).clamp(max=1.0) if most else None


def stochastic_round(wide: Tensor) -> Tensor:
    """fp32 → bf16, rounded up or down with probabilities that keep the mean."""
    noise = torch.randint(0, 1 << 16, wide.shape, dtype=torch.int32, device=wide.device)
    bits = wide.view(torch.int32) + noise
    return bits.bitwise_and_(-(1 << 16)).view(torch.float32)
