"""Engines as they are configured, over servers that die, stand still and come back.

Nothing is tuned for the test but how long callers wait: what an operator gets who sets nothing
is back in time.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from logging import WARNING
from threading import Event, Thread

import pytest

from configured import CHUNK, settle
from depth import thorough
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.kit.waiting import promptly
from hexkv.core.notices import EVERY
from remote_engines import WAIT, ClockAhead, comes_back, engine_over, got, kept
from servers.lm_servers import SMALL, BreakableServer, Served
from servers.redis_servers import BreakableRedis, RedisServer
from servers.s3_double import BUCKET
from servers.s3_servers import own_double

PROMPT = list(range(8 * CHUNK))
OTHER = list(range(5000, 5000 + 4 * CHUNK))
FROZEN = 1.5
"""Seconds that a caller waits for a server that stands still: nothing else is to come of it."""

PATIENCE = 60.0
"""Seconds after which threads of the test count as hanging."""


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


@contextmanager
def s3(_):
    with own_double() as server:
        yield server, {"url": f"s3://{BUCKET}/chunks"} | server.settings


@contextmanager
def obstore(_):
    with own_double() as server:
        yield server, {"url": f"s3://{BUCKET}/chunks"} | server.settings


@contextmanager
def nixl(_):
    pytest.importorskip("nixl_cu12")
    with own_double() as server:
        place = {"plugin": "OBJ", "bucket": BUCKET, "prefix": "chunks/"}
        yield server, place | server.settings


SERVERS = {
    "redis": redis,
    "hexkv": lm_server,
    "lm": lm_server,
    "s3": s3,
    "obstore": obstore,
    "nixl": nixl,
}


@pytest.fixture(params=["redis", *thorough("hexkv", "lm", "s3", "obstore", "nixl")])
def remote(request, tmp_path):
    """A breakable server, and the tier that stands on it."""
    with SERVERS[request.param](tmp_path) as (server, settings):
        yield server, {"store": request.param, "settings": settings}


@pytest.fixture
def engine(remote):
    with engine_over(remote[1]) as engine:
        yield engine


def back(engine, tokens=OTHER):
    """Wait for the tier; the engine is only asked, as any caller would."""
    comes_back(lambda: kept(engine, tokens) == got(engine, tokens) == len(tokens))
    settle(engine)
    health = engine.health()
    assert not health.leases
    assert not health.pins


def test_an_engine_serves_on_with_a_line_a_minute_and_the_tier_comes_back(remote, caplog):
    """Whatever calls, on however many connections, notice at once that the server is gone."""
    server, tier = remote
    clock = ClockAhead()
    calls = [
        lambda: engine.lookup(PROMPT),
        lambda: (engine.prefetch("request", PROMPT), engine.cancel("request")),
        lambda: got(engine, PROMPT),
        lambda: kept(engine, OTHER),
        lambda: kept(engine, PROMPT),
    ]
    with engine_over(tier, clock=clock) as engine, ThreadPoolExecutor(len(calls)) as crowd:
        assert kept(engine, PROMPT) == got(engine, PROMPT) == len(PROMPT)
        server.kill()
        caplog.clear()
        went = clock.now()
        while clock.now() < went + 150.0:
            for call in [crowd.submit(call) for call in calls]:
                call.result(PATIENCE)
            assert got(engine, PROMPT) == 0
            clock.ahead += 15.0
        minutes = (clock.now() - went) / EVERY
        server.start()
        clock.ahead += 15.0  # the pause of a breaker is over
        back(engine)
    name = f"tier {tier['store']}"
    lines = [it.getMessage() for it in caplog.records if it.levelno >= WARNING]
    first, *later = (line for line in lines if line.startswith(f"{name}: does not answer: "))
    assert 1 <= len(later) <= minutes
    assert all(line.endswith("more since the last line") for line in later)
    assert "since" not in first
    rest = [line for line in lines if line not in {first, *later}]
    assert [re.split(" (?:for|after) ", line)[0] for line in rest] == [
        f"{name}: is switched off",
        f"{name}: is back",
    ]


def test_a_server_that_stands_still_costs_a_deadline_and_then_nothing(engine, remote):
    server, _ = remote
    assert kept(engine, PROMPT) == len(PROMPT)
    server.stall()
    engine._deadlines = replace(engine._deadlines, retrieve=FROZEN)
    assert got(engine, PROMPT) == 0
    # Without a breaker that opened, each would cost a deadline.
    assert promptly(lambda: [got(engine, PROMPT) for _ in range(8)], 7 * FROZEN) == [0] * 8
    engine._deadlines = replace(engine._deadlines, retrieve=WAIT)
    server.resume()
    back(engine)


@pytest.mark.parametrize("trouble", ["cut", "garbage"])
def test_a_broken_network_gives_nothing_wrong_and_the_tier_comes_back(engine, remote, trouble):
    server, _ = remote
    assert kept(engine, PROMPT) == len(PROMPT)
    getattr(server, trouble)()
    for _ in range(8):
        got(engine, PROMPT)
        kept(engine, OTHER)
    server.mend()
    back(engine)


def test_a_server_without_room_costs_chunks_and_takes_them_again(engine, remote):
    server, _ = remote
    assert kept(engine, PROMPT) == len(PROMPT)
    server.fill()
    try:
        for _ in range(6):
            assert got(engine, OTHER) <= kept(engine, OTHER)
    finally:
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
        assert begun.wait(PATIENCE)
        server.kill()
        begun.clear()
        assert begun.wait(PATIENCE), "it did not answer without its server"
        server.start()
        begun.clear()
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    back(engine)


def test_memory_serves_on_while_the_server_below_is_down(remote):
    server, tier = remote
    with engine_over({"store": "memory"}, tier) as engine:
        assert kept(engine, PROMPT) == len(PROMPT)
        server.kill()
        assert got(engine, PROMPT) == len(PROMPT)
        assert kept(engine, OTHER) == got(engine, OTHER) == len(OTHER)
        server.start()
