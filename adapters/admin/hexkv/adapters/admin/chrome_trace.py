"""Steps as a picture: Chrome's trace format, which Perfetto and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Sequence

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


def _named(what: str, row: int, name: str) -> dict[str, object]:
    return {"name": what, "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}


def _seconds(step: TraceStep) -> float:
    return step.seconds
