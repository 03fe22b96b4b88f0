"""The timed steps that a cache remembers."""

from __future__ import annotations

from typing import NamedTuple


class TraceStep(NamedTuple):
    """One piece of work of a lane, one call, or one part of a call."""

    name: str
    """The kind of work: ``retrieve``, ``store``; of a call ``match``, ``read``, ``copy``, ...; of a
    lane ``get``, ``put``, ..."""

    row: str
    """The worker: a tier's lane (``disk/read``), or a calling thread (``calls 1234``)."""

    begun: float
    """In seconds of the cache's clock."""

    seconds: float
    tier: str = ""
    """Name of the tier; empty if the step is of none."""

    call: str = ""
    """The call that it is a part of; empty for work of a lane."""

    waited: float = 0.0
    """Seconds in a queue before it began."""

    size: int = 0
    """Bytes that it copied or held."""

    key: str = ""
    """For a whole call: the last chunk of its prompt, in hexadecimal."""
