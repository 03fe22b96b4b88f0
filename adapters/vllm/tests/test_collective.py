"""Ranks that load together: gloo keeps the port's promises, and workers load what one has."""

import random
from array import array
from functools import partial
from threading import Thread

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depth import thorough
from hexkv.adapters.vllm.configuration.windows import LayerShape, pages_of
from hexkv.adapters.vllm.messages import Load, Save, Scope, Step
from hexkv.adapters.vllm.metrics.metrics import LOADED_TOKENS
from hexkv.adapters.vllm.worker import collective
from hexkv.adapters.vllm.worker.collective import GlooCollective, MeetingPlace
from hexkv.adapters.vllm.worker.serving import LookupServer, Scopes
from hexkv.adapters.vllm.worker.together import LoadsTogether
from hexkv.adapters.vllm.worker.worker_connector import WorkerConnector
from hexkv.contracts.collective import CollectiveContract, at_once, closed
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load as configure
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Deadline, DType, KVLayout, Namespace, Retrieved, Span
from mutants.fleet.collectives import Circle, LocalMember
from processes import PATIENCE, until

BLOCK, HEADS, WIDTH, BLOCKS = 8, 2, 8, 24
CHUNK = 2 * BLOCK
TOKENS = 4 * CHUNK
PROMPT = array("I", random.Random(5).choices(range(50_000), k=TOKENS)).tobytes()
MINE, OTHER, THIRD = range(8), range(8, 16), range(16, 24)
CHECKSUM = discover().open("checksum", "xxh3-128", {}, OpenContext(SystemClock()))


