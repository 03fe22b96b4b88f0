"""A listener: who serves a path, and what a killed one left."""

import os
import socket
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.net.unix import peer_of
from hexkv.ports import ConfigError


@pytest.fixture
def path():
    folder = Path(mkdtemp(prefix="hexkv"))
    yield folder / "socket"
    rmtree(folder)


def test_a_path_has_one_listener_and_what_a_killed_one_left_is_taken_over(path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with Listener(Address(path=str(path)), 0o640) as listener:
        assert path.stat().st_mode & 0o777 == 0o640
        with pytest.raises(ConfigError, match="another process serves it"):
            Listener(Address(path=str(path)))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            with listener.accept() as sock:
                assert peer_of(sock) == (os.getpid(), os.getuid(), os.getgid())
        listener.wake()
        assert listener.accept() is None
    assert not [*path.parent.iterdir()]
    Listener(Address(path=str(path))).close()
    lives = Listener(Address(path=str(path.with_name("vllm-7.sock"))))
    for name in ("vllm-12.sock", "vllm-12.sock.lock", "other-12.sock", "other-12.sock.lock"):
        if name.endswith(".lock"):
            path.with_name(name).touch()
        else:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(path.with_name(name)))
    with Listener(Address(path=str(path.with_name("vllm-30.sock")))):
        assert not path.with_name("vllm-12.sock").exists(), "its process has ended"
        assert not path.with_name("vllm-12.sock.lock").exists()
        assert path.with_name("other-12.sock").exists()
        assert path.with_name("vllm-7.sock").exists()
    lives.close()


def test_where_nobody_can_listen_is_said(path):
    for address in (Address(path=f"{path}/no/folder"), Address("256.0.0.1", 7)):
        with pytest.raises(ConfigError, match="cannot listen at"):
            Listener(address)
