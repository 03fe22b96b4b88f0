"""A client's connection to one life of a node: its memory, and the leases over it.

Its socket stays open while anything is leased over it, because its end tells the node that the
client no longer uses its memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from struct import pack

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime, Refused
from hexkv.adapters.net.rpc.answer import Answer
from hexkv.adapters.net.rpc.link import Link, Turn
from hexkv.adapters.net.rpc.wire import message
from hexkv.adapters.net.stream import Stream, connect
from hexkv.adapters.node.groups import LayerGroups, pack_layers
from hexkv.adapters.node.memory import map_sealed
from hexkv.adapters.node.wire import (
    ALL,
    HANDSHAKE,
    MAX_BODY,
    MINOR,
    Verb,
    pack_encoded,
    pack_release,
)
from hexkv.ports import FRAME_VERSION, Clock, Deadline, HoldTerms, StoreUnreachable

_PATIENCE = 5.0
"""Seconds for a greeting."""

_TOGETHER = 1024
"""Leases that one message gives back."""

_MUCH = 1 << 20
"""Bytes given back that are sent to the node at once."""

_NONE: frozenset[int] = frozenset()


class NodeLink(Link):
    """One connection to a node. Safe from any thread."""

    def __init__(self, path: Path, clock: Clock, broken: Callable[[], None]) -> None:
        """Connect to the node whose socket is *path*, and map its memory.

        *broken* is as of :class:`Link`.

        Raises:
            StoreUnreachable: no node listens there, or it does not let this process in.
            ConfigError: the node's memory is not sealed, or too short.
        """
        deadline = Deadline.after(clock, _PATIENCE)
        passed: list[int] = []
        try:
            stream = connect(Address(path=str(path)), deadline)
            try:
                generation, self.memory = _greeted(stream, deadline, passed)
                sock = stream.detach()
            except BaseException:
                stream.close()
                raise
        except (OSError, OutOfTime, ConnectionBroken, Refused) as error:
            raise StoreUnreachable(f"node {path}: {error}") from error
        finally:
            for descriptor in passed:
                os.close(descriptor)
        super().__init__(sock, clock, broken, most=MAX_BODY, generation=generation, minor=MINOR)
        self.pool_bytes = len(self.memory)
        self._returned: deque[tuple[int, int]] = deque()
        self._owed = 0
        """Bytes that were given back and not yet sent to the node."""

        self.ticking = False
        """True while the keeper checks every few milliseconds for leases given back."""

        self._used: dict[int, set[int]] = {}
        """The leases over it: places, by request; none before the answer of the request is read."""

    def __del__(self) -> None:
        # Also if an asynchronous exception left it listed as used: no code refers to it now.
        with suppress(AttributeError):
            self._pipe.close()

    def lease(
        self,
        verb: Verb,
        body: bytes,
        deadline: Deadline,
        request: int,
        *,
        waits: bool,
        terms: HoldTerms,
    ) -> tuple[Answer | None, Answer | None]:
        """Send a request for leases by *terms*, as :meth:`ask`.

        Return its answer, and the one about groups of layers.
        """
        self._used[request] = set()
        # Under number 0: a node that does not know the verbs answers it.
        before = after = b""
        about = None
        if terms.seconds is not None:
            name = pack("<Q", request)
            after = message(Verb.LASTS, 0, self.generation, name, seconds=terms.seconds)
        if len(terms.layered) > 1:
            about = self.expect(Verb.LAYERS, deadline)
            layers = pack_layers(LayerGroups(request, about.request, terms.layered))
            before = message(Verb.LAYERS, 0, self.generation, layers)
        if terms.encoded:
            names = pack_encoded(request, terms.encoded)
            before += message(Verb.ENCODED, 0, self.generation, names)
        if terms.rate is not None:
            rate = pack("<Qd", request, terms.rate)
            before += message(Verb.COMPUTES, 0, self.generation, rate)
        answer = self.ask(verb, body, deadline, request, waits=waits, before=before, after=after)
        return answer, about

    def use(self, request: int, places: Iterable[int]) -> bool:
        """Note the places that a request leased. False if the node has taken them back."""
        with self._changed:
            if not self._closed:
                self._used.setdefault(request, set()).update(places)
            return not self._closed

    def use_none(self, request: int) -> None:
        """Note that a request leased nothing."""
        with self._changed:
            self._used.pop(request, None)
        if not self.alive:
            self._close_unused()

    def give_back(self, request: int, places: Collection[int] = (ALL,), size: int = _MUCH) -> None:
        """End leases of *size* bytes at the node: places of a request, or all of it.

        Never waits; may be repeated. Small amounts go to the node with the next request, or at the
        keeper's next tick: waking it each time would take longer than loading a small chunk.
        """
        with self._changed:
            used = self._used.get(request, _NONE)
            # The rest of a request is one name, however many places it has.
            if ALL in places or used.issubset(places):
                self._returned.append((request, ALL))
                self._used.pop(request, None)
            else:
                self._returned.extend(zip(repeat(request), places, strict=False))
                self._used[request].difference_update(places)
            self._owed += size
        if not self.alive:
            self._close_unused()
        elif self._owed >= _MUCH:
            self.send_returned()
        elif not self.ticking:
            self.ticking = True
            self._broken()

    def send_returned(self) -> bool:
        """Send the leases given back; a thread that is sending includes them. True if any were."""
        now = Deadline(self.clock, 0.0)
        was = bool(self._returned)
        while self._returned:
            turn = Turn()
            try:
                if not self._may_send(turn, now) or not self._put(b"", now):
                    break
            finally:
                self._leave(turn)
        return was

    def _close_unused(self) -> None:
        """Close the socket once nothing is leased: the node may then reuse all of its memory."""
        with self._changed:
            if self._used or self._closed:
                return
            self._closed = True  # here, so that nothing is leased over it from now on
        super()._close_unused()

    def _put(self, data: bytes, deadline: Deadline) -> bool:
        """Send *data* whole, after the leases given back. A partial send ends the connection."""
        if not self._returned:
            return super()._put(data, deadline)
        self._owed = 0
        names = [self._returned.popleft() for _ in range(min(len(self._returned), _TOGETHER))]
        data = message(Verb.RELEASE, 0, self.generation, pack_release(names)) + data
        if super()._put(data, deadline):
            return True
        if self.alive:
            self._returned.extendleft(reversed(names))
        return False


def _greeted(stream: Stream, deadline: Deadline, passed: list[int]) -> tuple[int, memoryview]:
    """Return the generation of the node, and its memory; add descriptors of it to *passed*.

    Raises:
        Refused: the node turns this process away.
    """
    said = HANDSHAKE.greet(stream, deadline, b"", FRAME_VERSION, 0, passed=passed)
    frames, generation, size, *_ = said
    if frames != FRAME_VERSION or not size or not passed:
        ours = f"these are of {FRAME_VERSION}; or it has too many clients"
        raise Refused(f"it turns this process away: its frames are of version {frames}, {ours}")
    return generation, memoryview(map_sealed(passed[0], size))
