"""The disk store beside a dictionary that does the same: no sequence of calls tells them apart."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from depth import examples
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.ports import Failed, Hit, Item, Miss, Reason, Stored, StoreFull

CAPACITY = 100
KEYS = st.sampled_from([chunk_key(str(i)) for i in range(6)])
FRAMES = st.binary(max_size=60)


class DiskBesideDictionary(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="hexkv-machine-"))
        self.model: dict[bytes, bytes] = {}
        self.store = self.open()

    def open(self) -> DiskStore:
        return DiskStore(self.root, capacity=CAPACITY, quarantine_files=2, quarantine_bytes=80)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.root)

    @rule(chunks=st.lists(st.tuples(KEYS, FRAMES), max_size=4))
    def write(self, chunks):
        items = [Item(key, memoryview(frame)) for key, frame in chunks]
        outcomes = self.store.write(items, deadline())
        assert len(outcomes) == len(chunks)
        for (key, frame), outcome in zip(chunks, outcomes, strict=True):
            others = sum(len(kept) for other, kept in self.model.items() if other != key)
            if others + len(frame) <= CAPACITY:
                assert outcome == Stored(len(frame))
                self.model[key] = frame
            else:
                assert isinstance(outcome, Failed)
                assert isinstance(outcome.error, StoreFull)

    @rule(keys=st.lists(KEYS, max_size=4), refused=st.sets(st.integers(0, 3)))
    def read(self, keys, refused):
        sink = ListSink(refuse=refused, offset=1)
        for i, outcome in enumerate(self.store.read(keys, sink, deadline())):
            frame = self.model.get(keys[i])
            if frame is None:
                assert outcome == Miss()
            elif i in refused:
                assert outcome == Miss(Reason.REFUSED)
            else:
                assert outcome == Hit(len(frame))
                assert sink.data(i) == frame
                assert not sink.spilled(i)

    @rule(keys=st.lists(KEYS, max_size=4))
    def contains(self, keys):
        assert self.store.contains(keys, deadline()) == [key in self.model for key in keys]

    @rule(keys=st.lists(KEYS, max_size=4))
    def delete(self, keys):
        there = [self.model.pop(key, None) is not None for key in keys]
        assert self.store.delete(keys, deadline()) == there

    @rule(keys=st.lists(KEYS, max_size=3))
    def quarantine(self, keys):
        self.store.quarantine(keys, deadline())
        for key in keys:
            self.model.pop(key, None)

    @rule()
    def restart(self):
        self.store.close()
        self.store = self.open()

    @invariant()
    def files_and_numbers_agree(self):
        sizes = {key: len(frame) for key, frame in self.model.items()}
        assert {entry.key: entry.size for entry in self.store.scan()} == sizes
        on_disk = [path.stat().st_size for path in self.root.glob("??/*")]
        assert sum(on_disk) == self.store.used_bytes == sum(sizes.values()) <= CAPACITY

    @invariant()
    def the_quarantine_is_bounded(self):
        kept = [path.stat().st_size for path in self.root.glob("quarantine/*")]
        assert len(kept) <= 2
        assert sum(kept) <= 80


TestDiskBesideDictionary = DiskBesideDictionary.TestCase
TestDiskBesideDictionary.settings = settings(
    max_examples=examples(15), stateful_step_count=25, deadline=None
)
