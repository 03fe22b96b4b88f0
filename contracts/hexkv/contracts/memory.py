"""The contract of memory providers, which allocate memory for the block pool."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from hexkv.contracts.kit.cases import case, each
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import (
    PAGE,
    InvalidRequest,
    MemoryProvider,
    MemoryRegion,
    PoolExhausted,
    SupportsPrefault,
)

MIB = 1 << 20
SIZES = (1, PAGE - 1, PAGE, PAGE + 1, 3 * MIB + 5)
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
TOO_MUCH = (8 * MACHINE, 1 << 60, (1 << 60) + PAGE, (1 << 63) + PAGE, (1 << 64) + PAGE)
"""Bytes that this machine, or none, has; truncated to 32 or 64 bits some are just a page."""

LATE: dict[str, Callable[[memoryview], object]] = {
    "a slice": lambda view: view[:PAGE],
    "a slice of a slice": lambda view: view[: 2 * PAGE][:PAGE],
    "words": lambda view: view[:PAGE].cast("I"),
    "a read-only view": lambda view: view.toreadonly()[:PAGE],
    "an array of ctypes": (ctypes.c_char * PAGE).from_buffer,
}
"""Ways to access a region's memory, tried after it is closed."""

Allocate = Callable[[int], MemoryRegion]


