"""What a fleet of some size asks of its directory: memory, messages, bandwidth, a core's time."""

from __future__ import annotations

from typing import NamedTuple

from hexkv.ports import InvalidRequest

QUESTION_KEYS = 512
"""Chunks of a question: those of a prompt of 131,072 tokens."""

CELL_MEMBERS = 64
"""Of one directory; more share a store (``docs/fleet.md``)."""

REPORT_SECONDS = 0.05
"""For which changes are gathered for one report."""

MESSAGE_BYTES = 56
"""The heads of a message and of its answer."""

OWN_BYTES = 50, 100
"""Of a chunk in the node that reports it, beside its key."""

QUESTION_SECONDS = 0.0002
"""Of a core, to answer a question or to ask one."""


class _Kind(NamedTuple):
    """What one chunk costs a directory of a kind."""

    memory: tuple[int, int]
    """Bytes, at best and at worst."""

    asked: int
    """Bytes over the link, question and answer."""

    event: int
    """Likewise, of a change that is reported."""

    events: int
    """Changes that a core notes a second: the least that was measured."""


# A slot of the embedded table is a tag and a bit for each of 64 members, 16 bytes, and a third to
# two thirds of the slots are used. A message has 8 bytes of each chunk, an answer a row of 8.
_EMBEDDED = _Kind((24, 48), 16, 8, 300_000)
_KINDS = {
    "embedded": _EMBEDDED,
    "static": _EMBEDDED,
    "redis": _Kind((135, 135), 64, 64, 185_000),
}


class FleetSize(NamedTuple):
    """What one cell's directory takes; of ``static``, what each node does for the others."""

    nodes: int
    cells: int
    """How many cells there have to be, of :attr:`nodes` nodes at most each."""

    chunks: int
    """That the directory knows: at worst nobody has what somebody else has."""

    memory: tuple[int, int]
    """Bytes of the directory, at best and at worst."""

    node_memory: tuple[int, int]
    """Bytes of each node, to say everything anew."""

    events: float
    """Chunks that come or go, a second."""

    reports: float
    """Messages a second that say what came and went, and signs of life."""

    questions: float
    """Messages a second that ask where chunks are."""

    bandwidth: float
    """Bytes a second over the directory's link, both ways together."""

    cores: float
    """Cores that are busy with it."""


def size_fleet(
    directory: str,
    *,
    nodes: int,
    chunks: int,
    events: float,
    questions: float,
    heartbeat: float = 1.0,
) -> FleetSize:
    """What *directory* takes for *nodes* nodes.

    Args:
        directory: ``static``, ``embedded`` or ``redis``.
        nodes: how many there are.
        chunks: that each of them has.
        events: chunks that come or go at each of them, a second.
        questions: that each of them asks, a second.
        heartbeat: seconds between two signs of life.

    Raises:
        InvalidRequest: there is no such directory, or so few of something.
    """
    if (kind := _KINDS.get(directory)) is None:
        raise InvalidRequest(f"{directory!r} is no directory; there are {', '.join(_KINDS)}")
    if nodes < 1 or min(chunks, events, questions) < 0 or heartbeat <= 0:
        raise InvalidRequest("a fleet has a node and a heartbeat, and nothing of it is below zero")
    cells = -(-nodes // CELL_MEMBERS)
    here = -(-nodes // cells)
    if directory == "static":
        # Each node is told by itself alone. It asks all others, and all others ask it.
        members, reports, asked = 1, 0.0, 2 * (here - 1) * questions
    else:
        members, asked = here, here * questions
        reports = here * (min(events, 1 / REPORT_SECONDS) + 1 / heartbeat)
    known, changed = members * chunks, members * events
    told = 0.0 if directory == "static" else changed
    return FleetSize(
        here,
        cells,
        known,
        (kind.memory[0] * known, kind.memory[1] * known),
        (OWN_BYTES[0] * chunks, OWN_BYTES[1] * chunks),
        changed,
        reports,
        asked,
        asked * QUESTION_KEYS * kind.asked + told * kind.event + (asked + reports) * MESSAGE_BYTES,
        changed / kind.events + asked * QUESTION_SECONDS,
    )
