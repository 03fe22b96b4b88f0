"""Hits from a Redis that engines share."""

import uuid

from engines.sglang.sglang_engines import PAGE, PAGES, PATIENT, behind, prompt
from processes import until


def test_another_engine_loads_from_redis_what_a_killed_one_stored(start, same, redis_server):
    settings = {"url": redis_server.url, "prefix": f"{uuid.uuid4().hex}:"}
    tiers = [{"store": "redis", "settings": settings}]
    config = {"pool": {"bytes": "128MiB"}, "deadlines": PATIENT, "tiers": tiers}
    first = start(**behind("layer_first", **config))
    assert same(first, prompt("shared"))[0].cached == 0
    with redis_server.admin() as admin:
        until(lambda: admin.dbsize() == PAGES)
    first.kill()
    second = start(**behind(**config))
    [answer] = same(second, prompt("shared"))
    assert answer.storage == PAGES * PAGE
