"""Targets of ``hexkv check``, and how each test gets a new candidate."""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from hexkv.contracts.check import Candidate
from hexkv.contracts.check._installed import Installed
from hexkv.contracts.scorecard import Subject
from hexkv.plugins.configuration.places import suggestion
from hexkv.plugins.configuration.settings import read_texts
from hexkv.plugins.configuration.sources import Unread
from hexkv.plugins.discovery.registry import Registry, require
from hexkv.plugins.spec import AdapterSpec, Kind
from hexkv.ports import (
    Announcing,
    Chunker,
    ChunkStore,
    Collective,
    ConfigError,
    DeviceKV,
    Directory,
    EventSink,
    HashFunction,
    MemoryProvider,
    Observer,
    Policy,
    PrefixCache,
    Serde,
    StoreUnreachable,
    Telemetry,
    TransferChannel,
)

SUITES: Mapping[str, tuple[type, str]] = {
    "store": (ChunkStore, "TestStore"),
    "serde": (Serde, "TestSerde"),
    "policy": (Policy, "TestPolicy"),
    "memory": (MemoryProvider, "TestMemory"),
    "device": (DeviceKV, "TestDevice"),
    "chunker": (Chunker, "TestChunker"),
    "checksum": (HashFunction, "TestChecksum"),
    "directory": (Directory, "TestDirectory"),
    "channel": (TransferChannel, "TestChannel"),
    "prefix cache": (PrefixCache, "TestPrefixCache"),
    "telemetry": (Telemetry, "TestTelemetry"),
    "events": (EventSink, "TestEvents"),
}
"""The port of each kind that can be checked, and the class that checks it."""

BY_NAME: Mapping[str, tuple[type | None, str]] = {
    "announcing": (Announcing, "rest::TestAnnouncing"),
    "chunk cache": (None, "rest::TestChunkCache"),
    "chunk service": (None, "rest::TestChunkService"),
    "collective": (Collective, "rest::TestCollective"),
    "observer": (Observer, "rest::TestObserver"),
    "encoded": (None, "rest::TestEncoded"),
    "hand over": (None, "rest::TestHandOver"),
    "segments": (None, "blended::TestSegments"),
    "segment finder": (None, "blended::TestSegmentFinder"),
}
"""The same for what only a function gives: by the port, or by :attr:`Candidate.contract`."""

_CLOSED = ChunkStore, PrefixCache, TransferChannel, Collective
"""Subjects that are closed after each test."""

_OTHERWISE = {
    "node": "check a node by its socket, with --black-box node:///path",
    "wire": "check a server of it, with --black-box",
}
"""Advice for kinds that are checked in another way."""

_BROUGHT_BY = {"lm": "pip install hexkv-lmcache", "node": "pip install hexkv-node"}
"""The packages that check black boxes of these schemes, for a hint if one is missing."""

_PATIENCE = 30.0
"""Seconds in which a black box must take a connection."""

Opener = Callable[[Collection[str]], AbstractContextManager[Candidate]]
"""Opens a candidate for a test that wants these fixtures."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something to be checked."""

    subject: Subject
    suite: str
    """The class that checks it."""

    open: Opener
    plugin: str = ""
    """The entry point that offers it; empty if it is not installed."""

    module: str = "hexkv.contracts.check.suite"
    """The module of that class. pytest must import it first, or assertions lose their messages."""


def find(
    word: str, registry: Registry, settings: Mapping[str, str], *, destructive: bool = False
) -> Target:
    """The target that *word* names: a URL, ``module:factory``, or an installed adapter.

    Args:
        word: as the user wrote it.
        registry: the installed plugins.
        settings: the adapter's, as the user wrote them.
        destructive: True if the check may delete data at the place that the settings name.

    Raises:
        ConfigError: it is not installed, or cannot be checked; or data would be lost.
        AdapterUnavailable: a requirement is missing.
    """
    scheme, colon, rest = word.partition(":")
    if colon and rest.startswith("//"):
        return _of_url(word, scheme, registry, settings, destructive=destructive)
    if colon:
        if settings:
            raise ConfigError("a factory takes no settings: give them in its module")
        return _of_factory(word)
    offered = [kind for kind, name in registry.adapters if name == word]
    for kind in offered:
        if kind in SUITES:
            spec = registry.adapters[kind, word]
            return _of_spec(word, spec, registry, settings, destructive=destructive)
    if offered:
        hint = _OTHERWISE.get(offered[0], "give a function that makes one, as module:function")
        raise ConfigError(f"an installed adapter of kind {offered[0]!r} is not checked so: {hint}")
    known = sorted(name for kind, name in registry.adapters if kind in SUITES)
    raise ConfigError(f"no adapter {word!r}{suggestion(word, known)}{registry.said_of_broken()}")


