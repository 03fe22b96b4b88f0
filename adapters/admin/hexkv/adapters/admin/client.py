"""The client of administration: each verb has a connection of its own."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hexkv.adapters.admin import wire
from hexkv.adapters.admin.wire import VERBS, ClientMessage
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage, ConnectionBroken, OutOfTime
from hexkv.adapters.net.rpc.answer import Answer
from hexkv.adapters.net.rpc.link import Link
from hexkv.adapters.net.rpc.wire import Status
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.stream import connect
from hexkv.ports import (
    Administration,
    ChunkKey,
    ClaimState,
    Clock,
    Deadline,
    Health,
    InvalidRequest,
    Member,
    NamespaceState,
    Peer,
    Progress,
    Selection,
    StoreUnreachable,
    TierState,
    TraceStep,
    Watch,
    Why,
    WorkReport,
)

_CONNECTING = 10.0

_LOOK_UP = 0.1
"""Seconds of waiting between two calls of a watch."""


class RemoteAdministration:
    """The verbs of a cache in another process; see :class:`hexkv.ports.Administration`.

    Each verb may also raise ``StoreUnreachable``. Safe from any thread. Holds no connection between
    two verbs.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock,
        *,
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
        patience: float = 120.0,
    ) -> None:
        """Create a client of the server at *address*.

        Args:
            address: at which it listens.
            clock: for deadlines.
            secret: that it requires.
            tls: encrypts, if given.
            patience: seconds that it may take for a few chunks, or for a verb that reports no
                progress.
        """
        self._address = address
        self._clock = clock
        self._secret = secret
        self._tls = tls
        self._patience = patience

    def status(self) -> Health:
        return cast("Health", self._call("status"))

    def steps(self) -> Sequence[TraceStep]:
        return cast("Sequence[TraceStep]", self._call("steps"))

    def tiers(self) -> Sequence[TierState]:
        return cast("Sequence[TierState]", self._call("tiers"))

    def namespaces(self) -> Sequence[NamespaceState]:
        return cast("Sequence[NamespaceState]", self._call("namespaces"))

    def lookup(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        found: list[str | None] = []
        for start in range(0, len(keys), wire.MAX_KEYS):
            found += self._call("lookup", tuple(keys[start : start + wire.MAX_KEYS]))
        return found

    def explain(self, keys: Sequence[ChunkKey]) -> Sequence[Mapping[str, Why]]:
        found: list[Mapping[str, Why]] = []
        for start in range(0, len(keys), wire.MAX_KEYS):
            found += self._call("explain", tuple(keys[start : start + wire.MAX_KEYS]))
        return found

    def member(self) -> Member | None:
        return cast("Member | None", self._call("member"))

    def listing(self, chosen: Selection, after: ChunkKey | None = None) -> Sequence[ChunkKey]:
        return cast("Sequence[ChunkKey]", self._call("listing", chosen, after))

    def holds(self, keys: Sequence[ChunkKey]) -> Sequence[str | None]:
        return cast("Sequence[str | None]", self._call("holds", tuple(keys)))

    def room(self) -> int:
        return int(self._call("room"))

    def claim(
        self,
        token: str,
        keys: Sequence[ChunkKey],
        seconds: float,
        leaving: bool = False,
        read: bool = False,
    ) -> Sequence[ClaimState]:
        states = self._call("claim", token, tuple(keys), seconds, leaving, read)
        return cast("Sequence[ClaimState]", states)

    def fetch(
        self, keys: Sequence[ChunkKey], origin: Peer, watch: Watch | None = None
    ) -> WorkReport:
        return cast("WorkReport", self._call("fetch", tuple(keys), origin, watch=watch))

    def give_up(self, token: str, keys: Sequence[ChunkKey]) -> WorkReport:
        return cast("WorkReport", self._call("give_up", token, tuple(keys)))

    def release(self, token: str) -> int:
        return int(self._call("release", token))

    def pin(self, owner: str, chosen: Selection, seconds: float | None = None) -> int:
        return int(self._call("pin", owner, chosen, seconds))

    def unpin(self, owner: str) -> int:
        return int(self._call("unpin", owner))

    def freeze(self, frozen: bool = True) -> None:
        self._call("freeze", frozen)

    def flush(self, seconds: float | None = None) -> bool:
        return bool(self._call("flush", seconds, patience=seconds or 0.0))

    def clear(
        self, chosen: Selection, tiers: Sequence[str] | None = None, watch: Watch | None = None
    ) -> WorkReport:
        named = None if tiers is None else tuple(tiers)
        return cast("WorkReport", self._call("clear", chosen, named, watch=watch))

    def copy(
        self, chosen: Selection, source: str, target: str, watch: Watch | None = None
    ) -> WorkReport:
        return cast("WorkReport", self._call("copy", chosen, source, target, watch=watch))

    def move(
        self, chosen: Selection, source: str, target: str, watch: Watch | None = None
    ) -> WorkReport:
        return cast("WorkReport", self._call("move", chosen, source, target, watch=watch))

    def compress(
        self, chosen: Selection, tier: str, serde: str, watch: Watch | None = None
    ) -> WorkReport:
        return cast("WorkReport", self._call("compress", chosen, tier, serde, watch=watch))

    def drain(self, tier: str, target: str | None = None, watch: Watch | None = None) -> WorkReport:
        return cast("WorkReport", self._call("drain", tier, target, watch=watch))

    def attach(self, tier: Mapping[str, object], position: int | None = None) -> None:
        self._call("attach", dict(tier), position)

    def detach(self, tier: str) -> bool:
        return bool(self._call("detach", tier))

    def rules(
        self,
        tier: str,
        *,
        reads: bool | None = None,
        writes: str | None = None,
        promotes: bool | None = None,
    ) -> None:
        self._call("rules", tier, reads, writes, promotes)

    def adjust(self, settings: Mapping[str, object]) -> None:
        self._call("adjust", dict(settings))

    def _call(
        self, name: str, *given: Any, watch: Watch | None = None, patience: float = 0.0
    ) -> Any:
        arguments = VERBS[name].arguments.dump_json(given)
        body = b'["%s",%s]' % (name.encode(), arguments)
        if len(body) > wire.MAX_REQUEST:
            raise InvalidRequest(f"more than {wire.MAX_KEYS} keys at once")
        link = None
        try:
            link = self._connect()
            answer = link.ask(ClientMessage.VERB, body, Deadline.after(self._clock, self._patience))
            return self._hear(link, answer, name, watch, self._patience + patience)
        except OutOfTime as error:
            raise StoreUnreachable(f"{self._address} does not answer") from error
        except BadMessage as error:
            raise StoreUnreachable(f"{self._address}: {error}") from error
        finally:
            if link is not None:
                link.abandon()

    def _connect(self) -> Link:
        until = Deadline.after(self._clock, _CONNECTING)
        stream = connect(self._address, until, self._tls)
        try:
            stream.secure(until)
            wire.HANDSHAKE.greet(stream, until, self._secret)
        except ConnectionBroken as error:
            stream.close()
            raise ConnectionBroken(f"{error}: it may refuse this client; see its log") from error
        except BaseException:
            stream.close()
            raise
        return Link(stream.socket, self._clock, lambda: None, most=wire.MAX_ANSWER)

    def _hear(
        self, link: Link, answer: Answer | None, name: str, watch: Watch | None, patience: float
    ) -> Any:
        if answer is None:
            raise OutOfTime("the verb was not sent")
        progress: Progress | None = None
        until = Deadline.after(self._clock, patience)
        while not answer.final:
            soon = until if watch is None else Deadline.after(self._clock, _LOOK_UP)
            if link.wait(answer, soon, begun=True) and not answer.final:
                (progress,) = wire.read(wire.PROGRESS, answer.body)
                answer.told = False
                until = Deadline.after(self._clock, patience)
            elif not link.alive:
                raise ConnectionBroken(f"{self._address} closed the connection")
            elif until.expired:
                raise OutOfTime("no answer")
            if watch is not None and progress is not None and not watch(progress):
                link.tell(ClientMessage.STOP, b"", until)
                watch = None
        if answer.status is Status.DONE:
            (found,) = wire.read(VERBS[name].answer, answer.body)
            return found
        raise wire.read_error(answer.body)


if TYPE_CHECKING:

    def _is_administration(remote: RemoteAdministration) -> Administration:
        return remote
