"""Who records has memory and a stream of its own. There is no GPU here: the device is a toy."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import END, model_of
from plain_varlen import plain_varlen

from msft.engine.accel.cuda_graphs import Recorder
from msft.engine.decode.decoder import GeneratedRows
from msft.engine.decode.fast import RECORDS_KEPT, FastDecoder, Measurer
from msft.engine.decode.plans import AnswerPlan, Line, answer_plan
from msft.engine.decode.step import Kernels
from msft.engine.kernels import KernelChoice, answer_losses
from msft.errors import Unsuited
from msft.example import Encoded

CPU = torch.device("cpu")


class Stream:
    def wait_stream(self, other: "Stream") -> None: ...


class Graph:
    """A replay does the work again, where the tensors of the capture are."""

    def __init__(self) -> None:
        self.stream: Any = None

    def replay(self) -> None: ...


@dataclass
class Device:
    """As torch.cuda has it: a capture that fails to begin or to end leaves its stream in force."""

    current: Any = field(default_factory=Stream)
    pools: int = 0
    captures: list[tuple[int, Any, Graph]] = field(default_factory=list)
    rehearsals: list[tuple[int, Any]] = field(default_factory=list)
    broken: bool = False

    def pool(self) -> SimpleNamespace:
        self.pools += 1
        return SimpleNamespace(id=self.pools)

    def enter(self, stream: Any) -> None:
        self.current = stream

    @contextmanager
    def graph(
        self, graph: Graph, pool: int, stream: Any, capture_error_mode: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "another thread copies meanwhile"
        before, self.current = self.current, stream
        graph.stream = stream
        self.captures.append((pool, stream, graph))
        try:
            yield
        finally:
            if self.broken:
                raise RuntimeError("operation failed due to a previous error during capture")
        self.current = before

    @contextmanager
    def inside(self, pool: SimpleNamespace) -> Iterator[None]:
        self.rehearsals.append((pool.id, self.current))
        yield

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    toy = Device()
    for name, value in {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "MemPool": toy.pool,
        "use_mem_pool": toy.inside,
        "current_stream": lambda: toy.current,
        "set_stream": toy.enter,
        "graph": toy.graph,
        "stream": toy.on,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return toy


def rows_with_answers(seed: int) -> list[Encoded]:
    random = Random(seed)
    return [
        Encoded(tuple(random.randrange(2, 50) for _ in range(5)), (False,) * 3 + (True,) * 2)
        for _ in range(3)
    ]


def plan_of(seed: int) -> AnswerPlan:
    return answer_plan(rows_with_answers(seed), None, 1000, CPU)


def texts_of(rows: int) -> GeneratedRows:
    return GeneratedRows(frozenset({END}), [8] * rows, lambda row, tokens, known: None)


def forward(line: Line, reach: int) -> torch.Tensor:
    return torch.zeros(len(line.targets), 50)


def measured(measurer: Measurer, plan: AnswerPlan, times: int = 1) -> list[float]:
    found: list[Sequence[float]] = [measurer.begin(plan, 3, forward)() for _ in range(times)]
    assert all(losses == found[0] for losses in found)
    return list(found[0])


def test_graphs_that_run_beside_each_other_share_no_stream(device: Device) -> None:
    """Else they share a workspace of matrix products: torch has one for each such stream."""
    model = model_of("llama").eval()
    decoder = FastDecoder(model, Kernels(plain_varlen), 100, 1000, CPU, recorder=Recorder)
    rows = rows_with_answers(0)
    with torch.inference_mode():
        decoder.generate([(5, 7, 9)], None, texts_of(1))
        for _ in range(2):
            decoder.measure(rows, None)()
    (stepping, beside, _), (measuring, aside, _) = device.captures
    assert aside is not beside
    assert measuring != stepping


def test_what_comes_again_is_recorded_the_second_time(device: Device) -> None:
    measurer, plan = Measurer(Recorder()), plan_of(0)
    plain = measured(Measurer(None), plan)
    assert measured(measurer, plan) == plain
    assert not device.captures
    assert measured(measurer, plan, times=3) == plain
    assert len(device.captures) == 1


def test_graphs_of_one_stream_end_together(device: Device) -> None:
    """The first that ends takes the others' workspace away: pytorch issue 193402."""
    measurer, plans = Measurer(Recorder()), [plan_of(number) for number in range(RECORDS_KEPT + 1)]
    for plan in plans[:-1]:
        measured(measurer, plan, times=2)
    assert len({pool for pool, _, _ in device.captures}) == 1
    measured(measurer, plans[-1], times=2)
    assert device.captures[-1][0] != device.captures[0][0], "memory whose graphs ended has no name"
    captures = len(device.captures)
    measured(measurer, plans[-1])
    assert len(device.captures) == captures, "the last one is recorded"
    measured(measurer, plans[0], times=2)
    assert len(device.captures) == captures + 1, "the first one was forgotten"


