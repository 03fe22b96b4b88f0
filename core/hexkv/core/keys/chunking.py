"""Cutting a prompt into chunks of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.core.keys.tokens import TOKEN_BYTES
from hexkv.ports import Bounds, ConfigError


@dataclass(frozen=True, slots=True)
class PrefixChunker:
    """Chunks of *size* tokens from the start of the prompt, without gaps.

    Every chunk is named by the whole prompt up to its end, on which causal attention depends. The
    last one may be a tail: whole multiples of *tail* tokens, but fewer than *size*. That changes no
    other chunk's name, so engines with and without tails share their full chunks.

    Raises:
        ConfigError: a chunk has no tokens, or is no whole multiple of *tail*.
    """

    size: int = 256
    tail: int = 0
    """The distance in tokens of the possible ends of a tail; 0: no tails."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a chunk has at least one token, not {self.size}")
        if self.tail < 0 or (self.tail and self.size % self.tail):
            raise ConfigError(f"a chunk of {self.size} tokens is no multiple of {self.tail}")

    @property
    def scheme(self) -> str:
        return f"prefix/{self.size}"

    def cut(self, packed: memoryview) -> Bounds:
        tokens, size = len(packed) // TOKEN_BYTES, self.size
        ends = list(range(size, tokens + 1, size))
        if self.tail and (end := tokens // self.tail * self.tail) > len(ends) * size:
            ends.append(end)
        return Bounds(range(0, len(ends) * size, size), ends)
