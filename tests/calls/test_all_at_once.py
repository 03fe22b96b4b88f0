"""Eight threads do everything to one engine at once: right bytes, answers in time, nothing left."""

import random
from contextlib import suppress
from threading import Thread

import pytest

from configured import FRAME, LAYOUT, built, computed, prompt, settle
from depth import thorough
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.policies import POLICIES
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.tier import TierPlan
from hexkv.ports import ConfigError, CounterName, InvalidRequest
from rigging import attach, chosen

PROMPTS = [prompt(number) for number in range(12)]
KV = [computed(tokens) for tokens in PROMPTS]
TIERS = ("memory", "disk")
SERDE = "zstd"
STEPS = 150
THREADS = 8


class Worker:
    """One of the threads: what it may do, and what it saw that must not be."""

    def __init__(self, engine, root, seed):
        self.engine = engine
        self.root = root
        self.rng = random.Random(seed)
        self.wrong = []

    def work(self):
        acts = {
            self.retrieve: 20, self.store: 12, self.layers: 5, self.store_layers: 4,
            self.prefetch: 8, self.pick_up: 5, self.cancel: 4, self.pin: 4, self.unpin: 4,
            self.move: 4, self.change: 6, self.clear: 2, self.come_or_go: 2,
        }  # fmt: skip
        for act in self.rng.choices(list(acts), list(acts.values()), k=STEPS):
            number = self.rng.randrange(len(PROMPTS))
            try:
                act(PROMPTS[number], number)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                self.wrong.append((act.__name__, error))

    def check(self, number, target, hit):
        if not target.agrees(KV[number], hit):
            self.wrong.append(("wrong KV", number))

    def retrieve(self, tokens, number, lookup_id=None):
        target = HeapKV(LAYOUT, len(tokens))
        got = self.engine.retrieve(tokens, target, lookup_id=lookup_id)
        self.check(number, target, got.hit_tokens)

    def pick_up(self, tokens, number):
        self.retrieve(tokens, number, lookup_id=str(number))

    def layers(self, tokens, number):
        target = HeapKV(LAYOUT, len(tokens))
        with self.engine.retrieve_layers(tokens, target) as layers:
            for _ in layers:
                if self.rng.random() < 0.1:
                    return
        self.check(number, target, layers.result().hit_tokens)

    def store(self, tokens, number):
        self.engine.store(tokens, KV[number], wait=self.rng.random() < 0.7)

    def store_layers(self, tokens, number):
        with self.engine.store_layers(tokens, KV[number]) as storing:
            for layer in range(LAYOUT.layers):
                if self.rng.random() < 0.1:
                    return
                storing.layer_done(layer)
            storing.result()

    def prefetch(self, tokens, number):
        self.engine.prefetch(str(number), tokens)

    def cancel(self, tokens, number):
        self.engine.cancel(str(number))

    def pin(self, tokens, number):
        self.engine.pin(tokens, f"owner-{number % 3}")

    def unpin(self, tokens, number):
        self.engine.unpin(f"owner-{number % 3}")

    def move(self, tokens, number):
        carry = self.rng.choice([self.engine.admin.move, self.engine.admin.copy])
        some = tokens if self.rng.random() < 0.9 else None
        carry(chosen(self.engine, some), *self.rng.sample(TIERS, 2))

    def change(self, tokens, number):
        if self.rng.random() < 0.5:
            self.engine.admin.compress(chosen(self.engine, tokens), self.rng.choice(TIERS), SERDE)
        else:
            self.engine.admin.compress(chosen(self.engine, tokens), self.rng.choice(TIERS), "raw")

    def clear(self, tokens, number):
        self.engine.clear(tokens if self.rng.random() < 0.9 else None)

    def come_or_go(self, tokens, number):
        name = self.rng.choice("xy")
        store = DiskStore(self.root / name)
        guest = TierPlan(name, store, TierIndex(POLICIES["lru"](), 20 * FRAME))
        try:
            attach(self.engine, guest, self.rng.choice([None, 0, 1]))
        except ConfigError:  # it is there already
            store.close()
            leave(self.engine, name)


def leave(engine, name):
    with suppress(InvalidRequest):  # another thread was faster
        assert engine.admin.detach(name)


@pytest.mark.parametrize("seed", [0, *thorough(1)])
def test_whatever_is_done_at_once_no_kv_is_wrong_and_nothing_is_left(tmp_path, seed):
    with built(tmp_path / "kv", slots=24, budget=60 * FRAME) as engine:
        workers = [Worker(engine, tmp_path, f"{seed}/{n}") for n in range(THREADS)]
        threads = [Thread(target=worker.work, daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in threads)
        assert [worker.wrong for worker in workers] == [[]] * THREADS

        for name in "xy":
            leave(engine, name)
        for number in range(len(PROMPTS)):
            engine.cancel(str(number))
            engine.unpin(f"owner-{number % 3}")
        settle(engine)
        health = engine.health()
        memory, disk = health.tiers
        assert health.leases == ({"memory store": memory.chunks} if memory.chunks else {})
        assert (health.pins, health.prefetches) == ({}, 0)
        assert memory.used_bytes <= memory.budget_bytes
        assert memory.used_bytes <= health.pool_held_bytes
        files = sum(file.stat().st_size for file in (tmp_path / "kv").glob("??/*.hexkv"))
        assert disk.used_bytes == files <= 60 * FRAME
        total = engine.telemetry.total
        assert total(CounterName.LOOKUPS) == total(CounterName.HITS) + total(CounterName.MISSES) > 0
        assert total(CounterName.CORRUPT) == 0
    assert engine.health().leases == {}
