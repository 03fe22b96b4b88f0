"""What SGLang's page says of hexkv: collected as SGLang does, from files of several processes."""

import os
import subprocess
import sys

SCRIPT = """
import sys, time
from types import SimpleNamespace
from prometheus_client import CollectorRegistry, multiprocess
from hexkv.adapters.sglang.metrics import publish, show_off, telemetry
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import DType, KVLayout, Namespace

layout = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=8)
tiers = [{"store": "memory"}, {"store": "disk", "settings": {"root": sys.argv[1]}}]
loaded = load(None, {}, {"pool": {"bytes": "1MiB"}, "chunk": {"size": 16}, "tiers": tiers})
told = telemetry(SimpleNamespace(enable_metrics=True), 3)
assert telemetry(SimpleNamespace(enable_metrics=False), 3) is None

def page():
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return {
        (s.name, s.labels.get("tier", ""), s.labels.get("reason") or s.labels.get("lane", "")): s
        for metric in registry.collect() for s in metric.samples
    }

with build(loaded, Namespace("m", layout), telemetry=told) as engine:
    publish(engine)
    begun = page()
    assert begun["hexkv_off", "", "weights were replaced"].value == 0
    assert begun["hexkv_hit_tokens_total", "disk", ""].value == 0
    assert begun["hexkv_missed_tokens_total", "", "tier off"].value == 0
    assert begun["hexkv_read_seconds_count", "disk", ""].value == 0
    tokens = list(range(48))
    engine.store(tokens, HeapKV(layout, 48).compute(tokens))
    engine.clear(tokens, tiers=["memory"])
    engine.retrieve(tokens + [7] * 16, HeapKV(layout, 64))
    end = time.monotonic() + 60
    while page()["hexkv_tier_used_bytes", "disk", ""].value != 3 * 8192:
        assert time.monotonic() < end
    shown = page()
    show_off(engine, "weights were replaced")
    assert page()["hexkv_off", "", "weights were replaced"].value == 1
assert shown["hexkv_hit_tokens_total", "disk", ""].value == 48
assert shown["hexkv_missed_tokens_total", "", "absent"].value == 16
assert shown["hexkv_lookup_tokens_total", "", ""].value == 64
assert shown["hexkv_tier_breaker", "disk", "read"].value == 0
assert shown["hexkv_hit_tokens_total", "disk", ""].labels["rank"] == "3"
assert told.total("hits", tier="disk") == 3
print("well")
"""


def test_the_page_has_every_series_tokens_by_tier_and_how_tiers_are(tmp_path):
    (tmp_path / "files").mkdir()
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "files")}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "disk")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout == "well\n", done.stderr
