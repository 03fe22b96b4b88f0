"""Writes `dashboard.json` and `rules.yaml` beside this file: ``make monitoring``.

Operators take the committed files. The tests hold them against this file, every query against a
real Prometheus, and every family of metrics against the queries. Needs grafana-foundation-sdk.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import yaml
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.builders import prometheus, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

HERE = Path(__file__).parent
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

RUNBOOKS = "docs/symptoms.md"
"""Of this repository; `python generate.py URL` takes the address of your copy of the documents."""

LEFT_OUT = {
    "hexkv_present_total": "a store that found its chunks there is no event for operators",
    "hexkv_lookups_total": "tokens are compared, as engines count them",
    "hexkv_hits_total": "tokens are compared, as engines count them",
    "hexkv_misses_total": "tokens are compared, as engines count them",
    "hexkv_tier_chunks": "a tier's fill is in bytes",
    "hexkv_blend_requests_total": "blending is for programs of transformers, not for servers yet",
    "hexkv_blend_tokens_total": "for programs of transformers, as above",
    "hexkv_blend_segments_total": "for programs of transformers, as above",
    "hexkv_blend_select_seconds": "for programs of transformers, as above",
    "hexkv_blend_rotate_seconds": "for programs of transformers, as above",
    "hexkv_blend_kl": "as above; the gate switches blending off where answers diverge",
    "hexkv_prefetches": "those that no retrieve picked up show as wasted bytes",
}
"""Families that are in no panel and no alert, and why."""


class Panel(NamedTuple):
    title: str
    unit: str
    query: str
    legend: str = "{{tier}}"


class Alert(NamedTuple):
    name: str
    query: str
    lasting: str
    severity: str
    summary: str
    action: str


TIERS = 'role!="client"'
"""The processes that have tiers: an engine over a node shows the node's, which does so itself."""

NODES = 'role="node"'
REQUESTS = 'role!="node"'
"""The processes that have requests: a node counts those of its engines, which do so themselves."""


def rate(family: str, by: str = "", *, of: str = TIERS) -> str:
    """Of a counter, summed over all labels but those of *by*."""
    kept = f" by ({by})" if by else ""

    def summed(role: str) -> str:
        return f'sum{kept} (rate({family}{{job=~"$job",{role}}}[$__rate_interval]))'

    return summed(of) if of == TIERS else either(summed)


def quantile(share: float, family: str, by: str = "", *, of: str = TIERS) -> str:
    """Of a histogram."""
    kept = f"le, {by}" if by else "le"

    def quantiles(role: str) -> str:
        rates = f'rate({family}_bucket{{job=~"$job",{role}}}[$__rate_interval])'
        return f"histogram_quantile({share}, sum by ({kept}) ({rates}))"

    return quantiles(of) if of == TIERS else either(quantiles)


def gauge(family: str, by: str = "tier", how: str = "sum") -> str:
    return f'{how} by ({by}) ({family}{{job=~"$job",{TIERS}}})'


def either(query: Callable[[str], str]) -> str:
    """What engines count of requests; where none is scraped, what nodes do."""
    return f"{query(REQUESTS)} or on() {query(NODES)}"


