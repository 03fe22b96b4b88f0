"""The contract of administration: in this process, over its socket, and through a node."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.ports import (
    ClaimState,
    EngineClosed,
    InvalidRequest,
    Peer,
    Reason,
    Selection,
    StoreUnreachable,
)

ALL = Selection(everything=True)
CHUNKS = 6
SALT = "of the red tenant"
TENANTS = [{"name": "red", "salt": SALT}]


@contextmanager
def short_folder():
    """A folder for Unix sockets, which have short paths."""
    made = Path(mkdtemp(prefix="hexkv"))
    try:
        yield made
    finally:
        rmtree(made)


@dataclass
class Managed:
    """A cache of two tiers, ``memory`` and ``disk``, and its administration."""

    engine: object
    """That uses the cache, in this process."""

    admin: object
    chunk: int
    end: object
    """Closes the cache."""

    def prompt(self, seed, chunks=CHUNKS):
        return Random(seed).choices(range(50_000), k=chunks * self.chunk)

    def store(self, seed=0, salt=""):
        """Store a prompt; its keys."""
        tokens, namespace = self.prompt(seed), replace(self.engine.namespace, salt=salt)
        kv = HeapKV(namespace.layout, len(tokens)).compute(tokens)
        self.engine.store(tokens, kv, namespace=namespace)
        return tuple(self.engine.chunk_keys(tokens, namespace=namespace))

    def hit(self, seed=0, salt=""):
        """Chunks of a prompt that a retrieve brings, all of them right."""
        tokens, namespace = self.prompt(seed), replace(self.engine.namespace, salt=salt)
        target = HeapKV(namespace.layout, len(tokens))
        got = self.engine.retrieve(tokens, target, namespace=namespace)
        wanted = HeapKV(namespace.layout, len(tokens)).compute(tokens)
        assert target.agrees(wanted, got.hit_tokens)
        return got.hit_tokens // self.chunk

    def counts(self):
        return {tier.health.name: tier.health.chunks for tier in self.admin.tiers()}


class AdministrationContract:
    """Subclasses give the fixture ``managed``, with tenants as in ``TENANTS``."""

    def test_verbs_that_look_agree_with_what_was_stored(self, managed):
        admin, keys = managed.admin, managed.store()
        red = managed.store(1, SALT)
        absent = tuple(managed.engine.chunk_keys(managed.prompt(2)))
        assert admin.status().state == "open"
        assert managed.counts() == {"memory": 2 * CHUNKS, "disk": 2 * CHUNKS}
        memory, disk = admin.tiers()
        assert (memory.reads, memory.writes, memory.promotes) == (True, "all", True)
        assert disk.policy == "LRU"
        assert list(admin.lookup([*keys, *absent])) == ["memory"] * CHUNKS + [None] * CHUNKS
        for why in admin.explain(keys):
            assert {tier: w.reason for tier, w in why.items()} == {
                "memory": Reason.PRESENT,
                "disk": Reason.PRESENT,
            }
        (missed,) = admin.explain(absent[:1])
        assert missed["disk"].reason is Reason.NEVER_STORED
        spaces = {it.tenant: it for it in admin.namespaces()}
        assert spaces["red"].chunks == spaces[""].chunks == {"memory": CHUNKS, "disk": CHUNKS}
        assert red[0].startswith(spaces["red"].prefix)
        assert SALT not in spaces["red"].identity
        assert managed.engine.namespace.model in spaces[""].identity

    def test_pinned_chunks_have_an_owner_and_stay_until_it_unpins(self, managed):
        keys = managed.store()
        assert managed.admin.pin("demo", Selection(keys=keys[:2]), seconds=3600.0) == 2
        status = managed.admin.status()
        assert status.pins["demo"] == 4
        assert 3000 < status.pin_seconds["demo"] <= 3600
        assert managed.admin.unpin("demo") == 4
        assert managed.admin.pin("demo", ALL) == CHUNKS
        assert managed.admin.unpin("nobody") == 0
        half = [it.health.used_bytes // 2 for it in managed.admin.tiers()]
        sizes = {name: {"budget": size} for name, size in zip(managed.counts(), half, strict=True)}
        managed.admin.adjust({"tiers": sizes})
        assert managed.admin.flush(60.0)
        assert managed.counts() == {"memory": CHUNKS, "disk": CHUNKS}
        assert managed.admin.unpin("demo") == 2 * CHUNKS
        assert managed.admin.flush(60.0)
        assert managed.counts() == {"memory": CHUNKS // 2, "disk": CHUNKS // 2}
        assert [it.health.used_bytes for it in managed.admin.tiers()] == half

    def test_a_frozen_cache_gives_and_takes_nothing(self, managed):
        managed.store()
        managed.admin.freeze()
        assert managed.admin.status().frozen
        managed.store(1)
        assert (managed.hit(), managed.hit(1)) == (CHUNKS, 0)
        managed.admin.freeze(False)
        managed.store(1)
        assert managed.hit(1) == CHUNKS

    def test_what_is_queued_is_written_after_a_flush(self, managed):
        managed.store()
        assert managed.admin.flush(60.0)
        assert managed.admin.status().tiers[1].queued_bytes == 0

    def test_clearing_keys_a_namespace_or_a_tenant_leaves_the_others(self, managed):
        admin = managed.admin
        keys, _, red = managed.store(), managed.store(1), managed.store(1, SALT)
        done = admin.clear(Selection(keys=keys[3:]))
        assert (done.complete, managed.hit(), managed.hit(1)) == (True, 3, CHUNKS)
        done = admin.clear(Selection(tenant="red"), ["disk"])
        assert (done.complete, done.done) == (True, CHUNKS)
        assert managed.counts() == {"memory": 3 + 2 * CHUNKS, "disk": 3 + CHUNKS}
        done = admin.clear(Selection(namespaces=(red[0][:16],)))
        assert (done.done, managed.hit(1, SALT), managed.hit(1)) == (CHUNKS, 0, CHUNKS)
        assert admin.clear(ALL).complete
        assert managed.counts() == {"memory": 0, "disk": 0}

    def test_the_oldest_part_is_what_the_tier_would_evict_first(self, managed):
        old, new = managed.store(), managed.store(1)
        half = Selection(everything=True, oldest=0.5)
        done = managed.admin.clear(half, ["disk"])
        assert (done.chunks, done.done) == (CHUNKS, CHUNKS)
        found = managed.admin.explain([*old, *new])
        present = [why["disk"].reason is Reason.PRESENT for why in found]
        assert present == [False] * CHUNKS + [True] * CHUNKS
        assert managed.hit() == CHUNKS  # memory keeps what it had

    def test_chunks_move_and_are_copied_between_tiers(self, managed):
        admin, keys = managed.admin, managed.store()
        moved = admin.move(Selection(keys=keys[:4]), "memory", "disk")
        assert (moved.done, moved.complete) == (4, True)
        assert managed.counts() == {"memory": 2, "disk": CHUNKS}
        assert admin.copy(ALL, "disk", "memory").done == CHUNKS
        assert managed.counts() == {"memory": CHUNKS, "disk": CHUNKS}
        assert managed.hit() == CHUNKS

    def test_chunks_are_encoded_where_they_lie_and_plain_again(self, managed):
        admin, _ = managed.admin, managed.store()
        done = admin.compress(Selection(everything=True, oldest=0.5), "disk", "zstd")
        assert (done.chunks, done.done, done.failed) == (CHUNKS // 2, CHUNKS // 2, 0)
        assert done.saved_bytes >= 0
        admin.clear(ALL, ["memory"])
        assert managed.hit() == CHUNKS
        assert admin.compress(ALL, "disk", "raw").done == CHUNKS
        assert managed.hit() == CHUNKS

    def test_a_drained_tier_has_nothing_that_is_nowhere_else_and_takes_nothing(self, managed):
        admin, keys = managed.admin, managed.store()
        admin.clear(Selection(keys=keys[:2]), ["disk"])
        done = admin.drain("memory")
        assert (done.chunks, done.done, done.kept, done.complete) == (CHUNKS, CHUNKS, (), True)
        assert managed.counts()["disk"] == CHUNKS
        managed.store(1)
        assert managed.counts() == {"memory": CHUNKS, "disk": 2 * CHUNKS}
        admin.rules("memory", writes="all", promotes=True)
        managed.store(2)
        assert managed.counts()["memory"] == 2 * CHUNKS

    def test_tiers_come_and_go(self, managed, tmp_path):
        admin, _ = managed.admin, managed.store()
        bigger = {"store": "disk", "name": "bigger", "settings": {"root": str(tmp_path / "b")}}
        admin.attach(bigger)
        assert admin.move(ALL, "disk", "bigger").done == CHUNKS
        assert admin.detach("disk")
        assert managed.counts() == {"memory": CHUNKS, "bigger": CHUNKS}
        assert admin.detach("memory")
        assert managed.hit() == CHUNKS
        with pytest.raises(InvalidRequest, match="last tier"):
            admin.detach("bigger")

    def test_what_would_be_gone_with_the_node_is_listed_in_the_order_of_keys(self, managed):
        admin, keys, red = managed.admin, managed.store(), managed.store(1, SALT)
        listed = list(admin.listing(ALL))
        assert listed == sorted([*keys, *red])
        assert list(admin.listing(ALL, listed[3])) == listed[4:]
        assert list(admin.listing(Selection(tenant="red"))) == sorted(red)
        assert list(admin.listing(Selection(keys=keys[:2]))) == sorted(keys[:2])
        assert list(admin.holds([keys[0], managed.engine.chunk_keys(managed.prompt(2))[0]])) == [
            "memory",
            None,
        ]
        assert list(admin.listing(ALL, listed[-1])) == []
        before = admin.room()
        managed.store(3)
        assert 0 <= admin.room() <= before
        admin.freeze()
        assert admin.room() == 0

    def test_no_two_moves_count_on_what_one_of_them_takes_away(self, managed):
        admin, keys = managed.admin, managed.store()
        absent = managed.engine.chunk_keys(managed.prompt(2))[:1]
        some = [*keys[:3], *absent]
        here, gone, refused = ClaimState.HERE, ClaimState.ABSENT, ClaimState.REFUSED
        assert list(admin.claim("a", some, 60.0, True)) == [here] * 3 + [gone]
        for leaving in (True, False):
            assert list(admin.claim("b", some, 60.0, leaving)) == [refused] * 4
        assert admin.give_up("b", keys[:3]).failed == 3
        done = admin.give_up("a", [*some, keys[3]])
        assert (done.done, done.absent, done.failed) == (3, 1, 1)
        assert list(admin.holds(keys)) == [None] * 3 + ["memory"] * 3
        assert (admin.release("a"), admin.release("b")) == (4, 0)
        for token in ("c", "d"):  # what comes may come twice
            assert list(admin.claim(token, keys, 60.0, read=True)) == [gone] * 3 + [here] * 3
        assert admin.status().pins["move c"] == 6  # on both tiers
        assert list(admin.claim("e", keys, 60.0, leaving=True)) == [refused] * 6
        admin.release("c")
        admin.release("d")
        assert set(admin.status().pins) == set()
        assert list(admin.claim("e", keys[3:], 60.0, leaving=True)) == [here] * 3
        admin.release("e")
        assert admin.member() is None
        for wrong in (
            lambda: admin.claim("", keys, 60.0),
            lambda: admin.claim("e", keys, 1e9),
            lambda: admin.fetch(absent, Peer("nowhere:1")),
        ):
            with pytest.raises(InvalidRequest):
                wrong()

    def test_rules_change_one_by_one(self, managed):
        managed.admin.rules("memory", reads=False)
        managed.admin.rules("disk", writes="none")
        memory, disk = managed.admin.tiers()
        assert (memory.reads, memory.writes, memory.promotes) == (False, "all", True)
        assert (disk.reads, disk.writes, disk.promotes) == (True, "none", True)
        managed.admin.adjust({"tiers": {"disk": {"write": "all"}}, "compute_rate": 1e9})
        managed.store()
        assert managed.counts()["disk"] == CHUNKS
        half = managed.admin.tiers()[1].health.used_bytes // 2
        managed.admin.adjust({"tiers": {"disk": {"budget": half, "retries": 0}}})
        assert managed.admin.flush(60.0)
        disk = managed.admin.tiers()[1].health
        assert (disk.budget_bytes, disk.chunks) == (half, CHUNKS // 2)
        managed.admin.adjust({"tiers": {"disk": {"budget": "1GiB"}}})
        managed.store(1)
        assert managed.counts()["disk"] == CHUNKS // 2 + CHUNKS

    def test_what_cannot_be_done_is_said_before_anything_changes(self, managed, tmp_path):
        admin, _ = managed.admin, managed.store()
        before = [state[1:] for state in admin.tiers()]
        unknown = {"store": "disk", "name": "new", "settings": {"rot": str(tmp_path / "new")}}
        taken = {"store": "disk", "settings": {"root": str(tmp_path / "new")}}
        for wrong, said in (
            (lambda: admin.clear(ALL, ["memory", "dis"]), "dis"),
            (lambda: admin.clear(Selection(tenant="blue")), "blue.*red|red.*blue|blue"),
            (lambda: admin.move(ALL, "memory", "memory"), "memory"),
            (lambda: admin.copy(ALL, "memory", "tape"), "tape"),
            (lambda: admin.compress(ALL, "disk", "zsdt"), "zsdt"),
            (lambda: admin.drain("tape"), "tape"),
            (lambda: admin.drain("disk", "disk"), "disk"),
            (lambda: admin.detach("tape"), "tape"),
            (lambda: admin.rules("memory", writes="some"), "some"),
            (
                lambda: admin.adjust({"tiers": {"disk": {"budget": "1GiB", "serde": "raw"}}}),
                "serde",
            ),
            (lambda: admin.adjust({"tiers": {"disk": {"retries": -1}}}), "tiers.disk.retries"),
            (lambda: admin.adjust({"tiers": {"disk": {"budget": "1byte"}}}), "tiers.disk.budget"),
            (lambda: admin.adjust({"tiers": {"disk": {"budget": None}}}), "restart"),
            (lambda: admin.adjust({"tenants": {"red": {"quotas": {"disk": 1 << 20}}}}), "'red'"),
            (lambda: admin.adjust({"peers": {"serve": {"rate": "1MB"}}}), "no peers"),
            (lambda: admin.attach(unknown), "did you mean 'root'"),
            (lambda: admin.attach({"store": "dsik"}), "dsik"),
            (lambda: admin.attach(unknown | {"settings": {"root": "x"}}, 7), "position|root"),
            (lambda: admin.attach(taken), "already"),
            (lambda: admin.pin("", ALL), "owner"),
            (lambda: admin.pin("demo", ALL, -1.0), "negative"),
            (lambda: admin.flush(float("inf")), "finite|number"),
        ):
            with pytest.raises(Exception, match=said) as caught:
                wrong()
            assert type(caught.value).__module__.startswith("hexkv.ports")
        assert [state[1:] for state in admin.tiers()] == before
        assert managed.counts() == {"memory": CHUNKS, "disk": CHUNKS}
        assert not (tmp_path / "new").exists()

    def test_a_verb_that_is_stopped_says_what_it_has_done(self, managed):
        for seed in range(3):
            managed.store(seed)
        heard = []

        def watch(progress):
            heard.append(progress)
            return False

        for _ in range(20):  # over a socket the verb may end before it hears of it
            managed.admin.clear(ALL, ["disk"])
            heard.clear()
            report = managed.admin.copy(ALL, "memory", "disk", watch)
            if report.stopped:
                break
        assert report.stopped
        assert not report.complete
        assert report.chunks == 3 * CHUNKS
        assert report.done < 3 * CHUNKS
        assert heard == [(0, 3 * CHUNKS)]
        assert managed.admin.copy(ALL, "memory", "disk").complete

    def test_it_ends_with_its_cache(self, managed):
        managed.end()
        with pytest.raises((EngineClosed, StoreUnreachable)):
            managed.admin.clear(ALL)