class MemoryContract(Whole):
    """Subclass this and give it a ``provider`` fixture."""

    @pytest.fixture
    def provider(self) -> MemoryProvider:
        """A provider that can allocate 64 MiB."""
        raise NotImplementedError(f"give {type(self).__name__} a `provider` fixture")

    @pytest.fixture
    def allocate(self, provider: MemoryProvider) -> Iterator[Allocate]:
        """The provider's ``allocate``; all regions are closed after the test."""
        regions: list[MemoryRegion] = []

        def allocate(size: int) -> MemoryRegion:
            regions.append(provider.allocate(size))
            return regions[-1]

        yield allocate
        for region in regions:
            region.close()

    @promise(
        "memory.1",
        "has every method of the port",
        level="L0",
        clause="MemoryProvider",
        why="no engine could be built on it",
    )
    def test_is_a_provider(self, provider: MemoryProvider) -> None:
        assert isinstance(provider, MemoryProvider)

    @promise(
        "memory.2",
        "gives at least the bytes asked for: writable, contiguous, of format B",
        clause="MemoryRegion.buffer",
        why="the pool divides the range into blocks, and sockets and files are given slices of it",
    )
    @each("size", SIZES)
    def test_gives_what_was_asked_for(self, allocate: Allocate, size: int) -> None:
        buffer = allocate(size).buffer
        assert buffer.nbytes >= size
        assert (buffer.format, buffer.ndim, buffer.c_contiguous) == ("B", 1, True)
        assert not buffer.readonly
        data = _noise(size, seed=0)
        buffer[:size] = data
        _same(buffer[:size], data, "the memory does not hold the bytes written to it")

    @promise(
        "memory.3",
        "begins at a page, at the address that it names",
        clause="MemoryRegion.address",
        why="direct I/O refuses other memory, and a network card would write to other addresses",
        hint="ctypes.addressof(ctypes.c_char.from_buffer(...)) of the buffer itself",
    )
    @each("size", SIZES)
    def test_begins_where_it_says(self, allocate: Allocate, size: int) -> None:
        region = allocate(size)
        assert region.address % PAGE == 0
        assert region.address == ctypes.addressof(ctypes.c_char.from_buffer(region.buffer))

    @promise(
        "memory.4",
        "gives every region memory of its own",
        level="L5",
        clause="MemoryProvider.allocate",
        why="two engines in a process would write into each other's blocks",
    )
    def test_regions_do_not_overlap(self, allocate: Allocate) -> None:
        regions = [allocate(size) for size in (PAGE, 5, 3 * PAGE, MIB)]
        content = [_noise(region.buffer.nbytes, seed) for seed, region in enumerate(regions)]
        for region, data in zip(regions, content, strict=True):
            region.buffer[:] = data
        for region, data in zip(regions, content, strict=True):
            _same(region.buffer, data, "a region was changed through another one")
        regions[1].close()
        for region, data in list(zip(regions, content, strict=True))[::2]:
            _same(region.buffer, data, "a region was changed by closing another one")

    @promise(
        "memory.5",
        "refuses to give nothing, or less, with InvalidRequest",
        level="L2",
        clause="MemoryProvider.allocate",
        why="a wrong number in a configuration should be named, not crash the engine later",
    )
    @each("size", [0, -1, -PAGE])
    def test_refuses_to_give_nothing(self, allocate: Allocate, size: int) -> None:
        with pytest.raises(InvalidRequest):
            allocate(size)

    @promise(
        "memory.6",
        "raises PoolExhausted when more is asked for than the machine has",
        level="L4",
        clause="MemoryProvider.allocate",
        why="systems grant any mapping, and kill the process that uses it",
        hint="ask how much there is first; translate OSError and MemoryError",
    )
    def test_says_when_there_is_not_so_much(self, allocate: Allocate) -> None:
        for size in TOO_MUCH:
            with case(size), pytest.raises(PoolExhausted):
                allocate(size)
        allocate(PAGE).buffer[0] = 1

    @promise(
        "memory.7",
        "may be closed twice",
        level="L0",
        clause="MemoryRegion.close",
        why="an engine that failed while it was built closes what it has once more",
    )
    def test_may_be_closed_twice(self, allocate: Allocate) -> None:
        region = allocate(PAGE)
        region.buffer[:5] = b"bytes"
        region.close()
        region.close()

    @promise(
        "memory.8",
        "keeps memory with a view on it, after it is closed",
        level="L2",
        clause="MemoryRegion.close",
        why="a late I/O would write into memory that has another owner by then, or crash",
        hint="unmapping fails while a view exists: then let the garbage collector do it",
    )
    def test_keeps_what_is_looked_at(self, provider: MemoryProvider, allocate: Allocate) -> None:
        for name, exported in LATE.items():
            for closed in (True, False):  # or only unreferenced, as by an engine that was dropped
                region = allocate(MIB) if closed else provider.allocate(MIB)
                address, data = region.address, _noise(PAGE, seed=1)
                region.buffer[:PAGE] = data
                late = exported(region.buffer)
                if closed:
                    region.close()
                del region
                gc.collect()
                how = f"{name} of a region that is {'closed' if closed else 'forgotten'}"
                assert _mapped(address), f"{how} looks at memory that is unmapped"
                others = [allocate(MIB) for _ in range(4)]
                for other in others:
                    other.buffer[:PAGE] = bytes(PAGE)
                _same(late, data, f"{how} looks at another owner's memory")
                del late, others

    @promise(
        "memory.9",
        "gives memory back when it is closed",
        level="L0",
        clause="MemoryRegion.close",
        why="a server that builds engines one after the other would run out of memory",
    )
    def test_gives_memory_back(self, provider: MemoryProvider) -> None:
        if not _STATUS.exists():
            not_offered("/proc, to see what a process holds")
        provider.allocate(MIB).close()
        before = _held()
        for _ in range(6):
            region = provider.allocate(16 * MIB)
            region.buffer[::PAGE] = bytes(len(region.buffer[::PAGE]))
            region.close()
            del region
        assert _held() - before < 32 * MIB, "closed regions are still held"

    # memory.10, "backs every page before it gives it away", was withdrawn with contract 2.

    @promise(
        "memory.11",
        "keeps a page backed from its first use on",
        level="L6",
        clause="MemoryProvider.allocate",
        why="the pool uses blocks again and again: each copy would take four times as long",
        hint="give no page back to the system before the region is closed",
    )
    def test_keeps_pages_backed(self, allocate: Allocate) -> None:
        if sys.platform != "linux":
            not_offered("Linux, which counts a thread's page faults")
        region = allocate(16 * MIB)
        pages = region.buffer.nbytes // PAGE
        for use in range(2):
            before = _faults()
            for start in range(0, region.buffer.nbytes, PAGE):
                region.buffer[start] = 1
            faults = _faults() - before
            assert not use or faults < pages // 100, f"{faults} page faults at {pages} used pages"

    @promise(
        "memory.12",
        "backs pages ahead of their use without changing a byte, and is done when closed",
        level="L2",
        clause="SupportsPrefault.prefault",
        why="chunks would be overwritten, or pages backed that have another owner by then",
        hint="MADV_POPULATE_WRITE changes nothing; a page that zeros were written to may be in use",
    )
    def test_prefaults_without_a_trace(self, allocate: Allocate) -> None:
        before = set(threading.enumerate())
        region = allocate(16 * MIB)
        if not isinstance(region, SupportsPrefault):
            not_offered("SupportsPrefault")
        data = _noise(16 * MIB, seed=2)
        region.buffer[: len(data)] = data
        for used in (PAGE, 8 * MIB, len(region.buffer)):
            region.prefault(used)
        late = region.buffer[: len(data)]
        region.close()
        assert set(threading.enumerate()) <= before, "a thread outlives the region"
        _same(late, data, "memory was changed by being backed")


_STATUS, _MAPS = Path("/proc/self/status"), Path("/proc/self/maps")


def _mapped(address: int) -> bool:
    """True if this process has memory mapped at *address*; reading it otherwise would crash."""
    if not _MAPS.exists():
        return True
    ranges = [line.split(maxsplit=1)[0].split("-") for line in _MAPS.read_text().splitlines()]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def _held() -> int:
    """Bytes of memory that this process holds: anonymous, shared and huge pages."""
    wanted = ("RssAnon:", "RssShmem:", "HugetlbPages:")
    lines = [line.split() for line in _STATUS.read_text().splitlines()]
    return sum(int(words[1]) * 1024 for words in lines if words and words[0] in wanted)


def _faults() -> int:
    """The number of minor page faults of this thread: first uses of pages without memory."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def _noise(size: int, seed: int) -> bytes:
    return Random(seed).randbytes(size)  # noqa: S311 - nothing here is secret


def _same(left: object, right: bytes, why: str) -> None:
    """Fail unless both are equal; a bare assertion would print pages of differences."""
    if bytes(left) != right:  # type: ignore[call-overload]
        raise AssertionError(why)