ROWS: dict[str, list[Panel]] = {
    "What hits": [
        Panel(
            "Tokens hit, of those asked for",
            "percentunit",
            'hexkv:token_hits:ratio5m{job=~"$job"}',
            "{{instance}}",
        ),
        Panel("Tokens hit", "tokens/s", rate("hexkv_hit_tokens_total", "tier", of=REQUESTS)),
        Panel(
            "Tokens missed",
            "tokens/s",
            rate("hexkv_missed_tokens_total", "reason", of=REQUESTS),
            "{{reason}}",
        ),
        Panel(
            "Tokens asked for",
            "tokens/s",
            rate("hexkv_lookup_tokens_total", of=REQUESTS),
            "asked for",
        ),
        Panel("Tokens stored", "tokens/s", rate("hexkv_stored_tokens_total", "tier")),
        Panel(
            "Computing saved per second",
            "s",
            rate("hexkv_saved_seconds_total", of=REQUESTS),
            "saved",
        ),
        Panel(
            "Tokens that stores found there",
            "tokens/s",
            rate("hexkv_present_tokens_total", of=REQUESTS),
            "present",
        ),
    ],
    "How long it takes": [
        Panel(
            "Retrieve, 99 %", "s", quantile(0.99, "hexkv_retrieve_seconds", of=REQUESTS), "retrieve"
        ),
        Panel(
            "Waiting for tiers, 99 %",
            "s",
            quantile(0.99, "hexkv_load_wait_seconds", of=REQUESTS),
            "load wait",
        ),
        Panel("Store, 99 %", "s", quantile(0.99, "hexkv_store_seconds", of=REQUESTS), "store"),
        Panel("Read of a batch, 99 %", "s", quantile(0.99, "hexkv_read_seconds", "tier")),
        Panel("Write of a batch, 99 %", "s", quantile(0.99, "hexkv_write_seconds", "tier")),
    ],
    "Tiers": [
        Panel(
            "Fill",
            "percentunit",
            f"{gauge('hexkv_tier_used_bytes')} / {gauge('hexkv_tier_budget_bytes')}",
        ),
        Panel("Read", "Bps", rate("hexkv_read_bytes_total", "tier")),
        Panel("Written", "Bps", rate("hexkv_written_bytes_total", "tier")),
        Panel("Lent to peers", "Bps", rate("hexkv_lent_bytes_total"), "lent"),
        Panel("Waiting or running", "bytes", gauge("hexkv_tier_queued_bytes")),
        Panel("Evicted", "cps", rate("hexkv_evicted_total", "tier")),
        Panel(
            "Age of evicted chunks, median",
            "s",
            quantile(0.5, "hexkv_evicted_age_seconds", "tier"),
        ),
        Panel(
            "Time between two uses, median", "s", quantile(0.5, "hexkv_reuse_gap_seconds", "tier")
        ),
        Panel("Read without use", "Bps", rate("hexkv_wasted_bytes_total", "tier")),
        Panel(
            "Not taken", "cps", rate("hexkv_dropped_total", "tier, reason"), "{{tier}}: {{reason}}"
        ),
        Panel(
            "Tenants' shares",
            "bytes",
            gauge("hexkv_tenant_used_bytes", "tier, tenant"),
            "{{tier}}: {{tenant}}",
        ),
    ],
    "Problems": [
        Panel(
            "Breakers: 0 closed, 2 open",
            "none",
            gauge("hexkv_tier_breaker", "tier, lane", "max"),
            "{{tier}}: {{lane}}",
        ),
        Panel(
            "Breakers opened",
            "cps",
            rate("hexkv_breaker_opened_total", "tier, reason"),
            "{{tier}}: {{reason}}",
        ),
        Panel("Calls that failed", "cps", rate("hexkv_tier_failures_total", "tier")),
        Panel("Asked again", "cps", rate("hexkv_retries_total", "tier")),
        Panel("Damaged chunks", "cps", rate("hexkv_corrupt_total", "tier")),
        Panel("Tiers being indexed", "none", gauge("hexkv_tier_indexing")),
        Panel("Stores without room", "none", gauge("hexkv_tier_full", how="max")),
        Panel(
            "Directory: 1 it is informed",
            "none",
            gauge("hexkv_directory_up", "instance", "min"),
            "{{instance}}",
        ),
    ],
    "Memory": [
        Panel(
            "The pool's blocks in use",
            "percentunit",
            " / ".join(gauge(f"hexkv_pool_{part}bytes", "instance") for part in ("held_", "")),
            "{{instance}}",
        ),
        Panel("Blocks given up for others", "cps", rate("hexkv_pool_reclaims_total"), "reclaims"),
        Panel("Leases", "none", gauge("hexkv_leases", "instance"), "{{instance}}"),
        Panel("Pins", "none", gauge("hexkv_pinned_chunks", "instance"), "{{instance}}"),
        Panel("Engines that take calls", "none", gauge("hexkv_open", "instance"), "{{instance}}"),
    ],
}


def ratio(span: str) -> str:
    """Tokens hit, of those asked for: once, of a node and its engines."""
    return either(
        lambda role: (
            f"sum by (job, instance) (rate(hexkv_hit_tokens_total{{{role}}}[{span}]))"
            f" / (sum by (job, instance) (rate(hexkv_lookup_tokens_total{{{role}}}[{span}])) > 0)"
        )
    )


