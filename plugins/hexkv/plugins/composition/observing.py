"""The parts of a process that its configuration exposes: numbers, its state, its content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from weakref import ref

from hexkv.plugins.composition.tiers import naming
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.observing.telemetry import Counted, render
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    CallSink,
    Clock,
    ConfigError,
    ContentFeed,
    Health,
    HexKVError,
    Namespace,
    Observer,
    PromptSink,
    RecordedCache,
    SpanSink,
    SupportsRecording,
    TierHealth,
    frame_bytes,
)


class ObservedCache:
    """See :class:`hexkv.ports.Observed`. Holds a weak reference: the cache may end at any time."""

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

    def degraded(self) -> str:
        cache = self._cache()
        try:
            health = None if cache is None else cache.health()
        except HexKVError:
            return ""
        return "" if health is None else ", ".join(degraded(health))


def degraded(health: Health) -> Iterator[str]:
    """Yield the parts of a cache that do not work, while it works without them."""
    for tier in health.tiers:
        if "open" in (tier.reading, tier.writing):
            yield f"tier {tier.name} is off"
        if tier.full:
            yield f"tier {tier.name} has less room than its budget"
    if health.directory:
        yield f"the directory is not informed: {health.directory}"


def check_observed(address: str, registry: Registry) -> None:
    """Check that numbers could be served at *address*, if it is not empty.

    Raises:
        ConfigError: it cannot be served there, or no adapter that serves numbers is installed.
    """
    if address:
        registry.parse("observe", "server", {"address": address})


class Observation:
    """The observation of one process; if it is off, nothing here does anything."""

    def __init__(self, loaded: Loaded, observer: Observer | None = None, rank: int = 0) -> None:
        self._loaded = loaded
        self._observer = observer
        self._rank = rank
        self.prompts: PromptSink | None = None
        """The sink for the tokens of prompts; ``None``: there is none."""

        self.calls: CallSink | None = None
        """The sink for the calls of the engine; ``None``: there is none."""

        self.spans: SpanSink | None = None
        """The sink for calls that have ended; ``None``: there is none."""

        self._served: Callable[[], Counted | None] = _no_counts

    def follow(self, tiers: Mapping[str, bool]) -> ContentFeed | None:
        """Publish the content of *tiers*, if that is configured; see :meth:`Observer.follow`."""
        if self._observer is None:
            return None
        self.prompts = feed = self._observer.follow(tiers, rank=self._rank)
        return feed

    def record(self, namespace: Namespace, chunk_tokens: int) -> None:
        """Begin to record the calls of an engine for *namespace*, if that is configured.

        Raises:
            ConfigError: they cannot be written to the configured place.
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
        """Trace calls for *model*, if that is configured; see :meth:`Observer.trace`."""
        if self._observer is not None:
            with naming(self._loaded, ("observe",)):
                self.spans = self._observer.trace(model, rank=self._rank)

    def tell(self, service: object) -> None:
        """Pass the tokens of prompts to *service*, a node that publishes its content."""
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


def _no_counts() -> None:
    """Stands for the cache until one is served."""


def open_observation(
    loaded: Loaded, registry: Registry, clock: Clock, *, rank: int = 0
) -> Observation:
    """Return the observation that a checked configuration describes. Nothing is served yet.

    Args:
        loaded: the configuration.
        registry: the installed plugins.
        clock: of the process.
        rank: of the process among those that share a model.

    Raises:
        ConfigError, AdapterUnavailable: it cannot be observed so.
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
