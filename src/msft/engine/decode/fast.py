"""The fast path of evaluation: rows without padding, shared tokens once, steps as CUDA graphs.

All rows of all groups go together. Prefixes are computed once a call and kept once a group.
Prompts go through the model in a few long lines, then every step adds tokens to every row
(`step.py`). The host reads the tokens of some steps while the device does the next steps. Rows
that have ended are taken out when so few are left that a smaller step will do. Keys never outlive
a call, since weights may have changed; memory, graphs and plans do.

Likelihoods are the same rows at every tick. The first time, their lines go through a model of
moderate size eagerly; the second time they are recorded as a CUDA graph; from then on the graph is
replayed on a stream of its own, beside whatever else the device does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from msft.engine.decode.decoder import GeneratedRows
from msft.engine.decode.plans import (
    AnswerPlan,
    Line,
    PromptBatch,
    PromptPlan,
    answer_plan,
    bucket_of,
    prompt_plan,
    smaller_bucket,
)
from msft.engine.decode.step import (
    AT_ONCE,
    WIDTH,
    WIDTH_OF_SMALL,
    DecodeGraphs,
    Kernels,
    LineLayout,
    Stepper,
    Store,
    tokens_ahead,
)
from msft.engine.kernels import PLAIN_LAYERS, Layers, Recorder, answer_losses
from msft.engine.memory import HEAD_TOKENS, LINE_TOKENS, RECORDED_UP_TO
from msft.engine.packing import logits_of
from msft.example import Encoded
from msft.run.engine import Generated, Likelihoods

RECORDS_KEPT = 4

Forward = Callable[[Line, int], Tensor]
"""forward(line, reach): logits at the line's targets."""


@dataclass(slots=True)
class Record:
    """The CUDA graph of a plan's lines, and the tensor that its replay writes losses to."""

    plan: AnswerPlan
    graph: torch.cuda.CUDAGraph | None = None
    losses: Tensor | None = None


class Measurer:
    """-log p of answers.

    recorder: records plans that come again; None: nothing is recorded.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder
        self._records: list[Record] = []

    def forget(self) -> None:
        """Drop all graphs: they read weights by address, and the weights have moved."""
        self._records.clear()
        if self._recorder is not None:
            self._recorder.renew()

    def begin(self, plan: AnswerPlan, rows: int, forward: Forward) -> Callable[[], list[float]]:
        """Start the plan on the device; the function that is returned waits for the sums of `rows`
        rows. That function holds the plan, which a replay reads, but no KV cache."""
        losses, aside = self._losses(plan, forward)

        def sums() -> list[float]:
            if aside is not None:
                torch.cuda.current_stream().wait_stream(aside)
            total = torch.zeros(rows, dtype=torch.float64)
            if losses is not None:
                total.index_add_(0, plan.owners, losses.double().cpu())
            return total.tolist()

        return sums

    def _losses(
        self, plan: AnswerPlan, forward: Forward
    ) -> tuple[Tensor | None, torch.cuda.Stream | None]:
        """Losses of a plan's targets; and the stream that computes them, if it is another."""
        if not plan.lines:
            return None, None
        if self._recorder is None or plan.prefixes:  # a generation may write to the prefixes' slots
            return _work(plan, forward), None
        # First time: eager. Second time: recorded. From then on: replayed.
        record = next((record for record in self._records if record.plan is plan), None)
        if record is None:
            losses = _work(plan, forward)
            if len(self._records) == RECORDS_KEPT:
                self.forget()  # graphs of one recorder end together
            self._records.append(Record(plan))
            return losses, None
        if record.graph is None:
            self._record(record, self._recorder, forward)
        if record.graph is None:
            return _work(plan, forward), None
        aside = self._recorder.stream
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            record.graph.replay()
        return record.losses, aside

    def _record(self, record: Record, recorder: Recorder, forward: Forward) -> None:
        def work() -> None:
            record.losses = _work(record.plan, forward)

        record.graph = recorder.recorded(work)
        if record.graph is None:  # the model waits for the host: nothing of it can be recorded
            self._recorder = None
            self._records.clear()


def _work(plan: AnswerPlan, forward: Forward) -> Tensor:
    return torch.cat([_line(forward(line, plan.reach), line.labels) for line in plan.lines])


