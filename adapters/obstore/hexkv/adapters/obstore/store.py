"""A chunk store over obstore: one object per chunk, which is its frame."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from hexkv.adapters.obstore.landing import Landing
from hexkv.adapters.obstore.places import BucketPrefix
from hexkv.adapters.obstore.requests import Late, RequestLoop, all_of, as_outcome
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
    Reason,
    Sink,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    WriteOutcome,
)
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)
T = TypeVar("T")

_PIECE = 1 << 20
"""Bytes of each piece of a body: measured, cheaper than larger ones, and than all at once."""

_PAGE = 1000
"""Objects of a page of a listing."""

_SCAN_PATIENCE = 30.0
"""Seconds that one page of a scan may take."""

_LETS_GO = 2.0
"""Seconds in which the library releases the memory of a cancelled request."""

_WORDS = 600
"""The most characters of an error message: a server may send a page of them."""

_LASTING = (
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
_FULL = re.compile(
    r"status code: 507\b|<Code>\w*(QuotaExceeded|InsufficientStorage|StorageFull)\w*</Code>"
    rf"|\(os error ({errno.ENOSPC}|{errno.EDQUOT}|{errno.EFBIG})\)",
    re.IGNORECASE,
)
"""An HTTP status, a server's code or an errno, in forms that no name or time can have."""


