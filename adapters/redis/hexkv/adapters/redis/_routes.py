"""Routes from chunks to servers: a fixed server, the current master, or by cluster slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.redis._replies import Redirect, error_of
from hexkv.adapters.redis._server import Login, Server
from hexkv.adapters.redis._wire import ErrorReply, Reply, request
from hexkv.ports import Deadline, StoreError, StoreUnreachable

Task = tuple[Server, Sequence[int]]
"""A server, and the places in a batch of its chunks."""

_QUESTION = 1.0
"""Seconds that one server has to name the others: the next one may know them, too."""


class Route(Protocol):
    """Finds servers. Safe from any thread; only `split` and `primaries` use the network."""

    def split(self, keys: Sequence[bytes], deadline: Deadline) -> list[Task]:
        """The servers of *keys*, which include their prefix.

        Raises:
            OutOfTime: no server answered in time.
            StoreUnreachable: no server can answer at present.
            StoreError: the servers do not match the settings.
        """
        ...

    def primaries(self, deadline: Deadline) -> Sequence[Server]:
        """Every server that has chunks of its own; errors as for :meth:`split`."""
        ...

    def follow(self, redirect: Redirect) -> Server:
        """The server that *redirect* names.

        Raises:
            StoreError: the topology has no redirects.
        """
        ...

    def doubt(self) -> None:
        """Note a failure: the next call looks up the servers again."""
        ...

    def close(self) -> None:
        """Close all connections, and break those in use."""
        ...


class Single:
    """One server."""

    def __init__(self, address: Address, login: Login) -> None:
        self._server = Server(address, login)

    def split(self, keys: Sequence[bytes], deadline: Deadline) -> list[Task]:
        del deadline
        return [(self._server, range(len(keys)))]

    def primaries(self, deadline: Deadline) -> Sequence[Server]:
        del deadline
        return [self._server]

    def follow(self, redirect: Redirect) -> Server:
        raise StoreError(f"the server is one of a cluster (it names {redirect.address})")

    def doubt(self) -> None:
        return

    def close(self) -> None:
        self._server.close()


class Servers:
    """The known servers, by address."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._servers: dict[Address, Server] = {}
        self._lock = Lock()
        self._closed = False

    def at(self, address: Address) -> Server:
        """The server at *address*.

        Raises:
            StoreError: closed.
        """
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            server = self._servers.get(address)
            if server is None:
                server = self._servers[address] = Server(address, self._login)
            return server

    def keep(self, addresses: Sequence[Address]) -> None:
        """Close and forget the servers at all other addresses."""
        with self._lock:
            gone = [self._servers.pop(a) for a in list(self._servers) if a not in addresses]
        for server in gone:
            server.close()

    def close(self) -> None:
        """Close all servers."""
        with self._lock:
            self._closed = True
        self.keep([])


def ask(
    servers: Sequence[Server], words: Sequence[str], deadline: Deadline
) -> Iterator[tuple[Server, Reply]]:
    """The replies of *servers*, of each that answers in time.

    Raises:
        StoreUnreachable: after the last one: a server did not answer.
        StoreError: after the last one: a server refused.
    """
    question = request(*words)
    errors: list[StoreError] = []
    for server in servers:
        seconds = min(_QUESTION, deadline.remaining())
        soon = Deadline.after(deadline.clock, seconds)
        try:
            with server.wire(soon) as wire:
                wire.send([question], soon)
                reply = wire.reply(soon)
        except ErrorReply as error:
            errors.append(error_of(error.args[0]))
        except StoreError as error:
            errors.append(error)
        except OutOfTime:
            errors.append(StoreUnreachable(f"{server.address} did not answer"))
        else:
            yield server, reply
    if not errors:
        return
    refusals = [error for error in errors if not isinstance(error, StoreUnreachable)]
    raise (refusals or errors)[0]


