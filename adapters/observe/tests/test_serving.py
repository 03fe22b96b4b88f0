"""Numbers and state over HTTP, of engines that a configuration builds."""

from contextlib import closing
from http.client import HTTPConnection
from socket import create_connection
from threading import Thread

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as text_families

from configured import NAMESPACE, PROMPT, built, computed, hit
from dict_store import ScanningStore
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server import client_check
from hexkv.adapters.observe.http import HealthServer
from hexkv.adapters.observe.openmetrics import wants_openmetrics
from hexkv.contracts.faults import FaultyStore, Scripted
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.composition.observing import ObservedCache
from hexkv.plugins.configuration.config import load
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import ConfigError
from processes import PATIENCE, held_port
from rigging import rigging, tier

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def get(port, path, **headers):
    """Status, kind and body of an answer."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()


def values(families):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_an_engine_shows_the_same_numbers_in_both_formats_until_it_ends(tmp_path):
    port = held_port()
    with built(tmp_path, observe={"address": f"127.0.0.1:{port}"}) as engine:
        engine.store(PROMPT, computed())
        assert hit(engine) == len(PROMPT)
        status, kind, text = get(port, "/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        plain = values(text_families(text))
        hits = [v for (name, _), v in plain.items() if name == "hexkv_hits_total"]
        assert sum(hits) == len(PROMPT) // 16
        status, kind, text = get(port, "/metrics", Accept=OPENMETRICS)
        assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
        assert values(openmetrics_families(text)) == plain
        assert get(port, "/healthz")[0] == get(port, "/readyz")[0] == 200
        assert get(port, "/other")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        create_connection(("127.0.0.1", port))


def test_who_asks_for_a_format_gets_it():
    assert wants_openmetrics(OPENMETRICS)
    assert not wants_openmetrics("")
    assert not wants_openmetrics("*/*")
    assert not wants_openmetrics("application/openmetrics-text;q=0.1,text/plain")
    assert not wants_openmetrics("application/openmetrics-text;q=much,text/plain;q=0.1")


def test_a_scrape_does_not_wait_for_a_tier_that_hangs():
    store = FaultyStore(ScanningStore({}), Scripted())
    with rigging() as build_rig:
        tiers = [tier("memory", MemoryStore(SystemClock())), tier("slow", store)]
        rig = build_rig(tiers, clock=SystemClock())
        observed = ObservedCache(rig.engine)
        server = HealthServer(
            Address("127.0.0.1", 0),
            SystemClock(),
            observed.metrics,
            observed.unready,
            observed.degraded,
        )
        with closing(server):
            store.hang()
            work = Thread(target=rig.engine.lookup, args=(PROMPT,))
            work.start()
            try:
                status, _, text = get(server.port, "/metrics")
                assert status == 200
                assert 'hexkv_tier_queued_bytes{tier="slow"}' in text
                assert get(server.port, "/healthz")[0] == 200
            finally:
                store.release()
                work.join()
            rig.engine.close()
            assert get(server.port, "/readyz")[::2] == (503, "it is closed\n")


def test_every_client_is_answered_and_numbers_may_take_a_secret(tmp_path, monkeypatch):
    port = held_port()
    wanted = {"address": f"0.0.0.0:{port}", "secret": "a word", "exposed": True}
    monkeypatch.setattr(client_check, "own_user", lambda: 65534)
    with built(tmp_path, observe=wanted) as engine:
        engine.flush()  # while a tier is indexed, it is not ready
        assert get(port, "/metrics")[0] == 401
        assert get(port, "/metrics", Authorization="Bearer another")[0] == 401
        assert get(port, "/readyz")[0] == 200
        assert get(port, "/metrics", Authorization="Bearer a word")[0] == 200


def test_ranks_whose_kv_is_the_same_take_one_port_each_and_only_the_first_publishes():
    first = held_port(bus=1)
    place = {"address": f"127.0.0.1:{first}", "events": f"127.0.0.1:{held_port()}"}
    loaded = load(None, {}, {"chunk": {"size": 16}, "observe": place})
    with build(loaded, NAMESPACE, rank=0), build(loaded, NAMESPACE, rank=1):
        shown = [get(first + rank, "/metrics")[2] for rank in range(2)]
        assert ["hexkv_events_batches_total" in text for text in shown] == [True, False]


def test_what_may_not_or_cannot_be_served_is_refused_by_its_name():
    for settings, why in (
        ({"address": "0.0.0.0:9464"}, r"observe.*tls_certificate .*exposed"),
        ({"address": "0.0.0.0:9464", "secret": "a word"}, r"observe.*tls_certificate .*exposed"),
        ({"address": "127.0.0.1"}, r"observe.address.*no port"),
        ({"addres": "127.0.0.1:9464"}, r"addres.*address"),
    ):
        with pytest.raises(ConfigError, match=why):
            build(load(None, {}, {"observe": settings}), NAMESPACE)
