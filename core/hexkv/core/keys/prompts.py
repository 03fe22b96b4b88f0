"""A prompt as the engine sees it: chunks with names, in one namespace."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from operator import sub
from threading import Lock

from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.recent import LEAST, Named, RecentPrompts
from hexkv.core.keys.tokens import AT_ONCE, TOKEN_BYTES, pack, pack_within
from hexkv.ports import (
    RAW,
    Bounds,
    ChunkKey,
    ChunkSpec,
    Deadline,
    HashFunction,
    InvalidRequest,
    InvalidTokens,
    KVLayout,
    Lease,
    NamedPrompt,
    Namespace,
    PromptSink,
    Span,
    Tokens,
)

LONGEST_PROMPT = 1 << 24
"""Tokens: more than any model takes, and named in a second or two."""

_AGAIN = 16
"""Short prompts that are kept with their names: a megabyte of tokens at most."""

_NAMESPACES = 256
"""Namespaces (LoRA adapters, tenants) whose keyers are kept."""


_NONE = Bounds((), ())


@dataclass(frozen=True, slots=True)
class Tails:
    """What names the tails that other prompts with the same beginning may have stored."""

    keyer: NamespaceHasher
    packed: memoryview
    """The whole prompt's tokens, in memory of their own."""

    size: int
    """Tokens of a full chunk."""

    step: int
    """Tokens between the places where tails end."""


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Prompt:
    """Consecutive chunks of one prompt, and what each must turn out to be."""

    layout: KVLayout
    identity: str
    length: int
    """Tokens in the whole prompt."""

    keys: Sequence[ChunkKey]
    starts: Sequence[int]
    """Position of each chunk's first token."""

    ends: Sequence[int]
    after: ChunkKey | None = None
    """The chunk before the first one."""

    placed: bool = True
    """False where a host named the chunks itself: their positions in the prompt are not known."""

    unnamed: Bounds = _NONE
    """All of its chunks, if the time for naming was over before they had names."""

    tails: Tails | None = None
    """``None`` where chunks have no tails."""

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, specs: Sequence[ChunkSpec]) -> Prompt:
        """The prompt whose chunks a host named itself, one after the other.

        Raises:
            InvalidRequest: they are of several namespaces, of none, or encoded.
        """
        if not specs:
            raise InvalidRequest("no chunks to move")
        # By column, which takes a third of the time that a loop takes.
        keys, identities, layouts, tokens, serdes, _ = zip(*specs, strict=True)
        identity, layout = identities[0], layouts[0]
        if not len(specs) == identities.count(identity) == layouts.count(layout):
            raise InvalidRequest("the chunks of one window are of one namespace")
        if serdes.count(RAW) != len(specs) or min(tokens) < 1:
            raise InvalidRequest("a chunk of a window is plain KV of at least one token")
        ends = list(accumulate(tokens))
        return cls(layout, identity, ends[-1], keys, [0, *ends[:-1]], ends, None, False)

    def part(self, start: int, end: int) -> Prompt:
        """Chunks ``[start, end)``."""
        if start == 0 and end == len(self.keys):
            return self
        return Prompt(
            self.layout,
            self.identity,
            self.length,
            self.keys[start:end],
            self.starts[start:end],
            self.ends[start:end],
            self.keys[start - 1] if start else self.after,
            self.placed,
            tails=self.tails,
        )

    def since(self, token: int) -> Prompt:
        """From the chunk on that *token* is in."""
        if not token:
            return self
        if self.unnamed.ends:
            starts, ends = self.unnamed
            first = bisect_right(ends, token)
            return replace(self, unnamed=Bounds(starts[first:], ends[first:]))
        return self.part(bisect_right(self.ends, token), len(self.keys))

    @property
    def bounds(self) -> Bounds:
        """Where the chunks begin and end."""
        return Bounds(self.starts, self.ends)

    @property
    def full(self) -> int:
        """The number of chunks without the tail, if there is one."""
        count = len(self.keys)
        if self.tails is not None and count and self.tokens(count - 1) < self.tails.size:
            return count - 1
        return count

    def tails_of(self, number: int) -> tuple[list[ChunkKey], Sequence[int]]:
        """The names and ends of what may be stored of chunk *number*, the longest first.

        Of a full chunk what is shorter, of a tail that itself, too; nothing of a chunk that
        there is not.
        """
        if self.tails is None or number >= len(self.keys):
            return [], ()
        start, end = self.starts[number], self.ends[number]
        last = end if end - start < self.tails.size else end - self.tails.step
        ends = range(last, start, -self.tails.step)
        after = self.keys[number - 1] if number else self.after
        return self.tails.keyer.name_ends(self.tails.packed, start, ends, after), ends

    def ending(self, count: int, key: ChunkKey, end: int) -> Prompt:
        """The first *count* chunks, and of the next one the tail *key* that ends at *end*."""
        part = self.part(0, count + 1)
        return replace(
            part, keys=[*part.keys[:count], key], ends=[*part.ends[:count], end], tails=None
        )

    def tokens(self, i: int) -> int:
        """Tokens in chunk *i*."""
        return self.ends[i] - self.starts[i]

    def raw_bytes(self, i: int) -> int:
        """Bytes of KV in chunk *i*."""
        return self.layout.chunk_bytes(self.tokens(i))

    def spec(self, i: int) -> ChunkSpec:
        """What chunk *i* is."""
        start = self.starts[i]
        tokens = self.ends[i] - start
        position = start if self.placed else None
        return ChunkSpec(self.keys[i], self.identity, self.layout, tokens, RAW, position)

    def specs(self, start: int = 0, end: int | None = None) -> list[ChunkSpec]:
        """What chunks ``[start, end)`` are; by default all from *start* on."""
        part = slice(start, end)
        starts, ends = self.starts[part], self.ends[part]
        rows = zip(
            self.keys[part],
            repeat(self.identity),
            repeat(self.layout),
            map(sub, ends, starts),
            repeat(RAW),
            starts if self.placed else repeat(None),
            strict=False,
        )
        # By column: to call the class for each row takes three times as long.
        return list(map(tuple.__new__, repeat(ChunkSpec), rows))

    def span(self, i: int, data: memoryview) -> Span:
        """Where chunk *i* lies in the device, and the bytes that go with it."""
        return Span(self.starts[i], self.ends[i], data)

    def spans(self, leases: Sequence[Lease]) -> list[Span]:
        """Where all chunks lie, and the payloads of *leases*, one for each."""
        rows = zip(self.starts, self.ends, [lease.payload for lease in leases], strict=False)
        return list(map(tuple.__new__, repeat(Span), rows))


