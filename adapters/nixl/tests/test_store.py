"""The store keeps the contract of stores, in files and on a strict S3, and says who is at fault."""

import errno
import os
import stat
from contextlib import suppress
from itertools import count

import pytest

from media.folder_contract import FolderContract

pytest.importorskip("nixl_cu12")

from configured import PATIENT, settle
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.nixl.plugin import StorageSettings
from hexkv.adapters.nixl.storage.objects import HEAD, MAGIC, framed, headed
from hexkv.adapters.nixl.storage.staging import Staging, Turns
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.store import StoreContract
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.spec import SettingError
from hexkv.ports import (
    AdapterUnavailable,
    ConfigError,
    Corrupt,
    DType,
    Failed,
    Hit,
    Item,
    KVLayout,
    Miss,
    Namespace,
    Reason,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    TimedOut,
    frame_bytes,
)
from servers.s3_contract import S3Contract
from servers.s3_double import BUCKET
from servers.s3_servers import Objects, own_double

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=64)
KEYS = [chunk_key(name) for name in "abc"]


class Headed(Objects):
    """The back door to objects that say at both ends how long they are."""

    def get(self, key):
        found = super().get(key)
        if found is None or (head := headed(memoryview(found))) is None or head.deleted:
            return None
        return found[HEAD.size : HEAD.size + head.size]

    def put(self, key, frame):
        whole = bytearray(HEAD.size + len(frame) + 16)
        framed(memoryview(frame), memoryview(whole))
        super().put(key, bytes(whole))

    def keys(self):
        return {key for key in super().keys() if self.get(key) is not None}  # noqa: SIM118 - a method


class Settings:
    """A server's settings, as this store calls them."""

    def __init__(self, server):
        self.server = server

    @property
    def settings(self):
        return self.server.settings

    def objects(self, prefix):
        found = self.server.objects(prefix)
        return Headed(found._connect, found.prefix, found.headers, found._bucket)


@pytest.mark.thorough
class TestFiles(FolderContract):
    directory = "disk"

    @pytest.fixture
    def make(self, open_nixl):
        return lambda root: open_nixl(root=str(root), directory=self.directory)

    @pytest.fixture
    def unreadable(self):
        return None  # NIXL reads by itself


@pytest.mark.thorough
class TestFilesOfManyHosts(TestFiles):
    directory = "fs"


@pytest.mark.thorough
class TestObjects(S3Contract):
    """Dead, hanging, slow, lying and full: the contract breaks the server in each of these ways."""

    @pytest.fixture
    def server(self, double):
        return Settings(double)

    @pytest.fixture
    def service(self):
        with own_double() as service:
            yield service


@pytest.mark.thorough
class TestPrivateObjects(StoreContract):
    """With a list of what there is, which the store keeps itself."""

    @pytest.fixture
    def store(self, open_store, double):
        return open_store(private=True, **double.settings)

    @pytest.fixture
    def raw(self, double, store):
        found = Settings(double).objects(store._prefix)
        yield found
        found.clear()

    @pytest.fixture
    def sibling(self, open_store, double):
        return open_store(private=True, **double.settings)

    @pytest.fixture
    def service(self):
        with own_double() as service:
            yield service

    @pytest.fixture
    def exposed(self, service, open_store):
        return open_store(private=True, **service.settings)


def frames_of(count, size=60_000):
    return [Item(chunk_key(str(i)), memoryview(bytes([i]) * size)) for i in range(count)]


@pytest.mark.thorough
def test_private_objects_are_counted_as_long_as_they_may_be_there(open_nixl):
    with own_double() as service:
        store = open_nixl(
            plugin="OBJ", bucket=BUCKET, private=True, budget=200_000, **service.settings
        )
        items = frames_of(4)
        outcomes = store.write(items, deadline())
        assert outcomes[:3] == [Stored(60_000)] * 3
        assert isinstance(outcomes[3].error, StoreFull)
        assert {entry.key for entry in store.scan()} == {item.key for item in items[:3]}
        (shorter,) = frames_of(1, 100)
        assert store.write([shorter], deadline()) == [Stored(100)]
        assert store.used_bytes == 120_100, "what it replaced is gone"
        assert store.delete([item.key for item in items], deadline()) == [True] * 3 + [False]
        assert store.used_bytes == 0
        assert list(store.scan()) == []
        service.double.limit(-1)
        assert not isinstance(store.write(items[:1], deadline(30.0))[0], Stored)
        assert store.used_bytes == 60_000, "it may come a while later"
        assert not isinstance(store.write([shorter], deadline(30.0))[0], Stored)
        assert store.used_bytes == 60_000, "either may"


