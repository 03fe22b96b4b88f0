"""Engines over servers that will not have them: another password, another version, no such server.

What is refused is not in the engine's way: memory serves on, every answer is right and in time,
the log says why, and the tier is back by itself once the server relents.
"""

import itertools

import pytest

from configured import CHUNK, settle
from depth import thorough
from remote_engines import comes_back, engine_over, got, kept, stored
from servers.unwilling_servers import UNWILLING

MEMORY = {"store": "memory"}
WAIT = 0.5
"""Seconds that callers wait: some of these servers say nothing, and memory waits for nobody."""

SOON = {"breaker": {"pause": 0.1, "longest_pause": 0.4}}
"""Tried again so soon that no test waits long; the outages are tested with the usual pauses."""

PROMPTS = (list(range(start, start + 2 * CHUNK)) for start in itertools.count(0, 2 * CHUNK))
"""Each used once: no tier has it."""


TOLD = {
    "redis: another password": "invalid username-password",
    "redis: the user may do nothing": "NOPERM",
    "redis: a node of a cluster": "CLUSTERDOWN",
    "hexkv: another secret": "another secret",
    "hexkv: a later version": "version 2",
    "s3: another secret": "check secret_key",
    "s3: another region": "check region",
    "s3: a clock that is wrong by an hour": "clock is wrong",
    "s3: an HTTP server": "no S3",
}
"""What the log says of those whose servers say it."""


def serves_on(engine):
    """With memory alone."""
    for tokens in itertools.islice(PROMPTS, 3):
        assert kept(engine, tokens) == got(engine, tokens) == len(tokens)
    engine.clear(tiers=["memory"])
    assert got(engine, tokens) == 0


def back(engine, name):
    """Wait for the tier *name*; the engine is only asked, as any caller would."""

    def is_there():
        tokens = next(PROMPTS)
        there = stored(engine, tokens).tiers.get(name, 0)
        engine.clear(tiers=["memory"])
        return there == got(engine, tokens) == len(tokens)

    comes_back(is_there)


FEW = ["redis: another password", "s3: another secret"]


@pytest.mark.parametrize("way", [*FEW, *thorough(*(way for way in UNWILLING if way not in FEW))])
def test_an_engine_serves_on_and_the_tier_comes_back(way, tmp_path, caplog):
    with (
        UNWILLING[way](tmp_path) as (tier, server),
        engine_over(MEMORY, tier | SOON, wait=WAIT) as engine,
    ):
        serves_on(engine)
        settle(engine)  # who asked the server has its answer, or has given it up
        failed = "contains failed", "does not answer"  # whichever call found it
        assert any(f"tier {tier['store']}: {words}" in caplog.text for words in failed)
        assert TOLD.get(way, "") in caplog.text
        server.relent()
        back(engine, tier["store"])
        server.refuse()
        serves_on(engine)
        server.relent()
        back(engine, tier["store"])
        settle(engine)  # what was not there is written again, beside
        health = engine.health()
        assert list(health.leases) in ([], ["memory store"])
        assert not health.pins