class ChunkHasher:
    """Names prompts in any namespace, keeping what it costs to begin one."""

    def __init__(
        self,
        chunker: PrefixChunker,
        algorithm: HashFunction,
        met: Callable[[Namespace, bytes], None] | None = None,
        *,
        seeded: bool = True,
        longest: int = 1 << 32,
        told: PromptSink | None = None,
    ) -> None:
        """*met* is told each new namespace, and how its keys begin, before any key is used.

        *told* learns the tokens of each prompt that gets names.

        It may be told of one again, by several threads at once.

        Chains that are not *seeded* name tokens alone (:mod:`hexkv.core.keys.hashing`). Prompts
        of more than *longest* tokens are refused.
        """
        self._longest = longest
        self._told = told
        self._met = met
        self._seeded = seeded
        self._chunker = chunker
        self._algorithm = algorithm
        self._keyers: OrderedDict[Namespace, NamespaceHasher] = OrderedDict()
        self._newest: tuple[Namespace, NamespaceHasher] | None = None
        """The last of them: to find it again takes no hash over all that a namespace says."""

        self._recent = RecentPrompts(chunker.size * TOKEN_BYTES)
        self._again: Sequence[tuple[NamespaceHasher, bytes, Prompt]] = ()
        """Short prompts that were named last, the latest first. Replaced as a whole."""

        self._lock = Lock()

    def count(self, tokens: Tokens) -> int:
        """How many tokens there are.

        Raises:
            InvalidTokens: more than may be.
        """
        try:
            count = len(tokens)  # type: ignore[arg-type]
        except TypeError:  # what has no length is no prompt, which packing says
            count = 0
        if count > self._longest:
            raise InvalidTokens(
                f"a prompt of {count} tokens is longer than {self._longest}, the longest that is "
                "taken (chunk.longest_prompt)"
            )
        return count

    def name(
        self, tokens: Tokens, namespace: Namespace, deadline: Deadline | None = None
    ) -> Prompt:
        """Cut *tokens* and name the chunks, all of them or none before *deadline*.

        Raises:
            InvalidTokens: they are not integers in ``[0, 2**32)``, or more than may be.
            ConfigError: the namespace's identity is too long for a frame's header.
        """
        keyer = self.keyer(namespace)
        count = self.count(tokens)
        packed = pack_within(tokens, deadline) if count > AT_ONCE else pack(tokens)
        if packed is None:
            bounds = self._chunker.cut(memoryview(bytes(count * TOKEN_BYTES)))
            return Prompt(namespace.layout, keyer.identity, count, (), (), (), unnamed=bounds)
        whole = packed.obj
        if not isinstance(whole, bytes) or len(whole) != len(packed):  # which may change later
            whole = bytes(packed)
        short = len(whole) < LEAST
        prompt = self._named(keyer, whole) if short else None
        if prompt is None:
            prompt = self._new(keyer, namespace.layout, whole, deadline)
            if short and not prompt.unnamed.ends:
                self._again = (keyer, whole, prompt), *self._again[: _AGAIN - 1]
        if self._told is not None and not prompt.unnamed.ends:
            self._told.named(NamedPrompt(keyer.identity, prompt.keys, prompt.ends, packed))
        return prompt

    def _named(self, keyer: NamespaceHasher, whole: bytes) -> Prompt | None:
        """The prompt of these tokens, if it was named lately: it is looked up, then retrieved."""
        for known, tokens, prompt in self._again:
            if tokens == whole and known is keyer:
                return prompt
        return None

    def _new(
        self, keyer: NamespaceHasher, layout: KVLayout, whole: bytes, deadline: Deadline | None
    ) -> Prompt:
        """The prompt of these tokens; all of it unnamed if its names took too long."""
        packed = memoryview(whole)
        bounds = keyer.cut(packed)
        if len(whole) < LEAST:
            keys = keyer.name(packed, deadline, bounds=bounds)
        else:
            keys = self._keys(keyer, whole, bounds, deadline)
        count, size = len(whole) // TOKEN_BYTES, self._chunker.size
        if len(keys) < len(bounds.ends):
            return Prompt(layout, keyer.identity, count, (), (), (), unnamed=bounds)
        tails = Tails(keyer, packed, size, self._chunker.tail) if self._chunker.tail else None
        # Others get the same prompt, so nobody may change it.
        return Prompt(layout, keyer.identity, count, tuple(keys), *bounds, tails=tails)

    def _keys(
        self, keyer: NamespaceHasher, whole: bytes, bounds: Bounds, deadline: Deadline | None
    ) -> list[ChunkKey]:
        """The names of a long prompt's chunks, hashed only where they were not named lately."""
        former, count = self._recent.find(keyer.root, whole)
        known = former.keys[:count] if former is not None else ()
        keys = keyer.name(memoryview(whole), deadline, known, bounds)
        if len(keys) == len(bounds.ends):
            full = len(whole) // TOKEN_BYTES // self._chunker.size
            self._recent.add(Named(keyer.root, whole, keys[:full]), former, count)
        return keys

    def keyers(self) -> list[NamespaceHasher]:
        """Those of every namespace that was met lately."""
        with self._lock:
            return list(self._keyers.values())

    def keyer(self, namespace: Namespace) -> NamespaceHasher:
        """The keyer of *namespace*."""
        newest = self._newest
        if newest is not None and newest[0] is namespace:
            return newest[1]
        with self._lock:
            keyer = self._keyers.get(namespace)
            if keyer is not None:
                self._keyers.move_to_end(namespace)
                self._newest = namespace, keyer
                return keyer
        # Outside the lock: a namespace that is new is nobody else's business. Two calls that
        # meet it at once both tell of it, and neither uses a key before that.
        keyer = NamespaceHasher(namespace, self._algorithm, self._chunker, seeded=self._seeded)
        if self._met is not None:
            self._met(namespace, keyer.prefix)
        with self._lock:
            keyer = self._keyers.setdefault(namespace, keyer)
            self._newest = namespace, keyer
            if len(self._keyers) > _NAMESPACES:
                self._keyers.popitem(last=False)
            return keyer
