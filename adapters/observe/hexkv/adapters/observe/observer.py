"""See :class:`hexkv.ports.Observer`: the endpoints that the settings enable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from socket import getaddrinfo
from typing import TYPE_CHECKING

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.security import RotatedSecret, SecretSource, is_local
from hexkv.adapters.net.server.client_check import announce
from hexkv.adapters.net.tls import Trust, server_context
from hexkv.adapters.observe.counting import counted, counted_spans, recorded, turned_away
from hexkv.adapters.observe.feed import Feed
from hexkv.adapters.observe.http import HealthServer
from hexkv.adapters.observe.place import Collector
from hexkv.adapters.observe.records.recorder import Recorder
from hexkv.adapters.observe.settings import ServerSettings
from hexkv.plugins.spec import about
from hexkv.ports import (
    AdapterUnavailable,
    CallSink,
    Clock,
    ConfigError,
    ContentFeed,
    Observed,
    Observer,
    RecordedCache,
    SpanSink,
    SupportsRecording,
)

if TYPE_CHECKING:
    from hexkv.adapters.observe.exporter import Exporter
    from hexkv.adapters.observe.publisher import Publisher
    from hexkv.adapters.observe.spans import CallQueue


class ServerObserver:
    """See :class:`hexkv.ports.Observer`."""

    def __init__(self, settings: ServerSettings, clock: Clock) -> None:
        """Create the observer of one process.

        Raises:
            ConfigError: a file cannot be used.
        """
        self._settings = settings
        self._clock = clock
        self._server: HealthServer | None = None
        self._feed: Feed | None = None
        self._publisher: Publisher | None = None
        self._recorder: Recorder | None = None
        self._calls: CallQueue | None = None
        self._exporter: Exporter | None = None
        self._secret: SecretSource = settings.secret.reveal().encode()
        if settings.secret_file:
            with about("secret_file"):
                self._secret = RotatedSecret(settings.secret_file)
        self._tls = None
        if settings.tls_certificate:
            with about("tls_certificate"):
                self._tls = server_context(settings.tls_certificate, settings.tls_client_ca)

    @property
    def port(self) -> int:
        """The port of the metrics; 0 while they are not served."""
        return 0 if self._server is None else self._server.port

    def follow(self, tiers: Mapping[str, bool], *, rank: int = 0) -> ContentFeed | None:
        settings = self._settings
        if not settings.events or rank:
            return None
        self._feed = Feed(
            dict(tiers),
            block=settings.events_block,
            model=settings.events_model,
            limit=settings.events_memory,
        )
        return self._feed

    def recording(self, cache: RecordedCache, *, rank: int = 0) -> CallSink | None:
        settings = self._settings
        if settings.record and not rank:
            with about("record"):
                self._recorder = Recorder(
                    settings.record,
                    cache,
                    self._clock,
                    most=settings.record_bytes,
                    files=settings.record_files,
                )
        return self._recorder

    def trace(self, model: str, *, rank: int = 0) -> SpanSink | None:
        settings = self._settings
        if not settings.traces:
            return None
        try:
            from hexkv.adapters.observe.spans import CallQueue
        except ModuleNotFoundError as error:
            hint = "pip install 'hexkv-observe[traces]'"
            raise AdapterUnavailable("server", f"needs {error.name} for traces", hint) from error
        share, limit = settings.traces_share, settings.traces_memory
        self._calls = CallQueue(model, rank, share=share, limit=limit)
        return self._calls

    def serve(self, observed: Observed, *, rank: int = 0) -> None:
        settings = self._settings
        if self._feed is not None and self._publisher is None:
            self._publisher = self._publish(self._feed)
        if self._calls is not None and self._exporter is None:
            self._exporter = self._export(self._calls)
        if not settings.address or self._server is not None:
            return
        with about("address"):
            address = shifted(Address.parse(settings.address), rank)
            if not (is_local(numeric(address)) or settings.exposed):
                asks = self._secret or settings.tls_client_ca
                if not (self._tls and asks):
                    raise ConfigError(
                        f"{address.host} can be reached from other machines: serving there takes"
                        " tls_certificate with secret or tls_client_ca, or exposed: true"
                    )
            self._server = HealthServer(
                address,
                self._clock,
                lambda: observed.metrics() + self._counted(),
                observed.unready,
                observed.degraded,
                secret=self._secret,
                tls=self._tls,
                connections=settings.connections,
            )

            access = ["clients show a certificate"] if settings.tls_client_ca else []
            access += ["numbers take the secret"] if self._secret else []
            place = Address(address.host, self._server.port)
            announce(str(place), "numbers", ", ".join(access) or "every client is answered")

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.close()
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()

    def _export(self, calls: CallQueue) -> Exporter:
        """Begin to send *calls*.

        Raises:
            ConfigError: they would leave this machine unencrypted, or a file cannot be used.
        """
        from hexkv.adapters.observe.exporter import Exporter
        from hexkv.adapters.observe.spans import Encoder

        settings = self._settings
        collector = Collector.parse(settings.traces)
        tls = None
        with about("traces"):
            if collector.tls:
                trust = Trust(settings.traces_ca)
                tls = trust.context(setting="traces_ca")
            elif not settings.exposed:
                place = numeric(Address(collector.host, collector.port))
                if not is_local(place):
                    raise ConfigError(
                        f"{collector.host} is another machine: a collector there is reached by"
                        " https, or with exposed: true"
                    )
        encoder = Encoder(settings.traces_service, calls.model, calls.rank)
        header = settings.traces_authorization.reveal()
        return Exporter(calls, encoder, collector, self._clock, authorization=header, tls=tls)

    def _publish(self, feed: Feed) -> Publisher:
        """Bind the addresses of events and replays.

        Raises:
            ConfigError: an address cannot be bound.
            AdapterUnavailable: a library is missing.
        """
        settings = self._settings
        try:
            from hexkv.adapters.observe.publisher import Publisher, Source
        except ModuleNotFoundError as error:
            hint = "pip install 'hexkv-observe[events]'"
            raise AdapterUnavailable("server", f"needs {error.name} for events", hint) from error
        addresses: dict[str, Address | None] = {"events": None, "replay": None}
        for name in addresses:
            if text := getattr(settings, name):
                with about(name):
                    address = addresses[name] = Address.parse(text)
                    if not (is_local(numeric(address)) or settings.exposed):
                        raise ConfigError(
                            f"{address.host} can be reached from other machines, and events say"
                            " the tokens of prompts to everybody: that takes exposed: true"
                        )
                    announce(text, name, "every client reads the tokens of prompts")
        events = addresses["events"]
        assert events is not None  # noqa: S101 - otherwise there is no feed
        with about("events"):
            return Publisher(
                Source(feed.take, feed.ledger.snapshot, feed.woken.fileno(), feed.wake),
                self._clock,
                events,
                addresses["replay"],
                topic=settings.events_topic,
                history=settings.events_history,
                beat=settings.events_beat,
                snapshots=settings.events_snapshots,
            )

    def _counted(self) -> str:
        feed, publisher, recorder = self._feed, self._publisher, self._recorder
        calls, exporter = self._calls, self._exporter
        events = "" if feed is None or publisher is None else counted(feed, publisher)
        spans = "" if calls is None or exporter is None else counted_spans(calls, exporter)
        http = "" if self._server is None else turned_away(self._server.turned_away)
        return events + spans + http + ("" if recorder is None else recorded(recorder))


def shifted(address: Address, rank: int) -> Address:
    """Return the address of the process of *rank*: *address* with its port plus *rank*.

    Raises:
        ConfigError: there is no such port.
    """
    if address.port + rank > 65_535:
        raise ConfigError(f"{address} leaves no port for rank {rank}")
    return replace(address, port=address.port + rank)


def numeric(address: Address) -> str:
    """Return the first numeric address of a host's name.

    Raises:
        ConfigError: it has none.
    """
    try:
        return str(getaddrinfo(address.host, address.port)[0][4][0])
    except (OSError, OverflowError) as error:
        raise ConfigError(f"there is no host {address.host}: {error}") from error


if TYPE_CHECKING:

    def _is_an_observer(observer: ServerObserver) -> Observer:
        return observer

    def _records(observer: ServerObserver) -> SupportsRecording:
        return observer
