"""A stand-in for a GPU's driver: it counts what is queued, and copies by the calls of the runtime.

Memory is the CPU's. Launches are counted and left out unless they are wanted: the interpreter takes
a thousand times as long as a launch. What torch is told to do beside the driver is recorded, too.
"""

import ctypes
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hexkv.kernels.transfer import Driver, Runtime
from hexkv.kernels.waiting import Queued


class Library:
    """The functions of the CUDA runtime that :class:`Runtime` calls, on the CPU."""

    def __init__(self, counts):
        self.counts = counts
        self.refuses = False
        self.error = 0
        """What torch would raise at its next launch."""

    def cudaGetLastError(self):  # noqa: N802
        error, self.error = self.error, 0
        return error

    def move(self, into, pairs):
        self.counts["copies"] += 1
        for to, source, size in pairs:
            self.counts["bytes in" if into else "bytes out"] += size
            ctypes.memmove(to, source, size)
        return 0

    def cudaMemcpyAsync(self, to, source, size, kind, stream):  # noqa: N802 - CUDA's name
        return self.move(kind == 1, [(to.value, source.value, size.value)])

    def cudaMemcpy2DAsync(self, to, pitch, source, step, width, height, kind, stream):  # noqa: N802
        to, pitch, source, step, width = (n.value for n in (to, pitch, source, step, width))
        assert width <= min(pitch, step)
        rows = range(height.value)
        pairs = [(to + row * pitch, source + row * step, width) for row in rows]
        return self.move(kind == 1, pairs)

    def cudaMemcpyBatchAsync(self, *given):  # noqa: N802
        if self.refuses:
            self.error = 1
            return self.error
        *places, count, attributes, first, some, _ = given
        assert (attributes._obj.order, first._obj.value, some.value) == (1, 0, 1)
        numbers = ctypes.c_uint64 * count.value
        arrays = [numbers.from_address(place.value) for place in places]
        return self.move(self.into, [*zip(*arrays, strict=True)])


class Stream:
    """Counts its events, which pass when the test says so."""

    def __init__(self, counts):
        self.counts = counts
        self.cuda_stream = 0

    def record_event(self):
        self.counts["events"] += 1
        return self

    def wait_event(self, event):
        self.counts["waits"] += 1

    def query(self):
        return True

    def synchronize(self):
        self.counts["synchronisations"] += 1


class Recording(Driver):
    """Counts allocations, copies, bytes, small tables, launches, events and their waits."""

    programs = 8

    def __init__(self, *, version=13_000, launches=False):
        super().__init__(torch.device("cpu"))
        self.counts = Counter()
        self.library = Library(self.counts)
        self.runtime = Runtime(self.library, version)
        self.launches = launches
        self.beside = Counter()
        self._stream = Stream(self.counts)

    def memory(self, size, stream):
        self.counts["allocations"] += 1
        with self.quiet():
            return super().memory(size, stream)

    def pinned(self, size):
        self.counts["pinned"] += 1
        with self.quiet():
            return super().pinned(size)

    def stream(self):
        return Stream(self.counts)

    def current(self):
        return self._stream

    def send(self, table, there, stream):
        self.counts["tables"] += 1
        self.counts["bytes of tables"] += table.size
        ctypes.memmove(there.data_ptr() + table.at, table.host, table.size)

    def copy(self, pieces, there, stream, *, into):
        self.library.into = into
        self.runtime.copy(pieces, there.data_ptr(), 0, into=into)

    def launch(self, kernel, grid, *given, **constants):
        self.counts["launches"] += 1
        assert grid[0] > 0
        tables = [one for one in given if isinstance(one, torch.Tensor)]
        # Triton compiles a kernel anew, amid requests, for one that begins anywhere else.
        assert not any(table.data_ptr() % 16 for table in tables)
        if self.launches:
            super().launch(kernel, grid, *given, **constants)

    def transfer(self, event, size, *, into):
        return Queued([] if event is None else [event], size, into=into)

    def quiet(self):
        return torch.utils._python_dispatch._disable_current_modes()


class Beside(TorchDispatchMode):
    """Records what torch does beside the driver: nothing there may copy, allocate or wait."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func.__name__.split(".")[0]] += 1
        return func(*args, **(kwargs or {}))
