"""Prometheus' text format 0.0.4 as OpenMetrics 1.0, and the choice of a client between them.

https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TOTAL = "_total"


def wants_openmetrics(accept: str) -> bool:
    """True if an ``Accept`` header prefers OpenMetrics to plain text."""
    best = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        if kind in best:
            best[kind] = max(best[kind], _weight(parameters))
    return best["application/openmetrics-text"] > best["text/plain"]


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def as_openmetrics(text: str) -> str:
    """Return *text* with counters described without ``_total``, and an end mark."""
    counters = {
        line.split(" ")[2]
        for line in text.splitlines()
        if line.startswith("# TYPE ") and line.endswith(" counter")
    }
    lines = []
    for line in text.splitlines():
        if line.startswith("# "):
            sign, what, name, *rest = line.split(" ", 3)
            if name in counters:
                name = name.removesuffix(_TOTAL)
            line = " ".join((sign, what, name, *rest))
        lines.append(line)
    return "".join(f"{line}\n" for line in (*lines, "# EOF"))
