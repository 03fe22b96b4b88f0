"""The classes that ``hexkv check`` runs: every contract, with fixtures from a candidate.

The fixture ``candidate`` comes from the plugin that runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

import pytest

from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel._base import Make, Memory, Proxied, Successor
from hexkv.contracts.channel.apart import Recipe
from hexkv.contracts.check import Candidate
from hexkv.contracts.checksum import ChecksumContract
from hexkv.contracts.chunker import ChunkerContract
from hexkv.contracts.device import DeviceContract, Holed, RawKV
from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.directory._base import Seen, soon
from hexkv.contracts.kit.promise import not_offered
from hexkv.contracts.memory import MemoryContract
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.policy import PolicyContract
from hexkv.contracts.prefix_cache import Damaged, Faulty, PrefixCacheContract, Stuck
from hexkv.contracts.serde import Close, SerdeContract
from hexkv.contracts.serde._nearness import beyond
from hexkv.contracts.store import (
    Aside,
    Foreign,
    Huge,
    Limit,
    RawAccess,
    Reopen,
    Service,
    StoreContract,
    Unreadable,
)
from hexkv.contracts.telemetry import EventSinkContract, Held, TelemetryContract, Total
from hexkv.ports import (
    Chunker,
    ChunkStore,
    DeviceKV,
    Directory,
    DType,
    EventSink,
    HashFunction,
    LossySerde,
    MemoryProvider,
    Policy,
    PrefixCache,
    Serde,
    Telemetry,
    TransferChannel,
)


class TestPlugin(PluginContract):
    """The plugin that offers the candidate."""

    @pytest.fixture(autouse=True)
    def _named(self, entry_point_name: str) -> None:
        type(self).entry_point = entry_point_name


class TestStore(StoreContract):
    """A store."""

    @pytest.fixture
    def store(self, candidate: Candidate) -> ChunkStore:
        assert isinstance(candidate.subject, ChunkStore)
        return candidate.subject

    @pytest.fixture
    def raw(self, candidate: Candidate) -> RawAccess:
        return candidate.raw or not_offered("raw")

    @pytest.fixture
    def reopen(self, candidate: Candidate) -> Reopen:
        return candidate.reopen

    @pytest.fixture
    def service(self, candidate: Candidate) -> Service | None:
        return candidate.service

    @pytest.fixture
    def sibling(self, candidate: Candidate) -> ChunkStore | None:
        return candidate.sibling

    @pytest.fixture
    def foreign(self, candidate: Candidate) -> Foreign | None:
        return candidate.foreign

    @pytest.fixture
    def limit(self, candidate: Candidate) -> Limit | None:
        return candidate.limit

    @pytest.fixture
    def exposed(self, store: ChunkStore, candidate: Candidate) -> ChunkStore:
        return candidate.exposed or store

    @pytest.fixture
    def unreadable(self, candidate: Candidate) -> Unreadable | None:
        return candidate.unreadable

    @pytest.fixture
    def huge(self, candidate: Candidate) -> Huge | None:
        return candidate.huge

    @pytest.fixture
    def aside(self, candidate: Candidate) -> Aside | None:
        return candidate.aside


class TestSerde(SerdeContract):
    """A serde."""

    @pytest.fixture
    def serde(self, candidate: Candidate) -> Serde:
        assert isinstance(candidate.subject, Serde)
        return candidate.subject

    @pytest.fixture
    def close(self, serde: Serde, candidate: Candidate) -> Close:
        if candidate.near is not None:
            return candidate.near
        if not isinstance(serde, LossySerde):
            not_offered("near")
        return lambda raw, back, layout: not beyond(serde, raw, back, layout)

    @pytest.fixture
    def dtypes(self, candidate: Candidate) -> Collection[DType]:
        return candidate.dtypes


class TestPolicy(PolicyContract):
    """A policy."""

    @pytest.fixture
    def policy(self, candidate: Candidate) -> Policy:
        assert isinstance(candidate.subject, Policy)
        return candidate.subject


class TestDevice(DeviceContract):
    """A window on an engine's KV memory."""

    @pytest.fixture
    def device(self, candidate: Candidate) -> DeviceKV:
        assert isinstance(candidate.subject, DeviceKV)
        return candidate.subject

    @pytest.fixture
    def raw(self, candidate: Candidate) -> RawKV:
        return candidate.memory or not_offered("raw")

    @pytest.fixture
    def unit(self, candidate: Candidate) -> int:
        return candidate.unit

    @pytest.fixture
    def holed(self, candidate: Candidate) -> Holed | None:
        return candidate.holed