ABOUT = {
    "Tokens hit, of those asked for": "The share of the tokens of prompts that was loaded.",
    "Tokens hit": "Tokens that requests loaded, by the tier that had them.",
    "Tokens missed": "Tokens that requests computed, by the reason: docs/symptoms.md has remedies.",
    "Tokens asked for": "Tokens of prompts that were looked for.",
    "Tokens stored": "Tokens of the chunks written, by tier.",
    "Computing saved per second": "Time that computing the loaded tokens would have taken.",
    "Tokens that stores found there": "Tokens of chunks that were to be stored and were there.",
    "Retrieve, 99 %": "Whole calls that load a prompt's beginning.",
    "Waiting for tiers, 99 %": "The part of these calls that waits for tiers.",
    "Store, 99 %": "Whole calls that store a prompt's chunks.",
    "Read of a batch, 99 %": "Reads from a store, with verification.",
    "Write of a batch, 99 %": "Writes to a store.",
    "Fill": "Bytes on a tier, of its budget.",
    "Read": "Bytes read from a tier; memory lends its blocks and reads none.",
    "Written": "Bytes that a tier took.",
    "Lent to peers": "Bytes sent to peers.",
    "Waiting or running": "Bytes of reads and writes in the queues.",
    "Evicted": "Chunks that gave way to others.",
    "Age of evicted chunks, median": "Time since their last use: near the next panel, more helps.",
    "Time between two uses, median": "Of one chunk: above the last panel, chunks go too soon.",
    "Read without use": "Bytes read for a request that no request used.",
    "Not taken": "Chunks that a tier did not store, by the reason: docs/symptoms.md has remedies.",
    "Tenants' shares": "Bytes in the share of each tenant that has one.",
    "Breakers: 0 closed, 2 open": "A tier whose breaker is open is not used, and tried again.",
    "Breakers opened": "Tiers that were switched off, by the reason.",
    "Calls that failed": "Calls that a store answered with an error: the log has it.",
    "Asked again": "Chunks that a store was asked for, or given, once more.",
    "Damaged chunks": "Chunks that were not as they had been written. No wrong KV was used.",
    "Tiers being indexed": "1 while the content of a tier is being listed after a start.",
    "Stores without room": "1 while a store has less room than its budget.",
    "Directory: 1 it is informed": "0 while the directory does not get this process's content.",
    "The pool's blocks in use": "Bytes of blocks in use, of the pool.",
    "Blocks given up for others": "Times that the pool was full, and a block was given up.",
    "Leases": "Holds on blocks. At rest only the memory tier has any.",
    "Pins": "Chunks that may not be evicted.",
    "Engines that take calls": "1 while a cache takes calls.",
    "Models": "The model, layout and version of each cache.",
}
"""What each panel shows, by its title."""

RECORDED = {f"hexkv:token_hits:ratio{span}": ratio(span) for span in ("5m", "1h")}

