"""The work of a device: its streams, copies across the bus, launches, and waiting for them."""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import chain, islice
from operator import sub
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from hexkv.kernels.host.forms import bytes_at
from hexkv.kernels.waiting import Event, Queued
from hexkv.ports import REGISTRATIONS, Finished, Transfer

log = logging.getLogger(__name__)

_PROGRAMS = 16
"""Programs of a launch for each multiprocessor."""

_MOST_PITCH = (1 << 31) - 1
"""Bytes from one row to the next that a copy of rows allows."""

_BATCHES = 13_000
"""The first version of the CUDA runtime whose batch of copies has this module's arguments."""

_FOR_ALL = 1 | 2
"""``cudaHostRegisterPortable``, ``cudaHostRegisterMapped``: pinned for all GPUs of the process,
and within reach of kernels."""


class CudaRegistrar:
    """Pins memory by the CUDA runtime; see :class:`hexkv.ports.Registrar`. For any thread."""

    def __init__(self, device: torch.device | int) -> None:
        """Have *device* as the current one in each call.

        A thread that has used no GPU would otherwise begin to use the first one.
        """
        self._device = device

    def register(self, address: int, size: int) -> None:
        self._call("cudaHostRegister", address, size, _FOR_ALL)

    def unregister(self, address: int) -> None:
        try:
            self._call("cudaHostUnregister", address)
        except OSError as error:
            log.warning("memory stays registered with CUDA: %s", error)

    def _call(self, name: str, *given: int) -> None:
        try:
            with torch.cuda.device(self._device):
                cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                refused = int(getattr(cudart, name)(*given))
        except (RuntimeError, AssertionError) as error:  # an earlier error, or a forked child
            raise OSError(str(error)) from error
        if refused:
            if (found := runtime()) is not None:
                found.forget_error()
            raise OSError(f"{name} gave error {refused}")


class Stream(Protocol):
    """Work in order."""

    def record_event(self) -> Event: ...
    def wait_event(self, event: Any) -> None: ...


def gpus(devices: Iterable[torch.device]) -> set[torch.device]:
    """Return those of *devices* that copy asynchronously.

    Memory that this process maps from others is registered for them, from the first call on.
    """
    found = {device for device in devices if device.type == "cuda"}
    for device in found:
        REGISTRATIONS.use(CudaRegistrar(device))
    return found


def transfer_on(devices: set[torch.device]) -> Transfer:
    """Return the transfer of the copies just queued on *devices*; a finished one if none."""
    if not devices:
        return Finished()
    events = [torch.cuda.current_stream(device).record_event() for device in devices]
    return Queued(events, 0, into=True)


class Piece(NamedTuple):
    """A run of bytes that crosses the bus."""

    host: int
    """Its address in the host's memory."""

    at: int
    """Its first byte in the device's buffer."""

    size: int


class StreamMark:
    """A place in the work of a device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def until(self, later: StreamMark) -> float | None:
        """Return the seconds to a *later* mark; ``None`` while that is not reached."""
        if not later._event.query():  # type: ignore[no-untyped-call]
            return None
        return float(self._event.elapsed_time(later._event)) / 1000


class Driver:
    """The work of one device in order; this one is the CPU's, which does it at once."""

    programs = 2
    """The most programs of a launch whose programs take their parts in turns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def memory(self, size: int, stream: Stream) -> torch.Tensor:
        """Return *size* bytes of the device for work on *stream*."""
        del stream
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def pinned(self, size: int) -> torch.Tensor:
        """Return *size* bytes of the host that copies reach without a wait."""
        return torch.empty(size, dtype=torch.uint8)

    def stream(self) -> Stream:
        """Return a stream of its own."""
        return _Now()

    def current(self) -> Stream:
        """Return the stream on which launches of the calling thread are queued."""
        return _Now()

    def keep(self, memory: torch.Tensor, stream: Stream) -> None:
        """Keep *memory*, once it is given back, until the work queued on *stream* is done."""

    def reaches(self, address: int, size: int) -> bool:
        """True if launches read and write this memory of the host."""
        del address, size
        return True

    def send(self, table: Piece, there: torch.Tensor, stream: Stream) -> None:
        """Queue the copy of a small table, which has just been written to pinned memory."""
        self.copy([table], there, stream, into=True)

    def copy(
        self, pieces: Sequence[Piece], there: torch.Tensor, stream: Stream, *, into: bool
    ) -> None:
        """Queue the copy of *pieces* into *there*, the device's, or out of it."""
        del stream
        home = there.data_ptr()
        for host, at, size in pieces:
            pair = (home + at, host) if into else (host, home + at)
            ctypes.memmove(*pair, size)

    def launch(self, kernel: Any, grid: tuple[int, ...], *given: Any, **constants: Any) -> None:
        """Queue a kernel of Triton's on the current stream."""
        with self.here():
            kernel[grid](*given, **constants, enable_fp_fusion=False)

    def here(self) -> AbstractContextManager[object]:
        """Return a context in which the device is the current one."""
        return nullcontext()

    def transfer(self, event: Event | None, size: int, *, into: bool) -> Transfer:
        """Return the transfer that ends with *event*; a finished one if there is none.

        *size* bytes cross the bus, *into* the device or out of it.
        """
        del event, size, into
        return Finished()