@pytest.mark.thorough
def test_a_tier_of_private_objects_keeps_a_budget_and_a_shared_one_says_that_it_cannot(double):
    block = frame_bytes(LAYOUT.chunk_bytes(16))
    tier = {"store": "nixl", "budget": 4 * block}
    settings = {"plugin": "OBJ", "bucket": BUCKET, "prefix": "of a test/", **double.settings}

    def opened(**more):
        tiers = [tier | {"settings": settings | more}]
        wanted = {"chunk": {"size": 16}, "pool": {"bytes": 16 * block}, "tiers": tiers}
        return build(load(None, {}, wanted | {"deadlines": PATIENT}), Namespace("toy", LAYOUT))

    with pytest.raises(ConfigError, match="cannot list what it holds"):
        opened()
    with opened(private=True) as engine:
        for number in range(3):
            tokens = list(range(1000 * number, 1000 * number + 32))
            assert engine.store(tokens, HeapKV(LAYOUT, 32).compute(tokens)).stored_tokens == 32
            settle(engine)
        (there,) = engine._chunks.stack.tiers
        assert there.index.used == there.store.used_bytes == 4 * block
        target = HeapKV(LAYOUT, 32)
        assert engine.retrieve(tokens, target).hit_tokens == 32
        assert target.agrees(HeapKV(LAYOUT, 32).compute(tokens), 32)
        cleared = engine.clear()
        assert (cleared.chunks, dict(cleared.left)) == (4, {})
        assert there.store.used_bytes == 0
        assert engine.retrieve(tokens, target).hit_tokens == 0
    with opened(private=True) as engine:
        assert engine.health().tiers[0].chunks == 0


def both(store):
    frames = [bytes([i]) * 4096 * (i + 1) * 70 for i in range(2)]
    items = [Item(key, memoryview(frame)) for key, frame in zip(KEYS, frames, strict=False)]
    assert store.write(items, deadline()) == [Stored(len(frame)) for frame in frames]
    assert store.contains(KEYS, deadline()) == [True, True, False]
    sink = ListSink()
    assert store.read(KEYS, sink, deadline()) == [Hit(len(f)) for f in frames] + [Miss()]
    assert [sink.data(i) for i in range(2)] == frames
    part = bytearray(5000)
    assert store.read_range(KEYS[1], 4000, memoryview(part), deadline()) == Hit(5000)
    assert bytes(part) == frames[1][4000:9000]
    assert store.read(KEYS[:1], ListSink(), deadline(-1.0)) == [TimedOut()]
    assert store.delete([KEYS[0], KEYS[2]], deadline()) == [True, False]
    assert store.read(KEYS[:1], ListSink(), deadline()) == [Miss()]


@pytest.mark.parametrize("plugin", ["POSIX", "OBJ"])
def test_frames_come_back_by_either_plug_in(plugin, open_nixl, open_store, double, tmp_path):
    both(open_nixl(root=str(tmp_path)) if plugin == "POSIX" else open_store(**double.settings))


@pytest.mark.thorough
def test_what_an_object_store_lies_about_is_no_hit(open_store, double, prefix):
    store = open_store(**double.settings)
    raw = Settings(double).objects(f"{prefix}/")
    frame = os.urandom(100_000)

    def answer(change):
        raw.put(KEYS[0], frame)
        name = raw.prefix + KEYS[0].hex()
        raw.put_name(name, change(raw.get_name(name)))
        (outcome,) = store.read(KEYS[:1], ListSink(), deadline())
        return outcome

    assert answer(bytes) == Hit(len(frame))
    longer = HEAD.pack(MAGIC, len(frame) + 5000, b"word" * 4)
    for change in (
        lambda whole: whole[:-1],  # cut: what is beyond the end, the library leaves as it was
        lambda whole: whole[:50_000],
        lambda whole: whole[: HEAD.size],
        lambda whole: longer + whole[HEAD.size :],
        lambda whole: b"notours!" + whole[8:],
        lambda whole: whole[:8] + b"\xfe" * 8 + whole[16:],
        lambda whole: whole[:-16] + bytes(16),
    ):
        assert isinstance(answer(change), Corrupt | Failed)
    assert answer(lambda whole: whole + b"more") == Hit(len(frame))


@pytest.mark.thorough
def test_where_nothing_may_be_written_what_is_there_is_still_read(open_store, tmp_path):
    with own_double() as service:
        store = open_store(**service.settings)
        item = Item(KEYS[0], memoryview(bytes(9000)))
        assert store.write([item], deadline()) == [Stored(9000)]
        service.double.limit(-1)
        for outcome in store.write([item, item._replace(key=KEYS[1])], deadline(30.0)):
            assert isinstance(outcome, Failed | TimedOut)
        with pytest.raises(StoreError):
            store.delete(KEYS[:1], deadline(30.0))
        assert store.read(KEYS[:2], ListSink(), deadline()) == [Hit(9000), Miss()]