def black_box(url: str, registry: Registry) -> Target:
    """A target for the server at *url*, checked from outside: by its bytes alone.

    Raises:
        ConfigError: no installed adapter has such a check for the scheme of *url*.
        StoreUnreachable: there is no server at that address.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    # A kind without schemes listens at a path: node:///run/hexkv.sock.
    boxes = [spec for spec in registry.adapters.values() if spec.black_box]
    modules = {scheme: spec.black_box for spec in boxes for scheme in spec.schemes or (spec.kind,)}
    local = {spec.kind for spec in boxes if not spec.schemes}
    if parts.scheme in _BROUGHT_BY and parts.scheme not in modules:
        hint = _BROUGHT_BY[parts.scheme]
        raise ConfigError(f"no installed adapter checks {parts.scheme}:// servers ({hint})")
    here = parts.scheme in local
    if parts.scheme not in modules or not (parts.path if here else parts.hostname and port):
        known = " or ".join(
            f"{scheme}:///path" if scheme in local else f"{scheme}://host:port"
            for scheme in sorted(modules or _BROUGHT_BY)
        )
        raise ConfigError(f"a black box is at {known}, not at {url!r}")
    address = parts.path if here else (str(parts.hostname), port or 0)
    try:
        _connect(address)
    except OSError as error:
        raise StoreUnreachable(f"{parts.netloc or parts.path}: {error}") from error

    @contextmanager
    def opened(wanted: Collection[str]) -> Iterator[Candidate]:
        del wanted
        yield Candidate(address)

    return Target(Subject(url), "TestBlackBox", opened, module=modules[parts.scheme])


def _connect(address: str | tuple[str, int]) -> None:
    """Connect to a server at a path, or at host and port, and leave.

    Raises:
        OSError: there is none.
    """
    if isinstance(address, tuple):
        socket.create_connection(address, _PATIENCE).close()
        return
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_PATIENCE)
        sock.connect(address)


def _of_url(
    word: str,
    scheme: str,
    registry: Registry,
    settings: Mapping[str, str],
    *,
    destructive: bool,
) -> Target:
    # A service may be a store's and a directory's: the store is meant.
    specs = sorted(registry.adapters.values(), key=lambda spec: spec.kind == "store")
    schemes = {scheme: spec for spec in specs for scheme in spec.schemes}
    if (spec := schemes.get(scheme)) is None:
        hint = suggestion(scheme, sorted(schemes))
        raise ConfigError(f"no adapter for {scheme}://{hint}{registry.said_of_broken()}")
    if spec.url_setting in settings:
        raise ConfigError(f"the URL is the setting {spec.url_setting!r} already")
    values = {**settings, spec.url_setting: word}
    return _of_spec(_public(word), spec, registry, values, destructive=destructive)


def _of_spec(
    name: str,
    spec: AdapterSpec,
    registry: Registry,
    settings: Mapping[str, str],
    *,
    destructive: bool,
) -> Target:
    kind: Kind = spec.kind
    origin = registry.origin[kind, spec.name]
    require(spec)
    _ask_for_settings(name, spec, settings)
    unread = {key: Unread(text, f"--set {key}") for key, text in settings.items()}
    values = read_texts(spec, unread)
    registry.parse(kind, spec.name, values)  # raises now if they are wrong
    installed = Installed(registry, spec, values)
    if installed.exposed and not destructive:
        raise ConfigError(
            f"{name}: a check writes and deletes chunks, and this adapter does not say how to give"
            " it a place of its own (AdapterSpec.isolate); --destructive checks it in the very"
            " place that its settings name, whose chunks are lost"
        )
    subject = Subject(name, f"{spec.name} of {origin}", spec.contract)
    plugin = "" if origin.plugin == "builtin" else origin.plugin
    return Target(subject, SUITES[kind][1], installed, plugin)


def _ask_for_settings(name: str, spec: AdapterSpec, given: Collection[str]) -> None:
    """Raise ``ConfigError`` if settings without a default are not among *given*."""
    known = fields(spec.settings)
    lacking = [
        setting.name
        for setting in known
        if setting.default is MISSING
        and setting.default_factory is MISSING
        and setting.name not in given
    ]
    if lacking and {setting.name for setting in known}.issuperset(given):
        wanted = " ".join(f"--set {setting}=..." for setting in lacking)
        url = f", or its URL, {spec.schemes[0]}://..." if spec.url_setting in lacking else ""
        raise ConfigError(f"{name}: {spec.summary}; a check of it needs {wanted}{url}")


def _of_factory(word: str) -> Target:
    module, _, path = word.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{word}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{word} is a {type(found).__name__}, and cannot be called")
    factory = found

    @contextmanager
    def opened(wanted: Collection[str]) -> Iterator[Candidate]:
        del wanted  # its author gives everything at once
        try:
            made = factory()
        except Exception as error:  # any error of the author's function means no candidate
            raise ConfigError(f"{word}() raised {type(error).__name__}: {error}") from error
        candidate = made if isinstance(made, Candidate) else Candidate(made)
        try:
            yield candidate
        finally:
            if isinstance(candidate.subject, _CLOSED):
                candidate.subject.close()
            candidate.close()

    with opened(()) as candidate:
        subject, engine, contract = candidate.subject, candidate.engine, candidate.contract
    every = {**SUITES, **BY_NAME}
    if contract and contract not in every:
        raise ConfigError(
            f"{word}: no contract is called {contract!r}{suggestion(contract, sorted(every))}"
        )
    for name, (port, suite) in every.items():
        if name == contract if contract else port is not None and isinstance(subject, port):
            module, _, case = suite.rpartition("::")
            home = f"{__package__}.{module or 'suite'}"
            return Target(Subject(word, engine=engine), case, opened, module=home)
    ports = ", ".join(port.__name__ for port, _ in every.values() if port is not None)
    raise ConfigError(f"{word} makes a {type(subject).__name__}, which is none of {ports}")


def _public(url: str) -> str:
    """*url* without a user's name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
