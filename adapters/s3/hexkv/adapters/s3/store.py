"""A chunk store in a bucket: one object per chunk, which is its frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import TypeVar

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.s3._answers import Absent, Changed, page, refusal
from hexkv.adapters.s3._bodies import Bodies
from hexkv.adapters.s3._crew import Crew
from hexkv.adapters.s3._http import Http
from hexkv.adapters.s3._known import Known
from hexkv.adapters.s3._plain import PlainBodies
from hexkv.adapters.s3.address import Location
from hexkv.ports import (
    ChunkKey,
    Clock,
    Deadline,
    Entry,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Sink,
    Stored,
    StoreError,
    StoreUnreachable,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")

_SCAN_PATIENCE = 30.0
"""Seconds that one page of a listing may take."""


class S3Store:
    """Keeps frames as objects, each called by its key in hexadecimal below a prefix.

    Opens no connection before the first call, so that a server that is down does not delay the
    start. The requests of a batch are made concurrently.

    Args:
        location: the bucket and the prefix; other objects in the bucket are never read.
        http: for all requests without frames.
        plain: reads ranges.
        bodies: moves whole frames.
        crew: makes requests concurrently.
        known: the recently observed presence of objects.
        clock: for the timeout of a scan.
    """

    def __init__(
        self,
        location: Location,
        http: Http,
        plain: PlainBodies,
        bodies: Bodies,
        crew: Crew,
        known: Known,
        clock: Clock,
    ) -> None:
        self._location = location
        self._http = http
        self._plain = plain
        self._bodies = bodies
        self._crew = crew
        self._known = known
        self._clock = clock
        self._bucket_seen = False
        self._closed = False

    @property
    def shared(self) -> bool:
        """True: any number of hosts may use a bucket."""
        return True

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        self._must_be_open()
        answers = [self._known.ask(key) for key in keys]
        unknown = list(dict.fromkeys([k for k, a in zip(keys, answers, strict=True) if a is None]))
        if not unknown:
            return [answer is True for answer in answers]
        failures: list[StoreError] = []

        def ask(number: int) -> bool:
            # Once the server is unreachable, the rest would probably fail as slowly.
            if any(isinstance(failure, StoreUnreachable) for failure in failures):
                return False
            try:
                return self._present(unknown[number], deadline)
            except OutOfTime:
                failures.append(StoreUnreachable("no answer in time"))
            except StoreError as error:
                failures.append(error)
            return False

        replies = self._crew.each(len(unknown), ask)
        if failures:
            raise failures[0]
        found = dict(zip(unknown, replies, strict=True))
        return [found[k] if a is None else a for k, a in zip(keys, answers, strict=True)]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        self._must_be_open()
        one_at_a_time = Lock()

        def get(number: int) -> ReadOutcome:
            def room(size: int) -> memoryview | None:
                # The core expects calls of ``room`` from one thread at a time.
                with one_at_a_time:
                    given = sink.room(number, size)
                return None if given is None else given.cast("B")

            key = keys[number]
            name = self._location.name(key)
            return self._heard(key, lambda: self._bodies.get(name, room, deadline))

        return self._crew.each(len(keys), get)

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        self._must_be_open()
        name, into = self._location.name(key), into.cast("B")
        if not len(into):  # HTTP has no range of no bytes
            return self._heard(key, lambda: Hit(0) if self._present(key, deadline) else Miss())
        return self._heard(key, lambda: self._plain.get_range(name, start, into, deadline))

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        self._must_be_open()

        def put(number: int) -> WriteOutcome:
            key, frame = items[number]
            whole = frame.cast("B")
            try:
                with self._known.changing(key, deadline) as change:
                    self._bodies.put(self._location.name(key), whole, deadline)
                    change.here = True
            except OutOfTime:
                return TimedOut()
            except (Absent, Changed):
                return Failed(StoreUnreachable("the upload was gone before it ended"))
            except StoreError as error:
                return Failed(error)
            return Stored(len(whole))

        return self._crew.each(len(items), put)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        self._must_be_open()
        unique = list(dict.fromkeys(keys))

        def forget(number: int) -> bool:
            key = unique[number]
            with self._known.changing(key, deadline) as change:
                # A server's answer does not show that there was an object to delete.
                here = self._asked(key, deadline)
                if here:
                    self._remove(key, deadline)
                change.here = False
                return here

        try:
            gone = dict(zip(unique, self._crew.each(len(unique), forget), strict=True))
        except OutOfTime as error:
            raise StoreUnreachable("no answer in time") from error
        return [gone[key] for key in keys]

    def scan(self) -> Iterator[Entry]:
        self._must_be_open()
        for page_of in self._pages(b"", lambda: Deadline.after(self._clock, _SCAN_PATIENCE)):
            yield from page_of

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int:
        self._must_be_open()
        total = 0
        for entries in self._pages(prefix, lambda: deadline):
            keys = [entry.key for entry in entries]

            def forget(number: int, keys: Sequence[ChunkKey] = keys) -> None:
                with self._known.changing(keys[number], deadline) as change:
                    self._remove(keys[number], deadline)
                    change.here = False

            try:
                self._crew.each(len(keys), forget)
            except OutOfTime as error:
                raise StoreUnreachable(f"no time to delete more than {total} chunks") from error
            total += len(keys)
        return total

    def close(self) -> None:
        self._closed = True
        self._bodies.close()
        self._http.close()
        self._crew.close()

    def _heard(self, key: ChunkKey, get: Callable[[], ReadOutcome]) -> ReadOutcome:
        """Return the outcome of *get*; remember for lookups if it shows the chunk's presence."""
        turn = self._known.turn
        try:
            outcome = get()
        except OutOfTime:
            return TimedOut()
        except Absent:
            outcome = Miss()
        except StoreError as error:
            return Failed(error)
        self._known.hear(key, outcome != Miss(), turn)
        return outcome

    def _present(self, key: ChunkKey, deadline: Deadline) -> bool:
        turn = self._known.turn
        here = self._asked(key, deadline)
        self._known.hear(key, here, turn)
        return here

    def _asked(self, key: ChunkKey, deadline: Deadline) -> bool:
        """Ask the server: return True if the object exists."""
        reply = self._http.ask("HEAD", self._location.name(key), deadline)
        if reply.status == 200:
            self._bucket_seen = True
            return True
        if reply.status != 404:
            raise _as_failure(refusal(reply))
        if not self._bucket_seen:
            self._look_for_the_bucket(deadline)
        return False

    def _remove(self, key: ChunkKey, deadline: Deadline) -> None:
        reply = self._http.ask("DELETE", self._location.name(key), deadline)
        if reply.status not in (200, 204, 404):
            raise _as_failure(refusal(reply))

    def _pages(self, start: bytes, deadline: Callable[[], Deadline]) -> Iterator[Sequence[Entry]]:
        """List the chunks whose keys begin with *start*, each page by its own deadline."""
        whole = self._location.prefix + start.hex()
        query = {"list-type": "2", "prefix": whole, "max-keys": "1000"}
        while True:
            try:
                reply = self._http.ask("GET", "", deadline(), query=query)
            except OutOfTime as error:
                raise StoreUnreachable("no page of the listing in time") from error
            if reply.status != 200:
                raise _as_failure(refusal(reply))
            listed = page(reply.text)
            keys = [(self._location.key(name), size, at) for name, size, at in listed.objects]
            yield [Entry(key, size, changed) for key, size, changed in keys if key is not None]
            if not listed.more:
                return
            query["continuation-token"] = listed.more

    def _look_for_the_bucket(self, deadline: Deadline) -> None:
        """Raise if the bucket is absent, which a reply to ``HEAD`` does not show."""
        query = {"list-type": "2", "prefix": self._location.prefix, "max-keys": "1"}
        reply = self._http.ask("GET", "", deadline, query=query)
        if reply.status == 404:
            raise _as_failure(refusal(reply))
        self._bucket_seen = True

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def _as_failure(error: StoreError | Absent | Changed) -> StoreError:
    """The error for a refusal of a request that is not about one object's content."""
    if isinstance(error, StoreError):
        return error
    return StoreUnreachable("an answer that no S3 gives to this")
