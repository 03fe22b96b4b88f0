"""The least that a store over obstore is, to be measured beside the S3 adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from benchmarks.measure import must
from hexkv.adapters.s3._crew import Crew
from hexkv.ports import (
    ChunkKey,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    Stored,
    StoreUnreachable,
    TimedOut,
    WriteOutcome,
)

_PIECE = 1 << 20
"""Bytes of a body that come at a time: cheaper than more, and than 64 KiB or all at once."""

_WIDTH = 15
"""Threads beside the caller's, as the adapter has."""


class Obstore:
    """A store of whole requests, as many at a time as the adapter makes.

    Bodies are one request each, without a digest, and without the second try that obstore makes
    by default: each of that is as the adapter does it, and cheaper.

    Args:
        bucket: that has the objects.
        settings: of the S3 adapter.
        timeout: seconds for a request. It is the client's, so a call's deadline is looked at
            between requests only.
        retries: how often a request is made again; obstore's own default is 10.
    """

    def __init__(
        self, bucket: str, settings: Mapping[str, str], *, timeout: float, retries: int = 0
    ) -> None:
        options: dict[str, Any] = {"allow_http": True, "timeout": timedelta(seconds=timeout)}
        if authorities := settings.get("tls_authorities"):
            options["root_certificate"] = Path(authorities).read_text()
        self._store = S3Store(
            bucket,
            prefix="obstore",
            endpoint=settings["endpoint"],
            region="us-east-1",
            access_key_id=settings["access_key"],
            secret_access_key=settings["secret_key"],
            unsigned_payload=True,
            client_options=options,
            retry_config={"max_retries": retries},
        )
        self._crew = Crew(_WIDTH)

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        def put(i: int) -> WriteOutcome:
            if deadline.expired:
                return TimedOut()
            key, frame = items[i]
            try:
                obstore.put(self._store, key.hex(), frame, use_multipart=False)
            except BaseError as error:
                return _failure(error)
            return Stored(frame.nbytes)

        return self._crew.each(len(items), put)

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        def get(i: int) -> ReadOutcome:
            if deadline.expired:
                return TimedOut()
            try:
                return self._land(keys[i], i, sink)
            except FileNotFoundError:
                return Miss()
            except BaseError as error:
                return _failure(error)

        return self._crew.each(len(keys), get)

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        def head(i: int) -> bool:
            must(not deadline.expired, "no answer in time")
            try:
                obstore.head(self._store, keys[i].hex())
            except FileNotFoundError:
                return False
            return True

        return self._crew.each(len(keys), head)

    def close(self) -> None:
        self._crew.close()

    def _land(self, key: ChunkKey, index: int, sink: Sink) -> ReadOutcome:
        """Copy an object to where it belongs, piece by piece: obstore reads into its own."""
        found = obstore.get(self._store, key.hex())
        size = found.meta["size"]
        room = sink.room(index, size)
        if room is None:
            return Miss(Reason.REFUSED)
        done = 0
        for piece in found.stream(min_chunk_size=_PIECE):
            room[done : done + len(piece)] = piece
            done += len(piece)
        return Hit(size) if done == size else Failed(StoreUnreachable("cut short"))


def _failure(error: BaseError) -> Failed | TimedOut:
    """obstore has no error of its own for a time-out: its text says so."""
    text = str(error)
    late = "timed out" in text or "TimedOut" in text
    return TimedOut() if late else Failed(StoreUnreachable(text))
