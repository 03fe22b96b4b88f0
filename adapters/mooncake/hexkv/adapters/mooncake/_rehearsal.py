"""A process that tries to connect before the store does, and reports the result.

Mooncake's ``setup`` holds the interpreter's lock until the master has answered: 90 s if
there is none, 30 s if it hangs. A process that serves a model must not stand still for
that, so another one, which can be killed, tries first.
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
"""Mooncake's own variable: the attempts of ``setup`` with a master that does not answer."""

_CONNECTED = b"hexkv: connected\n"
"""The line that the process prints once connected, among the output of the library."""

_COMPLAINT = re.compile(r"E\d{4} \S+ +\d+ \S+\] (.+)")
"""An error in the library's log, which is Google's format: date, time, thread, place, text."""

_PORT = re.compile(r"(?P<host>[^:]+|\[.*\]):\d+")
"""A host with a port: an IPv6 address has colons of its own."""


@dataclass(frozen=True, slots=True)
class SetupArguments:
    """The address of the store and the resources of this process: the arguments of ``setup``."""

    master: str
    metadata: str
    local_host: str
    protocol: str
    devices: str
    segment_bytes: int
    buffer_bytes: int

    def anywhere(self) -> SetupArguments:
        """The same place under any free port.

        A metadata server refuses a name that is already registered, and a leaving node removes
        its registration.
        """
        found = _PORT.fullmatch(self.local_host)
        return replace(self, local_host=found["host"]) if found else self

    def enter(self, client: Client, segment_bytes: int) -> None:
        """Set *client* up, with one attempt.

        Raises:
            StoreUnreachable: it failed.
        """
        # For the library, which reads the process's variables in C. The store itself retries.
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
def rehearsed(place: SetupArguments, seconds: float) -> Iterator[None]:
    """Connect to *place* from another process, which disconnects during the block.

    Disconnecting takes it a second, in which the block can run.

    Raises:
        StoreUnreachable: before the block: it could not connect, or not within *seconds*.
    """
    fields = [getattr(place, name) for name in SetupArguments.__slots__]
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
    too_late.daemon = True  # it must not delay the end of this process
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
    """The failure of the process: the library's first error, or else the last line; None: none."""
    complaint = last = ""
    for line in lines:
        if line == _CONNECTED:
            return None
        last = line.decode(errors="replace").strip() or last
        found = _COMPLAINT.fullmatch(last)
        complaint = complaint or (found[1] if found else "")
    return complaint or last or "no answer"


def _main(arguments: str) -> None:
    place = SetupArguments(*json.loads(arguments))
    client = library().MooncakeDistributedStore()
    try:
        place.anywhere().enter(client, 0)
    except StoreUnreachable as error:
        sys.exit(str(error))
    os.write(sys.stdout.fileno(), _CONNECTED)
    client.close()


if __name__ == "__main__":
    _main(sys.argv[1])
