"""Calls as spans, at a collector that reads them as OpenTelemetry's own classes do."""

import time
from http.client import HTTPConnection

import pytest

from configured import CHUNK, FRAME, LAYOUT, NAMESPACE, PROMPT, built, computed, hit, settle
from hexkv.adapters.observe.observer import ServerObserver
from hexkv.adapters.observe.settings import ServerSettings
from hexkv.adapters.observe.spans import CallQueue, Parent
from hexkv.api import traced
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ConfigError, EndedCall, Lookup
from nodes import Node
from operating.collectors import PARENT, SPAN, TRACE, collecting
from processes import PATIENCE, held_port, until


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr("hexkv.adapters.observe.exporter._BEAT", 0.1)
    with collecting() as collector:
        yield collector


def page(port):
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_a_call_is_one_span_and_one_for_each_tier_within_the_trace_it_was_given(
    collector, tmp_path
):
    port, begun = held_port(), time.time()
    observe = {"address": f"127.0.0.1:{port}", "traces": collector.url, "traces_service": "shop"}
    with built(tmp_path, observe=observe) as engine, traced(PARENT):
        assert engine.lookup(PROMPT).hit_tokens == 0
        engine.store(PROMPT, computed())
        settle(engine)
        engine.clear(PROMPT[: 4 * CHUNK], tiers=["memory"])
        assert hit(engine) == len(PROMPT)
        until(lambda: len(collector.of("hexkv.read")) == 2)
        until(lambda: int(page(port)["hexkv_spans_sent_total"]) == len(collector.spans))
    found = {span.name: span for span in collector.spans}
    assert {span.trace for span in collector.spans} == {TRACE}
    (whole,), reads = collector.of("hexkv.retrieve"), collector.of("hexkv.read")
    assert {span.parent for span in (found["hexkv.lookup"], found["hexkv.store"], whole)} == {SPAN}
    assert {span.parent for span in reads} == {whole.span}
    assert {span.parent for span in collector.of("hexkv.write")} == {found["hexkv.store"].span}
    half = 4 * CHUNK
    assert {(span.said["hexkv.tier"], span.said["hexkv.tokens"]) for span in reads} == {
        ("disk", half),
        ("memory", half),
    }
    for span in reads:
        assert whole.begun - 1e-6 <= span.begun <= span.ended <= whole.ended + 1e-6
        assert 0.0 <= span.said["hexkv.waited_seconds"] <= span.ended - span.begun + 1e-6
    assert begun - 1.0 <= whole.begun <= whole.ended <= time.time() + 1.0
    assert whole.said["gen_ai.usage.cache_read.input_tokens"] == len(PROMPT)
    assert whole.said["gen_ai.request.model"] == NAMESPACE.model
    assert sorted(whole.said["hexkv.tiers"]) == [f"disk={half}", f"memory={half}"]
    assert found["hexkv.lookup"].said["hexkv.miss.reason"] == "absent"
    assert (whole.resource["service.name"], whole.scope) == ("shop", "hexkv")
    assert len(collector.spans) == len({span.span for span in collector.spans}), "one of each"
    chunks = len(PROMPT) // CHUNK
    assert len(collector.spans) < 3 * chunks, "none of a chunk"


def test_a_collector_that_hangs_or_refuses_costs_no_call_anything_and_what_waits_is_bounded(
    collector, tmp_path
):
    collector.stalled = True
    port = held_port()
    observe = {"address": f"127.0.0.1:{port}", "traces": collector.url, "traces_memory": 1 << 16}
    with built(tmp_path, observe=observe) as engine:
        for _ in range(100):  # of which some thirty find room, and as many are on their way
            engine.lookup(PROMPT)
        assert 0 < int(page(port)["hexkv_spans_dropped_calls_total"]) < 100
        collector.answers += [503]
        collector.stalled = False
        collector.going.set()
        until(lambda: collector.of("hexkv.lookup"))
        until(lambda: int(page(port)["hexkv_spans_sent_total"]) == len(collector.spans))
        assert int(page(port)["hexkv_spans_lost_total"]) == 0, "503 is asked again"
        collector.answers += [400]
        engine.lookup(PROMPT)
        until(lambda: int(page(port)["hexkv_spans_lost_total"]) == 1)
    assert len({span.trace for span in collector.spans}) == len(collector.spans), (
        "traces of its own"
    )


