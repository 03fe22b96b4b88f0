"""KV events over ZeroMQ: a router agrees with lookups, also after losses and restarts."""

from contextlib import ExitStack, contextmanager
from random import Random
from socket import socketpair
from unittest.mock import patch

import msgspec
import pytest
import zmq

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, PROMPT, built, computed
from hexkv.adapters.net.address import Address
from hexkv.adapters.observe.publisher import Publisher, Source
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import ConfigError, Namespace
from operating.routers import Router, said
from processes import PATIENCE, held_port, until

BLOCK = 8


@pytest.fixture
def place():
    """Settings of an observer at ports of its own."""
    ports = {name: f"127.0.0.1:{held_port()}" for name in ("address", "events", "replay")}
    return ports | {"events_block": BLOCK, "events_beat": 0.05}


def port(place, name):
    return int(place[name].rpartition(":")[2])


@contextmanager
def routers(place, *losing, strict=False):
    """A router for each rule of losing batches."""
    ports = port(place, "events"), port(place, "replay") if "replay" in place else None
    with_all = [Router(*ports, BLOCK, it, strict) for it in losing]
    try:
        yield with_all
    finally:
        for router in with_all:
            router.__exit__()


def prompts(count, seed=3):
    """Prompts of up to six chunks, many of which begin alike."""
    random = Random(seed)
    found = [random.choices(range(1000), k=2 * CHUNK)]
    while len(found) < count:
        start = random.choice(found)
        found.append(start[: random.randrange(len(start) + 1)] + random.choices(range(1000), k=40))
    return found


def agrees(router, engine, all_prompts):
    """True if the router knows of each prompt what a lookup finds.

    Of a chunk that differs only at its end the router counts the first blocks, too.
    """
    router.listen()
    matches = [router.match(tokens)[1] // CHUNK * CHUNK for tokens in all_prompts]
    return matches == [engine.lookup(tokens).hit_tokens for tokens in all_prompts]


def test_routers_agree_with_lookups_though_they_lose_batches_or_come_late(tmp_path, place):
    every_third = lambda came: came % 3 == 0  # noqa: E731 - a rule
    sizes = {"slots": 40, "budget": 24 * FRAME}
    with (
        routers(place, lambda _: False, every_third) as (whole, losing),
        built(tmp_path, **sizes, observe=place | {"events_history": 1 << 16}) as engine,
    ):
        asked = prompts(30)
        for tokens in asked:  # more than both tiers hold
            engine.store(tokens, computed(tokens))
        engine.flush()
        engine.clear(asked[-1])
        for router in (whole, losing):
            router.follow(lambda router=router: agrees(router, engine, asked))
        assert losing.asked
        with routers(place, lambda _: False) as (late,):
            late.follow(lambda: agrees(late, engine, asked))
            assert late.first > whole.first, "what is not kept any more came as a snapshot"
        with routers(place, lambda _: False, strict=True) as (late,):
            late.follow(lambda: agrees(late, engine, asked))
        numbers = said(port(place, "address"))
        assert numbers['announced_chunks{medium="DISK"}'] > 0
        assert numbers['unannounced_chunks{medium="DISK"}'] == 0
        assert numbers["snapshots_total"] >= 1


def test_a_restart_clears_and_what_a_scan_finds_is_announced_once_asked_for(tmp_path, place):
    with routers(place, lambda _: False) as (router,):
        with built(tmp_path, observe=place) as engine:
            engine.store(PROMPT, computed())
            engine.flush()
            router.follow(lambda: router.match(PROMPT) == (len(PROMPT), len(PROMPT)))
            before = router.expected
        router.follow(lambda: router.match(PROMPT) == (0, 0))
        with built(tmp_path, observe=place) as engine:
            found = 'unannounced_chunks{medium="DISK"}'
            router.follow(lambda: said(port(place, "address")).get(found) == len(PROMPT) // CHUNK)
            assert router.match(PROMPT) == (0, 0)
            engine.lookup(PROMPT)
            router.follow(lambda: router.match(PROMPT) == (0, len(PROMPT)))
            assert router.expected > before


@pytest.fixture
def unreplayed(place):
    """The same without replays, as llm-d has it by default."""
    del place["replay"]
    return place


def memory_alone(place):
    """An engine with nothing slower, which begins with nothing each time."""
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "observe": place}
    return build(load(None, {}, wanted), NAMESPACE)


OTHER = [token + 1 for token in PROMPT]


@pytest.mark.parametrize("snapshots", [True, False])
def test_a_router_without_replays_hears_that_a_process_was_killed(unreplayed, snapshots):
    place = unreplayed | {"events_snapshots": snapshots}
    with routers(place, lambda _: False) as (router,):
        with memory_alone(place) as engine:
            engine.store(PROMPT, computed())
            router.follow(lambda: router.match(PROMPT) == (len(PROMPT), len(PROMPT)))
            with patch.object(Publisher, "_publish"):  # it says no more than one that is killed
                engine.close()
        with memory_alone(place) as engine:
            engine.store(OTHER, computed(OTHER))
            router.follow(lambda: router.match(OTHER) == (len(OTHER), len(OTHER)))
            router.follow(lambda: router.match(PROMPT) == (0, 0))


def test_who_subscribes_late_learns_all_and_others_know_the_same_afterwards(unreplayed):
    everything = len(PROMPT), len(PROMPT)
    with routers(unreplayed, lambda _: False) as (early,), memory_alone(unreplayed) as engine:
        early.follow(lambda: early.clears)
        engine.store(PROMPT, computed())
        early.follow(lambda: early.match(PROMPT) == everything)
        with routers(unreplayed, lambda _: False) as (late,):
            late.follow(lambda: late.match(PROMPT) == everything)
            heard = late.expected
            early.follow(lambda: early.expected >= heard)
            assert early.match(PROMPT) == everything


def test_later_subscriptions_are_not_answered_where_that_is_not_wanted(unreplayed):
    place = unreplayed | {"events_snapshots": False}
    with routers(place, lambda _: False) as (early,), memory_alone(place) as engine:
        early.follow(lambda: early.clears)
        engine.store(PROMPT, computed())
        early.follow(lambda: early.match(PROMPT)[1] == len(PROMPT))
        with routers(place, lambda _: False) as (late,):
            late.follow(lambda: late.expected)
            until(lambda: said(port(place, "address"))["subscriptions_total"] == 2)
            engine.store(OTHER, computed(OTHER))
            late.follow(lambda: late.match(OTHER)[1] == len(OTHER))
            early.follow(lambda: early.match(OTHER)[1] == len(OTHER))
            assert (early.clears, late.clears) == (1, 0)
            assert late.match(PROMPT) == (0, 0)


def test_no_change_comes_before_the_end_of_what_a_subscription_is_answered_by():
    """A change may be about a block whose parent is only said later."""
    woken, wake = socketpair()
    told = [{"type": "AllBlocksCleared"}, *({"type": "BlockRemoved", "n": n} for n in range(500))]
    later = {"type": "BlockRemoved", "n": "later"}
    begun = []

    def snapshot():
        for event in told:
            yield event
            if not begun:
                begun.append(True)
                wake.send(b".")  # while it is being published

    def take():
        woken.recv(64)
        return [later] if begun else []

    address = Address("127.0.0.1", held_port())
    source = Source(take, snapshot, woken.fileno(), lambda: wake.send(b"."))
    with ExitStack() as opened:
        opened.enter_context(woken)
        opened.enter_context(wake)
        context = zmq.Context()
        opened.callback(context.destroy, linger=0)
        sub = context.socket(zmq.SUB)
        sub.setsockopt(zmq.SUBSCRIBE, b"")
        sub.connect(f"tcp://{address}")
        publisher = Publisher(
            source, SystemClock(), address, None, topic="", history=1 << 20, beat=60.0
        )
        opened.callback(publisher.close)
        came = []
        while later not in came:
            assert sub.poll(1000 * PATIENCE)
            came += msgspec.msgpack.decode(sub.recv_multipart()[-1])[1]
    assert came[-1 - len(told) :] == [*told, later]


def test_without_a_slower_tier_there_is_memory_only(tmp_path, place):
    with routers(place, lambda _: False) as (router,):
        wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "observe": place}
        with build(load(None, {}, wanted), NAMESPACE) as engine:
            engine.store(PROMPT, computed())
            router.follow(lambda: router.match(PROMPT) == (len(PROMPT), len(PROMPT)))
            assert not router.there["DISK"]
            engine.clear(PROMPT)
            router.follow(lambda: router.match(PROMPT) == (0, 0))


