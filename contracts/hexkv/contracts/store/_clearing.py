"""Promises about clearing: deleting a namespace without a list of keys."""

from __future__ import annotations

import pytest

from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.store._base import Foreign, RawAccess, StoreCase, content, read, same, write
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    DIGEST_BYTES,
    KEY_BYTES,
    NAMESPACE_BYTES,
    ChunkKey,
    ChunkStore,
    Deadline,
    StoreError,
    SupportsClear,
    SupportsScan,
    namespace_of,
)

MANY = 1100
"""More chunks than services list at a time."""

SPECIAL = [b"*", b"?", b"[a-z]", b"\\", b"^", b".*", b"\0", b"\r\n", b"\xff", b"(|)", b"+{2}$"]
SPECIAL += [b"%", b"_"]
"""Bytes with a meaning in patterns, in names or in protocols."""

HIGH = b"\xff" * NAMESPACE_BYTES
ENDS = [HIGH, b"a" * (NAMESPACE_BYTES - 1) + b"\xff", b"a" * (NAMESPACE_BYTES - 2) + b"b\0"]
"""Namespaces beside which a range of keys ends: no higher byte, a carry, and after the carry."""

OTHERS = chunk_key("others", "other model")


def of_namespace(start: bytes, number: int = 0) -> ChunkKey:
    """A chunk of the namespace whose keys begin with *start*."""
    first = start[:NAMESPACE_BYTES].ljust(NAMESPACE_BYTES, b"a")
    return ChunkKey(first + chunk_key(f"chunk {number}")[NAMESPACE_BYTES:])


