"""``hexkv top``: pages of several kinds of process, as one picture and as JSON."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from threading import Thread

import pytest
from rich.console import Console

from hexkv.adapters.observe.cli.pages import Page, PageAddress, view
from hexkv.adapters.observe.cli.top import frame
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.observing.telemetry import render
from hexkv.ports import ConfigError, DType, KVLayout, Namespace

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=8)
TOKENS = list(range(64))
ENGINES = """\
# TYPE vllm:hexkv_hit_tokens_total counter
vllm:hexkv_hit_tokens_total{engine="0",model_name="m",rank="0",tier="disk"} 300.0
vllm:hexkv_hit_tokens_total{engine="0",model_name="m",rank="1",tier="disk"} 300.0 1700000000
vllm:hexkv_missed_tokens_total{engine="0",model_name="m",rank="0",reason="tier off"} 200.0
vllm:hexkv_tier_breaker{engine="0",rank="0",tier="redis",lane="read"} 2.0
vllm:hexkv_tier_breaker{engine="0",rank="0",tier="redis",lane="write"} 0.0
vllm:hexkv_tier_used_bytes{rank="0",tier="a \\"b\\\\"} NaN
vllm:num_requests_running{engine="0"} 3.0
"""


@contextmanager
def served(pages):
    """Serves what *pages* gives, again and again; where."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = pages().encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *given):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_pages_of_an_engine_and_of_vllm_are_read_together(capsys, tmp_path):
    tenants = [{"name": "acme", "salt": "x" * 32, "quotas": {"disk": "1MiB"}}]
    tiers = [
        {"store": "memory"},
        {"store": "disk", "budget": "2MiB", "settings": {"root": str(tmp_path)}},
    ]
    wanted = {"chunk": {"size": 16}, "pool": {"bytes": "1MiB"}, "tiers": tiers, "tenants": tenants}
    with build(load(None, {}, wanted), Namespace("m", LAYOUT)) as engine:

        def page():
            """Each look at the page finds that a prompt has been asked for once more."""
            engine.store(TOKENS, HeapKV(LAYOUT, 64).compute(TOKENS))
            engine.retrieve([*TOKENS, *range(64)], HeapKV(LAYOUT, 128))
            return render(engine)

        with served(page) as ours, served(lambda: ENGINES) as vllm, served(str) as nothing:
            words = ["top", ours, f"http://{vllm}/metrics", nothing, "--json", "--seconds", "0.1"]
            assert main(words) == 0
            said = json.loads(capsys.readouterr().out)
            once = ["--count", "1", "--seconds", "0.1"]
            assert main(["top", nothing, *once]) == 1
            assert "status 404" in capsys.readouterr().out
            assert main(["top", ours, *once]) == 0
            shown = capsys.readouterr().out
            assert shown.endswith("\n")
            assert "asked for 0 tokens/s" not in shown
    assert said[ours]["tiers"]["memory"]["hit_rate"] == said[ours]["hit_rate"] == 0.5
    assert said[ours]["tiers"]["disk"]["budget_bytes"] == 2 << 20
    assert said[ours]["tiers"]["disk"]["tenants"] == {"acme": 0.0}
    assert list(said[ours]["missed"]) == ["absent"]
    assert said[f"{vllm}/metrics"]["tiers"]["redis"]["breaker"] == "open"
    assert said[nothing] == {"error": "answers with status 404"}


def test_rates_are_of_the_interval_also_behind_a_start_anew():
    before, after = Page.parse(ENGINES), Page.parse(ENGINES.replace("300.0", "450.0"))
    assert before.by("hexkv_hit_tokens_total", "tier") == {"disk": 600.0}
    found = view(before, after, 2.0)
    assert (found.tokens_per_second, found.hit_rate) == (150.0, 1.0)
    assert found.missed == {}
    anew = view(before, Page.parse(ENGINES.replace("300.0", "50.0")), 2.0)
    assert anew.tokens_per_second == 50.0


@each("tiers", [3, 60])
def test_a_picture_fits_a_terminal_of_80_by_24(tiers):
    lines = [
        f'hexkv_{name}{{tier="tier {n} of a long name",lane="read",tenant="t{n}"}} {n << 30}'
        for n in range(tiers)
        for name in ("tier_used_bytes", "tier_budget_bytes", "tier_breaker", "tenant_used_bytes")
    ]
    lines += [f'hexkv_missed_tokens_total{{reason="a reason {n}"}} {n}' for n in range(9)]
    found = view(Page(), Page.parse("\n".join(lines)), 1.0)
    out = StringIO()
    console = Console(file=out, width=80, height=24, force_terminal=False)
    views = {"a-rather-long-name.example.org:8000": found, "gone:1": "refused \x1b[31m"}
    console.print(frame(views, 80, 24))
    shown = out.getvalue().splitlines()
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 80
    assert "\x1b" not in out.getvalue()
    assert any("a reason 8" in line for line in shown)
    assert any("lines more" in line for line in shown) == (tiers > 20)
    assert len("\n".join(shown)) < 2048  # what goes over a slow line for each reading


def test_what_is_no_address_is_said_to_be_none(capsys):
    for address in ("nowhere", "ftp://host:1", "host:port", "http://", ":9"):
        with pytest.raises(ConfigError):
            PageAddress.of(address)
        assert main(["top", address]) == 2
        assert "ADDRESSES" in capsys.readouterr().err