ALERTS = [
    Alert(
        "HexKVDamagedChunks",
        "sum by (job, instance, tier) (increase(hexkv_corrupt_total[15m])) > 0",
        "0m",
        "critical",
        "Tier {{ $labels.tier }} gave back something else than was put there.",
        "No wrong KV was used. Look at the quarantine and at the medium: hexkv inspect --verify.",
    ),
    Alert(
        "HexKVTierOff",
        f"max by (job, instance, tier) (hexkv_tier_breaker{{{TIERS}}}) == 2",
        "1m",
        "warning",
        "Tier {{ $labels.tier }} is switched off, because its calls failed.",
        "The log names the error. It is tried again by itself.",
    ),
    Alert(
        "HexKVNotStored",
        'sum by (job, instance, tier) (rate(hexkv_dropped_total{reason!="unlikely"}[10m])) > 0.1 *'
        ' (sum by (job, instance, tier) (rate(hexkv_dropped_total{reason!="unlikely"}[10m]))'
        " + sum by (job, instance, tier) (rate(hexkv_stored_total[10m])))",
        "10m",
        "warning",
        "Tier {{ $labels.tier }} takes less than nine of ten chunks.",
        "Which reason? hexkv_dropped_total has it; docs/symptoms.md has the remedies.",
    ),
    Alert(
        "HexKVHitRatioFell",
        "hexkv:token_hits:ratio1h < 0.5 * hexkv:token_hits:ratio1h offset 1d",
        "30m",
        "warning",
        "Half as many of the tokens asked for hit as a day before.",
        "Which reason grew? hexkv_missed_tokens_total has it.",
    ),
    Alert(
        "HexKVLongIndexing",
        f"max by (job, instance, tier) (hexkv_tier_indexing{{{TIERS}}}) == 1",
        "10m",
        "warning",
        "What tier {{ $labels.tier }} holds is still being learnt.",
        "Until then nothing is written there. Is its medium slow?",
    ),
    Alert(
        "HexKVNoMemory",
        'sum by (job, instance) (rate(hexkv_missed_tokens_total{reason="refused",'
        f"{TIERS}}}[5m])) > 0",
        "10m",
        "warning",
        "Requests miss because the pool has no block for them.",
        "More pool.bytes, or fewer requests at once.",
    ),
    Alert(
        "HexKVSlowTier",
        "sum by (job, instance)"
        ' (rate(hexkv_missed_tokens_total{reason=~"slower than computing|timed out",'
        f"{TIERS}}}[15m]))"
        f" > 0.2 * sum by (job, instance) (rate(hexkv_lookup_tokens_total{{{TIERS}}}[15m]))",
        "15m",
        "warning",
        "A fifth of the tokens would come later than they are computed.",
        "hexkv_read_seconds shows which tier is slow.",
    ),
    Alert(
        "HexKVNoRoom",
        f"max by (job, instance, tier) (hexkv_tier_full{{{TIERS}}}) == 1",
        "5m",
        "warning",
        "The store of tier {{ $labels.tier }} has less room than the tier's budget.",
        "Who fills the file system, or the server? Make room, or lower the budget.",
    ),
    Alert(
        "HexKVDirectoryGone",
        "min by (job, instance) (hexkv_directory_up) == 0",
        "2m",
        "warning",
        "The directory does not get what this process holds.",
        "Peers do not find its chunks. /readyz and the log have the reason.",
    ),
    Alert(
        "HexKVDown",
        "up == 0 and on (job, instance) count by (job, instance)"
        ' (last_over_time({__name__=~"hexkv_open|hexkv_directory_members"}[1h]))',
        "1m",
        "critical",
        "A process of hexkv does not answer scrapes.",
        "It has ended, or hangs: the last line of its log has the reason.",
    ),
    Alert(
        "HexKVClosed",
        "min by (job, instance) (hexkv_open) == 0",
        "2m",
        "critical",
        "An engine's cache takes no calls.",
        "It was closed, or its node is gone: see its log.",
    ),
]


def dashboard() -> str:
    """The dashboard, as Grafana imports it."""
    built = (
        grafana.Dashboard("hexkv")
        .uid("hexkv")
        .tags(["hexkv"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(grafana.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            grafana.QueryVariable("job")
            .query("label_values(hexkv_open, job)")
            .datasource(SOURCE)
            .multi(True)
            .include_all(True)
        )
    )
    for title, panels in ROWS.items():
        built = built.with_row(grafana.Row(title))
        for panel in panels:
            built = built.with_panel(_drawn(panel))
    what = prometheus.Dataquery().expr('hexkv_engine_info{job=~"$job"}').instant()
    built = built.with_row(grafana.Row("Engines")).with_panel(
        table.Panel()
        .title("Models")
        .description(ABOUT["Models"])
        .datasource(SOURCE)
        .height(6)
        .span(24)
        .with_target(what)
    )
    found = json.loads(JSONEncoder(sort_keys=True).encode(built.build()))
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _drawn(panel: Panel) -> timeseries.Panel:
    query = prometheus.Dataquery().expr(panel.query).legend_format(panel.legend).ref_id("A")
    drawn = timeseries.Panel().title(panel.title).unit(panel.unit).datasource(SOURCE)
    return drawn.description(ABOUT[panel.title]).height(7).span(8).min(0).with_target(query)


def rules(runbooks: str = RUNBOOKS) -> str:
    """Recording rules and alerts, as Prometheus reads them; Troubleshooting is at *runbooks*."""
    recorded = [{"record": name, "expr": query} for name, query in RECORDED.items()]
    alerts = [
        {
            "alert": alert.name,
            "expr": alert.query,
            "for": alert.lasting,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "description": alert.action,
                "runbook_url": f"{runbooks}#{alert.name.lower()}",
            },
        }
        for alert in ALERTS
    ]
    groups = [{"name": "hexkv", "rules": recorded}, {"name": "hexkv alerts", "rules": alerts}]
    note = "# Written by generate.py beside it: change that, and run `make monitoring`.\n"
    return note + yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


if __name__ == "__main__":
    (HERE / "dashboard.json").write_text(dashboard())
    (HERE / "rules.yaml").write_text(rules((*sys.argv[1:], RUNBOOKS)[0]))