class Sentinels:
    """The master that sentinels name."""

    def __init__(
        self, sentinels: Sequence[Address], service: str, guards: Login, login: Login
    ) -> None:
        self._guards = Servers(guards)
        self._sentinels = sentinels
        self._service = service
        self._masters = Servers(login)
        self._master: Server | None = None

    def split(self, keys: Sequence[bytes], deadline: Deadline) -> list[Task]:
        (master,) = self.primaries(deadline)
        return [(master, range(len(keys)))]

    def primaries(self, deadline: Deadline) -> Sequence[Server]:
        master = self._master
        if master is None:
            master = self._master = self._find(deadline)
        return [master]

    def follow(self, redirect: Redirect) -> Server:
        raise StoreError(f"the master is one of a cluster (it names {redirect.address})")

    def doubt(self) -> None:
        self._master = None

    def close(self) -> None:
        self._guards.close()
        self._masters.close()

    def _find(self, deadline: Deadline) -> Server:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        guards = [self._guards.at(address) for address in self._sentinels]
        for _, reply in ask(guards, question, deadline):
            match reply:
                case [bytes() as host, bytes() as port] if port.isdigit():
                    address = Address(host.decode("utf-8", "replace"), int(port))
                    self._masters.keep([address])
                    return self._masters.at(address)
                case None:
                    continue  # this sentinel does not monitor the service
        raise StoreError(f"no sentinel knows {self._service!r}")


class Cluster:
    """The nodes of a cluster, by a key's slot.

    https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
    """

    def __init__(self, seeds: Sequence[Address], login: Login) -> None:
        self._seeds = seeds
        self._servers = Servers(login)
        self._lock = Lock()
        self._slots: list[Address | None] = []
        self._answered: Address | None = None
        self._stale = True

    def split(self, keys: Sequence[bytes], deadline: Deadline) -> list[Task]:
        if self._stale:
            self._look(deadline)
        slots = self._slots
        tasks: dict[Address, list[int]] = {}
        for i, key in enumerate(keys):
            address = slots[key_slot(key)]
            if address is None:
                # Any node answers with a redirect, or that no node has the slot.
                address = self._answered or self._seeds[0]
            tasks.setdefault(address, []).append(i)
        return [(self._servers.at(address), which) for address, which in tasks.items()]

    def primaries(self, deadline: Deadline) -> Sequence[Server]:
        if self._stale:
            self._look(deadline)
        return [self._servers.at(address) for address in dict.fromkeys(filter(None, self._slots))]

    def follow(self, redirect: Redirect) -> Server:
        self._stale = self._stale or not redirect.asking
        return self._servers.at(redirect.address)

    def doubt(self) -> None:
        self._stale = True

    def close(self) -> None:
        self._servers.close()

    def _look(self, deadline: Deadline) -> None:
        """Query the slots: first the node that answered last, then all others, then the seeds."""
        known = [] if self._answered is None else [self._answered]
        order = dict.fromkeys([*known, *filter(None, dict.fromkeys(self._slots)), *self._seeds])
        servers = [self._servers.at(address) for address in order]
        try:
            server, reply = next(ask(servers, ("CLUSTER", "SLOTS"), deadline))
        except StoreUnreachable:
            if self._slots:
                return  # keep the old map: its nodes fail or answer one by one
            raise
        slots = slots_of(reply, server.address)
        with self._lock:
            self._slots = slots
            self._answered = server.address
            self._stale = False
        self._servers.keep([*self._seeds, server.address, *filter(None, set(slots))])


def slots_of(reply: Reply, asked: Address) -> list[Address | None]:
    """The node of each slot, by slot number, from the answer to ``CLUSTER SLOTS``.

    Raises:
        StoreError: *reply* is not such an answer.
    """
    slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for row in reply if isinstance(reply, list) else [reply]:
        match row:
            case [int() as first, int() as last, [bytes() | None as host, int() as port, *_], *_]:
                # A node that does not know its own host name omits it.
                address = Address(host.decode() if host else asked.host, port)
            case _:
                raise StoreError(f"{asked} sends no slots: {row!r}")
        if last >= len(slots):
            raise StoreError(f"{asked} names a slot {last}")
        slots[first : last + 1] = [address] * (last + 1 - first)
    return slots
