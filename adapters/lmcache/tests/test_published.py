"""The published `lmcache` package on the other end of the historic wire."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.ports import Hit, Item, Miss, Stored
from processes import PATIENCE, listening_ports

PLACE = Path(sys.prefix) / "lmcache"
"""Where `make test` puts it: its dependencies are not for this environment."""


@pytest.fixture(scope="module")
def environ():
    """For processes that import it."""
    if not (PLACE / "lmcache").is_dir():
        if os.environ.get("CI"):
            pytest.fail("lmcache is missing, and CI skips nothing")
        pytest.skip("lmcache is missing: make .venv/lmcache/made")
    return os.environ | {"PYTHONPATH": str(PLACE), "PYTHONWARNINGS": "ignore"}


TALK = """
import socket, sys
import torch
from lmcache.utils import parse_cache_key
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.protocol import ClientCommand, ClientMetaMessage, ServerMetaMessage

sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60)
key = parse_cache_key("org/model@2@1@-3f2a@bfloat16")
shape, data = torch.Size([2, 4, 8, 16]), bytes(range(256)) * 8

def ask(command, length=0, fmt=MemoryFormat.KV_2LTD, dtype=torch.float16, dims=(0, 0, 0, 0)):
    message = ClientMetaMessage(command, key, length, fmt, dtype, torch.Size(dims))
    sock.sendall(message.serialize())

def hear():
    return ServerMetaMessage.deserialize(sock.recv(ServerMetaMessage.packlength()))

ask(ClientCommand.EXIST)
assert hear().code == 400
ask(ClientCommand.PUT, len(data), MemoryFormat.KV_2LTD, torch.bfloat16, shape)
sock.sendall(data)
ask(ClientCommand.EXIST)
assert hear().code == 200
ask(ClientCommand.GET)
got = hear()
assert (got.code, got.length, got.fmt) == (200, len(data), MemoryFormat.KV_2LTD)
assert (got.dtype, got.shape) == (torch.bfloat16, shape)
back = b""
while len(back) < len(data):
    back += sock.recv(len(data) - len(back))
assert back == data
ask(ClientCommand.HEALTH)
assert hear().code == 200
"""


@pytest.mark.thorough
def test_its_messages_are_understood_by_our_server(server, environ):
    command = [sys.executable, "-c", TALK, str(server.port)]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def its_server(environ):
    # It says nothing of where, so the kernel is asked.
    command = [sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", "0"]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if "Server started" in line:
                break
        ports = listening_ports(process.pid)
        assert len(ports) == 1, "".join(said)
        yield f"127.0.0.1:{ports.pop()}"
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def test_our_store_keeps_chunks_on_its_server(open_store, soon, environ):
    with its_server(environ) as address:
        store = open_store(address, "lm")
        frames = {chunk_key(str(i)): bytes([i]) * (i * 5000) for i in range(6)}
        items = [Item(key, memoryview(frame)) for key, frame in frames.items()]
        assert store.write(items, soon) == [Stored(len(frame)) for frame in frames.values()]
        keys = [*frames, chunk_key("absent")]
        assert list(store.contains(keys, soon)) == [True] * 6 + [False]
        sink = ListSink()
        outcomes = store.read(keys, sink, soon)
        assert outcomes == [*(Hit(len(frame)) for frame in frames.values()), Miss()]
        assert [sink.data(i) for i in range(6)] == list(frames.values())
        assert store.delete(keys[5:], soon) == [True, False]
        assert list(store.contains(keys[4:], soon)) == [True, False, False]
        assert store.read(keys[5:], ListSink(), soon) == [Miss(), Miss()]
        assert open_store(address, "lm").read(keys[5:6], ListSink(), soon) == [Miss()]
