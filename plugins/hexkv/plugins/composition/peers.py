"""The peers and the directory of a process, as the composition root opens them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.discovery.registry import Registry
from hexkv.ports import Clock, MemoryRegion, PeerAccess


class OpenedPeers(Protocol):
    """The channel of a process to its peers, and the directory that gets its content, if any."""

    @property
    def access(self) -> PeerAccess | None:
        """The access for stores that read from peers; ``None`` without a channel."""
        ...

    def report(self, runtime: TierRuntime, tiers: Sequence[TierPlan]) -> TierRuntime:
        """Return *runtime* with these peers; its content is reported to the directory from now on.

        Raises:
            ConfigError: the directory is to get the content of a tier that is none of *tiers*.
        """
        ...

    def begin(
        self,
        stack: TierStack,
        block: int | None,
        meet: Callable[[str, bytes], None] | None,
        *,
        paused: bool,
    ) -> None:
        """Serve the chunks of *stack* to peers from now on.

        Args:
            stack: of the process.
            block: bytes of the largest frame; ``None`` where frames are of any size.
            meet: takes the identity and the prefix of a namespace of which a peer brings a chunk;
                ``None``: chunks of namespaces that the tiers do not know are not kept.
            paused: whether to serve nothing yet: the memory is still another process's.

        Raises:
            ConfigError: the bytes to lend do not hold one chunk.
        """
        ...

    def close(self) -> None:
        """Serve peers no longer. The directory is left once the tiers are closed."""
        ...


class PeersOpener(Protocol):
    """Opens the peers of a process: what an adapter of kind ``peers`` builds."""

    def __call__(
        self,
        opened: ExitStack,
        loaded: Loaded,
        registry: Registry,
        clock: Clock,
        admin: str,
        region: MemoryRegion,
    ) -> OpenedPeers:
        """Open the channel and the directory of a checked configuration.

        Args:
            opened: closes everything that was opened.
            loaded: the configuration.
            registry: the installed plugins.
            clock: of the process.
            admin: address of the process's administration; empty: none.
            region: the pool's memory, for channels that read and write it in place.

        Raises:
            ConfigError, AdapterUnavailable, StoreError: one of them cannot be opened.
        """
        ...
