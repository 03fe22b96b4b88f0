"""Promises about clients that disconnect, send garbage or nothing, and others beside them."""

from __future__ import annotations

from contextlib import ExitStack
from random import Random

from hexkv.adapters.lmcache.blackbox._data import content
from hexkv.adapters.lmcache.blackbox._wire import (
    Address,
    Command,
    Keys,
    Wire,
    WireCase,
    request,
    still_serving,
)
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import Level, promise

MALFORMED = {
    "an unknown command": request(99, b"key"),
    "command 0": request(0, b"key"),
    "a negative length": request(Command.PUT, b"key", -1),
    "a length of 2 GiB": request(Command.PUT, b"key", (1 << 31) - 1),
    "a key that is no text": request(Command.EXIST, b"\xff\xfe" * 75),
    "noise": Random(3).randbytes(500),  # noqa: S311 - the same noise every time
}


class Trouble(WireCase):
    """Clients that violate the protocol."""

    @promise(
        "wire.11",
        "shows nothing of a value that did not come whole",
        level=Level.L2,
        clause="PUT",
        why="an engine that dies while it stores would leave half a chunk as a hit",
    )
    @each("sent", [0, 1, 30_000])
    def test_half_a_value_is_none(self, server: Address, key: Keys, sent: int) -> None:
        name, old, new = key(), content(50_000, 1), content(60_000, 2)
        with Wire(server) as wire:
            wire.put(name, old)
            assert wire.exists(name)
        with Wire(server) as broken:
            broken.send(request(Command.PUT, name, len(new)) + new[:sent])
            broken.leave()
        with Wire(server) as wire:
            assert wire.get(name) in (None, old), "a part of a value was given"

    @promise(
        "wire.30",
        "answers a malformed request, or ends the connection; it serves others on",
        level=Level.L4,
        clause="framing",
        why="one bad client would take the cache from everybody",
        hint="check command and length before anything is allocated",
    )
    @each("bytes_", MALFORMED.values(), ids=MALFORMED)
    def test_malformed_requests_are_answered_or_ended(
        self, server: Address, key: Keys, bytes_: bytes
    ) -> None:
        with still_serving(server, key), Wire(server) as bad:
            bad.send(bytes_)
            if bytes_ != MALFORMED["a length of 2 GiB"]:  # it may wait a while for those bytes
                assert bad.leave(), "neither an answer nor an end"

    @promise(
        "wire.31",
        "is not held up by clients that say half a request and then nothing",
        level=Level.L4,
        clause="connections",
        why="hosts go down in the middle of a word, and their connections stay",
        hint="one thread or task per connection, and a deadline for the rest of a request",
    )
    def test_silent_clients_hold_nobody_up(self, server: Address, key: Keys) -> None:
        half = request(Command.GET, b"key")[:50]
        with ExitStack() as opened, still_serving(server, key):
            for start in (b"", half, request(Command.PUT, key(), 1 << 20) + b"only this"):
                for _ in range(6):
                    opened.enter_context(Wire(server)).send(start)

    @promise(
        "wire.32",
        "is not held up by a client that comes byte by byte",
        level=Level.L4,
        clause="connections",
        why="a slow network, or a malicious client, would stop the fleet",
    )
    def test_a_slow_client_holds_nobody_up(self, server: Address, key: Keys) -> None:
        name = key()
        with Wire(server) as slow, Wire(server) as quick:
            for step, byte in enumerate(request(Command.EXIST, name)[:60]):
                slow.send(bytes([byte]))
                if step % 6 == 0:
                    quick.put(name, b"value")
                    assert quick.get(name) == b"value"

    @promise(
        "wire.33",
        "is not held up by a client that asks and does not listen",
        level=Level.L4,
        clause="connections",
        why="an engine that is stopped in a debugger would stop all others",
    )
    def test_a_deaf_client_holds_nobody_up(self, server: Address, key: Keys) -> None:
        name = key()
        with Wire(server) as deaf:
            deaf.put(name, content(8 << 20))
            assert deaf.exists(name)
            with still_serving(server, key):
                deaf.send(request(Command.GET, name) * 8)
                deaf.answer()  # the first answer's head: the server is now sending its value
                with Wire(server) as other:
                    assert other.exists(name)

    @promise(
        "wire.34",
        "forgets a client that leaves without a word",
        level=Level.L4,
        clause="connections",
        why="file descriptors run out, and then no client gets in",
    )
    def test_clients_may_come_and_go(self, server: Address, key: Keys) -> None:
        with still_serving(server, key):
            for turn in range(300):
                with Wire(server) as wire:
                    wire.send(request(Command.EXIST, b"key")[: turn % 187])