class ObjectStorage:
    """Keeps frames as objects, each called by its key in hexadecimal below a prefix.

    Connects to nothing before the first call. The requests of a batch are made concurrently.

    Args:
        place: the bucket and the prefix; other objects in the bucket are never read.
        store: obstore's, of the bucket.
        requests: makes requests.
        clock: for the timeout of a scan.
    """

    def __init__(
        self, place: BucketPrefix, store: ObjectStore, requests: RequestLoop, clock: Clock
    ) -> None:
        self._place = place
        self._bucket: ObjectStore | None = store
        self._requests = requests
        self._clock = clock
        self._bucket_seen = False
        self._changing: dict[ChunkKey, tuple[asyncio.Lock, int]] = {}

    @property
    def shared(self) -> bool:
        """True: any number of hosts may use a bucket."""
        return True

    @property
    def _store(self) -> ObjectStore:
        if self._bucket is None:
            raise StoreError("the store is closed")
        return self._bucket

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        unique = list(dict.fromkeys(keys))
        answers = self._requests.run(
            all_of([partial(self._asked, key, deadline) for key in unique])
        )
        found = dict(zip(unique, answers, strict=True))
        return [found[key] for key in keys]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        landing = Landing(self._requests, sink, deadline)
        return landing.outcomes([partial(self._read, key, landing, deadline) for key in keys])

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        with into.cast("B") as room:
            read = partial(self._read_range, key, start, room, deadline)
            (outcome,) = self._requests.run(all_of([read], as_outcome))
            return outcome  # type: ignore[no-any-return] # of its kind

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        # Views of our own, to be released: an error's traceback would keep those of the items.
        named = [(item.key, item.frame.cast("B")) for item in items]
        writes = [partial(self._write, key, view, deadline) for key, view in named]
        return self._requests.run(all_of(writes, as_outcome))

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        unique = list(dict.fromkeys(keys))
        gone = self._requests.run(all_of([partial(self._delete, key, deadline) for key in unique]))
        found = dict(zip(unique, gone, strict=True))
        return [found[key] for key in keys]

    def scan(self) -> Iterator[Entry]:
        listing = self._listing()
        while page := self._requests.run(
            self._page(listing, Deadline.after(self._clock, _SCAN_PATIENCE))
        ):
            yield from _entries(self._place, page)

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int:
        # List the store's whole prefix: the library filters only by complete path segments.
        listing, total = self._listing(), 0
        while page := self._requests.run(self._page(listing, deadline)):
            keys = [e.key for e in _entries(self._place, page) if e.key.startswith(prefix)]
            self._requests.run(all_of([partial(self._remove, key, deadline) for key in keys]))
            total += len(keys)
        return total

    def close(self) -> None:
        self._requests.close()
        self._bucket = None  # this closes the connections that it keeps

    async def _asked(self, key: ChunkKey, deadline: Deadline) -> bool:
        """Ask the server: return True if the object exists."""
        async with self._turn(deadline):
            try:
                await obstore.head_async(self._store, self._place.name(key))
            except FileNotFoundError:
                await self._look_for_the_bucket()
                return False
            self._bucket_seen = True
            return True

    async def _look_for_the_bucket(self) -> None:
        """Raise if the bucket is absent, which a reply about an object does not show."""
        if not self._bucket_seen and self._place.scheme != "file":
            listing = obstore.list(self._store, self._place.prefix or None, chunk_size=1)
            try:
                async for _ in listing:
                    break
            except FileNotFoundError as error:
                raise StoreError(f"there is no bucket {self._place.bucket}") from error
        self._bucket_seen = True

    async def _read(
        self, key: ChunkKey, landing: Landing, deadline: Deadline, i: int
    ) -> ReadOutcome:
        async with self._turn(deadline):
            try:
                found = await obstore.get_async(self._store, self._place.name(key))
            except FileNotFoundError:
                return Miss()
            size = found.meta["size"]
            if not await landing.room(i, size):
                return Miss(Reason.REFUSED)
            done = 0
            async for piece in found.stream(min_chunk_size=_PIECE):
                if done + len(piece) > size:
                    return Failed(StoreUnreachable("more came than the object has"))
                await landing.land(i, done, piece)
                done += len(piece)
            if done != size:
                return Failed(StoreUnreachable(f"{done} bytes came of {size}"))
            return Hit(size)

    async def _read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        name = self._place.name(key)
        if not len(into):  # HTTP has no range of no bytes
            return Hit(0) if await self._asked(key, deadline) else Miss()
        async with self._turn(deadline):
            try:
                found = await obstore.get_range_async(
                    self._store, name, start=start, end=start + len(into)
                )
            except FileNotFoundError:
                return Miss()
            if len(found) != len(into):
                return Failed(StoreError(f"a range of {len(found)} bytes, not {len(into)}"))
            into[:] = memoryview(found)
            return Hit(len(into))

    async def _write(self, key: ChunkKey, view: memoryview, deadline: Deadline) -> WriteOutcome:
        name, size = self._place.name(key), view.nbytes
        try:
            async with self._alone(key, deadline), self._turn(deadline):
                await obstore.put_async(self._store, name, view, use_multipart=False)
                return Stored(size)
        finally:
            await _given_back(view)

    async def _delete(self, key: ChunkKey, deadline: Deadline) -> bool:
        async with self._alone(key, deadline):
            # A store's answer does not show that there was an object to delete.
            if not await self._asked(key, deadline):
                return False
            await self._gone(key, deadline)
            return True

    async def _remove(self, key: ChunkKey, deadline: Deadline) -> None:
        async with self._alone(key, deadline):
            await self._gone(key, deadline)

    async def _gone(self, key: ChunkKey, deadline: Deadline) -> None:
        async with self._turn(deadline):
            with suppress(FileNotFoundError):
                await obstore.delete_async(self._store, self._place.name(key))

    def _listing(self) -> Any:
        return obstore.list(self._store, self._place.prefix or None, chunk_size=_PAGE)

    async def _page(self, listing: Any, deadline: Deadline) -> Sequence[Any]:
        async with self._turn(deadline):
            try:
                found: Sequence[Any] = await listing.__anext__()
            except StopAsyncIteration:
                return ()
            return found

    @asynccontextmanager
    async def _alone(self, key: ChunkKey, deadline: Deadline) -> AsyncIterator[None]:
        """Serialize changes of one chunk: otherwise their answers could contradict each other."""
        lock, users = self._changing.get(key, (asyncio.Lock(), 0))
        self._changing[key] = lock, users + 1
        try:
            try:
                async with asyncio.timeout(deadline.remaining()):
                    await lock.acquire()
            except TimeoutError as error:
                raise Late("another change of the chunk took too long") from error
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._changing[key]
            if users == 1:
                del self._changing[key]
            else:
                self._changing[key] = lock, users - 1

    @asynccontextmanager
    async def _turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """A block with one of the connections, under the deadline.

        Raises:
            StoreError: translated from the library's errors; :class:`Late` at the deadline.
        """
        try:
            async with asyncio.timeout(deadline.remaining()), self._requests.free:
                yield
        except TimeoutError as error:
            raise Late("no answer in time") from error
        except BaseError as error:
            raise _meaning(error) from error


def _meaning(error: BaseError) -> StoreError:
    """Translate an error of the library to one of the port; most have no class of their own."""
    # Behind that line the library prints its internal structures.
    answers = " ".join(str(error).partition("\n\nDebug source")[0].split())
    text = answers[:_WORDS] or type(error).__name__
    if _FULL.search(answers.partition("Server returned")[2] or answers):
        return StoreFull(text)  # some servers answer "forbidden" if they are full
    if isinstance(error, _LASTING):
        return StoreError(text)
    return StoreUnreachable(text)


def _entries(place: BucketPrefix, page: Sequence[Any]) -> Iterator[Entry]:
    for found in page:
        key = place.key(found["path"])
        if key is not None:
            yield Entry(key, found["size"], found["last_modified"].timestamp())


async def _given_back(view: memoryview) -> None:
    """Wait until the library has released *view*, because its memory will be reused."""
    for _ in range(int(_LETS_GO * 1000)):
        try:
            view.release()
        except BufferError:
            await asyncio.sleep(0.001)
        else:
            return
    log.error("the library holds a frame's memory %s seconds after its request", _LETS_GO)
