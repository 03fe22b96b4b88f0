"""Stores that list in pages or tell times as many services do: nearly right."""

from __future__ import annotations

import time

from dict_store import CapableStore, DictContract, ScanningStore
from mutants.rows import Wrong, broken

PAGE = 1000


def lists_the_first_page(self, real):
    yield from list(real())[:PAGE]


def pages_by_number(self, real):
    place = 0
    while page := sorted(real())[place : place + PAGE]:
        yield from page
        place += len(page)


def pages_overlap(self, real):
    last = b""
    while page := [entry for entry in sorted(real()) if entry.key >= last][:PAGE]:
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].key


def tells_milliseconds(self, real):
    for entry in real():
        yield entry._replace(stored=entry.stored * 1000)


def remembers_the_first_time(self, real, name, frame):
    first = self.times.get(name)
    real(name, frame)
    if first is not None:
        self.times[name] = first


def tells_the_time_of_the_scan(self, real):
    for entry in real():
        yield entry._replace(stored=time.time())


SCANNING_STORE = {
    "scan.5 lists the first page": Wrong(
        "A service lists a thousand at a time, and nobody asks for more.", scan=lists_the_first_page
    ),
    "scan.5 pages by number": Wrong(
        "The next page begins after so many chunks, whatever has gone meanwhile.",
        scan=pages_by_number,
    ),
    "scan.5 pages overlap": Wrong(
        "The next page begins with the last chunk of the one before.", scan=pages_overlap
    ),
    "scan.3 tells milliseconds": Wrong("A time is as a database has it.", scan=tells_milliseconds),
    "scan.6 tells the time of the scan": Wrong(
        "Every chunk was last known to be there a moment ago.", scan=tells_the_time_of_the_scan
    ),
}
globals().update(broken(__name__, DictContract, ScanningStore, SCANNING_STORE))


CAPABLE_STORE = {
    "scan.6 remembers the first time": Wrong(
        "A chunk that is overwritten stays as old as it was.", publish=remembers_the_first_time
    ),
}
globals().update(broken(__name__, DictContract, CapableStore, CAPABLE_STORE))