class TestMemory(MemoryContract):
    """A memory provider for the pool."""

    @pytest.fixture
    def provider(self, candidate: Candidate) -> MemoryProvider:
        assert isinstance(candidate.subject, MemoryProvider)
        return candidate.subject


class TestChunker(ChunkerContract):
    """A chunker."""

    @pytest.fixture
    def chunker(self, candidate: Candidate) -> Chunker:
        assert isinstance(candidate.subject, Chunker)
        return candidate.subject


class TestChecksum(ChecksumContract):
    """A checksum of frames."""

    @pytest.fixture
    def checksum(self, candidate: Candidate) -> HashFunction:
        assert isinstance(candidate.subject, HashFunction)
        return candidate.subject


class TestDirectory(DirectoryContract):
    """A directory without members."""

    @pytest.fixture
    def seen(self, candidate: Candidate) -> Seen:
        directory = candidate.subject
        assert isinstance(directory, Directory)
        if directory.members(soon()):
            not_offered("a directory without members")

        def seen(name: str) -> Directory:
            del name
            return directory

        return seen

    @pytest.fixture
    def elapse(self, candidate: Candidate) -> Callable[[float], None]:
        return candidate.elapse or not_offered("elapse")

    @pytest.fixture
    def vanish(self, candidate: Candidate) -> Callable[[str], None]:
        return candidate.vanish or (lambda _: None)

    @pytest.fixture
    def forget(self, candidate: Candidate) -> Callable[[], None]:
        return candidate.forget or not_offered("forget")

    @pytest.fixture
    def stalled(self, candidate: Candidate) -> Callable[[], AbstractContextManager[None]]:
        return candidate.stalled or not_offered("stalled")


class TestChannel(ChannelContract):
    """A channel between peers, and others of its kind."""

    @pytest.fixture
    def make(self, candidate: Candidate) -> Iterator[Make]:
        first, another = candidate.subject, candidate.another
        assert isinstance(first, TransferChannel)
        if another is None:
            first.close()
            not_offered("another")
        waiting = [first]
        yield lambda: waiting.pop() if waiting else another()
        first.close()  # the contract closes the channels that it uses

    @pytest.fixture
    def memory(self, candidate: Candidate) -> Memory | None:
        return candidate.allocate

    @pytest.fixture
    def recipe(self, candidate: Candidate) -> Recipe:
        return candidate.recipe or not_offered("recipe")

    @pytest.fixture
    def stranger(self, candidate: Candidate) -> TransferChannel:
        return candidate.stranger or not_offered("stranger")

    @pytest.fixture
    def proxied(self, candidate: Candidate) -> Proxied:
        return candidate.proxied or not_offered("proxied")

    @pytest.fixture
    def successor(self, candidate: Candidate) -> Successor:
        return candidate.successor or not_offered("successor")


class TestPrefixCache(PrefixCacheContract):
    """A cache by tokens."""

    @pytest.fixture(autouse=True)
    def _sizes(self, candidate: Candidate) -> None:
        type(self).chunk, type(self).most = candidate.chunk, candidate.most

    @pytest.fixture
    def cache(self, candidate: Candidate) -> PrefixCache:
        assert isinstance(candidate.subject, PrefixCache)
        return candidate.subject

    @pytest.fixture
    def damaged(self, candidate: Candidate) -> Damaged:
        return candidate.damaged or not_offered("damaged")

    @pytest.fixture
    def faulty(self, candidate: Candidate) -> Faulty:
        return candidate.faulty or not_offered("faulty")

    @pytest.fixture
    def stuck(self, candidate: Candidate) -> Stuck:
        return candidate.stuck or not_offered("stuck")


class TestTelemetry(TelemetryContract):
    """A sink of metrics."""

    @pytest.fixture
    def telemetry(self, candidate: Candidate) -> Telemetry:
        assert isinstance(candidate.subject, Telemetry)
        return candidate.subject

    @pytest.fixture
    def total(self, candidate: Candidate) -> Total | None:
        return candidate.total

    @pytest.fixture
    def end(self, candidate: Candidate) -> Callable[[], None]:
        return candidate.end or not_offered("end")


class TestEvents(EventSinkContract):
    """A sink of events."""

    @pytest.fixture
    def sink(self, candidate: Candidate) -> EventSink:
        assert isinstance(candidate.subject, EventSink)
        return candidate.subject

    @pytest.fixture
    def held(self, candidate: Candidate) -> Held:
        return candidate.held or not_offered("held")

    @pytest.fixture
    def end(self, candidate: Candidate) -> Callable[[], None]:
        return candidate.end or not_offered("end")
