"""A node and its engines count some things both: what adds them up takes each once."""

import shutil
from contextlib import ExitStack, contextmanager

import pytest

from configured import CHUNK, FRAME, NAMESPACE, PATIENT, computed, hit, prompt
from hexkv.adapters.observe.cli.pages import Page, view
from hexkv.adapters.observe.cli.top import _notes
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.observing.telemetry import render
from hexkv.ports import Deadline
from nodes import Node
from operating.monitoring import generator, prometheus
from processes import held_port, until

SALT = "0123456789abcdef0123456789abcdef"
TENANTS = [{"name": "acme", "salt": SALT, "quotas": {"memory": "64KiB"}}]


@contextmanager
def machine(root, **observed):
    """A node and two engines over it, one of a tenant; each asked for two prompts that are new."""
    with ExitStack() as opened:
        sections = {"tenants": TENANTS} | observed.pop("node", {})
        node = opened.enter_context(Node(root, slots=64, frame=FRAME, **sections))
        node.served.observe()
        engines = []
        for number, salt in enumerate(["", SALT]):
            wanted = {
                "node": str(node.path),
                "chunk": {"size": CHUNK},
                "deadlines": PATIENT,
                "model": {"salt": salt},
                **observed.get(f"engine{number}", {}),
            }
            engines.append(opened.enter_context(build(load(None, {}, wanted), NAMESPACE)))
            for name in (3 * number, 3 * number + 1):
                engines[-1].store(prompt(name), computed(prompt(name)))
                assert hit(engines[-1], prompt(name))
        node.served.chunks.flush(Deadline.after(node.clock, 60.0))
        yield node, engines


def once(page, family, by, role):
    """What a query of the dashboard adds up, of pages that were scraped together."""
    found = {}
    for one in page:
        if role in one.roles:
            continue
        for name, value in one.by(family, by).items():
            found[name] = found.get(name, 0) + value
    return found


def test_tiers_are_the_nodes_and_requests_the_engines(tmp_path):
    with machine(tmp_path) as (node, engines):
        pages = [Page.parse(render(one)) for one in (node.served, *engines)]
        health = node.served.health()
        hits = sum(
            amount
            for one in engines
            for key, amount in one.telemetry.counts().items()
            if key[0] == "hit_tokens"
        )
    assert [one.roles for one in pages] == [["node"], ["client"], ["client"]]
    used = {tier.name: tier.used_bytes for tier in health.tiers}
    assert once(pages, "hexkv_tier_used_bytes", "tier", "client") == used
    assert used["memory"] > 0
    tenants = once(pages, "hexkv_tenant_used_bytes", "tenant", "client")
    assert tenants == {"acme": sum(sum(tier.tenants.values()) for tier in health.tiers)}
    assert sum(once(pages, "hexkv_hit_tokens_total", "tier", "node").values()) == hits > 0
    views = {str(n): view(Page(), page, 1.0) for n, page in enumerate(pages)}
    first, *_, last = _notes(views)
    assert first.startswith(f"asked for {hits:,} tokens/s")
    assert last == _notes({"node": views["0"]})[-1], "tenants are those of the node"


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs Debian's prometheus")
def test_the_dashboards_panels_show_the_nodes_own_state(tmp_path):
    made = generator()
    panels = {panel.title: panel.query for row in made.ROWS.values() for panel in row}
    places = {name: f"127.0.0.1:{held_port()}" for name in ("node", "engine0", "engine1")}
    observed = {name: {"observe": {"address": place}} for name, place in places.items()}
    (tmp_path / "prometheus").mkdir()
    with (
        machine(tmp_path, **observed) as (node, _),
        prometheus(tmp_path / "prometheus", places, made.rules()) as watching,
    ):
        health = node.served.health()

        def ask(title, label):
            query = panels[title].replace("$job", ".*").replace("$__rate_interval", "1m")
            return {
                row["metric"].get(label, ""): float(row["value"][1]) for row in watching.ask(query)
            }

        tenants = {tier.name: tier.tenants.get("acme", 0) for tier in health.tiers if tier.tenants}
        until(lambda: ask("Tenants' shares", "tier") == tenants)
        assert ask("Leases", "instance") == {places["node"]: sum(health.leases.values())}
        (shown,) = ask("The pool's blocks in use", "instance").values()
        assert shown == pytest.approx(health.pool_held_bytes / health.pool_bytes)
        fill = ask("Fill", "tier")
        for tier in health.tiers:
            if tier.budget_bytes:
                assert fill[tier.name] == pytest.approx(tier.used_bytes / tier.budget_bytes)
