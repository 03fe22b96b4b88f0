"""A TCP proxy between a store and its server, which is a bad network on command.

:class:`FaultProxy` passes everything until a fault is set. There is one fault at a time: each
replaces the one before, and is in effect when the call that sets it returns. Neither side needs
to cooperate, so it works for any adapter with an address among its settings::

    with FaultProxy(("127.0.0.1", 6379)) as proxy:
        store = open_store(f"redis://{proxy.address}")
        proxy.stall()
        ...
        proxy.mend()
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from threading import Thread
from typing import Self

from hexkv.contracts.faults._line import BOTH, CHUNK, CLEAR, Condition, ProxiedLine, Way

__all__ = ["BOTH", "FaultProxy", "Traffic", "Way"]

_PATIENCE = 60.0
"""Seconds after which the proxy's own thread counts as stuck."""

_TURNS = 4
"""Turns of the event loop until an accepted connection is served, or an aborted one closed."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counters of connections and of bytes passed on so far."""

    connections: int
    """Connections accepted, dead ones included."""
    open: int
    """Connections that are alive."""
    forth: int
    """Bytes passed on to the server."""
    back: int
    """Bytes passed on to the clients, without garbage."""


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and passes connections on to *target*.

    Holds at most a few hundred KiB per connection: a side that does not read makes the other
    one wait, as without a proxy. Every method may be called from any thread.

    Args:
        target: ``(host, port)``, or the path of a unix socket. Connected to once for
            each client; if it refuses, so does the proxy.
        seed: of the garbage bytes.

    Raises:
        OSError: it cannot listen.
    """

    def __init__(self, target: tuple[str, int] | str, *, seed: int = 0) -> None:
        self._target = target
        self._random = Random(seed)  # noqa: S311 - garbage is no secret
        self._condition = CLEAR
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._lines: set[ProxiedLine] = set()
        self._passed: list[dict[Way, int]] = []
        """Bytes of every connection, closed ones included: their sums never decrease."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="fault proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{self.host}:{self.port}"

    @property
    def traffic(self) -> Traffic:
        """Counters of connections and of bytes passed on so far."""
        passed = list(self._passed)
        forth, back = (sum(one[way] for one in passed) for way in (Way.FORTH, Way.BACK))
        return Traffic(len(passed), len(self._lines), forth, back)

    def mend(self) -> None:
        """Pass everything again. Connections that have lost bytes are reset."""
        self._become(CLEAR)

    def latency(self, seconds: float) -> None:
        """Delay each turn of a conversation, request or reply, by *seconds*."""
        self._become(Condition(latency=seconds))

    def bandwidth(self, rate: float) -> None:
        """Pass at most *rate* bytes per second in each direction of each connection."""
        self._become(Condition(bandwidth=rate))

    def trickle(self, rate: float) -> None:
        """Pass at most *rate* bytes of replies per second, and requests as they are."""
        self._become(Condition(bandwidth=rate, narrow=frozenset((Way.BACK,))))

    def cut(self) -> None:
        """Reset every connection, now and as soon as it is made."""
        self._become(Condition(refusing=True))

    def cut_after(self, size: int) -> None:
        """Reset each connection when *size* more bytes of replies have come through it."""
        self._become(Condition(cut_after=size))

    def stall(self, *ways: Way) -> None:
        """Accept connections, but pass nothing on in the directions *ways*, by default both."""
        self._become(Condition(stalled=frozenset(ways) or BOTH))

    def garbage(self, size: int) -> None:
        """Put *size* random bytes before the next reply on each connection."""
        self._become(Condition(garbage=size))

    def half_open(self, way: Way = Way.BACK) -> None:
        """Drop all data that goes *way*, the end of the stream included."""
        self._become(Condition(lost=frozenset((way,))))

    def close(self) -> None:
        """Reset every connection and stop listening. Calling it twice is allowed."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_PATIENCE)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> list[ProxiedLine]:
        return list(self._lines)

    def _become(self, condition: Condition) -> None:
        self._on_loop(lambda: self._change(condition))

    def _on_loop(self, act: Callable[[], None]) -> None:
        """Do *act* on the proxy's thread, and return when it is done."""
        done: Future[None] = Future()

        def run() -> None:
            act()
            done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result(_PATIENCE)

    def _change(self, condition: Condition) -> None:
        self._condition = condition
        for line in self._open():
            line.begin_anew()
            if condition.refusing or (line.holed and not condition.lost):
                line.reset()
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self) -> None:
        self._loop.run_until_complete(self._listen())
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=CHUNK)
        await self._closing.wait()
        # Connections just accepted must be served first: closing the server drops them unclosed.
        self._loop.remove_reader(self._listener)
        self._change(Condition(refusing=True))
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # aborted connections close in a later turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = ProxiedLine(writer, self._random)
        self._passed.append(line.passed)
        self._lines.add(line)
        try:
            await self._connect(line, reader)
        except (OSError, asyncio.CancelledError):
            pass  # a side is gone, or the proxy closes: in both cases this line ends
        finally:
            self._lines.discard(line)
            line.reset()

    async def _connect(self, line: ProxiedLine, reader: asyncio.StreamReader) -> None:
        while Way.FORTH in self._condition.stalled:
            await self._changed.wait()
        if self._condition.refusing:
            return
        if isinstance(self._target, str):
            far = await asyncio.open_unix_connection(self._target, limit=CHUNK)
        else:
            far = await asyncio.open_connection(*self._target, limit=CHUNK)
        line.reaches(far[1])
        pumps = [
            asyncio.create_task(self._pump(line, Way.FORTH, reader)),
            asyncio.create_task(self._pump(line, Way.BACK, far[0])),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, line: ProxiedLine, way: Way, reader: asyncio.StreamReader) -> None:
        while data := await self._arrives(line, way, reader):
            while data:  # read before the network became slow, it trickles, too
                gulp = self._condition.gulp(way)
                await self._hold(line, way, len(data[:gulp]))
                await line.deliver(way, data[:gulp], self._condition)
                data = data[gulp:]
        await self._hold(line, way, 0)
        line.end(way)

    async def _arrives(self, line: ProxiedLine, way: Way, reader: asyncio.StreamReader) -> bytes:
        """The next bytes; empty at the end of the stream, which a lost direction never reaches."""
        data = b""
        with suppress(ConnectionError):
            data = await reader.read(self._condition.gulp(way))
        if not data:
            while way in self._condition.lost:
                line.holed = True
                await self._changed.wait()
        return data

    async def _hold(self, line: ProxiedLine, way: Way, size: int) -> None:
        """Delay these bytes by the condition of the network."""
        seconds = self._condition.delay(way, size, turned=line.turns(way))
        if seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), seconds)
        while way in self._condition.stalled:
            await self._changed.wait()
