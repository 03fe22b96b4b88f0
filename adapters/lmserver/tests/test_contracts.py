"""The contracts that the store and the plugin keep, against a real server process."""

from contextlib import closing
from typing import ClassVar

import pytest

from hexkv.contracts.plugin import PluginContract
from media.chunk_files import File
from servers.lm_contract import SIZE, OverTheWire, behind_proxy, breakable  # noqa: F401
from servers.lm_servers import SMALL, Loopback, served


@pytest.fixture(scope="module")
def directory_server(tmp_path_factory):
    with served(*SMALL, "--dir", str(tmp_path_factory.mktemp("dir"))) as server:
        yield server


@pytest.fixture(scope="module")
def breakable_directory(tmp_path_factory):
    with behind_proxy("--dir", str(tmp_path_factory.mktemp("breakable"))) as server:
        yield server


class OverAFile:
    """What a connection and a file can do, one after the other."""

    def __init__(self, line, file):
        self.line, self.file = line, file

    def write(self, frame):
        self.line.write(frame)
        self.file.write(frame)

    def read(self, into):
        self.file.read(into)
        self.line.read(into)


@pytest.mark.thorough  # ``hexkv check`` tries every level of it in ``make test``
class TestHexkvStore(OverTheWire):
    pass


@pytest.mark.thorough
class TestHexkvStoreWithChecksums(OverTheWire):
    settings: ClassVar = {"checksums": True}


@pytest.mark.thorough
class TestHexkvStoreOnADirectory(OverTheWire):
    @pytest.fixture
    def address(self, directory_server):
        directory_server.clear()
        return directory_server.address

    @pytest.fixture
    def service(self, breakable_directory):
        return breakable_directory

    @pytest.fixture
    def limit(self, tmp_path):
        with closing(Loopback(SIZE)) as line:
            yield OverAFile(line, File(tmp_path / "file", direct=False))


class TestPlugin(PluginContract):
    entry_point = "lmserver"
