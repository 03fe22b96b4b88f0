"""Frames go past the host by cuFile's rules where there is a way, and as from disk elsewhere."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devices.device_rooms import Memory, fetch, past_the_host, put
from hexkv.adapters.gds.cufile import NAMES, library_path
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.plugin import PluginContract
from hexkv.ports import PAGE, Corrupt, Failed, Hit, Miss, TimedOut
from media.chunk_files import Files
from media.folder_contract import FolderContract

HERE = Path(__file__).parent
KEYS = [chunk_key(name) for name in "abc"]
MIB = 1 << 20


@pytest.mark.thorough
class TestGds(FolderContract):
    """All but what goes past the host is as on disk."""

    by_device = staticmethod(lambda store: store)

    @pytest.fixture
    def aside(self, raw):
        return raw.aside

    @pytest.fixture
    def make(self, open_gds, cufile):
        return lambda root: self.by_device(open_gds(cufile.path, root))


@pytest.mark.thorough
class TestGdsPastTheHost(TestGds):
    """Each frame that has more than a page comes by cuFile."""

    by_device = staticmethod(past_the_host)


@pytest.mark.thorough
class TestPlugin(PluginContract):
    entry_point = "gds"


def test_a_frame_is_read_to_a_device_by_the_rules_of_cufile(open_gds, cufile):
    """Aligned, each file registered for the read, each room once; no rule of the double broken."""
    store, memory = open_gds(cufile.path), Memory()
    assert store.reads_to_devices
    frames = [put(store, key, PAGE + MIB) for key in KEYS]
    for i, (key, frame) in enumerate(zip(KEYS, frames, strict=True)):
        outcome, come = fetch(store, key, memory, i * MIB, MIB)
        assert (outcome, come) == (Hit(len(frame)), frame)
    cufile.short(256 << 10)
    assert fetch(store, KEYS[0], memory, 0, MIB) == (Hit(len(frames[0])), frames[0])
    assert fetch(store, chunk_key("absent"), memory, 0, MIB)[0] == Miss()
    assert isinstance(fetch(store, KEYS[0], memory, 0, 2 * MIB)[0], Miss)  # of another length
    assert fetch(store, KEYS[0], memory, 0, MIB, deadline(-1.0))[0] == TimedOut()
    assert cufile.broken == 0
    assert cufile.held == (0, 1)
    assert cufile.calls("buf") == 1
    assert cufile.calls("handle") == cufile.calls("unhandle") == 5  # the trial's, and four reads'
    store.close()
    assert cufile.held == (0, 0)


@pytest.mark.thorough
def test_rooms_beyond_what_may_be_registered_take_the_place_of_idle_ones(open_gds, cufile):
    store = open_gds(cufile.path)
    frame = put(store, KEYS[0], 2 * PAGE)
    rooms = [Memory(PAGE) for _ in range(20)]
    for room in (*rooms, rooms[0]):
        assert fetch(store, KEYS[0], room, 0, PAGE) == (Hit(2 * PAGE), frame)
    assert cufile.held == (0, 16)
    assert cufile.broken == 0


@pytest.mark.thorough
def test_a_store_that_is_closed_amid_a_read_lets_go_of_its_room_after_it(open_gds, cufile):
    store, memory = open_gds(cufile.path), Memory()
    frame = put(store, KEYS[0], 2 * PAGE)
    driver = store._driver
    reading = driver._read

    def closing(*arguments):
        store.close()
        assert cufile.held == (1, 1)
        return reading(*arguments)

    driver._read = closing
    assert fetch(store, KEYS[0], memory, 0, PAGE) == (Hit(2 * PAGE), frame)
    assert cufile.held == (0, 0)
    assert cufile.broken == 0


@pytest.mark.thorough
@pytest.mark.parametrize("number", sorted({*NAMES} - {5026, 5023}))
def test_each_error_of_cufile_leaves_a_store_as_disk_with_one_line(
    number, open_gds, cufile, caplog, tmp_path_factory
):
    memory = Memory()
    for function in ("open", "handle"):
        cufile.fail(function, number)
        with caplog.at_level(logging.WARNING, logger="hexkv"):
            caplog.clear()
            store = open_gds(cufile.path, tmp_path_factory.mktemp("frames"))
        assert not store.reads_to_devices
        (line,) = [r.getMessage() for r in caplog.records if "gds" in r.getMessage()]
        assert f"({number})" in line
        frame, sink = put(store, KEYS[0], 2 * PAGE), ListSink()
        assert store.read(KEYS[:1], sink, deadline()) == [Hit(2 * PAGE)]
        assert sink.data(0) == frame
        assert isinstance(fetch(store, KEYS[0], memory, 0, PAGE)[0], Miss)
        cufile.fail(function, 0)
    # Later: three reads in a row are tried, all said to have failed; then it is given up.
    for function in ("buf", "read"):
        store = open_gds(cufile.path, tmp_path_factory.mktemp("frames"))
        put(store, KEYS[0], 2 * PAGE)
        cufile.fail(function, number)
        with caplog.at_level(logging.WARNING, logger="hexkv"):
            caplog.clear()
            for _ in range(3):
                assert store.reads_to_devices
                outcome, _ = fetch(store, KEYS[0], memory, 0, PAGE)
                assert isinstance(outcome, Failed)
                assert f"({number})" in str(outcome.error)
        assert not store.reads_to_devices
        assert len(caplog.records) == 1
        cufile.fail(function, 0)
    assert cufile.held[0] == 0, "a file stayed registered after a call that failed"


@pytest.mark.thorough
def test_an_error_of_the_system_is_told_as_such(open_gds, cufile):
    store, memory = open_gds(cufile.path), Memory()
    put(store, KEYS[0], 2 * PAGE)
    cufile.fail("read", 5)
    outcome, _ = fetch(store, KEYS[0], memory, 0, PAGE)
    assert "Input/output error" in str(outcome.error)
    cufile.fail("read", 0)
    assert fetch(store, KEYS[0], memory, 0, PAGE)[0] == Hit(2 * PAGE)


@pytest.mark.thorough
def test_a_file_that_ends_while_it_is_read_is_corrupt(open_gds, cufile, tmp_path, monkeypatch):
    store, memory = open_gds(cufile.path), Memory()
    put(store, KEYS[0], 4 * PAGE)
    real, seen = os.fstat, []

    def longer(file):
        found = real(file)
        seen.append(found)
        if len(seen) == 2:  # the first is of whoever opens it
            os.truncate(Files(tmp_path).path(KEYS[0]), 2 * PAGE)
        return found

    monkeypatch.setattr(os, "fstat", longer)
    assert isinstance(fetch(store, KEYS[0], memory, 0, 3 * PAGE)[0], Corrupt)


@pytest.mark.thorough
@pytest.mark.parametrize("library", ["", "no/such/library.so", "libc.so.6"])
def test_without_a_library_of_cufile_the_store_is_disk(library, open_gds, caplog):
    if not library and library_path():
        pytest.skip("there is a libcufile here")
    with caplog.at_level(logging.WARNING, logger="hexkv"):
        store = open_gds(library)
    assert not store.reads_to_devices
    assert len([r for r in caplog.records if "the host reads, as with disk" in r.message]) == 1
    frame, sink = put(store, KEYS[0], 9000), ListSink()
    assert store.read(KEYS[:1], sink, deadline()) == [Hit(9000)]
    assert sink.data(0) == frame


@pytest.mark.thorough
def test_an_engine_loads_past_the_host_into_pages_that_kernels_fill():
    """In a process of its own, for Triton decides while it is imported whether to interpret."""
    pytest.importorskip("triton", reason="Triton exists for Linux only")
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
    done = subprocess.run(
        [*pytest_, HERE / "interpreted"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
