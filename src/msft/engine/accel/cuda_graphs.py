"""CUDA graphs of the device's work; each set of them has its own memory and stream.

Graphs of one stream share its workspace for matrix products, so two of them must not run at one
time (https://github.com/pytorch/pytorch/issues/193402): each set has a `Recorder` of its own.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Recorder:
    """Makes graphs that run one at a time and end together.

    stream: where they are captured; what is replayed beside others goes there too.
    """

    def __init__(self) -> None:
        gc.collect()  # the graphs of an engine before this one
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.MemPool()

    def renew(self) -> None:
        """All graphs have ended: torch does not take up the name of their memory again."""
        self._pool = torch.cuda.MemPool()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """What is done inside goes where graphs are captured, and leaves them its memory: that of
        this thread, so not what a backward pass takes.

        Inside, torch does not give back what it keeps for later if memory runs out, so before.
        """
        torch.cuda.empty_cache()
        before = torch.cuda.current_stream()
        self.stream.wait_stream(before)
        try:
            with torch.cuda.stream(self.stream), torch.cuda.use_mem_pool(self._pool):
                yield
        finally:
            before.wait_stream(self.stream)

    def recorded(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """A graph of `work`, which is not done now; None: it waits for the host, say."""
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
