"""Calls that are over, for whoever traces requests through several programs.

A trace is W3C's: https://www.w3.org/TR/trace-context/. Which one a call belongs to is said around
it, as tracers themselves do, so that no call has an argument for it::

    with traced(headers["traceparent"]):
        cache.retrieve(prompt, window)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.results import Lookup, Retrieved, StoreReport
from hexkv.ports.steps import TraceStep

_PARENT: ContextVar[str] = ContextVar("hexkv_traceparent", default="")


@contextmanager
def traced(traceparent: str) -> Iterator[None]:
    """Calls in this block, in this thread or task, belong to the span that *traceparent* names.

    Args:
        traceparent: of W3C's header; empty, or not one: the calls begin traces of their own.
    """
    token = _PARENT.set(traceparent)
    try:
        yield
    finally:
        _PARENT.reset(token)


def traceparent() -> str:
    """What the innermost :func:`traced` around the caller was given; empty outside of one."""
    return _PARENT.get()


class EndedCall(NamedTuple):
    """One call that is over."""

    name: str
    """``lookup``, ``retrieve`` or ``store``."""

    begun: float
    """In seconds of the cache's clock."""

    seconds: float
    result: Lookup | Retrieved | StoreReport
    parts: Sequence[TraceStep]
    """What followed each other in it, those that were about a tier by its name. None of a call
    layer by layer, in which the host's own work lies."""

    parent: str
    """See :func:`traceparent`."""


@runtime_checkable
class SpanSink(Protocol):
    """Told of each call that is over. Never of a chunk: that is what numbers are for."""

    def ended(self, call: EndedCall) -> None:
        """*call* is over. From the thread that made it. Must not block or raise."""
        ...
