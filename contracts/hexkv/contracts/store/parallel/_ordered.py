"""L3, continued: every history has a right order, and every sequence agrees with a model."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from random import Random
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.examples import examples
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.store._base import Reopen, StoreCase, content, read, same, write
from hexkv.contracts.store.parallel._history import Act, Event, could_be
from hexkv.contracts.store.parallel._threads import is_one_value, stamped, together
from hexkv.ports import ChunkKey, ChunkStore, SupportsScan

STEPS = 25
"""Calls that each thread makes."""

SIZES = (0, 1, 17, 4096, 5000, 70_000)


class Ordered(StoreCase):
    """A store is one map from keys to frames for any number of threads."""

    @pytest.mark.usefixtures("restless")
    @promise(
        "L3.7",
        "answers several threads as if each key's calls had come one after the other",
        clause="ChunkStore, from several threads at once",
        why="an engine would see that a chunk is stored, and then that it never was",
        hint="publish a change in one step; look nothing up in a copy of the past",
    )
    @each("seed", range(2))
    def test_histories_are_linearizable(self, store: ChunkStore, seed: int) -> None:
        keys = [chunk_key(f"contended {i} of {seed}") for i in range(2)]
        moments, versions = count(1), count(1)
        seen: dict[ChunkKey, list[Event]] = defaultdict(list)

        def work(worker: int) -> None:
            random = Random(1000 * seed + worker)  # noqa: S311 - nothing here is secret
            for _ in range(STEPS):
                act = random.choice(list(Act))
                some = random.sample(keys, random.randint(1, len(keys)))
                wanted = [next(versions) for _ in some]
                began = next(moments)
                values = _asked(store, act, some, wanted, random)
                ended = next(moments)
                for key, value in zip(some, values, strict=True):
                    seen[key].append(Event(act, value, began, ended))

        together(work)
        for name, key in enumerate(keys):
            right = could_be(seen[key], loses=self.loses)
            assert right, f"no order explains the answers for key {name}:\n{_as_text(seen[key])}"

    @promise(
        "L3.8",
        "agrees with a dictionary through every sequence of calls that is tried",
        clause="ChunkStore, every call",
        why="the core's index follows the same model: where they differ, a budget is wrong",
        hint="the calls that led to the difference are printed: they are as few as can be",
    )
    def test_agrees_with_a_model(self, store: ChunkStore, reopen: Reopen) -> None:
        class Machine(Model):
            pass

        Machine.subject, Machine.again, Machine.lives = store, reopen, count()
        examples("L3.8", lambda chosen: run_state_machine_as_test(Machine, settings=chosen), 12, 20)


def _asked(
    store: ChunkStore, act: Act, keys: list[ChunkKey], wanted: list[int], random: Random
) -> list[int]:
    """Make one call; return the value of each answer, in the form of a history."""
    match act:
        case Act.WRITE:
            frames = [stamped(0, version, random.randint(16, 9000)) for version in wanted]
            write(store, dict(zip(keys, frames, strict=True)))
            return wanted
        case Act.READ:
            found = read(store, *keys)
            assert all(f is None or is_one_value(f, 0) for f in found), "a mixture of frames"
            return [0 if f is None else int.from_bytes(f[4:8], "little") for f in found]
        case Act.CONTAINS:
            return [int(flag) for flag in store.contains(keys, deadline())]
        case Act.DELETE:
            return [int(flag) for flag in store.delete(keys, deadline())]


def _as_text(history: list[Event]) -> str:
    return "\n".join(
        f"{event.began:4} to {event.ended:4}: {event.act.name.lower()} {event.value}"
        for event in sorted(history, key=lambda event: event.began)
    )


class Model(RuleBasedStateMachine):
    """A store beside a dictionary. Each run begins with an empty store and leaves it so."""

    subject: ClassVar[ChunkStore]
    again: ClassVar[Reopen]
    lives: ClassVar[count[int]]

    def __init__(self) -> None:
        super().__init__()
        life = next(self.lives)
        self.keys = [chunk_key(f"{life}: {i}") for i in range(4)]
        self.model: dict[ChunkKey, bytes] = {}

    some = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True)
    any_ = st.lists(st.integers(0, 3), max_size=6)

    @rule(which=some, size=st.sampled_from(SIZES), seed=st.integers(0, 5))
    def write(self, which: list[int], size: int, seed: int) -> None:
        frames = {self.keys[i]: content(size + i, seed) for i in which}
        write(self.subject, frames)
        self.model |= frames

    @rule(which=some)
    def delete(self, which: list[int]) -> None:
        keys = [self.keys[i] for i in which]
        gone = list(self.subject.delete(keys, deadline()))
        assert gone == [self.model.pop(key, None) is not None for key in keys]

    @rule(which=any_)
    def read(self, which: list[int]) -> None:
        keys = [self.keys[i] for i in which]
        same(read(self.subject, *keys), [self.model.get(key) for key in keys])

    @rule(which=any_)
    def contains(self, which: list[int]) -> None:
        keys = [self.keys[i] for i in which]
        here = list(self.subject.contains(keys, deadline()))
        assert here == [key in self.model for key in keys]

    @precondition(lambda self: isinstance(self.subject, SupportsScan))
    @rule()
    def scan(self) -> None:
        assert isinstance(self.subject, SupportsScan)
        listed = sorted((entry.key, entry.size) for entry in self.subject.scan())
        assert listed == sorted((key, len(frame)) for key, frame in self.model.items())

    @precondition(lambda self: self.again is not None)
    @rule()
    def reopen(self) -> None:
        again = type(self).again
        assert again is not None
        type(self).subject = again()
        found = read(self.subject, *self.keys)
        kept = {k: f for k, f in zip(self.keys, found, strict=True) if f is not None}
        same(list(kept.values()), [self.model.get(key) for key in kept])
        self.model = kept

    def teardown(self) -> None:
        self.subject.delete(self.keys, deadline())
