"""What the engine promises when frames, stores or devices fail: no wrong KV, and an answer."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event, Semaphore
from types import SimpleNamespace

import pytest

from dict_store import ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.engine.engine import Deadlines
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.notices import EVERY
from hexkv.core.tiers.index.indexes import Unindexed
from hexkv.ports import (
    CounterName,
    Failed,
    Hit,
    InvalidRequest,
    Miss,
    Reason,
    StoreUnreachable,
    TimedOut,
)
from prompts import FULL, PROMPT, computed, disk, empty, files_in, memory
from rigging import CHUNK, FRAME, LAYOUT, tier


def test_damaged_frames_are_counted_misses_and_set_aside(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    flipped, short, zeroed = files_in(tmp_path)[:3]
    data = bytearray(flipped.read_bytes())
    data[-1000] ^= 4
    flipped.write_bytes(data)
    short.write_bytes(short.read_bytes()[: FRAME // 2])
    zeroed.write_bytes(bytes(FRAME))
    r = rig([disk(tmp_path)])
    total = 0
    for _ in range(4):
        target = empty()
        got = r.engine.retrieve(PROMPT, target)
        assert target.agrees(computed(), got.hit_tokens)
        total += got.misses.get("corrupt", 0)
        r.engine.store(PROMPT, computed(), skip=got.hit_tokens)
    assert r.engine.retrieve(PROMPT, empty()).hit_tokens == FULL
    assert total >= 1
    assert r.telemetry.total(CounterName.CORRUPT) == 3
    assert r.at_rest()


def test_damaged_frames_are_one_line_with_a_key_and_then_one_a_minute(rig, tmp_path, caplog):
    r = rig([disk(tmp_path)])
    keys = r.engine.chunk_keys(PROMPT)

    def damage_and_read(*numbers):
        r.engine.store(PROMPT, computed())
        assert r.engine.flush()
        for number in numbers:
            (file,) = tmp_path.glob(f"??/{keys[number].hex()}.hexkv")
            file.write_bytes(bytes(FRAME))
        r.engine.retrieve(PROMPT, empty())

    damage_and_read()
    assert not caplog.messages, "a success writes nothing"
    for numbers in ([2, 4, 7], [2], [2]):
        damage_and_read(*numbers)
    r.clock.advance(EVERY)
    damage_and_read(9)
    line = "tier disk: verification failed: not the frame that was written"
    assert caplog.messages == [
        f"{line}: {keys[2].hex()} and 2 more",
        f"{line}: {keys[9].hex()}; 2 more since the last line",
    ]


def test_a_frame_under_another_key_is_never_used(rig, tmp_path):
    first = rig([disk(tmp_path)])
    first.engine.store(PROMPT, computed())
    first.engine.close()
    files = files_in(tmp_path)
    contents = [f.read_bytes() for f in files]
    for file, content in zip(files, contents[1:] + contents[:1], strict=True):
        file.write_bytes(content)
    target = empty()
    assert rig([disk(tmp_path)]).engine.retrieve(PROMPT, target).hit_tokens == 0
    assert target.agrees(empty(), FULL)


class Broken:
    """A store whose every call ends the same way."""

    def __init__(self, how):
        self.how = how

    def contains(self, keys, deadline):
        return [True] * len(keys)

    def read(self, keys, sink, deadline):
        return self.how(keys, sink)

    def write(self, items, deadline):
        return self.how([item.key for item in items], None)

    def delete(self, keys, deadline):
        return self.how(keys, None)

    def close(self):
        raise StoreUnreachable("gone")


def raises(error):
    def how(keys, sink):
        raise error

    return how


def garbage(size):
    """Says that a frame arrived, and leaves in the buffer what was there."""

    def how(keys, sink):
        return [Hit(size) if sink and sink.room(i, size) else Miss() for i in range(len(keys))]

    return how


@each(
    "how",
    [
        raises(StoreUnreachable("gone")),
        raises(RuntimeError("bug")),
        raises(MemoryError()),
        raises(SystemExit("bug")),
        lambda keys, sink: [],
        lambda keys, sink: [Failed(OSError())] * len(keys),
        lambda keys, sink: [TimedOut()] * len(keys),
        lambda keys, sink: [Miss()] * len(keys),
        lambda keys, sink: [Hit(FRAME)] * len(keys),
        garbage(FRAME),
        garbage(1 << 40),
        garbage(100),
    ],
    ids=[
        "unreachable",
        "bug",
        "memory",
        "exit",
        "short answer",
        "failed",
        "late",
        "miss",
        "lie",
        "garbage",
        "huge",
        "tiny",
    ],
)
def test_whatever_a_tier_does_the_engine_answers_and_the_next_tier_serves(
    rig, tmp_path_factory, how
):
    tmp_path = tmp_path_factory.mktemp("case")
    broken = tier("broken", Broken(how))
    broken = replace(broken, index=Unindexed())
    r = rig([broken, disk(tmp_path)])
    lonely = rig([tier("broken", Broken(how))])
    r.engine.store(PROMPT, computed())
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert target.agrees(computed(), got.hit_tokens)
    assert lonely.engine.retrieve(PROMPT, empty()).hit_tokens == 0
    assert r.at_rest()
    assert lonely.at_rest()


def test_a_damaged_chunk_is_served_by_the_next_tier(rig, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    r = rig([tier("a", DiskStore(a)), tier("b", DiskStore(b))])
    r.engine.store(PROMPT, computed())
    for file in files_in(a):
        file.write_bytes(bytes(FRAME))
    target = empty()
    got = r.engine.retrieve(PROMPT, target)
    assert got.tiers == {"b": FULL}
    assert target.agrees(computed(), FULL)
    assert r.engine.flush()
    assert r.engine.retrieve(PROMPT, empty()).tiers == {"a": FULL}  # promoted again


class BadDevice(HeapKV):
    def scatter(self, spans, layers=None):
        raise RuntimeError("device lost")

    gather = scatter


def test_a_failing_device_shortens_the_hit(rig, caplog):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    got = r.engine.retrieve(PROMPT, BadDevice(LAYOUT, len(PROMPT)))
    assert (got.hit_tokens, got.misses) == (0, {"device": 1, "behind a miss": 9})
    assert "device lost" in caplog.text
    assert r.at_rest()


def test_memory_of_a_late_copy_is_not_reused_before_it_ends(rig):
    r = rig([memory()])
    ended = Event()

    class Late(HeapKV):
        def gather(self, spans, layers=None):
            class Transfer:
                def wait(self, deadline):
                    return ended.is_set()

            return Transfer()

    report = r.engine.store(PROMPT, Late(LAYOUT, len(PROMPT)))
    assert report.dropped_tokens == FULL
    assert report.drops == {"not copied": FULL}
    assert r.engine.health().leases["late copy"] > 0
    ended.set()
    r.engine.lookup(PROMPT)
    assert r.at_rest()


def test_a_call_with_little_time_costs_others_neither_a_hit_nor_a_tier(rig):
    begun, go_on = Semaphore(0), Event()

    class Slow(ScanningStore):
        def read(self, keys, sink, deadline):
            begun.release()
            go_on.wait(60.0)
            return super().read(keys, sink, deadline)

    r = rig([tier("disk", Slow({}))])
    r.engine.store(PROMPT, computed())
    with ThreadPoolExecutor(2) as threads:
        hasty = threads.submit(r.engine.retrieve, PROMPT, empty(), timeout=1.0)
        assert begun.acquire(timeout=60.0)
        other = threads.submit(r.engine.retrieve, PROMPT, empty())
        apart = begun.acquire(timeout=60.0)
        r.clock.advance(1.0)
        assert hasty.result().misses == {"timed out": 1, "behind a miss": 9}
        go_on.set()
        assert apart
        assert other.result().hit_tokens == FULL
    assert r.engine.retrieve(PROMPT, empty()).hit_tokens == FULL
    assert r.telemetry.total(CounterName.BREAKER_OPENED, tier="disk") == 0


def test_calls_queue_the_next_copy_before_they_wait_and_a_refused_one_ends_them(rig):
    events, refused = [], set()

    class Copying:
        """A device's copy, which ends as it is waited for."""

        def __init__(self, copy):
            self.number, self.copy = len(events), copy
            events.append(f"queue {self.number}")

        def wait(self, deadline):
            events.append(f"wait {self.number}")
            if self.number in refused:
                raise InvalidRequest("the blocks went to others")
            self.copy()
            return True

    class Beside(HeapKV):
        def gather(self, spans, layers=None):
            return Copying(partial(super().gather, spans, layers))

        def scatter(self, spans, layers=None):
            return Copying(partial(super().scatter, spans, layers))

    def retrieve():
        events.clear()
        target = Beside(LAYOUT, len(PROMPT))
        return r.engine.retrieve(PROMPT, target), target

    def store():
        events.clear()
        r.engine.clear()
        device = Beside(LAYOUT, len(PROMPT))
        device.compute(PROMPT)
        return r.engine.store(PROMPT, device)

    r = rig([memory(), tier("disk", ScanningStore({}))], slots=20)
    r.engine.admin.stack.step = 3
    assert store().stored_tokens == FULL
    assert events[:4] == ["queue 0", "queue 1", "wait 0", "queue 3"]
    assert [word.split()[0] for word in events].count("wait") == len(events) / 2
    for cleared in (), ("memory",):
        r.engine.clear(tiers=cleared)
        got, target = retrieve()
        assert got.hit_tokens == FULL
        assert target.agrees(computed(), FULL)
        assert cleared or events[:3] == ["queue 0", "queue 1", "wait 0"]
        assert [word.split()[0] for word in events].count("wait") == len(events) / 2
    refused |= {1, 3}
    with pytest.raises(InvalidRequest, match="went to others"):
        retrieve()
    assert r.at_rest()
    with pytest.raises(InvalidRequest, match="went to others"):
        store()
    assert 0 < r.engine.lookup(PROMPT).hit_tokens < FULL
    assert r.at_rest()


