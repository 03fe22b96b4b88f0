"""A bucket's objects without the store, for contracts, which must not use the store they check."""

from __future__ import annotations

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.s3._answers import Reply, page, refusal
from hexkv.adapters.s3._http import Http
from hexkv.adapters.s3.address import Location
from hexkv.ports import ChunkKey, Clock, Deadline, StoreError, StoreUnreachable

_PATIENCE = 10.0
"""Seconds after which a server that does not answer counts as gone."""

_NOTHING = memoryview(b"")


class S3Door:
    """Plain requests for the objects below a prefix.

    Args:
        location: the bucket and the prefix.
        http: sends the requests; closed with this.
        clock: for the timeout.
    """

    def __init__(self, location: Location, http: Http, clock: Clock) -> None:
        self._location = location
        self._http = http
        self._clock = clock

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the bucket has it: for small ones, because all of it is copied."""
        reply = self._ask("GET", self._location.name(key))
        return None if reply.status == 404 else _done(reply).text

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Store *frame* in the bucket."""
        _done(self._ask("PUT", self._location.name(key), body=memoryview(frame)))

    def keys(self) -> set[ChunkKey]:
        """Every key below the prefix."""
        found: set[ChunkKey] = set()
        query = {"list-type": "2", "prefix": self._location.prefix}
        while True:
            listed = page(_done(self._ask("GET", "", query=query)).text)
            keys = (self._location.key(name) for name, _, _ in listed.objects)
            found.update(key for key in keys if key is not None)
            if not listed.more:
                return found
            query["continuation-token"] = listed.more

    def close(self) -> None:
        """End the connections."""
        self._http.close()

    def _ask(
        self,
        method: str,
        name: str,
        *,
        query: dict[str, str] | None = None,
        body: memoryview = _NOTHING,
    ) -> Reply:
        deadline = Deadline.after(self._clock, _PATIENCE)
        try:
            return self._http.ask(method, name, deadline, query=query or {}, body=body)
        except OutOfTime as error:
            raise StoreUnreachable("no answer in time") from error


def _done(reply: Reply) -> Reply:
    """Return *reply* if the request succeeded.

    Raises:
        StoreError: it is not.
    """
    if reply.status == 200:
        return reply
    error = refusal(reply)
    raise error if isinstance(error, StoreError) else StoreError(f"it answered {reply.status}")
