"""Metrics of the events, of the record and of the spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hexkv.adapters.net.server.admission import TurnedAway
from hexkv.adapters.observe.feed import Feed
from hexkv.plugins.observing.families import Family, Sample, text_format

if TYPE_CHECKING:
    from hexkv.adapters.observe.exporter import Exporter
    from hexkv.adapters.observe.publisher import Publisher
    from hexkv.adapters.observe.records.recorder import Recorder
    from hexkv.adapters.observe.spans import CallQueue

_PASSED_OVER = ("block", "model", "orphan", "rank", "salt", "version")
"""Reasons why named chunks are not announced; ``docs/observing.md`` explains them."""


def counted(feed: Feed, publisher: Publisher) -> str:
    """Return the metrics of events, in Prometheus' text format; each exists from the start."""
    ledger, held = feed.ledger, feed.held
    announced = dict(zip(held, ledger.announced, strict=True))
    unknown = {name: max(0, count - announced[name]) for name, count in held.items()}
    passed = {why: ledger.passed_over[why] + feed.passed_over[why] for why in _PASSED_OVER}
    return text_format(
        [
            _total("batches", "Batches published.", publisher.batches),
            _total("subscriptions", "Subscriptions of routers.", publisher.subscriptions),
            _total("replays", "Replays answered.", publisher.replays),
            _total(
                "snapshots", "Replays answered with all that is announced.", publisher.snapshots
            ),
            _by("announced_chunks", "gauge", "Chunks that routers know of.", "medium", announced),
            _by(
                "unannounced_chunks",
                "gauge",
                "Chunks that are held and that routers do not know of.",
                "medium",
                unknown,
            ),
            _total(
                "forgotten_chunks",
                "Held chunks whose tokens made room for others.",
                ledger.forgotten,
            ),
            _total("dropped_chunks", "Chunks whose tokens found no room to wait.", feed.dropped),
            _by(
                "passed_over_chunks_total",
                "counter",
                "Chunks named and not announced.",
                "reason",
                passed,
            ),
            Family(
                "hexkv_events_memory_bytes",
                "gauge",
                "Bytes of tokens and hashes.",
                [Sample((), ledger.bytes)],
            ),
        ]
    )


def turned_away(counts: Mapping[TurnedAway, int]) -> str:
    """Return the metrics of connections that were turned away, in the same format."""
    samples = [Sample((("reason", str(why)),), counts.get(why, 0)) for why in TurnedAway]
    text = "Connections for numbers and probes that were turned away."
    return text_format([Family("hexkv_http_turned_away_total", "counter", text, samples)])


def recorded(recorder: Recorder) -> str:
    """Return the metrics of a record, in the same format."""
    counts = [
        ("calls", "Calls that were recorded.", recorder.calls),
        (
            "lost_calls",
            "Calls that were not recorded: no room to wait, or none on the disk.",
            recorder.lost,
        ),
        ("bytes", "Bytes of records that were written.", recorder.bytes),
    ]
    return text_format(
        [
            Family(f"hexkv_record_{name}_total", "counter", text, [Sample((), count)])
            for name, text, count in counts
        ]
    )


def counted_spans(calls: CallQueue, exporter: Exporter) -> str:
    """Return the metrics of spans for a collector, in the same format."""
    return text_format(
        [
            _total("sent", "Spans that the collector took.", exporter.spans, "spans"),
            _total("lost", "Spans that the collector did not take.", exporter.lost, "spans"),
            _total("dropped_calls", "Calls that found no room to wait.", calls.dropped, "spans"),
        ]
    )


def _total(name: str, text: str, count: int, what: str = "events") -> Family:
    return Family(f"hexkv_{what}_{name}_total", "counter", text, [Sample((), count)])


def _by(name: str, kind: str, text: str, label: str, counts: Mapping[str, int]) -> Family:
    samples = [Sample(((label, word),), count) for word, count in counts.items()]
    return Family(f"hexkv_events_{name}", kind, text, samples)
