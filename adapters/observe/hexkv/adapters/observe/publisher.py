"""KV events over ZeroMQ, as vLLM and SGLang publish theirs, and replays of missed batches.

XPUB, a PUB that receives subscriptions: frames ``topic, sequence (8 bytes, big-endian), msgpack of
[seconds, [event, ...], 0]``.
ROUTER: a request ``b"", first sequence`` is answered by ``b"", topic, sequence, payload`` for each
batch from there on, and at the end the sequence -1 with no payload.
(vllm/distributed/kv_events.py)

Four things differ from there, each for a listener that comes late or loses a batch:

- Sequences begin at the milliseconds of the wall clock, so a new life of the process is a gap for
  listeners of the last one, and never repeats earlier numbers. The first batch clears everything.
- A subscription is answered by all that is announced, which goes to all listeners: cleared, and
  then each block. So a router that has outlived the former process drops its old state, also
  without a replay; the state of other routers is the same afterwards. Changes during this answer
  are published after it, so no block comes before its parent.
- Empty batches end a silence, so a loss is noticed even if no further events come.
- A listener that requests batches which were dropped gets all that is announced instead, under
  missed numbers: cleared, and then each block. If these numbers are of an earlier life, or of none,
  it is published to all listeners, too: some accept a replay only if it begins at the number that
  they requested.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from threading import Event as Flag
from threading import Thread
from typing import Any, NamedTuple

import msgspec
import zmq

from hexkv.adapters.net.address import Address
from hexkv.adapters.observe.blocks import CLEARED, Event
from hexkv.ports import Clock, ConfigError

log = logging.getLogger(__name__)

_GATHERED = 0.01
"""Seconds for which events are collected for one batch."""

_PAUSE = 1.0
"""Seconds between two checks for the end."""

_AT_ONCE = 128
"""Events of a batch: about 150 KiB, with 256 tokens each."""

_QUEUED = 256
"""Batches that wait for one listener; it loses later ones, and requests them again."""

_REPLIED = 8192
"""Batches that wait for one listener that has requested a replay."""

_REPLAYS = 4
"""Replays in a second; further requests wait."""

_REFRESHED = 5.0
"""Seconds between two times that everything is published anew."""

_HANDSHAKE_MS = 5000
"""Milliseconds for the whole greeting of a connection, after which ZeroMQ ends it."""

_SETTLING = 1.0
"""Seconds between a new listener's request and the publication of everything: it may send the
request before its subscription is known, and would miss the publication."""

_SUBSCRIBED = b"\x01"
"""The first byte of a subscription's message; that of its end begins with a zero."""

_END = (-1).to_bytes(8, "big", signed=True)
_PARTING = 0.25
"""Seconds for which replays are answered after the last batch."""

_LINGER_MS = 200
_CLOSING = 1.0

_AGAIN, _TRIES = 0.05, 100
"""Seconds between tries to listen where a former publisher still does, and their number."""


class Source(NamedTuple):
    """The source of a publisher's events. All of it is called from its thread."""

    take: Callable[[], Iterable[Event]]
    """The events since the last call."""

    snapshot: Callable[[], Iterable[Event]]
    """Events that rebuild the present state from any other."""

    woken: int
    """The descriptor that becomes readable when there are events."""

    wake: Callable[[], None]
    """Make it readable. From any thread."""


