"""The values of a server, over all its wires: a cache by key, within one budget."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from hexkv.adapters.lmserver._transit import Transit
from hexkv.adapters.lmserver._values import WireValues
from hexkv.peers.serving.served import ServedChunks
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.registry import Registry
from hexkv.ports import ChunkKey, Clock, FrameHeader, Health, frame_bytes, namespace_of

log = logging.getLogger(__name__)


class ServedValues:
    """The values of every wire. A context manager that closes the cache.

    In memory, or in a directory behind memory for values being moved and the latest ones.
    """

    def __init__(  # noqa: PLR0913
        self,
        schemes: Iterable[str],
        registry: Registry,
        clock: Clock,
        *,
        budget: int,
        transit: int,
        largest: int,
        policy: str = "lru",
        directory: Path | None = None,
        observe: str = "",
    ) -> None:
        """Open the cache, and restore the values of a directory.

        Args:
            schemes: of the wires served.
            registry: of installed adapters.
            clock: for deadlines.
            budget: bytes of all values together, headers of their frames included.
            transit: bytes of memory for values being received, on top of the budget.
            largest: bytes of a value. With a directory there is memory to read one more into.
            policy: decides which value is evicted first.
            directory: for values that outlive the server.
            observe: ``host:port`` that serves metrics and state; empty: none.

        Raises:
            ConfigError, PoolExhausted, StoreError: the cache cannot be opened.
        """
        kept: dict[str, object] = {"store": "memory", "budget": budget, "policy": policy}
        tiers, pool = [kept], frame_bytes(budget + transit)
        if directory is not None:
            # No direct I/O: the page cache makes hot chunks fast here.
            own = {"root": str(directory), "exclusive": True, "direct": "off"}
            tiers = [{"store": "memory"}, kept | {"store": "disk", "settings": own}]
            pool = frame_bytes(transit) + frame_bytes(largest)
        wanted: dict[str, object] = {"pool": {"bytes": pool}, "tiers": tiers}
        if observe:
            wanted["observe"] = {"address": observe}
        settings = load(environ={}, overrides=wanted)
        self._values: dict[bytes, WireValues] = {}
        self._served = ServedChunks(settings, registry, clock, self._gone)
        room = Transit(transit)
        self.durable = directory is not None
        self._wires = {
            scheme: WireValues(scheme, self._served.chunks, str(tiers[-1]["store"]), room, clock)
            for scheme in schemes
        }
        self._values = {values.prefix: values for values in self._wires.values()}
        try:
            self._restore(self._served.headers())
            self._served.observe()
        except BaseException:
            self.close()
            raise

    def of(self, scheme: str) -> WireValues:
        """The values of one wire."""
        return self._wires[scheme]

    def health(self) -> Health:
        """Return the state of the cache."""
        return self._served.health()

    def close(self) -> None:
        """Close the cache. Closing twice is allowed."""
        self._served.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _restore(self, headers: Iterable[FrameHeader]) -> None:
        found: dict[bytes, list[FrameHeader]] = defaultdict(list)
        for header in headers:
            found[namespace_of(header.key)].append(header)
        for prefix, values in self._values.items():
            values.restore(found.pop(prefix, []))
        if others := sum(map(len, found.values())):
            log.warning("%d chunks are of no wire that is spoken here: they go for room", others)

    def _gone(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            if (values := self._values.get(namespace_of(key))) is not None:
                values.gone([key])
