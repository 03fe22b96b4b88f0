"""What is special about obstore: several clouds, and deadlines of each call."""

import time
from threading import Event, Thread, current_thread

import pytest

from hexkv.adapters.obstore.places import BucketPrefix
from hexkv.adapters.obstore.plugin import hexkv_adapters
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import SettingError
from hexkv.ports import ConfigError, Hit, Item, Miss, Stored, StoreError, TimedOut
from servers.s3_servers import Double

PATIENCE = 30.0
KEYS = [chunk_key(name) for name in "abc"]


class Room:
    def __init__(self):
        self.frames = {}

    def room(self, index, size):
        self.frames[index] = bytearray(size)
        return memoryview(self.frames[index])

    def filled(self, index, upto):
        pass


@pytest.fixture
def folder(tmp_path, open_store):
    return open_store(scheme="file", bucket=str(tmp_path), prefix="frames")


@pytest.fixture
def bucket(double, open_store):
    return open_store(**double.settings)


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_frames_come_back_from_wherever_the_url_says(kind, request):
    store = request.getfixturevalue(kind)
    frames = [bytes([i]) * 4096 * (i + 1) * 300 for i in range(2)]
    items = [Item(key, memoryview(frame)) for key, frame in zip(KEYS, frames, strict=False)]
    assert store.write(items, deadline()) == [Stored(len(frame)) for frame in frames]
    assert store.contains(KEYS, deadline()) == [True, True, False]
    room = Room()
    assert store.read(KEYS, room, deadline()) == [Hit(len(f)) for f in frames] + [Miss()]
    assert [bytes(room.frames[i]) for i in range(2)] == frames
    part = bytearray(5000)
    assert store.read_range(KEYS[1], 4000, memoryview(part), deadline()) == Hit(5000)
    assert bytes(part) == frames[1][4000:9000]
    assert {(e.key, e.size) for e in store.scan()} == set(zip(KEYS, map(len, frames), strict=False))
    assert store.delete([KEYS[0], KEYS[2]], deadline()) == [True, False]
    assert store.clear_prefix(KEYS[1][:16], deadline()) == 1
    assert list(store.scan()) == []


def test_each_call_ends_by_its_own_deadline_while_the_server_hangs(open_store):
    with Double() as server:
        store = open_store(**server.settings)
        big = memoryview(bytearray(32 << 20))
        assert store.write([Item(KEYS[0], big)], deadline()) == [Stored(len(big))]
        server.freeze()
        try:
            began = time.monotonic()
            assert store.write([Item(KEYS[0], big)], deadline(0.3)) == [TimedOut()]
            assert store.read(KEYS[:1], Room(), deadline(0.3)) == [TimedOut()]
            with pytest.raises(StoreError):
                store.contains(KEYS, deadline(0.3))
            # The library's own time-out is an hour: whatever the machine is busy with, it is less.
            assert time.monotonic() - began < 300
            big.release()  # nobody sends it any more
        finally:
            server.thaw()


def test_a_store_is_closed_once_the_library_does_not_wake_its_loop_any_more(folder, monkeypatch):
    assert folder.contains(KEYS, deadline()) == [False] * 3
    loop, woken, go_on = folder._requests._loop, Event(), Event()
    write = loop._write_to_self

    def slow():
        write()
        if current_thread() is library:
            woken.set()
            go_on.wait(PATIENCE)

    library = Thread(target=lambda: loop.call_soon_threadsafe(int))
    monkeypatch.setattr(loop, "_write_to_self", slow)
    library.start()
    assert woken.wait(PATIENCE)
    monkeypatch.setattr(time, "sleep", lambda _: go_on.set() or library.join(PATIENCE))
    folder.close()
    assert go_on.is_set()
    assert not library.is_alive()


def test_settings_that_mean_nothing_together_are_refused():
    (spec,) = hexkv_adapters()
    for wrong, name in (
        ({"url": "ftp://bucket/x"}, "url"),
        ({"url": "gs://user@bucket"}, "url"),
        ({"url": "az://bucket"}, "account"),
        ({"url": "s3://bucket", "access_key": "a"}, "access_key"),
        ({"url": "gs://bucket", "secret_key": "a"}, "secret_key"),
        ({"url": "s3://bucket", "account": "a"}, "account"),
        ({"url": "file:///a/folder", "endpoint": "http://x"}, "endpoint"),
        ({"url": "gs://bucket", "endpoint": "localhost:9"}, "endpoint"),
        ({"url": "gs://bucket", "connections": 0}, "connections"),
    ):
        with pytest.raises((SettingError, ConfigError), match=name):
            parse_settings(spec, wrong)
    for url in ("gs://bucket/../x", "s3://b/x", "file://host/x", "gs://bucket/a?b=c", "file:///"):
        with pytest.raises(ValueError, match=r"URL|bucket|prefix|folder"):
            BucketPrefix.parse(url)
