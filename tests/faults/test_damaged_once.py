"""A damaged chunk that two reads find at once leaves its tier once."""

from threading import Barrier, Event

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.ports import Change, CounterName
from prompts import PROMPT, computed, disk, empty
from rigging import FRAME, PATIENCE, tier


class ReadTogether(DiskStore):
    """A disk tier where two reads of a chunk see the same frame before one of them ends."""

    def __init__(self, root, key):
        super().__init__(root)
        self.key, self.begun, self.together = key, Event(), Barrier(2)

    def read(self, keys, sink, deadline):
        outcomes = super().read(keys, sink, deadline)
        if self.key in keys:
            self.begun.set()
            self.together.wait(PATIENCE)
        return outcomes


@pytest.mark.thorough
@pytest.mark.parametrize("foreign", [False, True])
def test_a_damaged_chunk_leaves_its_tier_once_however_many_read_it(rig, tmp_path, foreign):
    first = rig([disk(tmp_path)])
    key = first.engine.chunk_keys(PROMPT)[3]
    store = ReadTogether(tmp_path, key)
    r = rig([tier("disk", store)]) if foreign else None  # its index knows no chunk then
    first.engine.store(PROMPT, computed())
    first.engine.close()
    (file,) = tmp_path.glob(f"??/{key.hex()}.hexkv")
    file.write_bytes(bytes(FRAME))
    r = r or rig([tier("disk", store)])
    r.engine.prefetch("p", PROMPT)
    assert store.begun.wait(PATIENCE)
    r.engine.cancel("p")  # its read goes on, and no other call joins it
    assert r.engine.retrieve(PROMPT, empty()).misses["corrupt"] == 1
    assert r.at_rest()
    assert r.telemetry.total(CounterName.CORRUPT) == 1
    gone = [key for e in r.events.events if e.change is Change.REMOVED for key in e.keys]
    assert gone == [key]
