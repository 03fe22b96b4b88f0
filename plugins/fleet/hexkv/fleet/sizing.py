"""The cost of a directory for a fleet: memory, messages, bandwidth and cores."""

from __future__ import annotations

from typing import NamedTuple

from hexkv.ports import InvalidRequest

QUESTION_KEYS = 512
"""Chunks of a query: those of a prompt of 131,072 tokens."""

CELL_MEMBERS = 64
"""The most members of one directory; more share a store (``docs/fleet.md``)."""

REPORT_SECONDS = 0.05
"""Seconds for which changes are gathered into one report."""

MESSAGE_BYTES = 56
"""The headers of a message and of its answer."""

OWN_BYTES = 50, 100
"""The bytes of a chunk on the node that reports it, apart from its key."""

QUESTION_SECONDS = 0.0002
"""Seconds of a core, to answer a query or to send one."""


class _Kind(NamedTuple):
    """The cost of one chunk in a directory of a kind."""

    memory: tuple[int, int]
    """Bytes, at best and at worst."""

    asked: int
    """Bytes over the link, query and answer."""

    event: int
    """Bytes over the link for a change that is reported."""

    events: int
    """Changes that a core handles per second: the least that was measured."""


# A slot of the embedded table is a tag and a bit for each of 64 members, 16 bytes, and a third to
# two thirds of the slots are used. A message has 8 bytes of each chunk, an answer a row of 8.
_EMBEDDED = _Kind((24, 48), 16, 8, 300_000)
_KINDS = {
    "embedded": _EMBEDDED,
    "static": _EMBEDDED,
    "redis": _Kind((135, 135), 64, 64, 185_000),
}


class FleetSize(NamedTuple):
    """The cost of one cell's directory; for ``static``, that of each node for the others."""

    nodes: int
    cells: int
    """The number of cells, of :attr:`nodes` nodes at most each."""

    chunks: int
    """Chunks that the directory knows: at worst no two nodes hold the same."""

    memory: tuple[int, int]
    """Bytes of the directory, at best and at worst."""

    node_memory: tuple[int, int]
    """Bytes on each node, to report everything again."""

    events: float
    """Chunks stored or removed per second."""

    reports: float
    """Messages per second that report changes, and heartbeats."""

    questions: float
    """Queries per second for the location of chunks."""

    bandwidth: float
    """Bytes per second over the directory's link, both ways together."""

    cores: float
    """Busy cores."""


def size_fleet(
    directory: str,
    *,
    nodes: int,
    chunks: int,
    events: float,
    questions: float,
    heartbeat: float = 1.0,
) -> FleetSize:
    """Return the cost of *directory* for *nodes* nodes.

    Args:
        directory: ``static``, ``embedded`` or ``redis``.
        nodes: the number of nodes.
        chunks: chunks on each of them.
        events: chunks stored or removed at each of them, per second.
        questions: queries by each of them, per second.
        heartbeat: seconds between two heartbeats.

    Raises:
        InvalidRequest: there is no such directory, or a number is too small.
    """
    if (kind := _KINDS.get(directory)) is None:
        raise InvalidRequest(f"{directory!r} is no directory; there are {', '.join(_KINDS)}")
    if nodes < 1 or min(chunks, events, questions) < 0 or heartbeat <= 0:
        raise InvalidRequest("a fleet has a node and a heartbeat, and nothing of it is below zero")
    cells = -(-nodes // CELL_MEMBERS)
    here = -(-nodes // cells)
    if directory == "static":
        # Each node reports to itself only. It queries all others, and all others query it.
        members, reports, asked = 1, 0.0, 2 * (here - 1) * questions
    else:
        members, asked = here, here * questions
        reports = here * (min(events, 1 / REPORT_SECONDS) + 1 / heartbeat)
    known, changed = members * chunks, members * events
    sent = 0.0 if directory == "static" else changed
    return FleetSize(
        here,
        cells,
        known,
        (kind.memory[0] * known, kind.memory[1] * known),
        (OWN_BYTES[0] * chunks, OWN_BYTES[1] * chunks),
        changed,
        reports,
        asked,
        asked * QUESTION_KEYS * kind.asked + sent * kind.event + (asked + reports) * MESSAGE_BYTES,
        changed / kind.events + asked * QUESTION_SECONDS,
    )
