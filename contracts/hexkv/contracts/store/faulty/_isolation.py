"""L5: a store does not touch foreign entries, and other stores do not see its chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.contracts.kit.cases import case
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import (
    Foreign,
    RawAccess,
    StoreCase,
    answered,
    content,
    read,
    same,
    write,
)
from hexkv.ports import ChunkKey, ChunkStore, SupportsQuarantine, SupportsScan

A, B, C = (chunk_key(name) for name in "abc")


class Isolation(StoreCase):
    """Several namespaces in one store, several stores on one service, and foreign entries."""

    @pytest.fixture
    def beside(self, sibling: ChunkStore | None) -> ChunkStore:
        """The other store on the same service."""
        if sibling is None:
            not_offered("sibling")
        return sibling

    @pytest.fixture
    def strangers(self, foreign: Foreign | None) -> Foreign:
        """The medium's entries that are not the store's."""
        if foreign is None:
            not_offered("foreign")
        return foreign

    @promise(
        "L5.1",
        "keeps the same chunk of many namespaces apart",
        clause="ChunkKey",
        why="a model would be given the KV of another model, or of another customer",
        hint="the whole key names a chunk, its namespace included",
    )
    def test_namespaces_are_apart(self, store: ChunkStore) -> None:
        # An error that also occurs with the chunks of one namespace breaks another promise.
        with case("chunks of one namespace, so this is no matter of namespaces"):
            _behaves_like_a_map(store, [chunk_key(f"tokens {i}", "model") for i in range(20)])
        with case("the same chunk of many namespaces"):
            _behaves_like_a_map(store, [chunk_key("same tokens", f"model {i}") for i in range(20)])

    @promise(
        "L5.2",
        "sees nothing of another store on the same service",
        clause="ChunkStore.read, ChunkStore.contains",
        why="one tenant would be served what another one asked",
        hint="put the prefix before every key, in every command",
    )
    def test_stores_do_not_see_each_other(self, store: ChunkStore, beside: ChunkStore) -> None:
        write(store, {A: b"mine", B: b"mine alone"})
        same(read(beside, A, B), [None, None])
        assert list(beside.contains([A, B], deadline())) == [False, False]
        write(beside, {A: b"theirs", C: b"theirs alone"})
        same(read(store, A, B, C), [b"mine", b"mine alone", None])
        same(read(beside, A, B, C), [b"theirs", None, b"theirs alone"])
        for one, keys in ((store, {A, B}), (beside, {A, C})):
            if isinstance(one, SupportsScan):
                assert {entry.key for entry in one.scan()} == keys

    @promise(
        "L5.3",
        "takes nothing away from another store on the same service",
        clause="ChunkStore.delete, ChunkStore.close",
        why="clearing or stopping one engine's cache would empty everybody's",
        hint="delete what you were asked to; never clear a service that is shared",
    )
    def test_stores_take_nothing_from_each_other(
        self, store: ChunkStore, beside: ChunkStore
    ) -> None:
        write(store, {A: b"mine", B: b"mine"})
        write(beside, {A: b"theirs", B: b"theirs", C: b"theirs"})
        assert list(store.delete([A, C], deadline())) == [True, False]
        if isinstance(store, SupportsQuarantine):
            store.quarantine([B, C], deadline())
        store.close()
        same(read(beside, A, B, C), [b"theirs"] * 3)
        write(beside, {A: b"new"})
        same(read(beside, A), [b"new"])

    @promise(
        "L5.4",
        "lists and touches nothing on its medium that is not its own",
        clause="SupportsScan.scan",
        why="a cache in a corner of a shared server must stay in that corner",
        hint="check what a scan finds, length and form, before you take it for a chunk",
    )
    def test_strangers_are_left_alone(
        self, store: ChunkStore, raw: RawAccess, strangers: Foreign
    ) -> None:
        before = dict(strangers())
        assert before, "the `foreign` fixture must put something there"
        assert raw.keys() == set(), "the back door takes a stranger for a chunk"
        for turn in range(3):
            write(store, {A: content(5000, turn), B: content(70, turn)})
            same(read(store, A, B, C), [content(5000, turn), content(70, turn), None])
            if isinstance(store, SupportsScan):
                assert {entry.key for entry in store.scan()} == {A, B}
            store.delete([B, C], deadline())
        if isinstance(store, SupportsQuarantine):
            store.quarantine([A], deadline())
        _unchanged(before, strangers())
        store.close()
        _unchanged(before, strangers())


def _behaves_like_a_map(store: ChunkStore, keys: Sequence[ChunkKey]) -> None:
    """Write *keys*, read them, delete every second one; a failure names the step."""
    frames = {key: content(300 + i, seed=i) for i, key in enumerate(keys)}
    with case("writing all"):
        write(store, frames)
    with case("reading all"):
        same(read(store, *keys), list(frames.values()))
    with case("deleting every second one"):
        answered(store.delete(keys[::2], deadline()), [True] * len(keys[::2]))
    with case("reading all after that"):
        same(read(store, *keys), [None if i % 2 == 0 else frames[k] for i, k in enumerate(keys)])
    if isinstance(store, SupportsScan):
        with case("listing the rest"):
            listed = {entry.key for entry in store.scan()}
            assert listed >= set(keys[1::2]), "a chunk that is there is not listed"
            assert not listed & set(keys[::2]), "a deleted chunk is listed"
    with case("deleting the others"):
        answered(store.delete(keys[1::2], deadline()), [True] * len(keys[1::2]))


def _unchanged(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> None:
    __tracebackhide__ = True
    assert set(now) == set(before), "things that are not the store's came or went"
    changed = [name for name in before if now[name] != before[name]]
    assert not changed, f"{', '.join(changed)} is not the store's, and has changed"
