"""Cutting a prompt into segments, at a separator."""

from __future__ import annotations

from hexkv.core.keys.hashing import segment_scheme
from hexkv.core.keys.tokens import TOKEN_BYTES, pack
from hexkv.ports import Bounds, ConfigError, InvalidTokens, Tokens


class SegmentChunker:
    """Segments between separators, at any position in the prompt, for blending.

    Separators are matched from the left and do not overlap, as in ``str.split``; they are part of
    no segment, so every other token is in exactly one. A segment longer than *maximum* is cut into
    pieces of *maximum* tokens and a rest; a piece is named by its segment up to its end, the
    segment itself by nothing around it. Pieces shorter than *minimum* are dropped: they are not
    worth an object of their own.

    Neither separator nor *minimum* is part of the scheme: the same segment, cut out by another
    separator, has the same name. Without a separator all tokens are one segment.

    Raises:
        ConfigError: the separator is not a token sequence, or no length satisfies ``1 <= minimum <=
            maximum``.
    """

    __slots__ = ("_separator", "maximum", "minimum")

    def __init__(self, separator: Tokens = (), *, maximum: int = 256, minimum: int = 1) -> None:
        if not 1 <= minimum <= maximum:
            raise ConfigError(f"no segment has at least {minimum} and at most {maximum} tokens")
        try:
            self._separator = bytes(pack(separator))
        except InvalidTokens as error:
            raise ConfigError(f"the separator: {error}") from error
        self.maximum = maximum
        self.minimum = minimum

    @property
    def scheme(self) -> str:
        return segment_scheme(self.maximum)

    def cut(self, packed: memoryview) -> Bounds:
        starts: list[int] = []
        ends: list[int] = []
        for start, end in self._segments(bytes(packed)):
            for piece in range(start, end, self.maximum):
                stop = min(piece + self.maximum, end)
                if stop - piece >= self.minimum:
                    starts.append(piece)
                    ends.append(stop)
        return Bounds(starts, ends)

    def _segments(self, data: bytes) -> list[tuple[int, int]]:
        """Return the token ranges between the separators, including empty segments."""
        segments: list[tuple[int, int]] = []
        start = search = 0
        while self._separator and (found := data.find(self._separator, search)) >= 0:
            if off := found % TOKEN_BYTES:
                search = found + TOKEN_BYTES - off  # straddles tokens: not a match
                continue
            segments.append((start // TOKEN_BYTES, found // TOKEN_BYTES))
            start = search = found + len(self._separator)
        segments.append((start // TOKEN_BYTES, len(data) // TOKEN_BYTES))
        return segments