def test_a_capture_that_fails_leaves_the_stream_in_force(device: Device) -> None:
    before, device.broken = device.current, True
    measurer, plan = Measurer(Recorder()), plan_of(0)
    assert Recorder().recorded(lambda: None) is None
    assert device.current is before
    assert measured(measurer, plan, times=3) == measured(Measurer(None), plan)
    assert len(device.captures) == 2, "and is not tried again"


def test_a_rehearsal_leaves_its_memory_to_the_recording(device: Device) -> None:
    before, recorder = device.current, Recorder()
    with recorder.rehearsing():
        assert device.current is recorder.stream
    assert device.current is before
    recorder.recorded(lambda: None)
    assert [capture[:2] for capture in device.captures] == device.rehearsals


def test_memory_that_runs_out_is_said(device: Device) -> None:
    def work() -> None:
        raise torch.OutOfMemoryError

    before = device.current
    with pytest.raises(torch.OutOfMemoryError):
        Recorder().recorded(work)
    assert device.current is before


def test_a_model_that_is_not_suited_is_never_recorded(device: Device) -> None:
    def unsuited(line: Line, reach: int) -> torch.Tensor:
        raise Unsuited("a soft cap")

    measurer, plan = Measurer(Recorder()), plan_of(0)
    begin: Callable[[], Any] = lambda: measurer.begin(plan, 3, unsuited)  # noqa: E731
    for _ in range(3):
        with pytest.raises(Unsuited):
            begin()
    assert not device.captures


def test_no_step_is_done_otherwise_because_it_was_watched(device: Device) -> None:
    """On a GPU the first step of a process is watched without fusing; its keys would stay."""

    class Fused:
        inside = False
        way = KernelChoice("fused")
        losses = staticmethod(answer_losses)

        def __enter__(self) -> None:
            self.inside = True

        def __exit__(self, *error: object) -> None:
            self.inside = False

        def fuse_projections(self) -> None: ...

    class Repeating:
        """A recorder; what it records is done at every replay, as on a GPU."""

        stream: Any = Stream()

        def renew(self) -> None: ...

        def rehearsing(self) -> AbstractContextManager[None]:
            return nullcontext()

        def recorded(self, work: Callable[[], None]) -> Any:
            return SimpleNamespace(replay=work)

    fused, model = Fused(), model_of("llama").eval()
    outside: list[Any] = []

    def turned(layer: Any, given: Any, out: Any) -> Any:
        if fused.inside:
            return out
        outside.append(out)
        return -out

    model.model.layers[0].register_forward_hook(turned)
    prompts, said = [(5, 7, 9), (8, 6, 11, 13), (4, 3)], []
    for recorder in (None, Repeating):
        decoder = FastDecoder(model, Kernels(plain_varlen), 10**6, 10**6, CPU, fused, recorder)
        texts = texts_of(3)
        with torch.inference_mode():
            decoder.generate(prompts, None, texts)
        assert len(outside) == (recorder is Repeating), "one step was watched"
        assert decoder.records == (recorder is Repeating)
        said.append(texts.rows)
    assert said[0] == said[1]