def gloo(size, interface="lo"):
    """So many members that have met, in this process."""
    place = MeetingPlace(interface)
    members = [None] * size

    def enter(rank):
        mine = place if not rank else None
        members[rank] = GlooCollective(rank, size, place.address, interface, mine)

    threads = [Thread(target=enter, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return members


@pytest.fixture
def members():
    made = []

    def make(size):
        made.append(gloo(size))
        return made[-1]

    yield make
    for some in made:
        closed(some)


@pytest.mark.thorough
class TestGloo(CollectiveContract):
    @pytest.fixture
    def members(self, members, monkeypatch):
        """Members that are apart for long enough to be seen apart, also on a busy machine."""
        monkeypatch.setattr(collective, "_PAUSE", 5.0)
        monkeypatch.setattr(collective, "_WATCH", 3600.0)
        return members


@pytest.mark.parametrize("lost", [1, *thorough(0, 2)])
def test_all_meet_again_though_one_alone_was_apart_and_nothing_is_sent(members, lost):
    """That one has no KV, so no request leads to a load, whose messages would show it."""
    three = members(3)
    three[lost].part()
    until(lambda: all(one.whole for one in three))
    message = b"head", memoryview(b"data")
    found = at_once(
        lambda: three[0].send(*message, Deadline.after(SystemClock(), PATIENCE)),
        *[partial(one.receive, 4, Deadline.after(SystemClock(), PATIENCE)) for one in three[1:]],
    )
    assert found == [None, message, message]


class Rank:
    """One worker; those that hold the same compute the same."""

    def __init__(self, collective, seconds):
        made = torch.Generator().manual_seed(1)
        shape = (BLOCKS, HEADS, BLOCK, 2 * WIDTH)
        self.caches = {name: torch.zeros(shape) for name in ("one", "two")}
        for cache in self.caches.values():
            cache[: len(MINE)] = torch.randn(len(MINE), *shape[1:], generator=made)
        size = HEADS * BLOCK * 2 * WIDTH * 4
        shapes = dict.fromkeys(self.caches, LayerShape(size, HEADS, WIDTH, WIDTH))
        pages = pages_of(self.caches, shapes, count=BLOCKS, block=BLOCK, apart=False)
        settings = {"chunk": {"size": CHUNK}, "pool": {"bytes": "4MiB"}}
        self.engine = build(configure(None, {}, settings), Namespace("toy", pages.layout))
        scopes, size = Scopes(self.engine.namespace), pages.layout.chunk_bytes(CHUNK)
        self.together = LoadsTogether(collective, CHECKSUM, size, seconds, SystemClock())
        self.half = WorkerConnector(
            self.engine, pages, scopes, loaders=1, chunk=CHUNK, together=self.together
        )
        self.desk = LookupServer(self.engine, scopes, follows=lambda: self.together.follows)

    def find(self):
        question = {"op": "find", "id": "looks", "scope": list(Scope())}
        return self.desk(question, memoryview(PROMPT))

    def run(self, *loads, step, saves=()):
        """A step as vLLM runs it. The blocks that did not arrive."""
        planned = Step(step, list(loads), list(saves))
        self.half.start(planned)
        self.half.end_loads(planned)
        self.half.save(planned)
        assert self.half._saving.wait(60)
        for name in [one.request for one in loads if one.later]:
            until(lambda name=name: name in self.half.arrived())
        return self.half.bad_blocks()

    def keep(self):
        saves = [Save("kept", Scope(), PROMPT, 0, TOKENS, MINE)]
        assert self.run(step=1, saves=saves) == set()

    def has(self, blocks, of=MINE):
        """Whether *blocks* hold what this rank, and each other one, computed in *of*."""
        return all(torch.equal(c[list(blocks)], c[list(of)]) for c in self.caches.values())


def load(blocks, start=0, end=TOKENS, later=False):
    name = f"{blocks} from {start}"
    return Load(name, Scope(), PROMPT[: 4 * end], start, end, blocks[: end // BLOCK], later)


@pytest.fixture
def ranks():
    """Makes two workers, which wait so long for each other; only the first one keeps anything."""
    made = []

    def make(seconds):
        made.extend(Rank(member, seconds) for member in gloo(2))
        made[0].keep()
        return made

    yield make
    for rank in made:
        rank.half.close()


def on_both(ranks, *loads, step):
    return at_once(*[partial(rank.run, *loads, step=step) for rank in ranks])


def test_what_one_rank_keeps_all_load_within_steps_and_between_them(ranks):
    first, other = ranks(60.0)
    assert (first.find()["hit"], other.find()) == (TOKENS, {"follows": True})
    part = load(THIRD, start=CHUNK, end=2 * CHUNK)
    loads = [load(OTHER, later=True), part]
    assert on_both((first, other), *loads, step=2) == [set(), set()]
    assert first.has(OTHER)
    assert other.has(OTHER)
    assert other.has(THIRD[2:4], of=MINE[2:4])
    assert not any(cache[list(THIRD[:2])].any() for cache in other.caches.values())
    assert other.half.tally.take()[LOADED_TOKENS] == TOKENS + CHUNK
    other.engine.flush()
    assert [tier.chunks for tier in other.engine.health().tiers] == [0]


def test_a_rank_that_is_lost_delays_nobody_and_each_loads_by_itself_meanwhile(ranks):
    first, other = ranks(0.5)
    assert other.run(load(OTHER), step=2) == set(OTHER)  # nobody sends: it is computed
    assert other.find().get("hit", 0) == 0, "it looks by itself, or they have met already"
    assert first.run(load(OTHER), step=2) == set()  # nobody listens
    assert first.has(OTHER)
    for rank in (first, other):
        rank.together._seconds = 10.0
    for step in range(3, 100):  # a busy machine may be late once more, and they meet again
        until(lambda: other.together.follows)
        if on_both((first, other), load(THIRD), step=step) == [set(), set()]:
            break
    assert other.has(THIRD)


def scattered(window, data, end):
    """What an engine does that finds all."""
    for start in range(0, end, CHUNK):
        part = memoryview(data)[start * 8 : (start + CHUNK) * 8]
        assert window.scatter([Span(start, start + CHUNK, part)]).wait(None)
    return Retrieved(end, end, end, len(data))


class Ended(LocalMember):
    """A member that does not wait: what was sent is all there will be."""

    def receive(self, limit, deadline):
        if self.at >= len(self.circle.sent):
            self.circle.gone.add(0)
        return super().receive(limit, deadline)


@given(st.data())
def test_ranks_load_the_same_or_miss_it_whatever_becomes_of_messages(drawn):
    """Lost, changed in any byte, of another load, or in another order: never other KV."""
    layout = KVLayout.attention(DType.FLOAT32, layers=1, heads=1, key_width=1)
    circle = Circle(2)
    lead, follow = (
        LoadsTogether(Ended(circle, rank), CHECKSUM, 1 << 20, 60.0, SystemClock())
        for rank in range(2)
    )
    loads = [load(MINE), load(OTHER), load(THIRD, end=2 * CHUNK)]
    data = [random.Random(number).randbytes(8 * one.end) for number, one in enumerate(loads)]
    for order, (one, kv) in enumerate(zip(loads, data, strict=True)):
        lead.load(order, one, HeapKV(layout, one.end), partial(scattered, data=kv, end=one.end))
    messages = circle.sent[drawn.draw(st.integers(0, 4)) :]
    for _ in range(drawn.draw(st.integers(0, 2))):
        place = drawn.draw(st.integers(0, len(messages) - 1))
        head, payload = messages[place]
        whole = bytearray(head + payload)
        whole[drawn.draw(st.integers(0, len(whole) - 1))] ^= drawn.draw(st.integers(1, 255))
        messages[place] = bytes(whole[: len(head)]), bytes(whole[len(head) :])
    if drawn.draw(st.booleans()):  # one says that it is of another load
        place, order = drawn.draw(st.integers(0, len(messages) - 1)), drawn.draw(st.integers(0, 2))
        head, payload = messages[place]
        messages[place] = head[:5] + order.to_bytes(8, "little") + head[13:], payload
    if drawn.draw(st.booleans()):
        messages = drawn.draw(st.permutations(messages))
    circle.sent[:] = messages
    for order, (one, kv) in enumerate(zip(loads, data, strict=True)):
        window, right = HeapKV(layout, one.end), HeapKV(layout, one.end)
        scattered(right, kv, one.end)
        got = follow.load(order, one, window, None)
        assert window.agrees(right, got.hit_tokens)
