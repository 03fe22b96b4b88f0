"""The store keeps the contract where kvikio reads each frame, in its mode without cuFile."""

import os

import pytest

from devices.device_rooms import Memory, fetch, past_the_host, put
from hexkv.contracts.doubles import chunk_key
from hexkv.ports import PAGE, Corrupt, Failed, Hit, Miss
from media.chunk_files import Files
from media.folder_contract import FolderContract

KEY = chunk_key("a")


@pytest.fixture
def open_kvikio(open_gds):
    return lambda *place: open_gds("", *place, driver="kvikio")


class TestKvikio(FolderContract):
    @pytest.fixture
    def make(self, open_kvikio):
        def make(root):
            store = open_kvikio(root)
            assert store.reads_to_devices
            return past_the_host(store)

        return make


def test_a_frame_is_read_by_kvikio_and_nothing_stays_open(open_kvikio):
    store, memory = open_kvikio(), Memory()
    frame = put(store, KEY, PAGE + (1 << 20) + 4096)
    size = len(frame) - PAGE
    assert fetch(store, KEY, memory, PAGE, size) == (Hit(len(frame)), frame)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert fetch(store, KEY, memory, 0, size) == (Hit(len(frame)), frame)
    assert len(os.listdir("/proc/self/fd")) == before
    assert fetch(store, chunk_key("absent"), memory, 0, PAGE)[0] == Miss()


def test_a_file_that_ends_while_it_is_read_is_no_hit(open_kvikio, tmp_path, monkeypatch):
    store, memory = open_kvikio(), Memory()
    put(store, KEY, 4 * PAGE)
    real, seen = os.fstat, []

    def longer(file):
        found = real(file)
        seen.append(found)
        if len(seen) == 2:  # the first is of whoever opens it
            os.truncate(Files(tmp_path).path(KEY), 2 * PAGE)
        return found

    monkeypatch.setattr(os, "fstat", longer)
    outcome, _ = fetch(store, KEY, memory, 0, 3 * PAGE)
    assert isinstance(outcome, Failed | Corrupt)


def test_the_log_says_by_which_way_frames_are_read(open_kvikio, caplog):
    caplog.set_level("INFO", logger="hexkv")
    open_kvikio()
    assert "read into devices by kvikio without cuFile" in caplog.text