def test_nobody_waits_for_who_takes_nothing_and_nonsense_is_no_question(tmp_path, place):
    context = zmq.Context()
    deaf, asking = context.socket(zmq.SUB), context.socket(zmq.DEALER)
    deaf.setsockopt(zmq.SUBSCRIBE, b"")
    deaf.connect(f"tcp://{place['events']}")
    asking.connect(f"tcp://{place['replay']}")
    try:
        with (
            routers(place, lambda _: False) as (router,),
            built(tmp_path, slots=40, observe=place) as engine,
        ):
            nonsense = [(b"",), (b"", b"1"), (b"x", bytes(8)), (b"", bytes(8), b""), (bytes(900),)]
            for message in (*nonsense, *[(b"", bytes(8))] * 20):  # none of them reads an answer
                asking.send_multipart(message)
            asked = prompts(60)
            for tokens in asked:
                engine.store(tokens, computed(tokens))
            router.follow(lambda: agrees(router, engine, asked))
    finally:
        context.destroy(linger=0)


def test_tokens_of_tenants_are_counted_and_not_published(tmp_path, place):
    mine = Namespace("toy", LAYOUT, salt="a secret of somebody's")
    with routers(place, lambda _: False) as (router,), built(tmp_path, observe=place) as engine:
        engine.store(PROMPT, computed(), namespace=mine)
        engine.store(PROMPT[:CHUNK], computed(PROMPT[:CHUNK]))
        for _ in range(3):
            assert engine.lookup(PROMPT, namespace=mine).hit_tokens == len(PROMPT)
        router.follow(lambda: router.match(PROMPT) == (CHUNK, CHUNK))
        numbers = said(port(place, "address"))
        assert numbers['passed_over_chunks_total{reason="salt"}'] == 4 * len(PROMPT) // CHUNK
        assert not engine._naming._namer._sink._tokens


def test_what_would_show_prompts_to_others_or_means_nothing_is_refused():
    for settings, why in (
        ({"events": "0.0.0.0:5557"}, r"observe\.events.*exposed"),
        ({"events": "127.0.0.1:5557", "replay": "0.0.0.0:5558"}, r"observe\.replay.*exposed"),
        ({"replay": "127.0.0.1:5558"}, r"replay.*needs events"),
        ({"events": "127.0.0.1:5557", "events_block": 0}, r"events_block.*between"),
    ):
        with pytest.raises(ConfigError, match=why):
            build(load(None, {}, {"observe": {"address": ""} | settings}), NAMESPACE)
