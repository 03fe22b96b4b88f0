"""A configured directory that receives a cache's content, from the composition root."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from hexkv.core.tiers.runtime import TierRuntime
from hexkv.plugins.composition.peering import PeerService, own_name
from hexkv.plugins.configuration.schema import DirectorySettings
from hexkv.plugins.discovery.registry import Registry
from hexkv.plugins.observing.reporting import Reporting
from hexkv.plugins.spec import OpenContext
from hexkv.plugins.support.lives import Life, new_generation
from hexkv.ports import Clock, Directory, Member


@dataclass(frozen=True, slots=True)
class Joined:
    """A directory, and the reporting to it."""

    life: Life
    """Of this process."""

    directory: Directory
    reporting: Reporting

    def reported(self, runtime: TierRuntime) -> TierRuntime:
        """Return *runtime* with this process's life, and its content reported."""
        return replace(
            runtime,
            events=(*runtime.events, self.reporting),
            closing=self.close,
            directory=self.reporting.why,
            life=self.life,
        )

    def close(self) -> None:
        """Leave the directory, if it answers, and close it."""
        self.reporting.close()
        self.directory.close()


def open_directory(
    settings: DirectorySettings, registry: Registry, clock: Clock, peers: PeerService | None
) -> Directory:
    """Open the directory of *settings*, which may query *peers* itself.

    Raises:
        ConfigError, AdapterUnavailable, StoreError: it cannot be opened.
    """
    access = None if peers is None else peers.access(None)
    directory: Directory = registry.open(
        "directory", settings.adapter, settings.settings, OpenContext(clock, peers=access)
    )
    return directory


def join(
    directory: Directory,
    settings: DirectorySettings,
    clock: Clock,
    tiers: Collection[str],
    peers: PeerService | None,
    admin: str,
) -> Joined:
    """Return *directory* joined: it will receive the content of *tiers*, which *peers* serve.

    Without peers, *admin* is the address of this process's administration; empty: none.
    """
    if peers is not None:
        life = peers.life
    else:
        member = Member(own_name(settings.name), new_generation(), settings.address, admin)
        life = Life(member)
    return Joined(life, directory, Reporting(directory, life, clock, tiers, settings.queue))
