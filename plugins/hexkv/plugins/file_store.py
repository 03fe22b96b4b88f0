"""Stores that read and write files in their own way, on top of a store of files.

The other store finds, publishes, counts, lists and quarantines files: an adapter that reads with
its own library need not know any of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal, Protocol, runtime_checkable

from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    ConfigError,
    Deadline,
    Entry,
    Item,
    ReadOutcome,
    SharedMedium,
    Sink,
    SupportsFiles,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    WriteOutcome,
)

OF_ONE_FILE = frozenset(
    {errno.EIO, errno.EACCES, errno.EPERM, errno.EBADMSG, errno.EISDIR, errno.EUCLEAN}
)
"""Errors of one file, where others of its directory may well be read and written."""

Directory = Literal["disk", "fs"]
"""The stores of files: of one machine, and of many hosts."""


@runtime_checkable
class FileStore(ChunkStore, SupportsScan, SupportsRangeRead, SupportsFiles, SharedMedium, Protocol):
    """The store that such an adapter is built on."""


def open_files(directory: Directory, root: str, context: OpenContext) -> FileStore:
    """Open the store of files in *root*, from the plugin that offers it.

    Raises:
        ConfigError: it is not installed, keeps no files, or *root* cannot be used.
        StoreError: *root* cannot be used at present.
    """
    store = discover().open("store", directory, {"root": os.fspath(root)}, context)
    if not isinstance(store, FileStore):
        raise ConfigError(f"store {directory} keeps no files that others may read")
    return store


def close_read(file: int) -> None:
    """Close a descriptor of a file that was only read.

    An error at ``close``, as of a network file system, concerns bytes that were written: those
    that were read are there, and the descriptor is closed all the same.
    """
    with suppress(OSError):
        os.close(file)


class OverFiles:
    """A store that passes calls to another one, except those that a subclass defines."""

    def __init__(self, files: FileStore) -> None:
        self.files = files

    @property
    def shared(self) -> bool:
        """True if others may add and remove chunks at the same time."""
        return self.files.shared

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self.files.contains(keys, deadline)

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return self.files.read(keys, sink, deadline)

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        return self.files.read_range(key, start, into, deadline)

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        return self.files.write(items, deadline)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self.files.delete(keys, deadline)

    def scan(self) -> Iterator[Entry]:
        return self.files.scan()

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        """Quarantine chunks if the other store can, else delete them."""
        if isinstance(self.files, SupportsQuarantine):
            self.files.quarantine(keys, deadline)
        else:
            self.files.delete(keys, deadline)

    def close(self) -> None:
        self.files.close()