@pytest.mark.thorough
def test_a_full_disk_and_one_that_is_read_only_are_told(open_nixl, tmp_path, monkeypatch):
    store = open_nixl(root=str(tmp_path), budget=8192)
    assert store.write([Item(KEYS[0], memoryview(bytes(8192)))], deadline()) == [Stored(8192)]
    (outcome,) = store.write([Item(KEYS[1], memoryview(bytes(8192)))], deadline())
    assert isinstance(outcome.error, StoreFull)
    real = os.open

    def read_only(path, flags, *rest, **named):
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return real(path, flags, *rest, **named)

    store.delete(KEYS, deadline())
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        (outcome,) = store.write([Item(KEYS[1], memoryview(bytes(100)))], deadline())
    assert isinstance(outcome.error, StoreUnreachable)
    assert list(tmp_path.rglob("*.tmp")) == []


@pytest.mark.thorough
def test_a_file_whose_size_is_not_told_is_closed(open_nixl, tmp_path, monkeypatch):
    store, real = open_nixl(root=str(tmp_path)), os.fstat
    store.write([Item(KEYS[0], memoryview(bytes(8192)))], deadline())
    into = memoryview(bytearray(4096))
    for read in (
        lambda: store.read(KEYS[:1], ListSink(), deadline()),
        lambda: store.read_range(KEYS[0], 0, into, deadline()),
    ):
        for number in range(1, 4):  # the first is of the store of files
            calls, before = count(1), os.listdir("/proc/self/fd")

            def failing(file, calls=calls, number=number):
                if next(calls) >= number:
                    raise OSError(errno.EIO, "no size")
                return real(file)

            with monkeypatch.context() as patch, suppress(OSError):
                patch.setattr(os, "fstat", failing)
                read()
            assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.thorough
def test_a_file_system_that_reports_an_error_at_close_costs_no_read(
    open_nixl, tmp_path, monkeypatch
):
    store, real = open_nixl(root=str(tmp_path)), os.close
    store.write([Item(KEYS[0], memoryview(bytes(8192)))], deadline())
    into = memoryview(bytearray(4096))

    def failing(file):
        folder = stat.S_ISDIR(os.fstat(file).st_mode)
        real(file)
        if not folder:
            raise OSError(errno.ENOTCONN, "the file server has gone")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", failing)
        assert store.read(KEYS[:1], ListSink(), deadline()) == [Hit(8192)]
        assert store.read(KEYS[:1], ListSink(refuse={0}), deadline()) == [Miss(Reason.REFUSED)]
        assert store.read_range(KEYS[0], 0, into, deadline()) == Hit(4096, 8192)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.thorough
def test_settings_that_mean_nothing_are_refused_by_name(open_nixl, tmp_path):
    for wrong, name in (
        ({}, "root"),
        ({"plugin": "posix", "root": "x"}, "plugin"),
        ({"plugin": "OBJ"}, "bucket"),
        ({"plugin": "OBJ", "bucket": "abc", "root": "x"}, "root"),
        ({"plugin": "OBJ", "bucket": "abc", "endpoint": "host:9"}, "endpoint"),
        ({"plugin": "OBJ", "bucket": "abc", "prefix": "\n"}, "prefix"),
        ({"root": "x", "bucket": "abc"}, "bucket"),
        ({"root": "x", "staging_bytes": 0}, "staging_bytes"),
    ):
        with pytest.raises(SettingError) as caught:
            StorageSettings(**wrong)
        assert caught.value.setting == name
    # A wheel without CUDA has the plug-in's name, and not what it needs.
    with pytest.raises(AdapterUnavailable, match="plug-in GDS cannot be loaded"):
        open_nixl(plugin="GDS", root=str(tmp_path))


@pytest.mark.thorough
def test_staging_is_lent_in_ranges_that_never_meet_and_comes_back_whole():
    staging = Staging(16 << 12)
    taken = [staging.take(size, deadline(0.0)) for size in (1, 4096, 4097, 9 << 12)]
    taken[1].release()
    with staging.take(4096, deadline(0.0)) as again:
        assert again.address == staging.address + 4096
    for slot in (taken[3], taken[0], taken[2]):
        slot.share()
        slot.release()
        slot.release()
    with staging.take(16 << 12, deadline(0.0)), pytest.raises(OutOfTime):
        staging.take(1, deadline(0.0))
    with pytest.raises(StoreError, match="staging_bytes"):
        staging.take((16 << 12) + 1, deadline(0.0))


@pytest.mark.thorough
def test_a_turn_lasts_until_the_last_who_holds_it_is_done():
    turns = Turns()
    with turns.take("a", deadline(0.0)) as turn, turns.take("b", deadline(0.0)):
        late = turn.share()
    with pytest.raises(OutOfTime):
        turns.take("a", deadline(0.0))
    late.release()
    turns.take("a", deadline(0.0)).release()
