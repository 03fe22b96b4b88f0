"""Promises about data: GET returns the bytes of PUT."""

from __future__ import annotations

from random import Random

from hexkv.adapters.lmcache.blackbox._wire import (
    FAILED,
    FOUND,
    KEY_LENGTH,
    Command,
    Keys,
    Tensor,
    Wire,
    WireCase,
    request,
)
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import Level, promise


def content(size: int, seed: int = 0) -> bytes:
    """*size* random bytes, no two places alike."""
    return Random(seed).randbytes(size)  # noqa: S311 - nothing here is secret


def same(got: bytes | None, put: bytes) -> None:
    """Fail unless both are the same bytes; do not print megabytes of difference."""
    __tracebackhide__ = True
    assert got is not None, f"a miss, instead of {len(put)} bytes"
    assert len(got) == len(put), f"{len(got)} bytes, instead of {len(put)}"
    if got != put:
        place = next(i for i, (a, b) in enumerate(zip(got, put, strict=True)) if a != b)
        raise AssertionError(f"byte {place} of {len(put)} is not the one put")


class Data(WireCase):
    """Promises about a single client."""

    @promise(
        "wire.1",
        "answers HEALTH with 200",
        level=Level.L0,
        clause="HEALTH",
        why="engines take the server for dead, and do without it",
    )
    def test_it_is_healthy(self, wire: Wire) -> None:
        assert wire.healthy()
        assert wire.healthy(), "once, and then no longer"

    @promise(
        "wire.2",
        "gives back the bytes that were put",
        level=Level.L1,
        clause="PUT, GET",
        why="an engine would compute on with another request's KV",
        hint="loop over short reads: a value comes in many pieces",
    )
    @each("size", [1, 4096, 100_003, 32 << 20])
    def test_what_is_put_is_got(self, wire: Wire, key: Keys, size: int) -> None:
        name, value = key(), content(size)
        wire.put(name, value)
        same(wire.get(name), value)

    @promise(
        "wire.3",
        "answers 400 to a GET of what it does not have, and goes on",
        level=Level.L1,
        clause="GET",
        why="a miss that breaks the connection makes every cold prompt reconnect",
    )
    def test_a_miss_is_an_answer(self, wire: Wire, key: Keys) -> None:
        name = key()
        wire.put(name, b"value")
        wire.send(request(Command.GET, key()))
        answer = wire.answer()
        assert answer.code == FAILED
        assert answer.length == 0, "bytes are announced with a miss"
        assert wire.get(name) == b"value"

    @promise(
        "wire.4",
        "reports a key as existing once it was put, and not before",
        level=Level.L1,
        clause="EXIST",
        why="engines wait for KV that does not come, or compute KV that is there",
    )
    def test_existence_is_told_as_it_is(self, wire: Wire, key: Keys) -> None:
        name, other = key(), key()
        assert not wire.exists(name)
        wire.put(name, b"value")
        assert wire.exists(name)
        assert not wire.exists(other)

    @promise(
        "wire.5",
        "replaces a value whole",
        level=Level.L1,
        clause="PUT",
        why="the end of an old value behind a new one is wrong KV",
    )
    @each(("old", "new"), [(9000, 100), (100, 9000), (5000, 5000)])
    def test_a_value_is_replaced_whole(self, wire: Wire, key: Keys, old: int, new: int) -> None:
        name, beside = key(), key()
        wire.put(name, content(old, 1))
        wire.put(beside, content(old, 2))
        wire.put(name, content(new, 3))
        same(wire.get(name), content(new, 3))
        same(wire.get(beside), content(old, 2))

    @promise(
        "wire.6",
        "gives back format, dtype and shape as they were put",
        level=Level.L1,
        clause="PUT, GET",
        why="the connector builds its tensor from them",
        hint="a request has the location before the shape, an answer behind it",
    )
    @each("tensor", [Tensor(1, 2, (2, 28, 16, 8)), Tensor(4, 6, (7, 0, 0, 0))])
    def test_what_is_said_of_a_tensor_comes_back(
        self, wire: Wire, key: Keys, tensor: Tensor
    ) -> None:
        name = key()
        wire.put(name, b"value", tensor)
        wire.send(request(Command.GET, name))
        answer = wire.answer()
        assert (answer.code, answer.length, answer.tensor) == (FOUND, 5, tensor)
        assert wire.receive(5) == b"value"

    @promise(
        "wire.7",
        "keeps keys apart that differ in their last byte, also when they fill all 150",
        level=Level.L1,
        clause="key",
        why="two prompts with one name get each other's KV",
    )
    def test_long_keys_are_kept_apart(self, wire: Wire, key: Keys) -> None:
        bare = key("uint8@tag%")
        names = [bare.ljust(KEY_LENGTH - 1, b"h") + end for end in (b"a", b"b", b"A")]
        key.given += names
        for name in names[:2]:
            wire.put(name, name[-1:])
        assert [wire.get(name) for name in names] == [b"a", b"b", None]

    @promise(
        "wire.8",
        "lists the names of what it holds, one a line",
        level=Level.L1,
        clause="LIST",
        why="the chunks of a server cannot be seen",
    )
    def test_it_lists_what_it_holds(self, wire: Wire, key: Keys) -> None:
        names = [key(), key()]
        for name in names:
            wire.put(name, b"value")
        absent = key()
        listed = {name.strip() for name in wire.names()}
        assert set(names) <= listed
        assert absent not in listed

    @promise(
        "wire.9",
        "answers requests that come together in their order",
        level=Level.L1,
        clause="framing",
        why="TCP joins messages sent apart: one request read wrongly shifts all that follow",
    )
    def test_requests_may_come_together(self, wire: Wire, key: Keys) -> None:
        one, two = key(), key()
        puts = b"".join(
            request(Command.PUT, name, len(value)) + value
            for name, value in ((one, b"first"), (two, b"the second"))
        )
        wire.send(puts + request(Command.GET, two) + request(Command.GET, one))
        assert [wire.value(), wire.value()] == [b"the second", b"first"]
