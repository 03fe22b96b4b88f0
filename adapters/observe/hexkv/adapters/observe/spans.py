"""Calls as OpenTelemetry's spans: sampling, a bounded queue, and encoding.

One span for a call, and below it one for each tier that it waited for. There is no semantic
convention for KV caches: our attributes begin with ``hexkv.``, the others are those of
https://opentelemetry.io/docs/specs/semconv/gen-ai/.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from hexkv.plugins.discovery.discovery import installed_version
from hexkv.ports import EndedCall, Lookup, Retrieved, SpanSink, TraceStep

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED = 1
_CALL_BYTES = 2048
"""Bytes of a waiting call: measured, with its result and the result's tables."""

_PART_BYTES = 200
_CHILDREN = {"retrieve": ("read", "hexkv.read"), "store": ("write", "hexkv.write")}
"""The part of a call that its child spans measure, one for each tier, and their name."""

Value = str | int | float | Sequence[str]


class Parent(NamedTuple):
    """The parent span of a call. Without *span* there is none, and *trace* is new."""

    trace: bytes
    span: bytes = b""
    sampled: bool = True

    @classmethod
    def parse(cls, text: str) -> Parent | None:
        """Return the parent in W3C's ``traceparent``; ``None`` if *text* is none."""
        match = _PARENT.fullmatch(text)
        if match is None:
            return None
        version, trace, span, flags, more = match.groups()
        if version == "ff" or (version == "00" and more) or not (int(trace, 16) and int(span, 16)):
            return None
        sampled = bool(int(flags, 16) & _SAMPLED)
        return cls(bytes.fromhex(trace), bytes.fromhex(span), sampled)


