"""Nodes for tests: a server in a thread of this process, or in a process of its own."""

import json
import sys
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from pathlib import Path
from shutil import rmtree
from signal import SIGCONT
from subprocess import Popen
from tempfile import mkdtemp
from threading import Thread

import pytest

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server.client_check import Allowed
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.node.client.client import NodeClient
from hexkv.adapters.node.server.limits import ClientLimits
from hexkv.adapters.node.server.server import NodeServer
from hexkv.adapters.node.server.taking import Predecessor
from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS, now, soon, spec
from hexkv.peers.serving.served import ServedChunks
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import Namespace, frame_bytes
from processes import STARTING, freeze, until

FRAME = frame_bytes(LAYOUT.chunk_bytes(TOKENS))
MEMORY = "memory store"
NAMESPACE = Namespace("contract", LAYOUT)
PATIENT = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0, "close": 60.0}


class Ahead(SystemClock):
    """The system's clock, or one that a test has put forward."""

    seconds = 0.0

    def now(self):
        return super().now() + self.seconds


class Engines:
    """What nodes have in common: engines that use them."""

    path = Path()

    def engine(self, namespace=NAMESPACE, **sections):
        """An engine of this process that uses the node."""
        wanted = {"node": str(self.path), "chunk": {"size": TOKENS}, "deadlines": PATIENT}
        return build(load(environ={}, overrides=wanted | sections), namespace)

    def client(self):
        """A client alone."""
        return NodeClient(self.path, SystemClock())

    def configured(self, root, *, slots, memory, frame, disk, **sections):
        tiers = [{"store": "memory", "budget": memory * frame}]
        if disk:
            tiers.append({"store": "disk", "settings": {"root": str(root / "disk")}})
        pool = {"bytes": slots * frame, "provider": "shared"}
        return {"pool": pool, "tiers": tiers} | sections


class NodeProcess(Engines):
    """A node in a process of its own: it can be killed, and stopped."""

    def __init__(
        self, root, *, slots=32, memory=12, frame=FRAME, disk=True, options=(), **sections
    ):
        self.folder = Path(mkdtemp(prefix="hexkv"))
        self.path = self.folder / "node.sock"
        self._options = options
        self.file = self.folder / "hexkv.yaml"
        wanted = self.configured(
            root, slots=slots, memory=memory, frame=frame, disk=disk, **sections
        )
        self.file.write_text(json.dumps(wanted))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        rmtree(self.folder)

    def start(self, *options):
        self.process = self.begin(*options)
        until(self._up, STARTING)

    def begin(self, *options):
        """A process that is to be the node; it need not become one."""
        command = [sys.executable, "-m", "hexkv.plugins", "node", *self.arguments(), *options]
        with (self.folder / "log").open("a") as log:
            return Popen(command, stdout=log, stderr=log)

    def arguments(self):
        """What its process is started with."""
        return ["--config", self.file, "--socket", self.path, "--json", *self._options]

    def take_over(self):
        """Have a new process take the node's place; the old one has ended then."""
        old = self.process
        self.start("--take-over")
        assert old.wait(60) == 0, self.said()

    def _up(self):
        assert self.process.poll() is None, self.said()
        return self.path.exists() and f'"pid": {self.process.pid}' in self.said()

    def said(self):
        """What the node's processes wrote."""
        return (self.folder / "log").read_text()

    def stop(self):
        self.thaw()
        self.process.terminate()
        self.process.wait(60)

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def freeze(self):
        freeze(self.process)

    def thaw(self):
        with suppress(ProcessLookupError):
            self.process.send_signal(SIGCONT)

    def at_rest(self):
        """Nobody has anything any more, as a new client sees it."""
        client = self.client()
        try:

            def rest():
                told = client.health(soon())
                return told is not None and set(told.leases) <= {MEMORY}

            until(rest)
        finally:
            client.close()


class Node(Engines):
    """A node that serves from a thread."""

    def __init__(  # noqa: PLR0913
        self,
        root,
        *,
        slots=32,
        memory=12,
        frame=FRAME,
        disk=True,
        limits=None,
        allowed=None,
        clients=64,
        clock=None,
        **sections,
    ):
        # Unix sockets have short paths.
        self.folder = Path(mkdtemp(prefix="hexkv"))
        self.path = self.folder / "node.sock"
        self.clock = clock or Ahead()
        self._overrides = self.configured(
            root, slots=slots, memory=memory, frame=frame, disk=disk, **sections
        )
        self._limits = limits or ClientLimits(slots * frame)
        self._options = {"clients": clients, "parting": 0.1}
        if allowed is not None:
            self._options["allowed"] = allowed
        self._opened = ExitStack()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        for left in self.folder.iterdir():
            left.unlink()
        self.folder.rmdir()

    def start(self):
        listener = Listener(Address(path=str(self.path)))
        self.served = self._opened.enter_context(self.cache())
        self._serve(listener)

    def cache(self, region=None, stores=None):
        """What it serves, in memory of its own or in that of another node."""
        loaded = load(environ={}, overrides=self._overrides)
        return ServedChunks(
            loaded, discover(), self.clock, encodes=True, region=region, stores=stores
        )

    @contextmanager
    def succeeded(self, served, listening, inherited):
        """Another node in the place of this one, which has handed everything over."""
        heir = copy(self)
        heir._opened = ExitStack()
        heir.served = served
        heir._serve(
            Listener(Address(path=str(self.path)), inherited=listening), inherited=inherited
        )
        yield heir
        heir.stop()

    def _serve(self, listener, **options):
        self.server = NodeServer(
            self.served, listener, self.clock, self._limits, **self._options, **options
        )
        self._thread = Thread(target=self.server.run, daemon=True)
        self._thread.start()

    def stop(self):
        self.server.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._opened.close()
        self.server.close()

    def ledger(self):
        """Leases on the node's side, without those of its tiers."""
        self.served.chunks.flush(soon())
        ours = self.served._stack.pool.ledger().items()
        return {owner: count for owner, count in ours if owner != MEMORY}

    def at_rest(self):
        """Nobody has anything any more."""
        until(lambda: not self.server.clients)
        until(lambda: not self.ledger())
        assert self.server.leased_bytes == 0


__all__ = ["FRAME", "NAMESPACE", "Allowed", "ClientLimits", "Node", "NodeProcess"]


class OverANode(ChunkCacheContract):
    """The contract of an engine over a node; whoever derives from it makes the engine."""

    @pytest.fixture
    def cache(self, engine):
        return engine.chunks

    @pytest.fixture
    def ledger(self, engine):
        return engine._chunks.ledger

    @pytest.fixture
    def crowd(self, cache):
        def lease_all():
            leases = []
            while found := cache.allocate([spec("crowd")], "crowd", now()):
                leases += found
            return lambda: [lease.release() for lease in leases]

        return lease_all

    @pytest.fixture
    def closed(self, engine, cache):
        engine.close()
        return cache


@contextmanager
def taken_over(node):
    """A second node in this process, which has taken the place of the first."""
    with Predecessor(node.path) as before:
        state = before.take()
        with node.cache(before.region, before.stores) as served:
            inherited = before.adopt(served, state)
            before.gone(served)
            with node.succeeded(served, before.listening, inherited) as heir:
                yield heir


def held(hold):
    return [None if lease is None else bytes(lease.payload) for lease in hold.leases]
