"""The classes that ``hexkv check`` runs for what only a function gives."""

from __future__ import annotations

from time import sleep

from hexkv.contracts.announcing import AnnouncingContract
from hexkv.contracts.check._given import given, subject
from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache.service import ChunkServiceContract
from hexkv.contracts.collective import CollectiveContract
from hexkv.contracts.encoded import EncodedContract
from hexkv.contracts.hand_over import HandOverContract
from hexkv.contracts.observer import ObserverContract


class TestAnnouncing(AnnouncingContract):
    """A cache where clients announce chunks."""

    seen, publish = given("seen"), given("publish")
    elapse, vanish = given("elapse"), given("vanish")


class TestChunkCache(ChunkCacheContract):
    """A cache by key."""

    cache, ledger = subject("cache"), given("ledger")
    crowd, closed = given("crowd"), given("closed")
    elapse = given("elapse", lambda: sleep)


class TestChunkService(ChunkServiceContract):
    """The lower half of a cache."""

    service = subject("service")


class TestCollective(CollectiveContract):
    """Ranks."""

    members = given("members")


class TestEncoded(EncodedContract):
    """A window that decodes."""

    device = subject("device")
    raw, serde, holed = given("raw"), given("serde"), given("holed")


class TestHandOver(HandOverContract):
    """A store whose memory another process goes on with."""

    make, private = given("make"), given("private")


class TestObserver(ObserverContract):
    """An observer."""

    observer, reading = subject("observer"), given("reading")
    announced, collected = given("announced"), given("collected")
