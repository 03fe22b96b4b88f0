"""Ended calls as spans, for tracing requests through several programs.

Traces are those of W3C: https://www.w3.org/TR/trace-context/. The caller sets the parent of its
calls by a context, as tracers do, so that no call has an argument for it::

    with traced(headers["traceparent"]):
        cache.retrieve(prompt, window)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.results import Lookup, Retrieved, StoreReport
from hexkv.ports.runtime.steps import TraceStep

_PARENT: ContextVar[str] = ContextVar("hexkv_traceparent", default="")


@contextmanager
def traced(traceparent: str) -> Iterator[None]:
    """Make the calls in this block, in this thread or task, children of span *traceparent*.

    Args:
        traceparent: W3C's header; if empty or invalid, the calls begin traces of their own.
    """
    token = _PARENT.set(traceparent)
    try:
        yield
    finally:
        _PARENT.reset(token)


def traceparent() -> str:
    """Return the argument of the innermost :func:`traced` around the caller; empty outside."""
    return _PARENT.get()


class EndedCall(NamedTuple):
    """One call that has ended."""

    name: str
    """``lookup``, ``retrieve`` or ``store``."""

    begun: float
    """In seconds of the cache's clock."""

    seconds: float
    result: Lookup | Retrieved | StoreReport
    parts: Sequence[TraceStep]
    """The successive steps in it; those of a tier carry its name. None for a call layer by layer,
    which includes the host's own work."""

    parent: str
    """See :func:`traceparent`."""


@runtime_checkable
class SpanSink(Protocol):
    """A sink of ended calls. Never receives single chunks: metrics count those."""

    def ended(self, call: EndedCall) -> None:
        """Receive an ended *call*, from the thread that made it. Must not block or raise."""
        ...