def test_a_load_that_turns_back_for_a_chunk_takes_no_later_one_in_its_place(rig, monkeypatch):
    class Crowded(ScanningStore):
        """Has no room for one chunk, once."""

        crowded = None

        def read_one(self, index, key, sink, deadline):
            if key != self.crowded:
                return super().read_one(index, key, sink, deadline)
            self.crowded = None
            return Miss(Reason.REFUSED)

    class Beside(HeapKV):
        """Copies as a wait begins; the copy of one position fails."""

        failing = None

        def __init__(self):
            super().__init__(LAYOUT, len(PROMPT))
            self.queued, self.written = [], []

        def scatter(self, spans, layers=None):
            self.queued.append(spans)
            return SimpleNamespace(wait=partial(self.finish, spans))

        def finish(self, spans, deadline):
            self.written.append(spans)
            super().scatter(spans)
            if self.failing in [span.start for span in spans]:
                raise OSError
            return True

    store = Crowded({})
    r = rig([tier("slow", store)], slots=64)
    monkeypatch.setattr(r.engine._requests.pace, "fixed", Pipelining(2, 8, 2))
    assert r.engine.store(PROMPT, computed()).stored_tokens == FULL
    assert r.engine.flush()
    right = computed()
    for number, key in enumerate(r.engine.chunk_keys(PROMPT)):
        store.crowded, target = key if number else None, Beside()
        assert r.engine.retrieve(PROMPT, target).hit_tokens == FULL
        assert target.agrees(right, FULL)
        failing = Beside()
        failing.failing = number * CHUNK
        r.engine.retrieve(PROMPT, failing)
        assert failing.written == failing.queued, "no copy goes on after the call"
        assert r.at_rest()


@each("hangs", ["read", "write", "close"])
def test_closing_always_returns_whatever_hangs(rig, tmp_path, hangs):
    stuck, free = Event(), Event()

    class Hanging(DiskStore):
        def _hang(self):
            stuck.set()
            clock.advance(100.0)  # whoever waits for this has waited in vain
            assert free.wait(60)

        def read(self, keys, sink, deadline):
            if hangs == "read":
                self._hang()
            return super().read(keys, sink, deadline)

        def write(self, items, deadline):
            if hangs == "write":
                self._hang()
            return super().write(items, deadline)

        def close(self):
            if hangs == "close":
                self._hang()
            super().close()

    clock = ManualClock()
    r = rig([tier("disk", Hanging(tmp_path / hangs))], clock=clock, deadlines=Deadlines(close=0.0))
    r.engine.store(PROMPT, computed())
    r.engine.retrieve(PROMPT, empty())
    r.engine.close()
    assert stuck.wait(60)
    assert r.engine.health().state == "closed"
    assert r.engine.health().leases or hangs == "close"
    free.set()
    assert r.given_back()
