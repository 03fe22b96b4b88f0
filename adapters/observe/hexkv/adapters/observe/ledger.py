"""The chunks that are announced to routers, and their tokens.

Tiers report keys, and a key does not reveal its tokens. The caller that names a prompt passes them
on; they are kept in bounded memory, as long as the chunk may come and go between tiers. Chunks that
a scan found after a start have no tokens until a prompt with them is named: they are not announced.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from hexkv.adapters.observe.blocks import (
    CLEARED,
    HASH_BYTES,
    TOKEN_BYTES,
    BlockTraits,
    Event,
    KnownChunk,
)
from hexkv.ports import KEY_BYTES, ChunkKey

_CHUNK_BYTES = 750
"""Bytes of a known chunk beside its tokens and hashes: measured, objects and tables included."""

_NAMESPACES = 1024


class NewTokens(NamedTuple):
    """Chunks of a prompt whose tokens are to be remembered."""

    identity: str
    keys: Sequence[ChunkKey]
    ends: Sequence[int]
    """The token position after each chunk, counted from the first of *tokens*."""

    tokens: bytes
    after: ChunkKey | None
    """The chunk before the first one."""

    @property
    def size(self) -> int:
        """The bytes that it takes while it waits."""
        return len(self.tokens) + len(self.keys) * (KEY_BYTES + 64)


class Medium(NamedTuple):
    """A router's name for a kind of tier, and the chunks that these tiers hold."""

    name: str
    held: Container[ChunkKey]