class CudaDriver(Driver):
    """The work of a GPU, on streams of torch's."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        found = torch.cuda.get_device_properties(device)
        self.programs = _PROGRAMS * int(found.multi_processor_count)
        self._runtime = runtime()

    def memory(self, size: int, stream: Stream) -> torch.Tensor:
        with torch.cuda.stream(stream):  # type: ignore[arg-type]  # one of torch's
            return super().memory(size, stream)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def stream(self) -> Stream:
        made: Stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return made

    def current(self) -> Stream:
        return torch.cuda.current_stream(self.device)

    def keep(self, memory: torch.Tensor, stream: Stream) -> None:
        memory.record_stream(stream)  # type: ignore[arg-type]  # one of torch's

    def reaches(self, address: int, size: int) -> bool:
        # Mappings are registered as a whole: memory between two bytes of one is pinned, too.
        ends = address, address + size - 1
        return all(torch.frombuffer(bytes_at(at, 1), dtype=torch.uint8).is_pinned() for at in ends)

    def copy(
        self, pieces: Sequence[Piece], there: torch.Tensor, stream: Stream, *, into: bool
    ) -> None:
        if self._runtime is not None:
            pinned = len(pieces) < 3 or self._reaches_all(pieces)
            handle = stream.cuda_stream  # type: ignore[attr-defined]  # one of torch's
            # Each device's default stream is zero, which the runtime takes for the current one's.
            with nullcontext() if handle else self.here():
                self._runtime.copy(pieces, there.data_ptr(), handle, into=into, pinned=pinned)
            return
        # Memory that was made in inference mode may be written only there.
        with torch.cuda.stream(stream), torch.inference_mode():  # type: ignore[arg-type]
            for host, at, size in pieces:
                here = torch.frombuffer(bytes_at(host, size), dtype=torch.uint8)
                part = there.view(torch.uint8)[at : at + size]
                one, other = (part, here) if into else (here, part)
                one.copy_(other, non_blocking=True)

    def _reaches_all(self, pieces: Sequence[Piece]) -> bool:
        """True if the runtime may copy all *pieces* in place."""
        first, last = min(pieces), max(pieces)
        return self.reaches(first.host, last.host + last.size - first.host)

    def here(self) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = torch.cuda.device(self.device)
        return made

    def transfer(self, event: Event | None, size: int, *, into: bool) -> Transfer:
        return Finished() if event is None else Queued([event], size, into=into)


class Runtime:
    """Copies of the CUDA runtime for which torch has no name: many runs of bytes by one call."""

    def __init__(self, library: Any, version: int) -> None:
        """Use the functions of *library*; *version* as cudaRuntimeGetVersion tells it."""
        self._library = library
        self._batches = version >= _BATCHES

    def copy(
        self, pieces: Sequence[Piece], base: int, stream: int, *, into: bool, pinned: bool = True
    ) -> None:
        """Queue the copy of *pieces* into the device's memory at *base*, or out of it.

        One call for each run at equal distances, if these are one or two; else one call for all, if
        the host's memory is pinned and the runtime takes it.

        Raises:
            RuntimeError: the runtime refuses.
        """
        runs = _runs(pieces)
        found = list(islice(runs, 3))
        if len(found) > 2 and self._batches and pinned:
            refused = self._batch(pieces, base, stream, into=into)
            if not refused:
                return
            self.forget_error()
            log.warning("the CUDA runtime refuses batches of copies: error %d", refused)
            self._batches = False
        for first, count, pitch, step in chain(found, runs):
            here, there = base + first.at, first.host
            kind = 1 if into else 2  # cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost
            if count == 1:
                ends, sizes = [here, there] if into else [there, here], [first.size]
                call = self._library.cudaMemcpyAsync
            else:
                ends = [here, step, there, pitch] if into else [there, pitch, here, step]
                sizes = [first.size, count]
                call = self._library.cudaMemcpy2DAsync
            _accepted(call(*map(_word, [*ends, *sizes]), kind, _word(stream)))

    def forget_error(self) -> None:
        """Drop the error of this thread's last call, which torch raises with its next launch."""
        self._library.cudaGetLastError()

    def _batch(self, pieces: Sequence[Piece], base: int, stream: int, *, into: bool) -> int:
        hosts, places, sizes = zip(*pieces, strict=True)
        there = [base + place for place in places]
        ends = (there, hosts) if into else (hosts, there)
        columns = [array("Q", column) for column in (*ends, sizes)]
        attributes, first = _Attributes(1), ctypes.c_size_t(0)
        call = self._library.cudaMemcpyBatchAsync
        return int(
            call(
                *(_word(column.buffer_info()[0]) for column in columns),
                _word(len(pieces)),
                ctypes.byref(attributes),
                ctypes.byref(first),
                _word(1),
                _word(stream),
            )
        )