def running() -> Parent | None:
    """Return the current span of the program, if it traces by OpenTelemetry's API.

    This does not import the API: a program that traces has imported it.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    now = api.get_current_span().get_span_context()
    if not now.is_valid:
        return None
    sampled = bool(now.trace_flags & _SAMPLED)
    return Parent(now.trace_id.to_bytes(16, "big"), now.span_id.to_bytes(8, "big"), sampled)


class CallQueue:
    """See :class:`hexkv.ports.SpanSink`. Calls wait here, in bounded memory, for one thread."""

    def __init__(self, model: str, rank: int, *, share: float, limit: int) -> None:
        """Create an empty queue of calls for *model*.

        Args:
            model: whose KV it is.
            rank: of the process among those that share it.
            share: of the calls without a parent that are kept, from 0.0 to 1.0. The others are
                kept if their parents are.
            limit: bytes that may wait; calls beyond that are dropped.
        """
        self.model = model
        self.rank = rank
        self.dropped = 0
        """Calls that did not fit the queue."""

        # As in consistent sampling: by the last 56 bits of a trace.
        self._below = round(share * 2**56)
        self._limit = limit
        self._lock = Lock()
        self._calls: deque[tuple[EndedCall, Parent, int]] = deque()
        self._bytes = 0

    def ended(self, call: EndedCall) -> None:
        parent = Parent.parse(call.parent) if call.parent else running()
        if parent is None:
            trace = os.urandom(16)
            parent = Parent(trace, sampled=int.from_bytes(trace[9:], "big") < self._below)
        if not parent.sampled:
            return
        size = _CALL_BYTES + _PART_BYTES * len(call.parts)
        with self._lock:
            if self._bytes + size > self._limit:
                self.dropped += 1
                return
            self._bytes += size
            self._calls.append((call, parent, size))

    def take(self, most: int) -> list[tuple[EndedCall, Parent]]:
        """Return up to *most* calls, the oldest first."""
        with self._lock:
            taken = [self._calls.popleft() for _ in range(min(most, len(self._calls)))]
            self._bytes -= sum(size for _, _, size in taken)
        return [(call, parent) for call, parent, _ in taken]


class Encoder:
    """Makes requests of OTLP from calls of one process."""

    def __init__(self, service: str, model: str, rank: int) -> None:
        """Encode for the process named *service* in traces."""
        self._model = model
        self._resource: Mapping[str, Value] = {
            "service.name": service,
            "service.instance.id": os.urandom(16).hex(),
            "hexkv.rank": rank,
        }
        self._version = installed_version("hexkv")

    def request(self, calls: Iterable[tuple[EndedCall, Parent]], ahead: float) -> tuple[bytes, int]:
        """Return the bytes of a request with all spans of *calls*, and the number of spans.

        Args:
            calls: with their parents.
            ahead: seconds by which the wall clock is ahead of the calls' clock.
        """
        made = ExportTraceServiceRequest()
        group = made.resource_spans.add()
        group.resource.attributes.extend(_attributes(self._resource))
        scope = group.scope_spans.add()
        scope.scope.name, scope.scope.version = "hexkv", self._version
        for call, parent in calls:
            scope.spans.extend(self._spans(call, parent, ahead))
        return made.SerializeToString(), len(scope.spans)

    def _spans(self, call: EndedCall, parent: Parent, ahead: float) -> Iterator[Span]:
        whole = _span(f"hexkv.{call.name}", parent, call.begun + ahead, call.seconds)
        whole.attributes.extend(_attributes({"gen_ai.request.model": self._model} | _report(call)))
        yield whole
        part, name = _CHILDREN.get(call.name, ("", ""))
        below = parent._replace(span=whole.span_id)
        waits: dict[str, list[TraceStep]] = {}
        for step in call.parts:
            if step.name == part and step.tier:
                waits.setdefault(step.tier, []).append(step)
        for tier, steps in waits.items():
            # From the first wait to the end of the last one; other tiers may be in between.
            end = steps[-1].begun + steps[-1].seconds
            child = _span(name, below, steps[0].begun + ahead, end - steps[0].begun)
            about: dict[str, Value] = {
                "hexkv.tier": tier,
                "hexkv.tokens": call.result.tiers.get(tier, 0),
                "hexkv.waited_seconds": sum(step.seconds for step in steps),
            }
            child.attributes.extend(_attributes(about))
            yield child


def _span(name: str, parent: Parent, begun: float, seconds: float) -> Span:
    return Span(
        trace_id=parent.trace,
        span_id=os.urandom(8),
        parent_span_id=parent.span,
        flags=_SAMPLED,
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=round(begun * 1e9),
        end_time_unix_nano=round((begun + seconds) * 1e9),
    )


def _report(call: EndedCall) -> dict[str, Value]:
    """Return the attributes of a call's result. They hold no tokens, keys or names of tenants."""
    result = call.result
    found: dict[str, Value] = {"hexkv.tokens": result.tokens}
    if result.tiers:
        found["hexkv.tiers"] = [f"{tier}={tokens}" for tier, tokens in result.tiers.items()]
    if isinstance(result, Lookup):
        found["hexkv.hit_tokens"] = result.hit_tokens
        if result.missing is not None:
            found["hexkv.miss.reason"] = result.missing.value
    elif isinstance(result, Retrieved):
        found["hexkv.hit_tokens"] = result.hit_tokens
        found["hexkv.loaded_bytes"] = result.loaded_bytes
        found["gen_ai.usage.cache_read.input_tokens"] = result.loaded_tokens
        for reason in result.misses:  # the first chunk's; the later ones follow from that
            found["hexkv.miss.reason"] = reason.value
            break
    else:
        found |= {
            "hexkv.stored_tokens": result.stored_tokens,
            "hexkv.present_tokens": result.present_tokens,
            "hexkv.queued_tokens": result.queued_tokens,
            "hexkv.dropped_tokens": result.dropped_tokens,
        }
    return found


def _attributes(found: Mapping[str, Value]) -> Iterator[KeyValue]:
    return (KeyValue(key=key, value=_value(value)) for key, value in found.items())


def _value(value: Value) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=one) for one in value]))


if TYPE_CHECKING:

    def _is_a_sink(queue: CallQueue) -> SpanSink:
        return queue