class AnnouncedChunks:
    """The announced chunks. For one thread, except :meth:`knows` and :meth:`refuses`."""

    def __init__(self, media: Sequence[Medium], *, block: int, model: str, limit: int) -> None:
        """Announce the chunks that *media* hold.

        Args:
            media: in the order of a router's lookup: a block of a later one continues a block of an
                earlier one.
            block: tokens in a block.
            model: whose chunks are announced; empty: those of every model.
            limit: bytes of memory for tokens and hashes.
        """
        self._media = media
        self._block = block
        self._model = model
        self._limit = limit
        self._known: OrderedDict[ChunkKey, KnownChunk] = OrderedDict()
        self._groups: list[dict[bytes, list[KnownChunk]]] = [{} for _ in media]
        """For each medium, the chunks announced there, by the name of the first block."""

        self._blocks: dict[str, BlockTraits | str] = {}
        self.bytes = 0
        """Bytes that known chunks take."""

        self.announced = [0] * len(media)
        """Chunks that are announced on each medium."""

        self.forgotten = 0
        """Chunks that were announced and evicted from this memory."""

        self.passed_over: Counter[str] = Counter()
        """Chunks that were named and are not announced, by reason."""

    def knows(self, keys: Sequence[ChunkKey]) -> bool:
        """True if the tokens of all *keys* are known. From any thread."""
        return all(map(self._known.__contains__, keys))

    def refuses(self, identity: str) -> str:
        """Return why chunks of a namespace are not announced, once known. From any thread."""
        found = self._blocks.get(identity)
        return found if isinstance(found, str) else ""

    def name(self, new: NewTokens) -> Iterator[Event]:
        """Remember tokens. Yield the events of chunks that are held already."""
        block = self._block_of(new)
        if isinstance(block, str):
            self.passed_over[block] += len(new.keys)
            return
        before = None if new.after is None else self._known.get(new.after)
        if before is None and new.after is not None:
            self.passed_over["orphan"] += len(new.keys)
            return
        depth = 0 if before is None else before.depth + len(before.hashes) // HASH_BYTES
        parent = None if before is None else before.last
        start = 0
        for key, end in zip(new.keys, new.ends, strict=True):
            chunk = self._known.get(key)
            if chunk is None:
                whole = (end - start) // block.tokens * block.tokens
                tokens = new.tokens[start * TOKEN_BYTES : (start + whole) * TOKEN_BYTES]
                chunk = KnownChunk(block, parent, depth, tokens)
                self._known[key] = chunk
                self.bytes += _size(chunk)
                for i, medium in enumerate(self._media):
                    if key in medium.held:
                        yield from self._announce(i, chunk)
            depth += len(chunk.hashes) // HASH_BYTES
            parent = chunk.last
            start = end
        yield from self._make_room()

    def missing(self, number: int, held: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Return the chunks announced on medium *number* and not in *held*."""
        there = set(held)
        bit = 1 << number
        return [
            key for key, chunk in self._known.items() if chunk.announced & bit and key not in there
        ]

    def change(
        self, number: int, added: Iterable[ChunkKey], gone: Iterable[ChunkKey]
    ) -> list[Event]:
        """Return the events of chunks that came to medium *number*, or left it."""
        events: list[Event] = []
        for key in gone:
            if (chunk := self._known.get(key)) is not None:
                events += self._withdraw(number, chunk)
                if not chunk.announced:  # the first to be evicted
                    self._known.move_to_end(key, last=False)
        for key in added:
            if (chunk := self._known.get(key)) is not None:
                events += self._announce(number, chunk)
        return events

    def snapshot(self) -> Iterator[Event]:
        """Yield events that rebuild all announcements from any state; parents first.

        It may be read in parts: chunks withdrawn by then are left out.
        """
        yield CLEARED
        for i, medium in enumerate(self._media):
            there = [chunk for chunk in self._known.values() if chunk.announced & 1 << i]
            for chunk in sorted(there, key=lambda chunk: chunk.depth):
                if chunk.hashes and chunk.announced & 1 << i:
                    yield chunk.stored(0, medium.name)

    def _announce(self, number: int, chunk: KnownChunk) -> Iterator[Event]:
        if chunk.announced & 1 << number:
            return
        chunk.announced |= 1 << number
        self.announced[number] += 1
        if not chunk.hashes:
            return
        group = self._groups[number].setdefault(chunk.hashes[:HASH_BYTES], [])
        first = chunk.shared(group)
        group.append(chunk)
        if first * HASH_BYTES < len(chunk.hashes):
            yield chunk.stored(first, self._media[number].name)

    def _withdraw(self, number: int, chunk: KnownChunk) -> Iterator[Event]:
        if not chunk.announced & 1 << number:
            return
        chunk.announced &= ~(1 << number)
        self.announced[number] -= 1
        if not chunk.hashes:
            return
        name = chunk.hashes[:HASH_BYTES]
        group = self._groups[number][name]
        group.remove(chunk)
        first = chunk.shared(group)
        if not group:
            del self._groups[number][name]
        if first * HASH_BYTES < len(chunk.hashes):
            yield chunk.removed(first, self._media[number].name)

    def _make_room(self) -> Iterator[Event]:
        while self.bytes > self._limit and self._known:
            _, chunk = self._known.popitem(last=False)
            self.bytes -= _size(chunk)
            self.forgotten += bool(chunk.announced)
            for number in range(len(self._media)):
                yield from self._withdraw(number, chunk)

    def _block_of(self, new: NewTokens) -> BlockTraits | str:
        """Return the blocks of a namespace, or the reason why its chunks are not announced."""
        known = found = self._blocks.get(new.identity)
        if found is None:
            found = _block_of(new.identity, self._block, self._model)
        # Chunks of a namespace have one size, except for the last one of a prompt.
        if isinstance(found, BlockTraits) and any(end % self._block for end in new.ends[:-1]):
            found = "block"
        if found is not known and (known is not None or len(self._blocks) < _NAMESPACES):
            self._blocks[new.identity] = found
        return found


def _block_of(identity: str, tokens: int, model: str) -> BlockTraits | str:
    try:
        described = json.loads(identity)
        named, salt, rank = described["model"], described["salt"], described["parallel"][0]
        lora = described["lora"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "version"
    if model and named != model:
        return "model"
    if salt:  # routers cannot express a salt, which keeps these tokens private
        return "salt"
    if rank:  # rank 0 announces for all
        return "rank"
    return BlockTraits(tokens, lora if isinstance(lora, str) else "")


def _size(chunk: KnownChunk) -> int:
    return _CHUNK_BYTES + len(chunk.tokens) + len(chunk.hashes)
