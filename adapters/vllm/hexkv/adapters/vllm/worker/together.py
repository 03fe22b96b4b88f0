"""Loads of ranks that hold the same KV: the first one's engine reads, and all get the result.

The first rank gives its engine a window that passes on the bytes scattered into it: they are
verified, decoded, and in host memory already, while the engine reads the next ones. So the
others need no engine's memory, no store and no codec for it. Each part names its load, its
prompt and its tokens, and has a checksum: a rank that got another part has a miss.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from hexkv.adapters.vllm.messages import Load
from hexkv.ports import (
    Clock,
    Collective,
    CollectiveBroken,
    Deadline,
    DeviceKV,
    HashFunction,
    KVLayout,
    Retrieved,
    Span,
    Transfer,
)

log = logging.getLogger("vllm.hexkv")

Read = Callable[[DeviceKV], Retrieved]
"""Makes the engine load into a window."""

_HEAD = struct.Struct("<4sBQII16s16s")
_MAGIC = b"HXT1"
_PART, _END = 0, 1
_NAME_BYTES = 16
_TOKEN_BYTES = 4


class _Head(NamedTuple):
    """The head of a message."""

    magic: bytes
    kind: int
    order: int
    """The place of the load among all of this engine: larger for later ones."""

    start: int
    end: int
    """Tokens of a part. At the end of a load, up to where everything was loaded."""

    name: bytes
    checksum: bytes


class _Call(NamedTuple):
    """One load on one rank."""

    order: int
    load: Load
    window: DeviceKV
    read: Read | None
    deadline: Deadline
    name: bytes

    def got(self, hit: int = 0, size: int = 0) -> Retrieved:
        """The result of the load: everything before token *hit*, in *size* bytes."""
        start = self.load.start
        hit = max(hit, start)
        return Retrieved(len(self.load.tokens) // _TOKEN_BYTES, hit, hit - start, size)


class LoadsTogether:
    """One rank's part in the loads of all that hold the same. For one thread at a time.

    Args:
        collective: of these ranks. Closed with this.
        checksum: guards parts on their way; one for all ranks.
        chunk_bytes: of the longest part there can be.
        seconds: for which a load waits for the others, at most.
        clock: for that.
    """

    def __init__(
        self,
        collective: Collective,
        checksum: HashFunction,
        chunk_bytes: int,
        seconds: float,
        clock: Clock,
    ) -> None:
        self._collective = collective
        self._checksum = checksum
        self._chunk_bytes = chunk_bytes
        self._seconds = seconds
        self._clock = clock
        self._pending: tuple[_Head, memoryview] | None = None
        """The message of a load that is not begun here yet."""

    @property
    def follows(self) -> bool:
        """True while this rank gets its loads from another one, so that it need not look up."""
        return self._collective.rank > 0 and self._collective.whole

    def load(self, order: int, load: Load, window: DeviceKV, read: Read | None) -> Retrieved:
        """Load together: read for all on the first rank, and receive its chunks on the others.

        Every rank calls it for the same loads, in the same order. While ranks are apart each one
        reads alone.

        Args:
            order: of this load; larger than those of all before.
            load: which one.
            window: this rank's.
            read: makes this rank's engine read; ``None`` if it cannot know the chunks.
        """
        deadline = Deadline.after(self._clock, self._seconds)
        call = _Call(order, load, window, read, deadline, _name(load))
        if self._collective.whole:
            return self._follow(call) if self._collective.rank else self._lead(call)
        self._pending = None
        return call.got() if read is None else read(window)

    def close(self) -> None:
        """Leave the others. Twice is allowed."""
        self._collective.close()

    def _lead(self, call: _Call) -> Retrieved:
        def pass_on(kind: int, start: int, end: int, data: memoryview) -> None:
            if not self._collective.whole:
                return  # no rank listens now, and this rank's own load goes on
            checksum = self._checksum.digest(data)
            head = _Head(_MAGIC, kind, call.order, start, end, call.name, checksum)
            try:
                self._collective.send(_HEAD.pack(*head), data, call.deadline)
            except CollectiveBroken as error:
                log.warning("a load is not passed on: %s", error)

        got = call.got()
        try:
            if call.read is not None:
                got = call.read(_PassedOn(call.window, partial(pass_on, _PART)))
            return got
        finally:  # in every case, no rank is to wait for more
            pass_on(_END, 0, got.hit_tokens, memoryview(b""))

    def _follow(self, call: _Call) -> Retrieved:
        reached, size = call.load.start, 0
        try:
            while True:
                head, data = self._next(call)
                if head.order < call.order:
                    continue  # of a load that this rank made alone
                if head.order > call.order:
                    self._pending = head, data
                    break
                if head.name != call.name or head.end > call.window.tokens:
                    self._collective.part()
                    break
                if head.kind == _END:
                    return call.got(min(head.end, reached), size)
                if self._checksum.digest(data) != head.checksum:
                    log.warning("tokens %d to %d came damaged", head.start, head.end)
                elif head.start <= reached:
                    if not call.window.scatter([Span(*head[3:5], data)]).wait(call.deadline):
                        self._collective.part()  # the received part is still being copied
                        break
                    reached, size = max(reached, head.end), size + data.nbytes
        except CollectiveBroken as error:
            log.warning("a load was not passed on: %s", error)
        if self._pending is not None and call.read is not None:
            return call.read(call.window)  # the first rank read for itself alone, and is done
        return call.got(reached, size)

    def _next(self, call: _Call) -> tuple[_Head, memoryview]:
        """The next message, if it makes sense.

        Raises:
            CollectiveBroken: it does not, or there is none.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            return pending
        packed, data = self._collective.receive(self._chunk_bytes, call.deadline)
        if len(packed) == _HEAD.size:
            head = _Head(*_HEAD.unpack(packed))
            tokens = head.end - head.start if head.kind == _PART else 0
            fits = tokens >= 0 and data.nbytes == call.window.layout.chunk_bytes(tokens)
            if head.magic == _MAGIC and head.kind in (_PART, _END) and fits:
                return head, data
        self._collective.part()
        raise CollectiveBroken("a message makes no sense")


class _PassedOn:
    """A window that passes on the bytes scattered into it: a :class:`~hexkv.ports.DeviceKV`."""

    def __init__(self, window: DeviceKV, pass_on: Callable[[int, int, memoryview], None]) -> None:
        self._window = window
        self._pass_on = pass_on

    @property
    def layout(self) -> KVLayout:
        return self._window.layout

    @property
    def tokens(self) -> int:
        return self._window.tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        return self._window.gather(spans, layers)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        copying = self._window.scatter(spans, layers)
        for span in spans:
            self._pass_on(span.start, span.end, span.data)
        return copying


def _name(load: Load) -> bytes:
    text = repr((load.request, tuple(load.scope), load.start, load.end)).encode()
    return blake2b(text + load.tokens, digest_size=_NAME_BYTES).digest()
