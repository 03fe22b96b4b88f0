"""Claims of moves on the chunks of a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from hexkv.ports import ChunkKey, Clock

MOST = 1 << 18
"""The most chunks claimed at a time; more are refused. About 100 MB."""


@dataclass(slots=True)
class _Claim:
    """The claims on one chunk: those of one move out, or of some moves in."""

    leaving: bool
    until: dict[str, float] = field(default_factory=dict)


class Claims:
    """See :class:`hexkv.ports.Relocation`. Safe from any thread."""

    def __init__(self, clock: Clock, most: int = MOST) -> None:
        """Keep claims on *most* chunks, with times by *clock*."""
        self._clock = clock
        self._most = most
        self._claims: dict[ChunkKey, _Claim] = {}
        self._lock = Lock()

    def take(
        self, token: str, keys: Sequence[ChunkKey], seconds: float, *, leaving: bool
    ) -> list[bool]:
        """Claim chunks for *token*, or renew its claims. Return True for each that is claimed."""
        with self._lock:
            if len(self._claims) + len(keys) > self._most:
                self._expire()
            until = self._clock.now() + seconds
            return [self._take(token, key, until, leaving) for key in keys]

    def held(self, token: str, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return those of *keys* that *token* may move out."""
        now = self._clock.now()
        with self._lock:
            return [key for key in keys if self._leaves(key, token) > now]

    def release(self, token: str) -> int:
        """End the claims of *token*. Return how many there were."""
        count = 0
        with self._lock:
            for key, claim in list(self._claims.items()):
                count += claim.until.pop(token, None) is not None
                if not claim.until:
                    del self._claims[key]
        return count

    def __len__(self) -> int:
        return len(self._claims)

    def _take(self, token: str, key: ChunkKey, until: float, leaving: bool) -> bool:
        claim = self._claims.get(key)
        if claim is None:
            if len(self._claims) >= self._most:
                return False
            claim = self._claims[key] = _Claim(leaving)
        elif claim.leaving != leaving or (leaving and token not in claim.until):
            now = self._clock.now()
            claim.until = {name: at for name, at in claim.until.items() if at > now}
            if claim.until:
                return False
            claim.leaving = leaving
        claim.until[token] = until
        return True

    def _leaves(self, key: ChunkKey, token: str) -> float:
        claim = self._claims.get(key)
        return claim.until.get(token, 0.0) if claim is not None and claim.leaving else 0.0

    def _expire(self) -> None:
        now = self._clock.now()
        for key, claim in list(self._claims.items()):
            claim.until = {name: at for name, at in claim.until.items() if at > now}
            if not claim.until:
                del self._claims[key]
