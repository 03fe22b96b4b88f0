"""The contract of checksums, which detect damaged frames."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from hexkv.contracts.kit.limits import step
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.sparse import BEYOND, sparse
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import PAGE, HashFunction

LONGEST_NAME, MOST_BYTES = 16, 16
"""The most characters of a checksum's name and bytes of a digest, as a frame's header has room."""

SIZES = (0, 1, 7, 64, 1023, PAGE, 70_001)
PARTS = (8, 64, 512, PAGE, 16 * PAGE)
"""Bytes that algorithms take at a time."""

_BLOCK = 65_536


class ChecksumContract(Whole):
    """Subclass this and give it a ``checksum`` fixture."""

    @pytest.fixture
    def checksum(self) -> HashFunction:
        """The checksum under test."""
        raise NotImplementedError(f"give {type(self).__name__} a `checksum` fixture")

    @promise(
        "checksum.1",
        "has a name of 1 to 16 printable ASCII characters, and digests of 1 to 16 bytes, all alike",
        level="L0",
        clause="HashFunction.name",
        why="the header of a frame has no room for more, and the frame could not be sealed",
    )
    def test_fits_a_header(self, checksum: HashFunction) -> None:
        assert isinstance(checksum, HashFunction)
        assert checksum.name.isascii()
        assert checksum.name.isprintable()
        assert 1 <= len(checksum.name) <= LONGEST_NAME
        digests = [checksum.digest(_noise(size)) for size in SIZES]
        assert {type(digest) for digest in digests} == {bytes}
        (size,) = {len(digest) for digest in digests}
        assert 1 <= size <= MOST_BYTES

    @promise(
        "checksum.2",
        "gives the same digest for the same bytes, wherever they lie and whatever was there before",
        clause="HashFunction.digest",
        why="whole frames would be called damaged, or damaged ones whole",
        hint="a block of the pool has the same address and the same length for many chunks",
    )
    def test_is_a_function_of_the_bytes(self, checksum: HashFunction) -> None:
        for size in SIZES:
            data = _noise(size)
            want = checksum.digest(data)
            for offset in (0, 1, 3):
                lying = memoryview(bytearray(PAGE + offset) + data)[PAGE + offset :]
                assert checksum.digest(lying) == want, f"{size} bytes, {offset} behind a page"
                assert checksum.digest(lying.toreadonly()) == want, f"{size} read-only bytes"
        block = bytearray(_BLOCK)
        for seed in range(20):
            block[PAGE:-PAGE] = _noise(_BLOCK - 2 * PAGE, seed)
            with memoryview(block) as view:
                found = checksum.digest(view)
            assert found == checksum.digest(bytes(block)), "other bytes in the same block"

    @promise(
        "checksum.3",
        "notices every flipped bit, cut, tail, and parts that have changed places",
        level="L2",
        clause="HashFunction",
        why="torn and damaged frames would be loaded as KV",
        hint="sums and samples are no checksums",
    )
    def test_notices_damage(self, checksum: HashFunction) -> None:
        for size in SIZES[1:]:
            for data in (_noise(size), bytes(size)):
                want = checksum.digest(data)
                for what, bad in _damaged(data):
                    assert checksum.digest(bad) != want, f"{what} of {size} bytes"

    @pytest.mark.thorough
    @promise(
        "checksum.4",
        "covers every byte, beyond 4 GiB, too",
        level="L2",
        clause="HashFunction.digest",
        why="the end of a large frame would not be guarded at all",
        hint="lengths of 32 bits: hash such data in parts",
    )
    def test_covers_what_32_bits_cannot_count(self, checksum: HashFunction) -> None:
        for size in (BEYOND, BEYOND + PAGE):
            step()
            data = sparse(size)
            whole = checksum.digest(data)
            assert whole != checksum.digest(bytes(size - BEYOND)), "the length modulo 4 GiB"
            for place in (size - 1, BEYOND // 2):
                data[place] = 1
                step()
                assert checksum.digest(data) != whole, f"byte {place} of {size}"
                data[place] = 0

    @promise(
        "checksum.5",
        "leaves the data as it is, and lets go of it when the call returns",
        clause="HashFunction.digest",
        why="the pool gives the memory to another chunk at once",
        hint="keep no view of the caller's buffer",
    )
    def test_lets_go_of_the_data(self, checksum: HashFunction) -> None:
        for size in SIZES:
            data = bytearray(_noise(size))
            checksum.digest(memoryview(data))  # not released here: it might be kept
            assert data == _noise(size), "the data was changed"
            try:
                data.append(0)
            except BufferError:
                raise AssertionError("a view of the caller's data was kept") from None

    @promise(
        "checksum.6",
        "keeps what different threads do apart",
        level="L3",
        clause="HashFunction",
        why="I/O workers seal and open frames at the same time",
        hint="a new hash object for each call",
    )
    def test_threads_do_not_disturb_each_other(self, checksum: HashFunction) -> None:
        some = [_noise(70_001, seed) for seed in range(4)]
        want = [checksum.digest(data) for data in some]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # threads that take turns very often
        try:
            with ThreadPoolExecutor(len(some)) as threads:
                found = list(threads.map(checksum.digest, some * 10))
        finally:
            sys.setswitchinterval(before)
        assert found == want * 10


def _damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Damaged copies of *data*, each with a name of the damage."""
    random = Random(len(data))  # noqa: S311 - nothing here is secret
    ends = {0, len(data) - 1}
    for place in sorted(ends | {random.randrange(len(data)) for _ in range(60)}):
        flipped = bytearray(data)
        flipped[place] ^= 1 << random.randrange(8)
        yield f"a flipped bit in byte {place}", bytes(flipped)
    yield "the last byte cut", data[:-1]
    yield "a zero behind the end", data + bytes(1)
    yield "a zero before the beginning", bytes(1) + data if any(data) else data + b"\1"
    for part in PARTS:
        if len(data) >= 2 * part and data[:part] != data[part : 2 * part]:
            swapped = data[part : 2 * part] + data[:part] + data[2 * part :]
            yield f"the first two parts of {part} bytes exchanged", swapped
            last = data[: -2 * part] + data[-part:] + data[-2 * part : -part]
            yield f"the last two parts of {part} bytes exchanged", last
            end = len(data) // part * part
            far = data[end - part : end] + data[part : end - part] + data[:part] + data[end:]
            yield f"the first and the last of all parts of {part} bytes exchanged", far
    half = len(data) // 2
    for part in (1, half):
        swapped = data[part:] + data[:part]
        if swapped != data:
            yield f"{part} bytes of the beginning put to the end", swapped


def _noise(size: int, seed: int = 0) -> bytes:
    return Random(seed).randbytes(size)  # noqa: S311 - nothing here is secret
