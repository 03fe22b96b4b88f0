"""The store contract on the files of a directory: subclasses say how one is opened, by ``make``."""

from contextlib import ExitStack, closing

import pytest

from hexkv.contracts.store import StoreContract
from media.bad_sectors import BadSectors
from media.chunk_files import Files, Folder


class FolderContract(StoreContract):
    @pytest.fixture
    def make(self):
        """Opens a store in a directory; closed after the test."""
        raise NotImplementedError(f"give {type(self).__name__} a `make` fixture")

    @pytest.fixture
    def opened(self, make):
        with ExitStack() as stores:
            yield lambda root: stores.enter_context(closing(make(root)))

    @pytest.fixture
    def store(self, opened, tmp_path):
        return opened(tmp_path)

    @pytest.fixture
    def raw(self, tmp_path):
        return Files(tmp_path)

    @pytest.fixture
    def huge(self, raw):
        return raw.put_zeros

    @pytest.fixture
    def unreadable(self, tmp_path, monkeypatch):
        with closing(BadSectors(monkeypatch)) as sectors:
            yield lambda key: sectors(tmp_path, key)

    @pytest.fixture
    def sibling(self, opened, tmp_path_factory):
        return opened(tmp_path_factory.mktemp("beside"))

    @pytest.fixture
    def service(self, store, tmp_path):
        return Folder(tmp_path)

    @pytest.fixture
    def reopen(self, opened, store, tmp_path):
        last = store

        def again():
            nonlocal last
            last.close()
            last = opened(tmp_path)
            return last

        return again
