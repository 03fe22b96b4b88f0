"""The peers and the directory of a configuration, opened for the composition root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier, TierPlan
from hexkv.peers.lending.lending import LendingRules
from hexkv.peers.lives import Life, new_generation
from hexkv.peers.reporting import Reporting
from hexkv.peers.service import PeerService, own_name, serve_peers, takes_offers
from hexkv.plugins.composition.peers import OpenedPeers, PeersOpener
from hexkv.plugins.composition.tiers import naming
from hexkv.plugins.configuration.config import Loaded
from hexkv.plugins.configuration.places import suggestion
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.spec import OpenContext
from hexkv.ports import (
    Clock,
    ConfigError,
    Directory,
    Member,
    MemoryRegion,
    PeerAccess,
    SharedMedium,
    SupportsScan,
    SupportsZeroCopy,
)


@dataclass(frozen=True, slots=True)
class ProcessPeers:
    """See :class:`~hexkv.plugins.composition.peers.OpenedPeers`."""

    opened: ExitStack
    loaded: Loaded
    registry: Registry
    clock: Clock
    admin: str
    """Address of the process's administration; empty: none."""

    service: PeerService | None
    directory: Directory | None

    @property
    def access(self) -> PeerAccess | None:
        return None if self.service is None else self.service.access(self.directory)

    def report(self, runtime: TierRuntime, tiers: Sequence[TierPlan]) -> TierRuntime:
        own = self._own(tiers)
        runtime = replace(runtime, peers=self.service)
        directory = self.directory
        if directory is None:
            return runtime
        life = self._life()
        queue = self.loaded.settings.directory.queue
        reporting = Reporting(directory, life, self.clock, own, queue)

        def leave() -> None:
            reporting.close()
            directory.close()

        self.opened.callback(leave)
        reporting.start()
        events = (*runtime.events, reporting)
        return replace(runtime, events=events, closing=leave, directory=reporting.why, life=life)

    def begin(
        self,
        stack: TierStack,
        block: int | None,
        meet: Callable[[str, bytes], None] | None,
        *,
        paused: bool,
    ) -> None:
        if self.service is not None:
            rules = self._rules(stack.pool.capacity, block)
            own = self._own(stack.tiers)
            self.service.begin(stack, own, rules, self.directory, meet, paused=paused)

    def close(self) -> None:
        if self.service is not None:
            self.service.close()

    def _life(self) -> Life:
        if self.service is not None:
            return self.service.life
        settings = self.loaded.settings.directory
        name = own_name(settings.name)
        return Life(Member(name, new_generation(), settings.address, self.admin))

    def _rules(self, pool: int, block: int | None) -> LendingRules:
        """Return the rules of lending *pool* bytes to peers; the largest frame has *block*."""
        settings = self.loaded.settings.peers
        serve = settings.serve
        most = serve.bytes or max(pool // 4, block or 0)
        if block is not None and most < block:
            where = self.loaded.locate(("peers", "serve", "bytes"))
            raise ConfigError(f"{where}: {most} bytes do not hold one chunk, which takes {block}")
        accepts = takes_offers(settings, self.registry)
        return LendingRules(most, serve.rate, serve.copies, serve.settle, accepts)

    def _own(self, tiers: Sequence[TierPlan | Tier]) -> list[str]:
        """Return the tiers that peers read and a directory lists: not those that all nodes read."""
        chosen = self.loaded.settings.directory.tiers
        if chosen is None:
            return [
                tier.name
                for tier in tiers
                if isinstance(tier.store, SupportsZeroCopy | SupportsScan)
                and not (isinstance(tier.store, SharedMedium) and tier.store.shared)
            ]
        names = [tier.name for tier in tiers]
        for name in chosen:
            if name not in names:
                where = self.loaded.locate(("directory", "tiers"))
                raise ConfigError(f"{where}: there is no tier {name!r}{suggestion(name, names)}")
        return list(chosen)


def open_peers(
    opened: ExitStack,
    loaded: Loaded,
    registry: Registry,
    clock: Clock,
    admin: str,
    region: MemoryRegion,
) -> ProcessPeers:
    """See :class:`~hexkv.plugins.composition.peers.PeersOpener`."""
    settings = loaded.settings.directory
    service = serve_peers(loaded, registry, clock, admin, region)
    if service is not None:
        opened.callback(service.close)
    directory: Directory | None = None
    if settings.adapter:
        access = None if service is None else service.access(None)
        with naming(loaded, ("directory", "settings")):
            directory = registry.open(
                "directory", settings.adapter, settings.settings, OpenContext(clock, peers=access)
            )
        opened.callback(directory.close)
    return ProcessPeers(opened, loaded, registry, clock, admin, service, directory)


if TYPE_CHECKING:

    def _are_opened(peers: ProcessPeers) -> OpenedPeers:
        return peers

    def _opens() -> PeersOpener:
        return open_peers
