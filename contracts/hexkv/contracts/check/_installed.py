"""Fresh, empty candidates of an installed adapter, also on a service that others use."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from hexkv.contracts.check import Candidate
from hexkv.contracts.check._apart import Isolated, RawApart, Salt, apart, sweep
from hexkv.contracts.check._limits import Loopback
from hexkv.contracts.doubles import deadline
from hexkv.contracts.faults.apart import ProxyApart
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.values import at_home
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import AdapterSpec, OpenContext, Replacing
from hexkv.ports import (
    ChunkStore,
    ConfigError,
    DeviceKV,
    StoreError,
    SupportsScan,
    TransferChannel,
)

if TYPE_CHECKING:  # pytest must be the first to import a contract
    from hexkv.contracts.store import Limit
    from hexkv.plugins.spec import RawAccess


@dataclass(frozen=True, slots=True)
class Installed:
    """Opens an adapter as a configuration does, each time in a place of its own.

    The adapter's spec defines how to give it one (:data:`~hexkv.plugins.spec.Isolation`). A
    service is never flushed: the chunks written are deleted one by one. An adapter without
    isolation whose settings name a place is opened in that place, which is emptied before and
    after.
    """

    registry: Registry
    spec: AdapterSpec
    settings: Mapping[str, object]
    _looked: list[bool] = field(default_factory=list, init=False)

    @property
    def exposed(self) -> bool:
        """True if a check would write and delete at the place of the settings, among others' data.

        Numbers name no place; any other setting that the user gave, or any text, may name one.
        """
        if self.spec.kind != "store" or self.spec.isolate is not None:
            return False
        parsed = self.registry.parse("store", self.spec.name, self.settings)
        values = [getattr(parsed, setting.name, None) for setting in fields(self.spec.settings)]
        return bool(self.settings) or not all(
            value is None or isinstance(value, int | float) or not value for value in values
        )

    @contextmanager
    def __call__(self, wanted: Collection[str]) -> Iterator[Candidate]:
        if self.spec.kind != "store":
            built = self._built()
            if self.spec.kind == "device" and not isinstance(built, DeviceKV):
                raise ConfigError(
                    f"{self.spec.name}: it makes windows on its host's memory; give hexkv check"
                    " a function that makes one, as module:function"
                )
            if self.spec.kind == "channel":
                yield self._channel(built)
            else:
                yield Candidate(built)
            return
        with ExitStack() as ended:
            yield self._store(wanted, ended)

    def _channel(self, built: object) -> Candidate:
        """A candidate with a channel, and with others of its kind here and in other processes."""
        from hexkv.contracts.channel.apart import Recipe

        assert isinstance(built, TransferChannel)  # the registry has checked it
        # Memory that other processes map is good for every channel.
        offered = self.registry.adapters
        memory = next((name for name in ("shared", "mmap") if ("memory", name) in offered), "")
        allocate = None
        if memory:
            context = OpenContext(SystemClock(), name="check")
            allocate = self.registry.open("memory", memory, {}, context).allocate

        def another() -> TransferChannel:
            channel = self._built()
            assert isinstance(channel, TransferChannel)
            return channel

        recipe = Recipe(self.spec.name, self.settings, memory)
        return Candidate(built, another=another, recipe=recipe, allocate=allocate)

    def _store(self, wanted: Collection[str], ended: ExitStack) -> Candidate:
        # Not at the top: pytest must rewrite the contract's assertions first, which it now has.
        from hexkv.contracts.store import BehindProxy

        direct = self._placed(ended)
        settings = direct
        service = None
        if "service" in wanted and (server := self._server()) is not None:
            # In its own process: a third-party client may hold the interpreter's lock.
            proxy = ended.enter_context(ProxyApart(server))
            service = BehindProxy(proxy)
            settings = self._at(direct, proxy.address)
        store, again, salt = self._visit(settings, direct, ended)
        sibling = None
        if "sibling" in wanted and self._among_others:
            beside = self._placed(ended)
            sibling, _, _ = self._visit(beside, beside, ended)
        raw = self._raw(direct, salt, ended) if "raw" in wanted else None
        limit = self._limit(ended) if "limit" in wanted else None
        return Candidate(
            store,
            raw,
            reopen=again if self.spec.isolate or self.exposed else None,
            service=service,
            sibling=sibling,
            limit=limit,
        )

    def _raw(
        self, settings: Mapping[str, object], salt: Salt | None, ended: ExitStack
    ) -> RawAccess | None:
        """The back door to the medium, limited to the test's own chunks."""
        if self.spec.back_door is None:
            return None
        parsed = self.registry.parse(self.spec.kind, self.spec.name, settings)
        door = self.spec.back_door(parsed)
        if door is None:
            return None
        ended.callback(door.close)
        return door if salt is None else RawApart(door, salt)

    def _visit(
        self, settings: Mapping[str, object], direct: Mapping[str, object], ended: ExitStack
    ) -> tuple[ChunkStore, Callable[[], ChunkStore], Salt | None]:
        """Return a store, a function that opens it again, and the salt of its keys, if any.

        Opened only once unless the test opens it again: some clients take seconds to open.
        Afterwards the store is closed, and the test's chunks are deleted from the service with a
        store of the settings *direct*.
        """
        first = self._opened(settings)
        if self._replaced and not self._looked:
            self._look(first)
        if self.exposed and isinstance(first, SupportsScan):
            sweep(first, [entry.key for entry in first.scan()])
        salt = self._salt(first)
        opened = [first if salt is None else apart(first, salt)]

        def again() -> ChunkStore:
            opened[-1].close()
            store = self._opened(settings)
            opened.append(store if salt is None else apart(store, salt))
            return opened[-1]

        ended.callback(lambda: opened[-1].close())
        if salt is not None or self._among_others or self.exposed:
            ended.callback(lambda: self._leave(direct, salt, opened[-1]))
        return opened[-1], again, salt

    def _look(self, store: ChunkStore) -> None:
        """Check, before anything is deleted, that the isolated place is empty.

        Raises:
            ConfigError: the store, opened there for the first time, has chunks.
        """
        self._looked.append(True)
        found = False
        with suppress(Exception):  # the promises report its errors
            found = _has_chunks(store)
        if found:
            store.close()
            raise ConfigError(
                f"{self.spec.name}: what AdapterSpec.isolate replaces gives the store no place of"
                " its own: there are chunks in a new one already; nothing was checked"
            )

    def _placed(self, ended: ExitStack) -> dict[str, object]:
        """The settings, changed to name a place of the store's own."""
        settings = dict(self.settings)
        mark = f"hexkv-check-{secrets.token_hex(8)}"
        for name, how in self._replaced.items():
            former = settings.get(name, self._default(name))
            if callable(how):
                settings[name] = how(former, mark)
            elif how == "prefix":
                settings[name] = f"{former}{mark}:"
            else:
                path = Path(at_home(str(former)))
                folder = (path.parent if how == "file" else path) / mark
                folder.mkdir(mode=0o700, parents=True)
                ended.callback(shutil.rmtree, folder, ignore_errors=True)
                settings[name] = str(folder / path.name if how == "file" else folder)
        return settings

    @property
    def _replaced(self) -> Mapping[str, Replacing]:
        isolate = self.spec.isolate
        return {} if isolate is None or isinstance(isolate, str) else isolate

    @property
    def _among_others(self) -> bool:
        """True if other stores share the service, and a setting keeps them apart."""
        return any(how not in ("folder", "file") for how in self._replaced.values())

    def _salt(self, store: ChunkStore) -> Salt | None:
        """A salt, if neither a setting nor a listing identifies the test's chunks; else None."""
        if self.spec.isolate == "keys":
            return Salt()
        listed = isinstance(store, SupportsScan) or not (self._among_others or self.exposed)
        return None if listed else Salt()

    def _leave(self, direct: Mapping[str, object], salt: Salt | None, store: ChunkStore) -> None:
        """Delete the test's chunks from the service, with *store* if that is still open."""
        if isinstance(store, Isolated) and not store.closed:
            with suppress(StoreError):
                sweep(store.inner, sorted(store.salt.used))
                return
        with suppress(StoreError):
            store.close()  # some databases can be opened only once in a process
        store = self._opened(direct)
        try:
            if salt is not None:
                sweep(store, sorted(salt.used))
            elif isinstance(store, SupportsScan):
                sweep(store, [entry.key for entry in store.scan()])
        finally:
            store.close()

    def _limit(self, ended: ExitStack) -> Limit | None:
        """The speed of a bare connection, if the server of the URL is on this machine; else None.

        Elsewhere the network is the limit, or the endpoint's work for each request, and neither
        can be measured without the server.
        """
        server = self._server()
        if server is None or self._server_setting != self.spec.url_setting:
            return None
        if server[0] not in ("127.0.0.1", "localhost"):
            return None
        limit = Loopback()
        ended.callback(limit.close)
        return limit

    @property
    def _server_setting(self) -> str:
        """The name of the setting with the server's address: for S3, the URL names a bucket."""
        return self._setting(("endpoint",)) or self.spec.url_setting

    def _server(self) -> tuple[str, int] | None:
        """Host and port of the adapter's single server; None if no proxy can take its place."""
        url = self.settings.get(self._server_setting)
        if not isinstance(url, str) or self.settings.get("topology", "single") != "single":
            return None
        parts = urlsplit(url)
        encrypted = self.settings.get("tls") or parts.scheme in ("rediss", "https")
        if parts.hostname is None or parts.port is None or encrypted:
            return None
        return parts.hostname, parts.port

    def _at(self, settings: Mapping[str, object], address: str) -> dict[str, object]:
        """*settings*, with another server at the same URL."""
        name = self._server_setting
        url = urlsplit(str(settings[name]))
        return {**settings, name: urlunsplit(url._replace(netloc=address))}

    def _setting(self, names: Collection[str]) -> str:
        found = {setting.name for setting in fields(self.spec.settings)}
        return next((name for name in names if name in found), "")

    def _default(self, name: str) -> object:
        (found,) = (s for s in fields(self.spec.settings) if s.name == name)
        if found.default_factory is not MISSING:
            return found.default_factory()
        return "" if found.default is MISSING else found.default

    def _opened(self, settings: Mapping[str, object]) -> ChunkStore:
        store = self._built(settings)
        assert isinstance(store, ChunkStore)  # the registry has seen to it
        return store

    def _built(self, settings: Mapping[str, object] | None = None) -> object:
        chosen = self.settings if settings is None else settings
        context = OpenContext(SystemClock(), name="check")
        return self.registry.open(self.spec.kind, self.spec.name, chosen, context)


def _has_chunks(store: ChunkStore) -> bool:
    if not isinstance(store, SupportsScan):
        return False
    listed = next((entry.key for entry in store.scan()), None)
    return listed is not None and list(store.contains([listed], deadline())) == [True]
