"""A process that connects as the store is about to, and says whether that went well.

Mooncake's ``setup`` keeps the interpreter's lock until the master has answered: 90 s where
there is none, 30 s where it hangs. A process that serves a model must not stand still for
that, so another one, which may be killed, tries first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from hexkv.adapters.mooncake._native import Client, library
from hexkv.ports import StoreUnreachable

_RETRIES = "MC_STORE_CLIENT_SETUP_RETRIES"
"""Mooncake's own variable: how often ``setup`` asks a master that does not answer."""


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

    def enter(self, client: Client, segment_bytes: int) -> int:
        """Set *client* up, asking the master once; 0 if that went well."""
        # Straight to the library, which asks the C library. Who tries again is the store.
        os.putenv(_RETRIES, "1")
        return client.setup(
            self.local_host,
            self.metadata,
            segment_bytes,
            self.buffer_bytes,
            self.protocol,
            self.devices,
            self.master,
        )


def rehearse(place: Place, seconds: float) -> None:
    """Let another process try to connect to *place*.

    Raises:
        StoreUnreachable: it could not, or not within *seconds*.
    """
    fields = [getattr(place, name) for name in Place.__slots__]
    command = [sys.executable, "-m", __name__, json.dumps(fields)]
    try:
        done = subprocess.run(  # noqa: S603 - this very module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreUnreachable(f"mooncake at {place.master}: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise StoreUnreachable(f"mooncake at {place.master}: {said[-1] if said else 'no answer'}")


def _main(arguments: str) -> int:
    place = Place(*json.loads(arguments))
    client = library().MooncakeDistributedStore()
    code = place.enter(client, 0)
    client.close()
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
