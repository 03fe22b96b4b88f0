"""What a process shows from outside, as its configuration says: numbers, its state, its content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from weakref import ref

from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.plugins.config import Loaded
from hexkv.plugins.described import hasher_of
from hexkv.plugins.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.plugins.telemetry import Counted, render
from hexkv.plugins.tiers import naming
from hexkv.ports import (
    Bounds,
    CallSink,
    Clock,
    ConfigError,
    ContentFeed,
    HexKVError,
    NamedPrompt,
    Namespace,
    Observed,
    Observer,
    PromptSink,
    RecordedCache,
    SpanSink,
    SupportsRecording,
    TierHealth,
    frame_bytes,
)

_NAMESPACES = 256
"""Namespaces of other processes' prompts whose hashers are kept."""


class ObservedCache:
    """See :class:`hexkv.ports.Observed`. Does not keep the cache, which may end at any time."""

    def __init__(self, cache: Counted) -> None:
        self._cache = ref(cache)

    def metrics(self) -> str:
        cache = self._cache()
        try:
            return "" if cache is None else render(cache)
        except HexKVError:  # it has ended, or is a parent process's
            return ""

    def unready(self) -> str:
        cache = self._cache()
        try:
            health = None if cache is None else cache.health()
        except HexKVError as error:
            return str(error)
        if health is None or health.state != "open":
            return "it is closed" if health is None else f"it is {health.state or 'without a node'}"
        if health.why:
            return f"it is off: {health.why}"
        learning = [tier.name for tier in health.tiers if tier.indexing]
        return f"it learns what tier {', '.join(learning)} holds" if learning else ""


def check_observed(address: str, registry: Registry) -> None:
    """Nothing, if numbers could be served at *address*, or none are asked for.

    Raises:
        ConfigError: nobody can serve there, or nothing that serves numbers is installed.
    """
    if address:
        registry.parse("observe", "server", {"address": address})


def serve_at(address: str, observed: Observed, registry: Registry, clock: Clock) -> Observer:
    """Serve *observed* at ``host:port``, for commands that have no configuration.

    Raises:
        ConfigError, AdapterUnavailable: it cannot be served there.
    """
    observer: Observer = registry.open(
        "observe", "server", {"address": address}, OpenContext(clock)
    )
    observer.serve(observed)
    return observer


class Observation:
    """One process that is observed, or is not: then nothing here does anything."""

    def __init__(self, loaded: Loaded, observer: Observer | None = None, rank: int = 0) -> None:
        self._loaded = loaded
        self._observer = observer
        self._rank = rank
        self.prompts: PromptSink | None = None
        """What is to learn the tokens of prompts; ``None``: nothing does."""

        self.calls: CallSink | None = None
        """What is to learn the calls of the engine; ``None``: nothing does."""

        self.spans: SpanSink | None = None
        """What is told of calls that are over; ``None``: nothing is."""

        self._served: Callable[[], Counted | None] = _nobody

    def follow(self, tiers: Mapping[str, bool]) -> ContentFeed | None:
        """Publish what *tiers* hold, if it is to be published; see :meth:`Observer.follow`."""
        if self._observer is None:
            return None
        self.prompts = feed = self._observer.follow(tiers, rank=self._rank)
        return feed

    def record(self, namespace: Namespace, chunk_tokens: int) -> None:
        """Begin to record the calls of an engine for *namespace*, if they are to be.

        Raises:
            ConfigError: they cannot be written where the settings say.
        """
        observer: object = self._observer
        if not isinstance(observer, SupportsRecording):
            return
        cache = RecordedCache(
            namespace.model,
            chunk_tokens,
            frame_bytes(namespace.layout.chunk_bytes(chunk_tokens)),
            self._loaded.settings.compute_rate,
            self._tiers,
        )
        with naming(self._loaded, ("observe",)):
            self.calls = observer.recording(cache, rank=self._rank)

    def trace(self, model: str) -> None:
        """Trace calls for *model*, if somebody is to know of them; see :meth:`Observer.trace`."""
        if self._observer is not None:
            with naming(self._loaded, ("observe",)):
                self.spans = self._observer.trace(model, rank=self._rank)

    def tell(self, service: object) -> None:
        """Have *service*, a node that publishes what it holds, learn the tokens of prompts."""
        if isinstance(service, PromptSink):
            self.prompts = service

    def serve(self, cache: Counted) -> None:
        """Serve the numbers and the state of *cache*; see :meth:`Observer.serve`."""
        self._served = ref(cache)
        if self._observer is not None:
            with naming(self._loaded, ("observe",)):
                self._observer.serve(ObservedCache(cache), rank=self._rank)

    def close(self) -> None:
        """End it. Never raises; twice is allowed."""
        if self._observer is not None:
            self._observer.close()

    def _tiers(self) -> Sequence[TierHealth]:
        cache = self._served()
        try:
            return () if cache is None else cache.health().tiers
        except HexKVError:  # it has ended, or is a parent process's
            return ()


def _nobody() -> None:
    """Before there is anybody."""


class CheckedPrompts:
    """Passes on what another process says of prompts, if keys are named by these tokens."""

    def __init__(self, sink: PromptSink) -> None:
        self._sink = sink
        self._lock = Lock()
        self._hashers: OrderedDict[str, NamespaceHasher | None] = OrderedDict()

    def named(self, prompt: NamedPrompt) -> bool:
        """Pass on *prompt*. False if its keys are those of other tokens, or cannot be checked."""
        hasher = self._hasher(prompt.identity)
        if hasher is None:
            return False
        # An empty chunk stands for the one before.
        known = () if prompt.after is None else (prompt.after,)
        ends = (*(0 for _ in known), *prompt.ends)
        starts = (*(0 for _ in known), 0, *prompt.ends[:-1])
        keys = hasher.name(prompt.tokens, None, known, Bounds(starts, ends))
        if keys[len(known) :] != list(prompt.keys):
            return False
        self._sink.named(prompt)
        return True

    def _hasher(self, identity: str) -> NamespaceHasher | None:
        with self._lock:
            if identity in self._hashers:
                return self._hashers[identity]
        try:
            hasher, _ = hasher_of(identity)
        except HexKVError:
            hasher = None
        with self._lock:
            self._hashers[identity] = hasher
            if len(self._hashers) > _NAMESPACES:
                self._hashers.popitem(last=False)
        return hasher


def open_observation(
    loaded: Loaded, registry: Registry, clock: Clock, *, rank: int = 0
) -> Observation:
    """What a configuration that was checked has this process show. Nothing is served yet.

    Args:
        loaded: the configuration.
        registry: what is installed.
        clock: of the process.
        rank: of the process among those that share a model.

    Raises:
        ConfigError, AdapterUnavailable: nothing can be shown so.
    """
    if not loaded.settings.observe:
        return Observation(loaded)
    if loaded.settings.node and loaded.settings.observe.get("events"):
        where = loaded.locate(("observe", "events"))
        raise ConfigError(f"{where}: is the node's to publish, where `node` names one")
    with naming(loaded, ("observe",)):
        observer: Observer = registry.open(
            "observe", "server", loaded.settings.observe, OpenContext(clock)
        )
    return Observation(loaded, observer, rank)
