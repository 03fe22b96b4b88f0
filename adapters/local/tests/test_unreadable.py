"""Files that cannot be read, and directories that are gone: what the stores say of them."""

import errno
import logging
import os
import shutil

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.contracts.store._base import write
from hexkv.ports import Failed, Hit, Miss, StoreUnreachable
from media.bad_sectors import BadSectors

A, B = chunk_key("a"), chunk_key("b")
FRAME = bytes(8192)

STORES = {
    "disk": DiskStore,
    "fs": lambda root: SharedFileStore(root, ManualClock(), ttl=None),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    store = STORES[request.param](tmp_path / "c")
    write(store, {A: FRAME, B: FRAME})
    yield store
    store.close()


def outcomes(store):
    return list(store.read([A, B], ListSink(), deadline()))


@each("number", [errno.EIO, errno.EACCES])
def test_a_file_that_cannot_be_read_fails_alone_and_is_named(store, tmp_path, monkeypatch, number):
    sectors = BadSectors(monkeypatch, number)
    sectors(tmp_path / "c", B)
    first, second = outcomes(store)
    assert isinstance(first, Hit)
    assert isinstance(second, Failed)
    assert not isinstance(second.error, StoreUnreachable)
    assert f"{B.hex()}.hexkv" in str(second.error)
    assert os.strerror(number) in str(second.error)[:60], "the cause comes before the path"
    sectors.close()


def test_a_folder_that_may_not_be_searched_is_that_of_its_chunks(store, monkeypatch):
    real = os.open

    def refused(path, *args, **options):
        if str(path).endswith(f"/{B.hex()[32:34]}"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refused)
    assert list(store.contains([A, B], deadline())) == [True, False]
    first, second = outcomes(store)
    assert isinstance(first, Hit)
    assert isinstance(second, Failed)


def test_a_directory_that_is_gone_is_one_line_and_its_return_another(store, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    shutil.rmtree(tmp_path / "c")
    for _ in range(3):
        assert outcomes(store) == [Miss(), Miss()]
    (line,) = caplog.messages
    assert f"{tmp_path / 'c'} is gone" in line
    write(store, {A: FRAME})
    assert isinstance(outcomes(store)[0], Hit)
    assert len(caplog.messages) == 2
    assert f"{tmp_path / 'c'} is there again" in caplog.messages[1]
    STORES["disk"](tmp_path / "c").close()  # of the same format
