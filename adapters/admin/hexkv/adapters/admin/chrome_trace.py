"""Steps as a picture: Chrome's trace format, which Perfetto and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Sequence

from hexkv.plugins.configuration.sizes import human_size
from hexkv.ports import TraceStep


def chrome_trace(steps: Sequence[TraceStep], name: str = "hexkv") -> dict[str, object]:
    """Return *steps* of the process *name* as JSON: a row for each lane and each calling thread.

    Times are in microseconds since the first step began. The parts of a call lie within it, and it
    names the longest of them.
    """
    rows = {row: number for number, row in enumerate(sorted({step.row for step in steps}), 1)}
    start = min((step.begun - step.waited for step in steps), default=0.0)
    longest: dict[str, TraceStep] = {}
    for step in steps:
        if step.call and not step.key:
            known = longest.setdefault(step.call, step)
            longest[step.call] = max(known, step, key=_seconds)
    events: list[dict[str, object]] = [_named("process_name", 0, name)]
    events += [_named("thread_name", number, row) for row, number in rows.items()]
    for step in steps:
        arguments: dict[str, object] = {
            what: value
            for what, value in (("tier", step.tier), ("call", step.call), ("bytes", step.size))
            if value
        }
        if step.waited:
            arguments["waited_ms"] = round(1000 * step.waited, 3)
        if step.key and (slow := longest.get(step.call)):
            arguments["chunk"] = step.key
            arguments["slowest"] = f"{slow.name} {slow.tier}".rstrip()
            arguments["slowest_ms"] = round(1000 * slow.seconds, 3)
        events.append(
            {
                "name": f"{step.name} {step.tier}" if step.tier and step.call else step.name,
                "cat": "call" if step.call else "lane",
                "ph": "X",
                "ts": round(1e6 * (step.begun - start), 3),
                "dur": round(1e6 * step.seconds, 3),
                "pid": 1,
                "tid": rows[step.row],
                "args": arguments,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def calls_of(steps: Sequence[TraceStep]) -> list[TraceStep]:
    """Return the whole calls among *steps*, in the order in which they ended."""
    return [step for step in steps if step.key]


def timeline(steps: Sequence[TraceStep], call: str, width: int = 40) -> list[tuple[str, str, str]]:
    """Return the parts of a call: name and tier, a bar within the time of the call, and numbers.

    Args:
        steps: with those of the call.
        call: its name, as :func:`calls_of` gives it.
        width: characters of the bars.
    """
    parts = sorted((step for step in steps if step.call == call), key=_order)
    start = min((step.begun for step in parts), default=0.0)
    most = max((step.begun + step.seconds for step in parts), default=start) - start or 1.0
    rows = []
    for step in parts:
        left = round(width * (step.begun - start) / most)
        size = max(1, round(width * step.seconds / most))
        bar = " " * min(left, width - 1) + "#" * min(size, width - min(left, width - 1))
        words = [f"{1000 * step.seconds:.3f} ms"]
        words += [f"after {1000 * step.waited:.3f} ms in a queue"] if step.waited else []
        words += [human_size(step.size)] if step.size else []
        rows.append((f"{step.name} {step.tier}".rstrip(), bar.ljust(width), ", ".join(words)))
    return rows


def _order(step: TraceStep) -> tuple[bool, float]:
    return not step.key, step.begun


def _named(what: str, row: int, name: str) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}


def _seconds(step: TraceStep) -> float:
    return step.seconds