class Publisher:
    """Publishes from a thread of its own until it is closed."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        events: Address,
        replay: Address | None,
        *,
        topic: str,
        history: int,
        beat: float,
        snapshots: bool = True,
    ) -> None:
        """Bind, and begin.

        Args:
            source: of the events.
            clock: for sequences and stamps.
            events: at which batches are published.
            replay: at which they can be requested again; ``None``: nowhere.
            topic: leads each message.
            history: bytes of batches kept for replays.
            beat: seconds of silence before an empty batch.
            snapshots: True if each subscription is answered; otherwise the first one alone is.

        Raises:
            ConfigError: an address cannot be bound.
        """
        self._source = source
        self._clock = clock
        self._topic = topic.encode()
        self._most = history
        self._beat = beat
        self._answers_all = snapshots
        self._encoder = msgspec.msgpack.Encoder()
        self._first = self._next = int(clock.wall() * 1000)
        self._history: deque[tuple[int, bytes]] = deque()
        self._kept = 0
        self.batches = 0
        self.replays = 0
        self.snapshots = 0
        """Replays that were answered with all that is announced."""

        self.subscriptions = 0
        """Subscriptions that arrived."""

        self._unanswered = False
        """True from a subscription until all that is announced is published for it."""

        self._anew: Iterator[Event] | None = None
        """The rest of the events that are published anew."""

        self._wanted: int | None = None
        """The number requested by a listener that needs everything anew."""

        self._asked = self._latest = 0.0
        self._refreshed = -_REFRESHED

        self._ending = Flag()
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._pub = self._bound(zmq.XPUB, events, _QUEUED)
            self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)  # also for topics that have a subscriber
            self._router = None if replay is None else self._bound(zmq.ROUTER, replay, _REPLIED)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = Thread(target=self._run, name="hexkv events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Publish that everything is cleared, and end."""
        self._ending.set()
        self._source.wake()
        self._thread.join(_CLOSING)

    def _bound(self, kind: int, address: Address, most: int) -> zmq.Socket[Any]:
        sock: zmq.Socket[Any] = self._context.socket(kind)
        sock.setsockopt(zmq.LINGER, _LINGER_MS)
        sock.setsockopt(zmq.SNDHWM, most)
        sock.setsockopt(zmq.RCVHWM, 64)
        sock.setsockopt(zmq.MAXMSGSIZE, 1024)
        sock.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        sock.setsockopt(zmq.IPV6, ":" in address.host)
        if kind == zmq.ROUTER:
            sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for tries_left in reversed(range(_TRIES)):
            try:
                sock.bind(f"tcp://{address}")
                break
            except zmq.ZMQError as error:
                if error.errno != zmq.EADDRINUSE or not tries_left:
                    raise ConfigError(f"cannot listen at {address}: {error}") from error
                self._ending.wait(_AGAIN)  # a former publisher may still end
        return sock

    def _run(self) -> None:
        try:
            self._publish([CLEARED])
            self._go_on()
            self._publish([CLEARED])
            self._part()
        except Exception:
            log.exception("KV events are no longer published")
        finally:
            self._context.destroy(linger=_LINGER_MS)

    def _go_on(self) -> None:
        poller = zmq.Poller()
        poller.register(self._source.woken, zmq.POLLIN)
        poller.register(self._pub, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        spoke = asked = self._clock.now()
        replays = 0
        while not self._ending.is_set():
            pause = 0.0 if self._anew is not None else min(self._beat, _PAUSE)
            found = dict(poller.poll(int(pause * 1000)))
            now = self._clock.now()
            if self._pub in found:
                self._read_subscriptions()
            self._refresh(now)
            if self._anew is None and self._source.woken in found:
                self._ending.wait(_GATHERED)
                events = list(self._source.take())
                for start in range(0, len(events), _AT_ONCE):
                    self._publish(events[start : start + _AT_ONCE])
                    spoke = now
            if now >= spoke + self._beat:
                self._publish([])
                spoke = now
            if now >= asked + 1.0:
                asked, replays = now, 0
            if self._router is not None and self._router in found:
                if replays < _REPLAYS:
                    replays += 1
                    self._reply(self._router)
                else:
                    self._ending.wait(_GATHERED)

    def _read_subscriptions(self) -> None:
        came = 0
        with suppress(zmq.Again):
            for _ in range(_AT_ONCE):
                came += self._pub.recv(zmq.NOBLOCK)[:1] == _SUBSCRIBED
        self._unanswered |= bool(came) and (self._answers_all or not self.subscriptions)
        self.subscriptions += came

    def _refresh(self, now: float) -> None:
        """Publish a part of the events that are to be published anew."""
        if self._anew is None and not self._begin_anew(now):
            return
        assert self._anew is not None  # noqa: S101 - it has begun
        events = list(islice(self._anew, _AT_ONCE))
        if events:
            self._publish(events)
            if events != [CLEARED]:  # which alone needs no limit of its rate
                self._refreshed = now
        else:
            self._anew = None

    def _begin_anew(self, now: float) -> bool:
        """True if all that is announced is to be published anew, from now on."""
        due = self._refreshed + _REFRESHED
        asked = max(due, min(self._asked + _SETTLING, self._latest))
        if self._unanswered and now >= due:
            self._anew = iter(self._source.snapshot())
        elif self._wanted is not None and now >= asked:
            self._anew = iter(self._source.snapshot())
            if not self._wanted:  # a new listener: the others keep their state
                next(self._anew)
        else:
            return False
        self._unanswered, self._wanted = False, None
        return True

    def _part(self) -> None:
        """Answer listeners that missed the end: Dynamo's indexer waits for ever for a replay."""
        until = self._clock.now() + _PARTING
        while self._router is not None and (left := until - self._clock.now()) > 0:
            if self._router.poll(int(left * 1000) + 1):
                self._reply(self._router)

    def _publish(self, events: list[Event]) -> None:
        payload = self._batch(events)
        number, self._next = self._next, self._next + 1
        self._history.append((number, payload))
        self._kept += len(payload)
        while self._kept > self._most and len(self._history) > 1:
            self._kept -= len(self._history.popleft()[1])
        self.batches += 1
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), payload))

    def _batch(self, events: list[Event]) -> bytes:
        return self._encoder.encode((self._clock.wall(), events, 0))

    def _reply(self, router: zmq.Socket[Any]) -> None:
        """Answer a request for batches, as far as the listener accepts them."""
        identity, *parts = router.recv_multipart()
        if len(parts) != 2 or parts[0] or len(parts[1]) != 8:
            return
        first = int.from_bytes(parts[1], "big")
        self.replays += 1
        if first < self._first:
            self._asked = self._clock.now()
            if self._wanted is None:
                self._latest = self._asked + _REFRESHED
            self._wanted = max(first, self._wanted or 0)
        with suppress(zmq.ZMQError):  # it has gone, or has too much to read
            for number, payload in self._missed(first):
                message = identity, b"", self._topic, number.to_bytes(8, "big"), payload
                router.send_multipart(message, zmq.NOBLOCK)
            router.send_multipart((identity, b"", self._topic, _END, b""), zmq.NOBLOCK)

    def _missed(self, first: int) -> list[tuple[int, bytes]]:
        """Return the batches from *first* on, or their replacement."""
        kept = [batch for batch in self._history if batch[0] >= first]
        if first >= self._next or (kept and kept[0][0] == first):
            return kept
        self.snapshots += 1
        events = list(self._source.snapshot())
        # Each has its own number, and the last one has that of the last batch.
        count = min(-(-len(events) // _AT_ONCE), self._next - first)
        size = -(-len(events) // count)
        return [
            (self._next - count + i, self._batch(events[i * size : (i + 1) * size]))
            for i in range(count)
        ]
