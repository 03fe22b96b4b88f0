"""The one client of a store: connected in the background, closed after its last call."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread

from hexkv.adapters.mooncake._errands import OutOfTime
from hexkv.adapters.mooncake._native import Client, Library
from hexkv.adapters.mooncake._rehearsal import SetupArguments, rehearsed
from hexkv.ports import Clock, MemoryRegion, StoreError, StoreUnreachable

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds between two attempts to connect."""


class RetriedConnection:
    """Connects when it is created, and again at each use until that succeeds once.

    After that Mooncake's client finds a restarted master automatically.
    """

    def __init__(
        self, place: SetupArguments, library: Library, clock: Clock, connect_timeout: float
    ) -> None:
        self._place = place
        self._library = library
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._client: Client | None = None
        self._failure: StoreUnreachable | None = None
        self._connecting = False
        self._again_at = 0.0
        self._calls = 0
        self._closed = False
        self._offered: list[tuple[int, int]] = []
        self._registered: list[tuple[int, int]] = []
        self._changed = Condition()
        with self._changed:
            self._begin()

    @contextmanager
    def client(self, seconds: float) -> Iterator[Client]:
        """The client, for a block in which it is not closed.

        Raises:
            OutOfTime: it was not connected within *seconds*.
            StoreUnreachable: it could not be connected.
            StoreError: the store was closed.
        """
        client = self._used(seconds)
        try:
            yield client
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()
                last = self._leaving()
            if last is not None:
                last.close()

    def wait(self, seconds: float) -> None:
        """Wait for the client. Errors as for :meth:`client`."""
        with self.client(seconds):
            pass

    def register(self, region: MemoryRegion) -> None:
        """Register *region* with the client, now or once it is connected."""
        with self._changed:
            self._offered.append((region.address, len(region.buffer)))
            if self._client is None:
                return
        with self.client(0.0) as client:
            self._register_offered(client)

    def knows(self, address: int, size: int) -> bool:
        """True if the client may read and write that memory directly."""
        return any(
            start <= address and address + size <= start + length
            for start, length in self._registered
        )

    def close(self) -> None:
        """Refuse new calls; the last call under way closes the client."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            last = self._leaving()
        if last is not None:
            last.close()

    def _used(self, seconds: float) -> Client:
        with self._changed:
            if self._client is None and self._clock.now() >= self._again_at:
                self._begin()
            if not self._changed.wait_for(self._settled, seconds):
                raise OutOfTime
            if self._closed:
                raise StoreError("the store is closed")
            if self._client is None:
                raise StoreUnreachable(str(self._failure))
            self._calls += 1
            return self._client

    def _settled(self) -> bool:
        return self._closed or not self._connecting

    def _begin(self) -> None:
        if not self._connecting and not self._closed:
            self._connecting = True
            Thread(target=self._connect, name="hexkv mooncake connect", daemon=True).start()

    def _connect(self) -> None:
        client = self._library.MooncakeDistributedStore()
        try:
            with rehearsed(self._place, self._connect_timeout):
                self._place.enter(client, self._place.segment_bytes)
                while not self._end_connecting(client, None):
                    self._register_offered(client)
        except StoreUnreachable as error:
            self._end_connecting(None, error)

    def _end_connecting(self, client: Client | None, failure: StoreUnreachable | None) -> bool:
        with self._changed:
            if client is not None and self._offered:
                return False  # do not publish the client before all memory is registered
            self._connecting = False
            self._failure = failure
            self._again_at = self._clock.now() + _PAUSE
            self._client = client
            self._changed.notify_all()
            last = self._leaving()
        if last is not None:
            last.close()
        return True

    def _register_offered(self, client: Client) -> None:
        """Register the regions that are not registered yet."""
        with self._changed:
            offered, self._offered = self._offered, []
        for address, size in offered:
            if code := client.register_buffer(address, size):
                log.warning("mooncake does not register %d bytes of memory (%d)", size, code)
            else:
                self._registered.append((address, size))

    def _leaving(self) -> Client | None:
        """Take the client, once, after the last call: the caller must close it. Else None."""
        if not self._closed or self._calls:
            return None
        client, self._client = self._client, None
        return client
