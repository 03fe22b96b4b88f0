"""An engine that serves administration, with a tier that can be made to hang."""

from types import SimpleNamespace

import pytest

from dict_store import ScanningStore
from hexkv.adapters.admin.access import SocketAccess
from hexkv.adapters.admin.api import connect
from hexkv.adapters.admin.settings import SocketSettings
from hexkv.contracts.faults import FaultyStore, Scripted
from hexkv.core.engine.engine import Deadlines
from hexkv.core.tiers.rules import Writes
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore
from operating.administration import Managed, short_folder
from rigging import CHUNK, rigging, tier

PATIENT = Deadlines(lookup=60.0, retrieve=60.0, store=60.0, close=60.0)


@pytest.fixture
def folder():
    with short_folder() as made:
        yield made


@pytest.fixture
def busy(folder):
    """``busy(**settings)``: an engine whose tier ``slow`` can hang; what is served, and a client.

    Memory has two prompts of six chunks, the other tier none of them.
    """
    store = FaultyStore(ScanningStore({}), Scripted())
    with rigging() as build:

        def make(**settings):
            rig = build(
                [
                    tier("memory", MemoryStore(SystemClock())),
                    tier("slow", store, writes=Writes.NONE),
                ],
                clock=SystemClock(),
                deadlines=PATIENT,
            )
            address = str(folder / "admin.sock")
            access = SocketAccess(SocketSettings(address, **settings), SystemClock())
            server = access.serve(rig.engine.admin)
            rig.engine.at_close(server.close)
            managed = Managed(rig.engine, connect(address), CHUNK, rig.engine.close)
            managed.store()
            managed.store(1)
            return SimpleNamespace(
                managed=managed, server=server, store=store, address=address, rig=rig
            )

        yield make
        store.release()
