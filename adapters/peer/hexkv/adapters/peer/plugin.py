"""Registers the tier with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, hookimpl
from hexkv.ports import ConfigError


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Settings of the store ``peers``."""

    locate: float = 0.5
    """Seconds to wait for the directory, unless the deadline comes first."""

    patience: float = 2.0
    """Seconds to wait for a peer, beside four times as long as its bytes should take."""

    tries: int = 3
    """Holders queried for a chunk at most."""

    pause: float = 0.25
    """Seconds for which a peer that failed is not queried; doubled after each further failure."""

    longest_pause: float = 10.0

    def __post_init__(self) -> None:
        for name in ("locate", "patience", "pause", "longest_pause"):
            if not 0 < getattr(self, name) <= 3600:
                raise SettingError(name, "must be more than 0, and at most 3600")
        if not 1 <= self.tries <= 64:
            raise SettingError("tries", "must be from 1 to 64")
        if self.pause > self.longest_pause:
            raise SettingError("pause", "is longer than longest_pause")


def _open_peers(settings: PeerSettings, context: OpenContext) -> object:
    from hexkv.adapters.peer.remotes import Patience
    from hexkv.adapters.peer.store import PeerStore

    access = context.peers
    if access is None or access.directory is None:
        raise ConfigError("a tier that reads from peers needs the sections `peers` and `directory`")
    patience = Patience(settings.patience, settings.pause, settings.longest_pause)
    return PeerStore(
        access,
        access.directory,
        context.clock,
        locate=settings.locate,
        patience=patience,
        tries=settings.tries,
    )


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store", "peers", "chunks that peers hold", _open_peers, PeerSettings, contract=2
        )
    ]
