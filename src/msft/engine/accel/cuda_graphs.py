"""CUDA graphs: work of the device that is captured once and replayed by one call.

To launch a small model's kernels one by one takes longer than to run them. A graph launches all of
a step's kernels at once. It reads and writes the addresses of its capture, so inputs and results
must stay where they are, and the work may neither wait for the host nor change a shape.

The graphs of a `Recorder` share a pool of memory, which nobody else gets while one of them lives,
and a stream. The graphs of one stream share its workspace for matrix products, so two of them must
not run at the same time (https://github.com/pytorch/pytorch/issues/193402). What runs at the same
time (training, decoding steps, likelihoods) therefore has a `Recorder` each.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Recorder:
    """Makes graphs that run one at a time and are dropped together.

    stream: the stream of the captures, on which a graph is also replayed beside other work.
    """

    def __init__(self) -> None:
        gc.collect()  # the graphs of an engine before this one
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.MemPool()

    def renew(self) -> None:
        """Take a new pool, after all graphs are dropped: torch does not use the old one again."""
        self._pool = torch.cuda.MemPool()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Inside, work runs on the stream of the captures and takes memory from the graphs' pool,
        where a capture finds it again. A backward pass runs in a thread of its own, so its memory
        is not in the pool."""
        torch.cuda.empty_cache()  # inside, torch frees none of its cache if memory runs out
        before = torch.cuda.current_stream()
        self.stream.wait_stream(before)
        try:
            with torch.cuda.stream(self.stream), torch.cuda.use_mem_pool(self._pool):
                yield
        finally:
            before.wait_stream(self.stream)

    def recorded(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """A graph of `work`, which is not executed now; None: it cannot be captured, since it waits
        for the host, say."""
        graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream()
        threads = "thread_local"  # others may be writing checkpoints meanwhile
        collecting = gc.isenabled()
        gc.disable()  # memory of other graphs that is given back during a capture ends the process
        try:
            with torch.cuda.graph(graph, self._pool.id, self.stream, capture_error_mode=threads):  # type: ignore[arg-type]
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return None
        finally:
            torch.cuda.set_stream(before)  # a capture that fails leaves another one
            if collecting:
                gc.enable()
        return graph
