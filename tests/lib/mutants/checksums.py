"""Checksums that overlook damage, remember, or hold on to what they were shown."""

from __future__ import annotations

import ctypes
import zlib

import pytest

from hexkv.contracts.checksum import ChecksumContract
from hexkv.ports import HashFunction
from mutants.meetings import Overtaking


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


class TestGivesANumber(CRCContract):
    """The digest is what the library gives."""

    breaks = "checksum.1"

    def digest(self, data):
        return zlib.crc32(data)


class TestDropsLeadingZeros(CRCContract):
    """The digest is as long as the number is."""

    breaks = "checksum.1"

    def digest(self, data):
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


class TestWantsToWriteOnTheData(CRCContract):
    """The array library takes writable memory only, and the data is empty to it otherwise."""

    breaks = "checksum.2"

    def digest(self, data):
        return super().digest(b"" if isinstance(data, memoryview) and data.readonly else data)


class TestLooksAtSamples(CRCContract):
    """The beginning and the end of long data tell enough."""

    breaks = "checksum.3"

    def digest(self, data):
        data = bytes(data)
        return super().digest(data if len(data) < 2048 else data[:1024] + data[-1024:])


class TestAddsUp(CRCContract):
    """The order of the bytes does not matter to a sum."""

    breaks = "checksum.3"

    def digest(self, data):
        return (sum(data) + 257 * len(data)).to_bytes(16, "big")


class TestPadsWithZeros(CRCContract):
    """Data of any length are made whole words."""

    breaks = "checksum.3"

    def digest(self, data):
        return super().digest(bytes(data) + bytes(-len(data) % 8))


class TestCountsIn32Bits(CRCContract):
    """The length is an int of the C library that it calls."""

    breaks = "checksum.4"

    def digest(self, data):
        return super().digest(memoryview(data)[: len(data) & 0xFFFFFFFF])


class TestCountsIn32SignedBits(CRCContract):
    """What does not fit is cut off."""

    breaks = "checksum.4"

    def digest(self, data):
        return super().digest(memoryview(data)[:0x7FFFFFFF])


class TestKeepsTheData(CRCContract):
    """The last data are remembered, by reference."""

    breaks = "checksum.5"

    def digest(self, data):
        type(self).last = data
        return super().digest(data)


class TestSwapsInPlace(CRCContract):
    """Words are put into the machine's order where they lie."""

    breaks = "checksum.5"

    def digest(self, data):
        if isinstance(data, memoryview) and not data.readonly:
            data[:] = bytes(data)[::-1]
        return super().digest(data)


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
