"""Pages of metrics of engines: read over HTTP, and reduced to hexkv's metrics.

hexkv's own pages, vLLM's (``vllm:hexkv_*``) and SGLang's have the same metrics under names that
differ by a prefix, and by labels for ranks and engines, over which everything is summed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from hexkv.ports import ConfigError, StoreUnreachable

MAX_PAGE = 16 << 20
"""Bytes of a page; a longer one is refused."""

_LINE = re.compile(r"(?:vllm:)?(hexkv_[a-z_]+)(?:\{(.*)\})? ([^ ]+)(?: -?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_SUMMED = ("engine", "rank", "model_name", "role")


@dataclass(frozen=True, slots=True)
class PageAddress:
    """The address of a page."""

    host: str
    port: int
    path: str = "/metrics"
    tls: bool = False

    @classmethod
    def of(cls, text: str) -> PageAddress:
        """Return the place of ``host:port``, or of a URL.

        Raises:
            ConfigError: it is neither.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{text!r} is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{text!r} is no address: give host:port, or a URL of http or https")
        tls = parts.scheme == "https"
        if port is None and "://" not in text:
            raise ConfigError(f"{text!r} has no port")
        path = parts.path if parts.path not in ("", "/") else "/metrics"
        return cls(parts.hostname, port or (443 if tls else 80), path, tls)

    def read(self, seconds: float) -> str:
        """Return the page.

        Raises:
            StoreUnreachable: there is none, or not in time.
        """
        kind = HTTPSConnection if self.tls else HTTPConnection
        connection = kind(self.host, self.port, timeout=seconds)
        try:
            connection.request("GET", self.path, headers={"Accept": "text/plain;version=0.0.4"})
            answer = connection.getresponse()
            body = answer.read(MAX_PAGE + 1)
        except (OSError, HTTPException) as error:
            raise StoreUnreachable(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise StoreUnreachable(f"answers with status {answer.status}")
        if len(body) > MAX_PAGE:
            raise StoreUnreachable(f"a page of more than {MAX_PAGE} bytes")
        return body.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Page:
    """A page's metrics of hexkv: sums by name and labels."""

    values: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]] = field(default_factory=dict)
    roles: Collection[str] = ()
    """The values of the label ``role``, over which everything is summed."""

    @classmethod
    def parse(cls, text: str) -> Page:
        """Parse the text format of Prometheus, or OpenMetrics; skip all other lines."""
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        roles: set[str] = set()
        for line in text.splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            name, labels, value = match.groups()
            try:
                number = float(value)
            except ValueError:
                continue
            if not math.isfinite(number):
                continue
            given = _LABEL.findall(labels or "")
            roles.update(label_value for what, label_value in given if what == "role")
            key = tuple(
                sorted(
                    (what, re.sub(r"\\.", lambda m: _ESCAPED.get(m[0], m[0]), label_value))
                    for what, label_value in given
                    if what not in _SUMMED and label_value
                )
            )
            values = found.setdefault(name, {})
            values[key] = values.get(key, 0.0) + number
        return cls(found, sorted(roles))

    def total(self, name: str) -> float | None:
        """Return the sum of a metric; ``None`` if the page does not have it."""
        values = self.values.get(name)
        return None if values is None else sum(values.values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a metric by the values of *label*."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            for what, label_value in labels:
                if what == label:
                    found[label_value] = found.get(label_value, 0.0) + value
        return found

    def most(self, name: str, label: str) -> dict[str, float]:
        """Return the maxima of a metric by the values of *label*: for states, which have no sum."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            for what, label_value in labels:
                if what == label:
                    found[label_value] = max(found.get(label_value, 0.0), value)
        return found


@dataclass(frozen=True, slots=True)
class TierView:
    """A tier over an interval. Rates are of the interval, states of its end."""

    hit_rate: float | None
    """Part of the requested tokens that it supplied; ``None`` if none were requested."""

    read_bytes_per_second: float
    written_bytes_per_second: float
    queued_bytes: float
    used_bytes: float | None
    budget_bytes: float | None
    breaker: str
    """The worse of its lanes: ``closed``, ``half open`` or ``open``."""

    tenants: Mapping[str, float]
    """Bytes in the share of each."""


@dataclass(frozen=True, slots=True)
class View:
    """A page over an interval."""

    roles: Collection[str]
    """The roles of the processes whose numbers it has; empty for engines' own pages."""

    tokens_per_second: float
    """Requested tokens."""

    hit_rate: float | None
    tiers: Mapping[str, TierView]
    missed: Mapping[str, float]
    """Missed tokens per second, by reason, the most first."""


_STATES = ("closed", "half open", "open")


def view(before: Page, after: Page, seconds: float) -> View:
    """Return the changes between two readings of a page; since the start if *before* is empty."""

    def grown(name: str, label: str) -> dict[str, float]:
        old = before.by(name, label)
        # A restarted process counts from the beginning.
        return {
            key: value - old.get(key, 0.0) if value >= old.get(key, 0.0) else value
            for key, value in after.by(name, label).items()
        }

    hits = grown("hexkv_hit_tokens_total", "tier")
    missed = grown("hexkv_missed_tokens_total", "reason")
    asked = sum(hits.values()) + sum(missed.values())
    read = grown("hexkv_read_bytes_total", "tier")
    written = grown("hexkv_written_bytes_total", "tier")
    queued = after.by("hexkv_tier_queued_bytes", "tier")
    used = after.by("hexkv_tier_used_bytes", "tier")
    budget = after.by("hexkv_tier_budget_bytes", "tier")
    breaker = after.most("hexkv_tier_breaker", "tier")
    tenants: dict[str, dict[str, float]] = {}
    for labels, value in after.values.get("hexkv_tenant_used_bytes", {}).items():
        named = dict(labels)
        tenants.setdefault(named.get("tier", ""), {})[named.get("tenant", "")] = value
    names = dict.fromkeys([*breaker, *used, *hits, *read])
    return View(
        roles=after.roles,
        tokens_per_second=asked / seconds,
        hit_rate=sum(hits.values()) / asked if asked else None,
        tiers={
            name: TierView(
                hit_rate=hits.get(name, 0.0) / asked if asked else None,
                read_bytes_per_second=read.get(name, 0.0) / seconds,
                written_bytes_per_second=written.get(name, 0.0) / seconds,
                queued_bytes=queued.get(name, 0.0),
                used_bytes=used.get(name),
                budget_bytes=budget.get(name),
                breaker=_STATES[min(2, max(0, int(breaker.get(name, 0.0))))],
                tenants=tenants.get(name, {}),
            )
            for name in names
        },
        missed={
            reason: tokens / seconds
            for reason, tokens in sorted(missed.items(), key=lambda item: -item[1])
            if tokens
        },
    )