class _Attributes(ctypes.Structure):
    """``cudaMemcpyAttributes``: sources are read in the order of the stream; no places are named.

    After the order two places of two ints each, and flags.
    """

    _fields_ = (("order", ctypes.c_int), ("places", ctypes.c_int * 4), ("flags", ctypes.c_uint))


_word = ctypes.c_size_t


def _accepted(code: int) -> None:
    if code:
        raise RuntimeError(f"the CUDA runtime refuses a copy: error {code}")


def _runs(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, int, int, int]]:
    """Yield the first piece of each run at equal distances, their number, and both distances."""
    hosts, places, sizes = zip(*pieces, strict=True)
    apart = [*zip(map(sub, hosts[1:], hosts), map(sub, places[1:], places), sizes[1:], strict=True)]
    at = 0
    while at < len(pieces):
        first, end = pieces[at], at + 1
        pitch = step = first.size
        if end < len(pieces):
            *both, size = apart[at]
            if size == first.size and size <= min(both) and max(both) <= _MOST_PITCH:
                pitch, step = both
                while end <= len(apart) and apart[end - 1] == apart[at]:
                    end += 1
        yield first, end - at, pitch, step
        at = end


@cache
def runtime() -> Runtime | None:
    """Return the CUDA runtime that torch has loaded; ``None`` if it is not found."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    names = [line.split()[-1] for line in lines if "libcudart" in line]
    if not names:
        return None
    library, version = ctypes.CDLL(names[0]), ctypes.c_int()
    if library.cudaRuntimeGetVersion(ctypes.byref(version)):
        return None
    return Runtime(library, version.value)


class _Now:
    """A stream whose work is done as soon as it is queued, and its events."""

    def record_event(self) -> _Now:
        return self

    def wait_event(self, event: object) -> None:
        del event

    def query(self) -> bool:
        return True


def driver_of(device: torch.device) -> Driver:
    """Return the driver of *device*."""
    return CudaDriver(device) if device.type == "cuda" else Driver(device)


def marks(device: torch.device) -> Callable[[], StreamMark] | None:
    """Return a function that makes marks on *device*; None where work is done as it is queued."""
    return partial(StreamMark, device) if device.type == "cuda" else None
