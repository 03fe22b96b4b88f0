"""Many processes that want the same chunks at once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from configured import CHUNK, FRAME, PATIENT, prompt
from peers.peer_process import PeerProcess
from peers.peering import PATIENT as WAITING
from peers.peering import configuration, directory_at, eventually, tiers_of
from servers.directory_servers import SECRET, DirectoryProcess

pytestmark = pytest.mark.thorough

NUMBER = 4
"""Of the prompt."""

ALL = len(prompt(NUMBER)) // CHUNK * FRAME
"""Bytes of its frames."""


def test_a_chunk_that_eight_processes_want_leaves_its_holder_twice(tmp_path):
    """The others have it from those two, and from each other: it came to eight all the same."""
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    with ExitStack() as opened:
        served = opened.enter_context(DirectoryProcess("--secret-file", str(secret)))

        def start(name):
            own = {
                "tiers": tiers_of(WAITING),
                "directory": directory_at(served) | {"name": name},
                "peers": {"channel": "tcp", "serve": {"settle": 60.0}},
                "deadlines": PATIENT,
            }
            return opened.enter_context(PeerProcess(configuration() | own))

        holder, *crowd = (start(name) for name in ("holder", *map(str, range(8))))
        holder.store(NUMBER)

        def come(peer):
            eventually(lambda: peer.read(NUMBER)[0] == len(prompt(NUMBER)))

        with ThreadPoolExecutor(len(crowd)) as threads:
            list(threads.map(come, crowd))
        everybody = [holder, *crowd]
        eventually(lambda: sum(peer.lent() for peer in everybody) >= len(crowd) * ALL)
        assert holder.lent() <= 2 * ALL