class Clearing(StoreCase):
    """``SupportsClear``."""

    @pytest.fixture
    def clearer(self, store: ChunkStore) -> SupportsClear:
        """The store, seen as one that can clear a namespace."""
        if not isinstance(store, SupportsClear):
            not_offered("SupportsClear")
        return store

    @promise(
        "clear.1",
        "deletes every chunk whose key begins so, leaves all others, and counts what went",
        level="L1",
        clause="SupportsClear.clear_prefix",
        why="KV of weights that were replaced would be served, or another model's would be gone",
    )
    def test_clears_a_namespace_and_no_other(
        self, store: ChunkStore, clearer: SupportsClear, raw: RawAccess
    ) -> None:
        ours = {chunk_key(f"chunk {i}", "model"): content(100 + i, i) for i in range(20)}
        theirs = {chunk_key(f"chunk {i}", "other model"): content(200 + i, i) for i in range(5)}
        write(store, ours | theirs)
        prefix = namespace_of(next(iter(ours)))
        assert _counted(clearer, prefix) == 20
        same(read(store, *ours), [None] * 20)
        assert not any(store.contains(list(ours), deadline()))
        same(read(store, *theirs), list(theirs.values()))
        assert raw.keys() == set(theirs)
        if isinstance(store, SupportsScan):
            assert {entry.key for entry in store.scan()} == set(theirs)
        assert _counted(clearer, prefix) == 0
        write(store, dict(list(ours.items())[:3]))
        assert _counted(clearer, b"") == 3 + 5
        assert raw.keys() == set()
        write(store, ours | theirs)
        one, other, *rest = ours
        for length, key in ((KEY_BYTES, one), (KEY_BYTES - 1, other)):
            assert _counted(clearer, key[:length]) == 1
        same(read(store, one, other, *rest), [None, None, *(ours[key] for key in rest)])
        assert _counted(clearer, prefix[:3]) == len(rest)
        same(read(store, *theirs), list(theirs.values()))

    @promise(
        "clear.2",
        "takes each byte of a prefix for itself, whatever it means in a pattern",
        level="L1",
        clause="SupportsClear.clear_prefix",
        why="a digest has any bytes: one that reads as a pattern would clear other models",
        hint="escape the service's special characters, and check its answer before deleting",
    )
    def test_clears_by_bytes_and_not_by_patterns(
        self, store: ChunkStore, clearer: SupportsClear
    ) -> None:
        keys = [of_namespace(start) for start in SPECIAL]
        write(store, dict.fromkeys([*keys, of_namespace(b""), OTHERS], b"frame"))
        left = [*keys, of_namespace(b""), OTHERS]
        for key in keys:
            assert _counted(clearer, namespace_of(key)) == 1
            left.remove(key)
            same(read(store, key, *left), [None, *[b"frame"] * len(left)])
        for space in ENDS:
            some = [ChunkKey(space + bytes([last]) * DIGEST_BYTES) for last in (0, 0x61, 0xFF)]
            left = [ChunkKey(it + some[0][NAMESPACE_BYTES:]) for it in ENDS if it != space]
            write(store, dict.fromkeys([*some, *left], b"frame"))
            assert _counted(clearer, space) == len(some), f"of {len(some)} chunks"
            same(read(store, *some, *left), [*[None] * len(some), *[b"frame"] * len(left)])
            store.delete(left, deadline())

    @promise(
        "clear.3",
        "clears more chunks than its service lists at a time",
        level="L1",
        clause="SupportsClear.clear_prefix",
        why="of a cache of any size all but the first thousand chunks would stay",
        hint="ask for the next page until there is none, also after deleting the listed keys",
    )
    def test_clears_more_than_a_page(self, store: ChunkStore, clearer: SupportsClear) -> None:
        keys = [chunk_key(f"chunk {i}", "model") for i in range(MANY)]
        write(store, dict.fromkeys([*keys, OTHERS], b"frame"))
        assert _counted(clearer, namespace_of(keys[0])) == MANY
        assert not any(store.contains(keys, deadline()))
        same(read(store, OTHERS), [b"frame"])

    @promise(
        "clear.4",
        "neither clears another store on the same service nor anything that is no chunk",
        level="L1",
        clause="SupportsClear.clear_prefix",
        why="an operator who clears one cache would empty everybody's",
    )
    def test_clears_nothing_that_is_not_its_own(
        self,
        store: ChunkStore,
        clearer: SupportsClear,
        sibling: ChunkStore | None,
        foreign: Foreign | None,
    ) -> None:
        if sibling is None and foreign is None:
            not_offered("sibling, foreign")
        before = {} if foreign is None else dict(foreign())
        write(store, {OTHERS: b"mine"})
        if sibling is not None:
            write(sibling, {OTHERS: b"theirs"})
        assert _counted(clearer, namespace_of(OTHERS)) == 1
        write(store, {OTHERS: b"mine"})
        assert _counted(clearer, b"") == 1
        if sibling is not None:
            same(read(sibling, OTHERS), [b"theirs"])
        if foreign is not None:
            assert dict(foreign()) == before, "things that are no chunks came, went or changed"

    @promise(
        "clear.5",
        "raises if it may have left something, for instance because it had no time",
        level="L4",
        clause="SupportsClear.clear_prefix",
        why="stale KV would be served after a clear that was reported complete",
    )
    def test_a_clear_without_time_is_none(self, store: ChunkStore, clearer: SupportsClear) -> None:
        keys = [chunk_key(f"chunk {i}", "model") for i in range(20)]
        write(store, dict.fromkeys(keys, b"frame"))
        late = Deadline(SystemClock(), 0.0)
        outcomes: list[str] = []

        def clear() -> None:
            try:
                clearer.clear_prefix(namespace_of(keys[0]), late)
                outcomes.append("complete")
            except StoreError:
                outcomes.append("not complete")

        with UnderWay({"clear_prefix": clear}, patience=2.0) as crowd:
            assert not crowd.late(5.0), "no answer after the deadline"
        assert outcomes, "it raised an error other than a store's"
        if outcomes == ["complete"]:
            same(read(store, *keys), [None] * len(keys))
        assert _counted(clearer, namespace_of(keys[0])) <= len(keys)
        same(read(store, *keys), [None] * len(keys))


def _counted(clearer: SupportsClear, prefix: bytes) -> int:
    __tracebackhide__ = True
    assert len(prefix) <= KEY_BYTES
    count = clearer.clear_prefix(prefix, deadline())
    assert type(count) is int, f"a clear is counted with a {type(count).__qualname__}"
    return count
