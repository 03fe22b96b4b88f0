"""The file that records the format of a directory of chunks.

Format 2 holds frames of version 2, in the same places as format 1 held those of version 1. Keys of
the two versions differ, so the frames of a former version are never read: they stay where they are,
count against the budget, and are the first that an LRU policy evicts.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from threading import get_ident

from hexkv.adapters.local.files.files import NEW
from hexkv.adapters.local.files.layout import MARKER
from hexkv.adapters.local.files.nofollow import move, open_file, regular_size, remove
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.notices import Notices
from hexkv.ports import Clock, ConfigError, StoreUnreachable

log = logging.getLogger(__name__)

FORMAT = 2
_FORMER = 1


def check_format(root: str, aside: str = f"{MARKER}.tmp") -> None:
    """Write the marker of *root* if there is none, and update one of a former format.

    Args:
        root: the directory.
        aside: name of the file in it that is renamed to the marker: one for each process, unless a
            lock keeps two from doing this at once.

    Raises:
        ConfigError: the directory has a format that this version does not know.
        OSError: it cannot be read or written.
    """
    path = f"{root}/{MARKER}"
    try:
        file = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        _write(root, aside)
        return
    with open(file, "rb") as marker:
        text = marker.read(4096)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if found == {"format": _FORMER}:
        log.warning(
            "%s holds chunks of format %d, which this version does not read: they are left alone,"
            " and evicted first",
            root,
            _FORMER,
        )
        _write(root, aside)
    elif found != {"format": FORMAT}:
        raise ConfigError(
            f"{path} has {text[:80]!r}, but this version knows format {FORMAT} only; "
            "give the cache another directory or empty this one"
        )


class Presence:
    """Logs one line when the directory of a store is gone, and one when it is back.

    It may have been removed, or its file system unmounted.
    """

    def __init__(self, root: str, clock: Clock | None = None) -> None:
        self._root = root
        verbs = ("is gone", "is there again")
        self._notices = Notices(log, "the directory", clock or SystemClock(), verbs)

    def look(self) -> None:
        """Log a change. Call this if a file is missing."""
        with suppress(OSError):
            if regular_size(f"{self._root}/{MARKER}") is None:
                self._notices.failed(self._root, "its chunks are lost, and new ones begin anew")
            else:
                self._notices.works(self._root)

    def make(self, folder: str, aside: str) -> None:
        """Make a missing folder, and the marker if that is missing, too.

        Raises:
            StoreUnreachable: the directory has another format by now.
            OSError: it cannot be written to.
        """
        self.look()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        try:
            # A name for each thread: several may find the directory gone at the same moment.
            check_format(self._root, f"{aside}-{get_ident()}")
        except ConfigError as error:
            raise StoreUnreachable(str(error)) from error
        self.look()


def _write(root: str, aside: str) -> None:
    remove(f"{root}/{aside}")
    with open(open_file(f"{root}/{aside}", NEW), "wb") as file:
        file.write(json.dumps({"format": FORMAT}).encode() + b"\n")
        file.flush()
        # The one file that is synced: an empty marker would prevent the next start.
        os.fsync(file.fileno())
    move(f"{root}/{aside}", f"{root}/{MARKER}")
