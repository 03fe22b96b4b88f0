"""The leases of a node's client, by the requests that leased them, up to its bound."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from threading import Lock

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.node.groups import LayerGroups
from hexkv.adapters.node.wire import ALL
from hexkv.ports import Clock, Hold, Lease, frame_bytes, release_all


class Grant:
    """The leases of one request."""

    __slots__ = ("encoded", "fresh", "gone", "hold", "layers", "leases", "rate", "sizes")

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self.layers: LayerGroups | None = None
        """The groups of layers in which its chunks may come."""

        self.encoded: Collection[str] = ()
        """The serdes whose payloads may stay encoded."""

        self.rate: float | None = None
        """Tokens per second that the client's host computes: slower tiers are left out."""

        self.leases: list[Lease | None] = []
        self.sizes: dict[int, int] = {}
        """By place: bytes that count against the client's bound until given back."""

        self.fresh: set[int] = set()
        """Places of blocks that were never published: the node has not written their headers."""

        self.gone = False
        """True once all of it was given back: later leases are released at once."""


class Granted:
    """All leases of a connection. Safe from any thread; gives each back exactly once."""

    def __init__(self, most: int, clock: Clock) -> None:
        """Bound the leases by *most* bytes; *clock* measures their time limits."""
        self._most = most
        self._clock = clock
        self._limited: dict[int, float] = {}
        """By request, the time at which its leases are taken back, where that is limited."""

        self._bytes = 0
        self._grants: dict[int, Grant] = {}
        self._closed = False
        self._next = -1, Grant()
        """The number and the grant of a request whose terms came before it."""

        self._lock = Lock()

    @property
    def leased_bytes(self) -> int:
        """The bytes that count against the bound."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._grants)

    def open(self, request: int) -> Grant:
        """Return the grant of a new request.

        Raises:
            BadMessage: there is one of that number.
        """
        with self._lock:
            if request in self._grants:
                raise BadMessage(f"request {request} was made before")
            grant = self._grants[request] = self.ahead(request)
            self._next = -1, Grant()
            grant.gone = self._closed
            return grant

    def ahead(self, request: int) -> Grant:
        """Return the grant of the next request, to set its terms, if that has this number."""
        if self._next[0] != request:
            self._next = request, Grant()
        return self._next[1]

    def last(self, request: int, seconds: float) -> None:
        """Limit the leases of a request to *seconds*; do nothing if they were given back."""
        with self._lock:
            if request in self._grants:
                self._limited[request] = self._clock.now() + seconds

    def keep(self, request: int) -> bool:
        """Remove the time limit of a request's leases. False if they are gone."""
        with self._lock:
            self._limited.pop(request, None)
            return request in self._grants

    @property
    def first_end(self) -> float:
        """The time at which the first limit ends, by the clock."""
        with self._lock:
            return min(self._limited.values(), default=inf)

    def expire(self) -> bool:
        """Take back leases past their time limit, which the client no longer reads. True if any."""
        if not self._limited:
            return False
        with self._lock:
            now = self._clock.now()
            late = [request for request, ends in self._limited.items() if ends <= now]
            parts = [self._take(request) for request in late]
        for leases, hold in parts:
            _end(leases, hold)
        return bool(late)

    def reserve(self, grant: Grant, sizes: Sequence[int]) -> int:
        """Return how many blocks of *sizes* the bound allows; they count from now on."""
        self.expire()
        with self._lock:
            if grant.gone:
                return 0
            room = self._most - self._bytes
            places = sum(end <= room for end in accumulate(sizes))
            grant.sizes = dict(enumerate(sizes[:places]))
            self._bytes += sum(sizes[:places])
            return places

    def settle(
        self, request: int, grant: Grant, leases: Sequence[Lease | None], *, fresh: bool
    ) -> bool:
        """Set the final leases of a request. False if all of it was given back before."""
        with self._lock:
            if grant.gone:
                late = [lease for lease in leases if lease is not None]
            else:
                late = []
                grant.leases = list(leases)
                grant.hold = None  # it holds only these leases
                if len(leases) < len(grant.sizes) or None in leases:
                    here = {place for place, lease in enumerate(leases) if lease is not None}
                    for place in [place for place in grant.sizes if place not in here]:
                        self._bytes -= grant.sizes.pop(place)
                if fresh:
                    grant.fresh = set(grant.sizes)
                if not grant.sizes:
                    grant.gone = True
                    self._grants.pop(request, None)
                    self._limited.pop(request, None)
        if late:
            release_all(late)
        return not grant.gone

    def held(self, grant: Grant, hold: Hold) -> bool:
        """Note the hold of a request under way. False if it was given back: then release it."""
        with self._lock:
            if not grant.gone:
                grant.hold = hold
                return True
        hold.release()
        return False

    def rows(self) -> list[tuple[int, int, Lease, bool]]:
        """Return every lease: its request, its place, and True if it was never published."""
        with self._lock:
            return [
                (request, place, lease, place in grant.fresh)
                for request, grant in self._grants.items()
                for place, lease in enumerate(grant.leases)
                if lease is not None
            ]

    def limits(self) -> dict[int, float]:
        """Return, by request, the seconds left where leases are limited in time."""
        with self._lock:
            now = self._clock.now()
            return {request: max(0.0, ends - now) for request, ends in self._limited.items()}

    def restore(
        self, rows: Iterable[tuple[int, int, Lease, bool]], limits: Mapping[int, float]
    ) -> None:
        """Restore the rows and limits of :meth:`rows` and :meth:`limits` of another process."""
        with self._lock:
            for request, place, lease, fresh in rows:
                grant = self._grants.setdefault(request, Grant())
                grant.leases += [None] * (place + 1 - len(grant.leases))
                grant.leases[place] = lease
                spec = lease.spec
                size = lease.size if spec is None else frame_bytes(spec.raw_bytes)
                grant.sizes[place] = size
                self._bytes += size
                if fresh:
                    grant.fresh.add(place)
        for request, seconds in limits.items():
            self.last(request, seconds)

    def find(
        self, requests: Sequence[int], places: Sequence[int]
    ) -> list[tuple[Grant, Lease]] | None:
        """Return the named leases; ``None`` if the client lacks one of them."""
        found: list[tuple[Grant, Lease]] = []
        with self._lock:
            for request, place in zip(requests, places, strict=True):
                grant = self._grants.get(request)
                if grant is None or place not in grant.sizes or place >= len(grant.leases):
                    return None
                lease = grant.leases[place]
                if lease is None:
                    return None
                found.append((grant, lease))
        return found

    def release(self, request: int, place: int = ALL) -> None:
        """Give one back, or all of a request. Skips leases that were given back before."""
        with self._lock:
            leases, hold = self._take(request, place)
        _end(leases, hold)

    def _take(self, request: int, place: int = ALL) -> tuple[list[Lease | None], Hold | None]:
        """Remove one lease, or all of a request, and return what to release. Under the lock."""
        leases: list[Lease | None] = []
        grant = self._grants.get(request)
        if grant is None:
            return [], None
        if place == ALL:
            self._bytes -= sum(grant.sizes.values())
            grant.sizes.clear()
            leases, grant.leases = grant.leases, []
        elif place < len(grant.leases) and place in grant.sizes:
            self._bytes -= grant.sizes.pop(place)
            leases, grant.leases[place] = [grant.leases[place]], None
            if grant.sizes:
                grant.fresh.discard(place)
        else:
            return [], None
        if grant.sizes:
            return leases, None
        grant.gone = True
        del self._grants[request]
        self._limited.pop(request, None)
        return leases, grant.hold

    def close(self) -> None:
        """Give everything back, and later leases at once."""
        with self._lock:
            self._closed = True
            requests = list(self._grants)
        for request in requests:
            self.release(request)


def _end(leases: Sequence[Lease | None], hold: Hold | None) -> None:
    if held := [lease for lease in leases if lease is not None]:
        release_all(held)
    if hold is not None:
        hold.release()