def _line(logits: Tensor, labels: Tensor) -> Tensor:
    parts = (torch.split(tensor, HEAD_TOKENS) for tensor in (logits, labels))
    return torch.cat([answer_losses(*part) for part in zip(*parts, strict=True)])


PLANS_KEPT = 16
GROUPS = 4
"""Numbers of groups are multiples of this, since each number needs a graph of its own."""

Plan = TypeVar("Plan", AnswerPlan, PromptPlan)


class FastDecoder:
    """The fast path. Plans are kept for lists that come again, so that only the device's part is
    done again.

    recorder: makes a recorder of the device's work; None: nothing is recorded.
    width: tokens of a step, with guesses; None: as many as take hardly longer than one token.
    steps: decoding steps of all generations so far.
    """

    def __init__(
        self,
        model: Any,
        kernels: Kernels,
        most_tokens: int,
        most_slots: int,
        device: torch.device,
        layers: Layers = PLAIN_LAYERS,
        recorder: Callable[[], Recorder] | None = None,
        width: int | None = None,
    ) -> None:
        self._model = model
        self._layers = layers
        self._kernels = kernels
        self._most = (min(most_tokens, LINE_TOKENS), most_slots)
        self._device = device
        self._recorder = recorder
        self._graphs = DecodeGraphs(recorder and recorder())
        self._store = Store(0)
        self._slot_tokens = torch.zeros(0, dtype=torch.long, device=device)
        small = sum(p.numel() for p in model.parameters()) <= RECORDED_UP_TO  # bound by launches
        self._measurer = Measurer(recorder() if recorder and small else None)
        self.width = min(width or (WIDTH_OF_SMALL if small else WIDTH), most_tokens)
        self.steps = 0
        self._steppers: dict[tuple[int, int, int], Stepper] = {}
        self._addresses: list[int] = []
        self._plans: list[tuple[tuple[Any, ...], Any]] = []

    @property
    def records(self) -> bool:
        """Whether steps are recorded, as far as one was tried."""
        return self._graphs.possible

    @property
    def buckets(self) -> list[int]:
        """The numbers of rows that steps have had."""
        return sorted({rows for rows, _, _ in self._steppers})

    def measure(
        self, rows: Sequence[Encoded], groups: Sequence[int] | None
    ) -> Callable[[], Likelihoods]:
        """Begin with -log p of each row's answer; the function that is returned waits for it."""
        plan = self._planned(
            ("answers", list(rows), groups and list(groups)),
            lambda: answer_plan(rows, groups, self._most[0], self._device),
        )
        self._compute_prefixes(plan)
        sums, tokens = self._measurer.begin(plan, len(rows), self._forward), plan.tokens
        return lambda: Likelihoods(sums(), tokens)

    def generate(
        self, prompts: Sequence[Sequence[int]], groups: Sequence[int] | None, texts: GeneratedRows
    ) -> Generated:
        """Generate into `texts`."""
        plan = self._planned(
            ("prompts", list(prompts), list(texts.limits), groups and list(groups)),
            lambda: prompt_plan(prompts, texts.limits, groups, *self._most, self._device),
        )
        self._compute_prefixes(plan)
        for batch in plan.batches:
            self._generate(batch, plan, texts)
        tokens = plan.tokens + sum(len(text) - 1 for text in texts.rows)  # without wrong guesses
        return Generated(texts.rows, tokens)

    def _planned(self, key: tuple[Any, ...], make: Callable[[], Plan]) -> Plan:
        """The plan of this key, made if it is not kept. Keys are compared by value, which is quick
        for lists that hold the same objects."""
        for other, plan in self._plans:
            if other == key:
                same: Plan = plan
                return same
        made = make()
        self._plans = [*self._plans[1 - PLANS_KEPT :], (key, made)]
        return made

    def _compute_prefixes(self, plan: AnswerPlan | PromptPlan) -> None:
        """Compute the keys of all prefixes, into a store with room for the plan. Graphs have store
        and weights by address, so they are dropped where either has moved."""
        addresses = [parameter.data_ptr() for parameter in self._model.parameters()]
        if self._store.slots < plan.slots or self._addresses != addresses:
            self._steppers.clear()
            possible = self._graphs.possible and self._recorder
            self._graphs = DecodeGraphs(possible() if possible else None)
            self._store = Store(plan.slots)
            self._slot_tokens = torch.zeros(plan.slots, dtype=torch.long, device=self._device)
        if self._addresses != addresses:
            self._measurer.forget()
            self._addresses = addresses
        for line in plan.prefixes:
            self._forward(line, plan.reach)

    def _forward(self, line: Line, reach: int) -> Tensor:
        """Logits at the line's targets."""
        present = LineLayout(self._kernels, line, self._store, reach)
        with self._layers:
            return logits_of(self._model, line.tokens, line.positions, present, line.targets)

    def _generate(self, batch: PromptBatch, plan: PromptPlan, texts: GeneratedRows) -> None:
        first = [self._forward(line, plan.reach).argmax(-1) for line in batch.lines]
        for line in batch.lines:
            assert line.slots is not None, "prompts are kept"
            self._slot_tokens.index_copy_(0, line.slots, line.tokens)
        batch.states.token.copy_(torch.cat(first))
        copies = AsyncTokenCopy(texts)
        one = torch.ones_like(batch.states.token)
        copies.send(torch.stack([one, batch.states.token], 1)[None], batch.rows)
        alive, steps = list(range(len(batch.rows))), 0
        stepper = self._begun(bucket_of(len(alive)), batch, plan, alive, batch.states.table)
        while staying := [n for n, place in enumerate(alive) if texts.open(batch.rows[place])]:
            if smaller_bucket(len(staying)) < stepper.rows:
                alive = [alive[number] for number in staying]
                index = torch.tensor(staying, device=self._device)
                table = stepper.states.table.index_select(1, index)
                stepper = self._begun(smaller_bucket(len(alive)), batch, plan, alive, table)
            open_rows = (batch.rows[place] for place in alive if texts.open(batch.rows[place]))
            left = max(texts.limits[row] for row in open_rows) - 1 - steps
            if left <= 0:  # the last tokens of these rows are on their way to the host
                break
            # The host looks at tokens every few steps: more often with guesses, which let rows end
            # sooner, and at first, since most answers are short.
            many = min(max(2, AT_ONCE // stepper.ahead), left, max(2, steps))
            copies.send(stepper.run(many), [batch.rows[place] for place in alive])
            steps += many
            self.steps += many
            copies.read(but=1)
        copies.read(but=0)

    def _begun(
        self, rows: int, batch: PromptBatch, plan: PromptPlan, alive: list[int], table: Tensor
    ) -> Stepper:
        """A stepper for `rows` rows that has taken up the rows of a batch that are left.

        alive: indices of these rows in the batch. table: their states.
        """
        groups = -(-(len(plan.prefix_slots) - 1) // GROUPS) * GROUPS if plan.prefixes else 0
        ahead = tokens_ahead(rows, self.width, self._store.repeats)
        key = (rows, groups, batch.span if ahead > 1 else 0)
        if key not in self._steppers:
            held = (self._model, self._store, self._slot_tokens, self._kernels, self._graphs)
            self._steppers[key] = Stepper(*held, *key, ahead, self._layers)
        stepper = self._steppers[key]
        stepper.begin(table, batch.end)
        if groups:
            members = [0] * groups
            for place in alive:
                members[batch.group[place]] += 1
            more = groups + 1 - len(plan.prefix_slots)
            stepper.see_prefixes(members, [*plan.prefix_slots, *plan.prefix_slots[-1:] * more])
        return stepper


class AsyncTokenCopy:
    """Copies tokens from the device to the texts; the device does not wait for the host."""

    def __init__(self, texts: GeneratedRows) -> None:
        self._texts = texts
        self._sent: list[tuple[Tensor, Sequence[int], torch.cuda.Event | None]] = []

    def send(self, tokens: Tensor, rows: Sequence[int]) -> None:
        """Begin to copy the tokens of some steps.

        tokens: as in `Stepper.history`.
        """
        event = None
        here = torch.empty_like(tokens, device="cpu", pin_memory=tokens.is_cuda)
        here.copy_(tokens, non_blocking=True)
        if tokens.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._sent.append((here, rows, event))

    def read(self, but: int) -> None:
        """Add to the texts what was sent, but for the last `but` copies."""
        while len(self._sent) > but:
            tokens, rows, event = self._sent.pop(0)
            if event is not None:
                event.synchronize()
            for row, steps in zip(rows, tokens.transpose(0, 1).tolist(), strict=False):
                self._texts.add(row, [token for n, *made in steps for token in made[:n]])
