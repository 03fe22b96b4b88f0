"""Engines as they are configured, over servers that die, stand still and come back.

Nothing is tuned for the test but how long callers wait: what an operator gets who sets nothing
is back in time.
"""

import time
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, computed
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.heap_kv import HeapKV
from hexkv.plugins.compose import build
from hexkv.plugins.config import load
from lm_servers import SMALL, BreakableServer, Served
from redis_servers import BreakableRedis, RedisServer

WAIT = 0.5
"""Seconds that a caller of the engine waits at most."""

GRACE = 2.0
"""Seconds that a busy machine may add."""

RETURN = 30.0
"""Seconds after a server's return within which its tier is back."""

PROMPT = list(range(8 * CHUNK))
OTHER = list(range(5000, 5000 + 4 * CHUNK))


@contextmanager
def redis(folder):
    with RedisServer(folder) as server, FaultProxy(("127.0.0.1", server.port)) as proxy:
        yield BreakableRedis(server, proxy), {"url": f"redis://{proxy.address}"}


@contextmanager
def lm_server(_):
    server = Served(*SMALL)
    try:
        with FaultProxy(("127.0.0.1", server.port)) as proxy:
            yield BreakableServer(server, proxy), {"address": proxy.address}
    finally:
        server.stop()


SERVERS = {"redis": redis, "hexkv": lm_server, "lm": lm_server}


@pytest.fixture(params=SERVERS)
def remote(request, tmp_path):
    """A breakable server, and the tier that stands on it."""
    with SERVERS[request.param](tmp_path) as (server, settings):
        yield server, {"store": request.param, "settings": settings}


def engine_over(*tiers):
    waits = {"lookup": WAIT, "retrieve": WAIT, "store": WAIT}
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 64 * FRAME}, "deadlines": waits}
    return build(load(None, {}, wanted | {"tiers": list(tiers)}), NAMESPACE)


@pytest.fixture
def engine(remote):
    with engine_over(remote[1]) as engine:
        yield engine


def kept(engine, tokens=PROMPT):
    """How many tokens are there after storing, said in time."""
    data = computed(tokens)
    start = time.monotonic()
    report = engine.store(tokens, data)
    assert time.monotonic() - start < WAIT + GRACE
    return report.stored_tokens + report.present_tokens


def got(engine, tokens=PROMPT):
    """How many tokens came back: right ones, in time."""
    target = HeapKV(LAYOUT, len(tokens))
    start = time.monotonic()
    hit = engine.retrieve(tokens, target).hit_tokens
    assert time.monotonic() - start < WAIT + GRACE
    assert target.agrees(computed(tokens), hit)
    return hit


def back(engine, tokens=OTHER):
    """Wait for the tier; the engine is only asked, as any caller would."""
    limit, pause = time.monotonic() + RETURN, Event()
    while kept(engine, tokens) < len(tokens) or got(engine, tokens) < len(tokens):
        assert time.monotonic() < limit, f"not back after {RETURN:.0f} s"
        pause.wait(0.1)
    health = engine.health()
    assert not health.leases
    assert not health.pins


def test_an_engine_serves_on_without_its_server_and_the_tier_comes_back(engine, remote):
    server, _ = remote
    assert kept(engine) == got(engine) == len(PROMPT)
    server.kill()
    for _ in range(8):
        assert got(engine) == 0
        assert kept(engine, OTHER) == 0
    server.start()
    back(engine)


def test_a_server_that_stands_still_costs_a_deadline_and_then_nothing(engine, remote):
    server, _ = remote
    assert kept(engine) == len(PROMPT)
    server.stall()
    assert got(engine) == 0
    start = time.monotonic()
    for _ in range(5):
        assert got(engine) == 0
    assert time.monotonic() - start < 5 * WAIT, "the breaker did not open"
    server.resume()
    back(engine)


@pytest.mark.parametrize("trouble", ["cut", "garbage"])
def test_a_broken_network_gives_nothing_wrong_and_the_tier_comes_back(engine, remote, trouble):
    server, _ = remote
    assert kept(engine) == len(PROMPT)
    getattr(server, trouble)()
    for _ in range(8):
        got(engine)
        kept(engine, OTHER)
    server.mend()
    back(engine)


def test_a_server_killed_in_the_middle_of_traffic_gives_nothing_wrong(engine, remote):
    server, _ = remote
    begun, over, failures = Event(), Event(), []

    def traffic(tokens):
        try:
            while not over.is_set():
                kept(engine, tokens)
                got(engine, tokens)
                begun.set()
        except BaseException as error:  # noqa: BLE001 - looked at by the test's own thread
            failures.append(error)

    threads = [Thread(target=traffic, args=(tokens,)) for tokens in (PROMPT, OTHER)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        assert begun.wait(RETURN)
        server.kill()
        begun.clear()
        assert begun.wait(RETURN), "it did not answer without its server"
        server.start()
        begun.clear()
    over.set()
    for thread in threads:
        thread.join(RETURN)
    assert failures == []
    back(engine)


def test_memory_serves_on_while_the_server_below_is_down(remote):
    server, tier = remote
    with engine_over({"store": "memory"}, tier) as engine:
        assert kept(engine) == len(PROMPT)
        server.kill()
        assert got(engine) == len(PROMPT)
        assert kept(engine, OTHER) == got(engine, OTHER) == len(OTHER)
        server.start()