@pytest.mark.thorough
def test_calls_by_key_layer_by_layer_and_over_a_node_are_traced_too(collector, tmp_path):
    with built(tmp_path, observe={"address": "", "traces": collector.url}) as engine:
        with traced(PARENT), engine.store_layers(PROMPT, computed()) as layers:
            for layer in range(LAYOUT.layers):
                layers.layer_done(layer)
            layers.result()
        window = HeapKV(LAYOUT, len(PROMPT))
        with traced(PARENT):
            opened = engine.retrieve_layers(PROMPT, window)
            layers = opened.__enter__()
        for _ in layers:
            pass
        assert layers.result().hit_tokens == len(PROMPT)
        opened.__exit__(None, None, None)
        until(lambda: collector.of("hexkv.retrieve"))
    assert {span.parent for span in collector.spans} == {SPAN}
    collector.spans.clear()
    observe = {"address": "", "traces": collector.url}
    with (
        Node(tmp_path / "node", frame=FRAME) as node,
        node.engine(NAMESPACE, chunk={"size": CHUNK}, observe=observe) as engine,
        traced(PARENT),
    ):
        engine.store(PROMPT, computed())
        assert hit(engine) == len(PROMPT)
        until(lambda: collector.of("hexkv.read"))
    (read,) = collector.of("hexkv.read")
    assert (read.trace, read.said["hexkv.tokens"]) == (TRACE, len(PROMPT))


@pytest.mark.thorough
def test_what_is_no_traceparent_begins_a_trace_and_what_is_not_sampled_has_no_span():
    for text in (
        PARENT[:-1],
        PARENT.upper(),
        f"ff{PARENT[2:]}",
        f"{PARENT}-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT}\n",
        "",
    ):
        assert Parent.parse(text) is None, text
    assert Parent.parse(f"cc{PARENT[2:]}-more") == Parent.parse(PARENT)
    call = EndedCall("lookup", 0.0, 0.1, Lookup(1, 0), (), f"00-{TRACE}-{SPAN}-00")
    queue = CallQueue("m", 0, share=0.25, limit=1 << 30)
    queue.ended(call)
    assert queue.take(10) == []
    queue.ended(call._replace(parent=f"00-{TRACE}-{SPAN}-03"))
    [(_, parent)] = queue.take(10)
    assert (parent.trace.hex(), parent.span.hex()) == (TRACE, SPAN)
    for _ in range(4000):
        queue.ended(call._replace(parent=""))
    assert 800 < len(queue.take(4000)) < 1200, "a quarter, by chance"


@pytest.mark.thorough
def test_the_span_that_the_program_is_in_is_the_parent_where_none_is_given():
    from opentelemetry import trace

    context = trace.SpanContext(int(TRACE, 16), int(SPAN, 16), False, trace.TraceFlags(1))
    queue = CallQueue("m", 0, share=0.0, limit=1 << 20)
    call = EndedCall("lookup", 0.0, 0.1, Lookup(1, 0), (), "")
    with trace.use_span(trace.NonRecordingSpan(context)):
        queue.ended(call)
        queue.ended(call._replace(parent=f"00-{TRACE}-{'1' * 16}-01"))
    queue.ended(call)
    spans = [parent.span.hex() for _, parent in queue.take(9)]
    assert spans == [SPAN, "1" * 16]


def served(settings):
    observer = ServerObserver(settings, SystemClock())
    assert observer.trace("m") is not None
    observer.serve(None)
    return observer


@pytest.mark.thorough
def test_traces_leave_the_machine_by_https_or_where_that_is_said():
    for url, wrong in (
        ("http://192.0.2.1:4318", "another machine"),
        ("ftp://127.0.0.1", "no URL"),
        ("http://user:word@127.0.0.1", "password"),
        ("http://127.0.0.1/v1/traces?key=word", "more than a path"),
    ):
        with pytest.raises((ConfigError, ValueError), match=wrong):
            served(ServerSettings("", traces=url))
    for settings in (
        ServerSettings("", traces="http://192.0.2.1:4318", exposed=True),
        ServerSettings("", traces="https://192.0.2.1"),
    ):
        served(settings).close()
    assert ServerObserver(ServerSettings(""), SystemClock()).trace("m") is None
