"""A configured directory that is told what a cache holds, from the composition root."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hexkv.plugins.lives import Life, new_generation
from hexkv.plugins.peering import PeerService, own_name
from hexkv.plugins.registry import Registry
from hexkv.plugins.reporting import Reporting
from hexkv.plugins.schema import DirectorySettings
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Clock, Directory, Member


@dataclass(frozen=True, slots=True)
class Joined:
    """A directory, and what reports to it."""

    life: Life
    """Of this process."""

    directory: Directory
    reporting: Reporting

    def close(self) -> None:
        """Leave the directory, if it answers, and close it."""
        self.reporting.close()
        self.directory.close()


def open_directory(
    settings: DirectorySettings, registry: Registry, clock: Clock, peers: PeerService | None
) -> Directory:
    """The directory of *settings*, which may ask *peers* itself.

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
    """*directory*, and what will report the content of *tiers* to it, as what *peers* serve.

    Where nobody is served, *admin* says where this process's administration is; empty: nowhere.
    """
    if peers is not None:
        life = peers.life
    else:
        member = Member(own_name(settings.name), new_generation(), settings.address, admin)
        life = Life(member)
    return Joined(life, directory, Reporting(directory, life, clock, tiers, settings.queue))
