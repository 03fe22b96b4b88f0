"""Settings of the observer of a process. Imported at discovery, so it stays light."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.adapters.net.address import Address
from hexkv.adapters.observe.place import Collector
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import SettingError, about

_LONGEST_TOPIC = 255
_BOUNDS = (
    ("events_block", 1, 1 << 16),
    ("events_memory", 1 << 16, 1 << 40),
    ("events_history", 1 << 16, 1 << 40),
    ("events_beat", 0.05, 3600.0),
    ("record_bytes", 1 << 20, 1 << 40),
    ("record_files", 1, 1000),
    ("traces_share", 0.0, 1.0),
    ("traces_memory", 1 << 16, 1 << 40),
)
_SMALLEST_FILE = 1 << 16


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the observer ``server``."""

    address: FilePath = "127.0.0.1:9464"
    """``host:port`` where ``/metrics``, ``/healthz`` and ``/readyz`` are served; empty: nowhere.
    Of the engines of one model the first takes this port, the next one that follows, and so on."""

    secret: Secret = NO_SECRET
    """A bearer token that ``/metrics`` requires."""

    secret_file: FilePath = ""
    """A file that holds the secret instead. Only its owner may read it."""

    tls_certificate: FilePath = ""
    """A file with certificate and key: serve HTTPS."""

    tls_client_ca: FilePath = ""
    """Require a client certificate of these authorities."""

    exposed: bool = False
    """True if other machines may connect without any of these, for a network that is guarded
    otherwise."""

    connections: int = 64
    """HTTP connections at a time. One more takes the place of the one that has been silent for
    longest."""

    events: str = ""
    """``host:port`` where KV events are published, for routers; empty: nowhere. Only the first
    engine of a model publishes."""

    replay: str = ""
    """``host:port`` where batches of events can be requested again; empty: nowhere."""

    events_block: int = 16
    """Tokens in a block, as in the router's settings. It divides ``chunk.size``."""

    events_model: str = ""
    """Announce chunks of this model only; empty: of every one."""

    events_topic: str = ""
    """The topic at the start of each message of events."""

    events_memory: int = 64 * 2**20
    """Bytes of tokens and hashes that are remembered. A chunk of 256 tokens takes about 2 KiB."""

    events_history: int = 16 * 2**20
    """Bytes of batches that are kept for replays."""

    events_beat: float = 1.0
    """Seconds of silence before an empty batch."""

    events_snapshots: bool = True
    """True if each subscription is answered by all that is announced, which goes to all routers;
    otherwise only the first one after a start is."""

    record: FilePath = ""
    """A folder where calls are recorded, for ``hexkv report`` and ``hexkv plan``; empty: nowhere.
    Only the first engine of a model records."""

    record_bytes: int = 256 * 2**20
    """Bytes of all records in that folder; the oldest make room."""

    record_files: int = 8
    """Files in that folder; the oldest make room."""

    traces: str = ""
    """URL of a collector that takes OTLP over HTTP, for a span of each call; empty: nowhere."""

    traces_authorization: Secret = NO_SECRET
    """The value of the header ``Authorization`` for it."""

    traces_ca: str = ""
    """A file with the certificates that sign the collector's; empty: the system's."""

    traces_service: str = "hexkv"
    """The name of this process in traces."""

    traces_share: float = 1.0
    """Share of the calls without a parent that get a span, from 0.0 to 1.0. A call whose parent was
    not sampled gets none."""

    traces_memory: int = 4 * 2**20
    """Bytes of calls that wait to be sent; further ones are dropped."""

    def __post_init__(self) -> None:
        if self.address:
            with about("address"):
                Address.parse(self.address)
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        if self.tls_client_ca and not self.tls_certificate:
            raise SettingError("tls_client_ca", "needs tls_certificate")
        for name in ("events", "replay"):
            if getattr(self, name):
                with about(name):
                    Address.parse(getattr(self, name))
        if self.traces:
            with about("traces"):
                Collector.parse(self.traces)
        if self.replay and not self.events:
            raise SettingError("replay", "needs events")
        for name, least, most in _BOUNDS:
            if not least <= getattr(self, name) <= most:
                raise SettingError(name, f"must be between {least} and {most}")
        if len(self.events_topic.encode(errors="replace")) > _LONGEST_TOPIC:
            raise SettingError("events_topic", f"has more than {_LONGEST_TOPIC} bytes")
        if self.record_bytes // self.record_files < _SMALLEST_FILE:
            raise SettingError("record_bytes", f"leaves less than {_SMALLEST_FILE} for each file")
        if not 1 <= self.connections <= 1024:
            raise SettingError("connections", "must be between 1 and 1024")
