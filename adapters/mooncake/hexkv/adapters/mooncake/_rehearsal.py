"""A process that connects as the store is about to, and says whether that went well.

Mooncake's ``setup`` keeps the interpreter's lock until the master has answered: 90 s where
there is none, 30 s where it hangs. A process that serves a model must not stand still for
that, so another one, which may be killed, tries first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Timer

from hexkv.adapters.mooncake._native import Client, library
from hexkv.ports import StoreUnreachable

_RETRIES = "MC_STORE_CLIENT_SETUP_RETRIES"
"""Mooncake's own variable: how often ``setup`` asks a master that does not answer."""

_CONNECTED = b"hexkv: connected\n"
"""What the process says when it is, among whatever the library says."""

_COMPLAINT = re.compile(r"E\d{4} \S+ +\d+ \S+\] (.+)")
"""An error in the library's log, which is Google's format: date, time, thread, place, text."""

_PORT = re.compile(r"(?P<host>[^:]+|\[.*\]):\d+")
"""A host with a port: an IPv6 address has colons of its own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is, and what this process has of it: the arguments of ``setup``."""

    master: str
    metadata: str
    local_host: str
    protocol: str
    devices: str
    segment_bytes: int
    buffer_bytes: int

    def anywhere(self) -> Place:
        """The same under whatever port is free.

        Where nodes note where they are, nobody may come under a name that is noted already,
        and the one who leaves strikes out the note.
        """
        found = _PORT.fullmatch(self.local_host)
        return replace(self, local_host=found["host"]) if found else self

    def enter(self, client: Client, segment_bytes: int) -> None:
        """Set *client* up, asking the master once.

        Raises:
            StoreUnreachable: that did not go well.
        """
        # Straight to the library, which asks the C library. Who tries again is the store.
        os.putenv(_RETRIES, "1")
        code = client.setup(
            self.local_host,
            self.metadata,
            segment_bytes,
            self.buffer_bytes,
            self.protocol,
            self.devices,
            self.master,
        )
        if code:
            raise StoreUnreachable(f"mooncake at {self.master}: setup gave {code}")


@contextmanager
def rehearsed(place: Place, seconds: float) -> Iterator[None]:
    """Another process has connected to *place*; in the block it takes its leave.

    That takes it a second, which nobody else need wait for.

    Raises:
        StoreUnreachable: before the block: it could not connect, or not within *seconds*.
    """
    fields = [getattr(place, name) for name in Place.__slots__]
    command = [sys.executable, "-m", __name__, json.dumps(fields)]
    try:
        process = subprocess.Popen(  # noqa: S603 - this very module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except OSError as error:
        raise StoreUnreachable(f"mooncake at {place.master}: {error}") from error
    too_late = Timer(seconds, process.kill)
    too_late.daemon = True  # nobody stays for it when the process ends
    too_late.start()
    try:
        wrong = _wrong(process.stdout or ())
        if wrong is not None:
            wrong = f"no answer in {seconds} s" if process.wait() == -signal.SIGKILL else wrong
            raise StoreUnreachable(f"mooncake at {place.master}: {wrong}")
        yield
    finally:
        process.communicate()
        too_late.cancel()


def _wrong(lines: Iterable[bytes]) -> str | None:
    """What the process says is wrong: what the library complains of first, or its last words."""
    complaint = said = ""
    for line in lines:
        if line == _CONNECTED:
            return None
        said = line.decode(errors="replace").strip() or said
        found = _COMPLAINT.fullmatch(said)
        complaint = complaint or (found[1] if found else "")
    return complaint or said or "no answer"


def _main(arguments: str) -> None:
    place = Place(*json.loads(arguments))
    client = library().MooncakeDistributedStore()
    try:
        place.anywhere().enter(client, 0)
    except StoreUnreachable as error:
        sys.exit(str(error))
    os.write(sys.stdout.fileno(), _CONNECTED)
    client.close()


if __name__ == "__main__":
    _main(sys.argv[1])
