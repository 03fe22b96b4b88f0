"""``hexkv check``: the contracts for an adapter that has no test file.

pytest runs them as usual, from the classes in :mod:`hexkv.contracts.check.suite`, on a new
:class:`Candidate` for each test.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hexkv.ports import ChunkStore, DType, MemoryRegion, TransferChannel

if TYPE_CHECKING:  # pytest must be the first to import a contract
    from hexkv.contracts.channel._base import Proxied, Successor
    from hexkv.contracts.channel.apart import Recipe
    from hexkv.contracts.device import Holed, RawKV
    from hexkv.contracts.prefix_cache import Damaged, Faulty, Stuck
    from hexkv.contracts.serde import Close
    from hexkv.contracts.store import Aside, Foreign, Huge, Limit, Service, Unreadable
    from hexkv.contracts.telemetry import Held, Total
    from hexkv.plugins.spec import RawAccess

__all__ = ["Candidate"]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Candidate:
    """An adapter for one test, and the optional fixtures that its author provides.

    A ``module:factory`` may return one. Promises that need a field that is ``None`` are not
    checked, and the scorecard lists them so.
    """

    subject: object
    """A store, serde, policy, device, memory provider, chunker, directory, channel, collective,
    cache by tokens or by key, observer, sink of metrics or of events, fresh and empty."""

    raw: RawAccess | None = None
    """The back door to the medium of this very store."""

    reopen: Callable[[], ChunkStore] | None = None
    """Closes the store and opens another over the same medium."""

    service: Service | None = None
    """The service behind the store, to be broken and mended."""

    sibling: ChunkStore | None = None
    """Another store on the same service, with another prefix or tenant."""

    foreign: Foreign | None = None
    """Puts foreign entries on the medium, which the store might take for its own."""

    limit: Limit | None = None
    """The physical limit to compare with."""

    exposed: ChunkStore | None = None
    """A store on that service, if the subject itself is not on it."""

    unreadable: Unreadable | None = None
    """Makes each read of a chunk fail, until it is deleted or written again."""

    huge: Huge | None = None
    """Puts a frame of that many zeros on the medium, without allocating the space."""

    aside: Aside | None = None
    """Returns the number of chunks in the medium's quarantine."""

    another: Callable[[], TransferChannel] | None = None
    """Opens another channel of the kind, which can reach this one. The contract closes it."""

    recipe: Recipe | None = None
    """How a process of its own opens a channel that can reach this one."""

    stranger: TransferChannel | None = None
    """A channel that the subject does not authorize."""

    proxied: Proxied | None = None
    """A context with a fault proxy before a peer, and the peer's address through that proxy."""

    successor: Successor | None = None
    """Opens a channel at a peer's former address."""

    elapse: Callable[[float], None] | None = None
    """For a directory: lets that many seconds pass for it."""

    vanish: Callable[[str], None] | None = None
    """For a directory: ends a node without a farewell."""

    forget: Callable[[], None] | None = None
    """For a directory: has it lose everything."""

    stalled: Callable[[], AbstractContextManager[None]] | None = None
    """For a directory: a context in which no server answers."""

    allocate: Callable[[int], MemoryRegion] | None = None
    """Allocates memory that a channel may use; None if any memory will do."""

    memory: RawKV | None = None
    """For a window on an engine's KV memory: the back door to it."""

    holed: Holed | None = None
    """For such a window, where positions may have no place: one in which some have none."""

    unit: int = 1
    """For such a window: the number of tokens that it moves together or not at all."""

    near: Close | None = None
    """For a lossy serde: returns True if a decoded chunk is as near as it declares."""

    dtypes: Collection[DType] = tuple(DType)
    """For a serde: the dtypes that it takes."""

    chunk: int = 256
    """For a cache by tokens: the tokens of a chunk."""

    most: int | None = None
    """For such a cache: the number of chunks that it holds at most."""

    damaged: Damaged | None = None
    """For such a cache: another one, whose medium can be damaged."""

    faulty: Faulty | None = None
    """For such a cache: another one, of which one chunk can be broken."""

    stuck: Stuck | None = None
    """For such a cache: another one, whose tiers can stop answering."""

    total: Total | None = None
    """For a sink of metrics: returns the total of a counter."""

    held: Held | None = None
    """For a sink of events: returns the chunks that it knows on a tier."""

    end: Callable[[], None] | None = None
    """For both: ends what it has opened, while a cache still reports to it."""

    contract: str = ""
    """The contract to check it by, where its port does not say so: ``chunk cache``,
    ``chunk service``, ``encoded`` for a window that decodes, ``hand over``, ``segments`` or
    ``segment finder``."""

    fixtures: Mapping[str, object] = field(default_factory=dict)
    """Further fixtures, by name: of the contracts without fields below, the required ones too."""

    engine: str = ""
    """The service behind the adapter with its version, for the scorecard."""

    close: Callable[[], None] = _nothing
    """Ends what the factory opened. Called after the test; the subject is closed before."""
