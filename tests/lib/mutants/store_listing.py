"""Stores that list in pages or tell times as many services do: nearly right."""

from __future__ import annotations

import time

from dict_store import CapableStore, DictContract, ScanningStore

PAGE = 1000


class TestListsTheFirstPage(DictContract):
    """A service lists a thousand at a time, and nobody asks for more."""

    breaks = "scan.5"

    class Make(ScanningStore):
        def scan(self):
            yield from list(super().scan())[:PAGE]


class TestPagesByNumber(DictContract):
    """The next page begins after so many chunks, whatever has gone meanwhile."""

    breaks = "scan.5"

    class Make(ScanningStore):
        def scan(self):
            place = 0
            while page := sorted(super().scan())[place : place + PAGE]:
                yield from page
                place += len(page)


class TestPagesOverlap(DictContract):
    """The next page begins with the last chunk of the one before."""

    breaks = "scan.5"

    class Make(ScanningStore):
        def scan(self):
            last = b""
            while page := [entry for entry in sorted(super().scan()) if entry.key >= last][:PAGE]:
                yield from page
                if len(page) < PAGE:
                    return
                last = page[-1].key


class TestTellsMilliseconds(DictContract):
    """A time is as a database has it."""

    breaks = "scan.3"

    class Make(ScanningStore):
        def scan(self):
            for entry in super().scan():
                yield entry._replace(stored=entry.stored * 1000)


class TestRemembersTheFirstTime(DictContract):
    """A chunk that is overwritten stays as old as it was."""

    breaks = "scan.6"

    class Make(CapableStore):
        def publish(self, name, frame):
            first = self.times.get(name)
            super().publish(name, frame)
            if first is not None:
                self.times[name] = first


class TestTellsTheTimeOfTheScan(DictContract):
    """Every chunk was last known to be there a moment ago."""

    breaks = "scan.6"

    class Make(ScanningStore):
        def scan(self):
            for entry in super().scan():
                yield entry._replace(stored=time.time())
