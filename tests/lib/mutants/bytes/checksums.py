"""Checksums that overlook damage, remember, or hold on to what they were shown."""

from __future__ import annotations

import ctypes
import zlib

import pytest

from hexkv.contracts.checksum import ChecksumContract
from hexkv.ports import HashFunction
from mutants.meetings import Overtaking
from mutants.rows import Wrong, broken


class CRCContract(ChecksumContract):
    """A correct checksum; each mutant has a digest of its own."""

    name = "crc32"

    @pytest.fixture
    def checksum(self):
        return HashFunction(self.name, self.digest)

    def digest(self, data):
        return zlib.crc32(data).to_bytes(4, "big")


class TestHasANameLikeASentence(CRCContract):
    """A header has room for 16 characters."""

    breaks = "checksum.1"
    name = "the CRC of the standard library"


def drops_leading_zeros(self, data):
    number = zlib.crc32(data)
    return number.to_bytes(max(1, -(-number.bit_length() // 8)), "big")


class TestRemembersBlocks(CRCContract):
    """What lies at an address it has seen is not read again."""

    breaks = "checksum.2"

    @pytest.fixture(autouse=True)
    def seen(self):
        self.seen = {}

    def digest(self, data):
        if not isinstance(data, memoryview) or data.readonly or not data:
            return super().digest(data)
        block = ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data)
        return self.seen.setdefault(block, super().digest(data))


class TestRemembersBeginnings(CRCContract):
    """Data of one length with the same first page are taken for the same."""

    breaks = "checksum.2"

    @pytest.fixture(autouse=True)
    def seen(self):
        self.seen = {}

    def digest(self, data):
        if len(data) <= 4096 or not isinstance(data, memoryview):
            return super().digest(data)
        return self.seen.setdefault((len(data), bytes(data[:4096])), super().digest(data))


def wants_to_write_on_the_data(self, real, data):
    return real(b"" if isinstance(data, memoryview) and data.readonly else data)


def looks_at_samples(self, real, data):
    data = bytes(data)
    return real(data if len(data) < 2048 else data[:1024] + data[-1024:])


def keeps_the_data(self, real, data):
    type(self).last = data
    return real(data)


def swaps_in_place(self, real, data):
    if isinstance(data, memoryview) and not data.readonly:
        data[:] = bytes(data)[::-1]
    return real(data)


class TestSharesItsState(CRCContract):
    """All threads add to one attribute."""

    breaks = "checksum.6"

    @pytest.fixture(autouse=True)
    def meeting(self):
        self.overtaking = Overtaking()

    def digest(self, data):
        self.state = 0
        for start in range(0, len(data), 16384):
            self.state = zlib.crc32(data[start : start + 16384], self.state)
            self.overtaking.wait()
        return self.state.to_bytes(4, "big")


def adds_pages(self, data):
    pages = [zlib.crc32(data[at : at + 4096]) for at in range(0, len(data), 4096)]
    return (sum(pages) + 977 * len(data)).to_bytes(8, "big")


def adds_blocks(self, data):
    blocks = [zlib.crc32(data[at : at + 64]) for at in range(0, len(data), 64)]
    return (sum(blocks) + 977 * len(data)).to_bytes(8, "big")


class TestSharesAHasher(CRCContract):
    """One hasher is reset for each call, and fed in parts."""

    breaks = "checksum.6"

    @pytest.fixture(autouse=True)
    def hasher(self):
        self.parts = []

    def digest(self, data):
        self.parts.clear()
        for start in range(0, len(data), 64):
            self.parts.append(bytes(data[start : start + 64]))
        return zlib.crc32(b"".join(self.parts)).to_bytes(4, "big")


ROWS = {
    "checksum.3 adds pages": Wrong("The checksums of all pages are added.", digest=adds_pages),
    "checksum.3 adds blocks": Wrong("The checksums of all blocks are added.", digest=adds_blocks),
    "checksum.1 gives a number": Wrong(
        "The digest is what the library gives.", digest=lambda self, data: zlib.crc32(data)
    ),
    "checksum.1 drops leading zeros": Wrong(
        "The digest is as long as the number is.", digest=drops_leading_zeros
    ),
    "checksum.2 wants to write on the data": Wrong(
        "The array library takes writable memory only, and the data is empty to it otherwise.",
        digest=wants_to_write_on_the_data,
    ),
    "checksum.3 looks at samples": Wrong(
        "The beginning and the end of long data tell enough.", digest=looks_at_samples
    ),
    "checksum.3 adds up": Wrong(
        "The order of the bytes does not matter to a sum.",
        digest=lambda self, data: (sum(data) + 257 * len(data)).to_bytes(16, "big"),
    ),
    "checksum.3 pads with zeros": Wrong(
        "Data of any length are made whole words.",
        digest=lambda self, real, data: real(bytes(data) + bytes(-len(data) % 8)),
    ),
    "checksum.4 counts in32 bits": Wrong(
        "The length is an int of the C library that it calls.",
        digest=lambda self, real, data: real(memoryview(data)[: len(data) & 0xFFFFFFFF]),
    ),
    "checksum.4 counts in32 signed bits": Wrong(
        "What does not fit is cut off.",
        digest=lambda self, real, data: real(memoryview(data)[:0x7FFFFFFF]),
    ),
    "checksum.5 keeps the data": Wrong(
        "The last data are remembered, by reference.", digest=keeps_the_data
    ),
    "checksum.5 swaps in place": Wrong(
        "Words are put into the machine's order where they lie.", digest=swaps_in_place
    ),
}
globals().update(broken(__name__, CRCContract, None, ROWS))
