"""A configured directory that is told what a cache holds, from the composition root."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from dataclasses import dataclass

from hexkv.plugins.registry import Registry
from hexkv.plugins.reporting import Reporting
from hexkv.plugins.schema import DirectorySettings
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Clock, Directory, Member


@dataclass(frozen=True, slots=True)
class Joined:
    """A directory, and what reports to it."""

    directory: Directory
    reporting: Reporting

    def close(self) -> None:
        """Leave the directory, if it answers, and close it."""
        self.reporting.close()
        self.directory.close()


def open_joined(
    settings: DirectorySettings, registry: Registry, clock: Clock, tiers: Collection[str]
) -> Joined:
    """The directory of *settings*, and what will report the content of *tiers* to it.

    Raises:
        ConfigError, AdapterUnavailable, StoreError: it cannot be opened.
    """
    directory: Directory = registry.open(
        "directory", settings.adapter, settings.settings, OpenContext(clock)
    )
    name = settings.name or f"{socket.gethostname()[:200]}/{os.getpid()}"
    member = Member(name, int(clock.wall() * 1e9), settings.address)
    return Joined(directory, Reporting(directory, member, clock, tiers, settings.queue))
