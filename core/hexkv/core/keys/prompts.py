"""A prompt as the engine uses it: named chunks, in one namespace."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from operator import attrgetter, sub
from threading import Lock

from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.recent import LEAST, Named, RecentPrompts
from hexkv.core.keys.tokens import AT_ONCE, TOKEN_BYTES, pack, pack_within
from hexkv.core.runtime import Pause, no_pause
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
"""The most tokens: more than any model takes, and named in a second or two."""

_AGAIN = 16
"""The number of short prompts kept with their names: a megabyte of tokens at most."""

_END = 64 * TOKEN_BYTES
"""The bytes at a short prompt's end by which it is found again: of prompts that end in the same way
the last is kept."""

_NAMESPACES = 256
"""The number of namespaces (LoRA adapters, tenants) whose hashers are kept."""


_NONE = Bounds((), ())

_payload_of = attrgetter("payload")


@dataclass(frozen=True, slots=True)
class Tails:
    """Names the tails that other prompts with the same beginning may have stored."""

    keyer: NamespaceHasher
    packed: memoryview
    """The whole prompt's tokens, in memory of their own."""

    size: int
    """Tokens of a full chunk."""

    step: int
    """The distance in tokens of the possible ends of tails."""


@dataclass(slots=True)  # a frozen one takes three times as long to create
class Prompt:
    """Consecutive chunks of one prompt, and the properties that each must have."""

    layout: KVLayout
    identity: str
    length: int
    """Tokens in the whole prompt."""

    keys: Sequence[ChunkKey]
    starts: Sequence[int]
    """The position of each chunk's first token."""

    ends: Sequence[int]
    after: ChunkKey | None = None
    """The chunk before the first one."""

    placed: bool = True
    """False if a host named the chunks itself: their positions in the prompt are not known."""

    unnamed: Bounds = _NONE
    """The bounds of all chunks, if the deadline for naming passed before they had names."""

    tails: Tails | None = None
    """``None`` if chunks have no tails."""

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, specs: Sequence[ChunkSpec]) -> Prompt:
        """Return the prompt of chunks that a host named itself, one after the other.

        Raises:
            InvalidRequest: there are none, or they are of several namespaces, encoded, or empty.
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
        """Return the chunks ``[start, end)``."""
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
        """Return the chunks from the one that contains *token* on."""
        if not token:
            return self
        if self.unnamed.ends:
            starts, ends = self.unnamed
            first = bisect_right(ends, token)
            return replace(self, unnamed=Bounds(starts[first:], ends[first:]))
        return self.part(bisect_right(self.ends, token), len(self.keys))

    @property
    def bounds(self) -> Bounds:
        """The starts and ends of the chunks."""
        return Bounds(self.starts, self.ends)

    @property
    def full(self) -> int:
        """The number of chunks without the tail, if there is one."""
        count = len(self.keys)
        if self.tails is not None and count and self.tokens(count - 1) < self.tails.size:
            return count - 1
        return count

    def tails_of(self, number: int) -> tuple[list[ChunkKey], Sequence[int]]:
        """Return the names and ends of the possible tails of chunk *number*, the longest first.

        For a full chunk the shorter ones, for a tail also the tail itself; none for a number beyond
        the last chunk.
        """
        if self.tails is None or number >= len(self.keys):
            return [], ()
        start, end = self.starts[number], self.ends[number]
        last = end if end - start < self.tails.size else end - self.tails.step
        ends = range(last, start, -self.tails.step)
        after = self.keys[number - 1] if number else self.after
        return self.tails.keyer.name_ends(self.tails.packed, start, ends, after), ends

    def ending(self, count: int, key: ChunkKey, end: int) -> Prompt:
        """Return the first *count* chunks, and the tail *key* of the next, which ends at *end*."""
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

    @property
    def largest_bytes(self) -> int:
        """Bytes of KV in the largest chunk."""
        return self.layout.chunk_bytes(max(map(sub, self.ends, self.starts), default=1))

    def spec(self, i: int) -> ChunkSpec:
        """Return the spec of chunk *i*."""
        start = self.starts[i]
        tokens = self.ends[i] - start
        position = start if self.placed else None
        return ChunkSpec(self.keys[i], self.identity, self.layout, tokens, RAW, position)

    def specs(self, start: int = 0, end: int | None = None) -> list[ChunkSpec]:
        """Return the specs of chunks ``[start, end)``; by default of all from *start* on."""
        part = slice(start, end)
        starts, ends = self.starts[part], self.ends[part]
        if len(starts) == 1:  # by column it takes four times as long
            return [self.spec(start)]
        rows = zip(
            self.keys[part],
            repeat(self.identity),
            repeat(self.layout),
            map(sub, ends, starts),
            repeat(RAW),
            starts if self.placed else repeat(None),
            strict=False,
        )
        # By column: calling the class for each row takes three times as long.
        return list(map(tuple.__new__, repeat(ChunkSpec), rows))

    def span(self, i: int, data: memoryview) -> Span:
        """Return the position of chunk *i* in the device, with *data*."""
        return Span(self.starts[i], self.ends[i], data)

    def spans(self, leases: Sequence[Lease]) -> list[Span]:
        """Return the positions of all chunks, with the payloads of *leases*, one for each."""
        rows = zip(self.starts, self.ends, map(_payload_of, leases), strict=False)
        return list(map(tuple.__new__, repeat(Span), rows))


class ChunkHasher:
    """Names prompts in any namespace, and caches a hasher for each namespace."""

    def __init__(
        self,
        chunker: PrefixChunker,
        algorithm: HashFunction,
        begin_namespace: Callable[[Namespace, bytes], None] | None = None,
        *,
        seeded: bool = True,
        longest: int = 1 << 32,
        sink: PromptSink | None = None,
        default: Namespace | None = None,
        check: Callable[[Namespace], None] | None = None,
    ) -> None:
        """*begin_namespace* is called with each new namespace and its prefix, before a key is used.

        It may be called again with the same one, by several threads at once.

        *sink* receives the tokens of each prompt that gets names. Prompts are of *default*, unless
        they are given with a namespace, which *check* may refuse.

        Chains that are not *seeded* name tokens alone (:mod:`hexkv.core.keys.hashing`). Prompts of
        more than *longest* tokens are refused.
        """
        self._longest = longest
        self._sink = sink
        self._default = default
        self._check = check
        self._begin_namespace = begin_namespace
        self._seeded = seeded
        self._chunker = chunker
        self._algorithm = algorithm
        self._keyers: OrderedDict[Namespace, NamespaceHasher] = OrderedDict()
        self._newest: tuple[Namespace, NamespaceHasher] | None = None
        """The last of them: found again without a hash over all fields of a namespace."""

        self._recent = RecentPrompts(chunker.size * TOKEN_BYTES)
        self._again: dict[bytes, tuple[NamespaceHasher, bytes, Prompt]] = {}
        """The last short prompts that were named, by their ends: a retrieve follows a lookup."""

        self._lock = Lock()

    def count(self, tokens: Tokens) -> int:
        """Return the number of tokens.

        Raises:
            InvalidTokens: there are more than *longest*.
        """
        try:
            count = len(tokens)  # type: ignore[arg-type]
        except (TypeError, ValueError):  # it has no length, or is closed: packing raises the error
            count = 0
        if count > self._longest:
            raise InvalidTokens(
                f"a prompt of {count} tokens is longer than {self._longest}, the longest that is "
                "taken (chunk.longest_prompt)"
            )
        return count

    def name(
        self,
        tokens: Tokens,
        namespace: Namespace | None = None,
        deadline: Deadline | None = None,
        pause: Pause = no_pause,
    ) -> Prompt:
        """Cut *tokens* and name the chunks, all of them or none before *deadline*.

        *pause* is called between parts of the work.

        Raises:
            InvalidTokens: they are not integers in ``[0, 2**32)``, or more than *longest*.
            ConfigError: the namespace's identity is too long for a frame's header.
            InvalidRequest, LayoutMismatch: the namespace was refused, or there is none.
        """
        if namespace is None:
            namespace = self._default
        elif self._check is not None:
            self._check(namespace)
        if namespace is None:
            raise InvalidRequest("a prompt without a namespace has no names")
        newest = self._newest
        keyer = newest[1] if newest and newest[0] is namespace else self.keyer(namespace)
        count = self.count(tokens)
        packed = pack_within(tokens, deadline) if count > AT_ONCE else pack(tokens)
        if packed is None:
            bounds = self._chunker.cut(memoryview(bytes(count * TOKEN_BYTES)))
            return Prompt(namespace.layout, keyer.identity, count, (), (), (), unnamed=bounds)
        whole = packed.obj
        if not isinstance(whole, bytes) or len(whole) != len(packed):  # it may change later
            whole = bytes(packed)
        short = len(whole) < LEAST
        known = self._again.get(whole[-_END:]) if short else None
        if known is not None and known[1] == whole and known[0] is keyer:
            prompt = known[2]
        else:
            prompt = self._new(keyer, namespace.layout, whole, deadline, pause)
            if short and not prompt.unnamed.ends:
                with self._lock:
                    self._again[whole[-_END:]] = keyer, whole, prompt
                    if len(self._again) > _AGAIN:
                        del self._again[next(iter(self._again))]
        if self._sink is not None and not prompt.unnamed.ends:
            self._sink.named(NamedPrompt(keyer.identity, prompt.keys, prompt.ends, packed))
        return prompt

    def _new(
        self,
        keyer: NamespaceHasher,
        layout: KVLayout,
        whole: bytes,
        deadline: Deadline | None,
        pause: Pause,
    ) -> Prompt:
        """Return the prompt of these tokens; all of it unnamed if naming took too long."""
        packed = memoryview(whole)
        bounds = starts, ends = self._chunker.cut(packed)
        if len(whole) < LEAST:
            keys = keyer.name(packed, deadline, (), bounds, pause)
        else:
            keys = self._keys(keyer, whole, bounds, deadline, pause)
        count, size = len(whole) // TOKEN_BYTES, self._chunker.size
        if len(keys) < len(ends):
            return Prompt(layout, keyer.identity, count, (), (), (), unnamed=bounds)
        tails = Tails(keyer, packed, size, self._chunker.tail) if self._chunker.tail else None
        # Other calls get the same prompt, so it must not be changed.
        return Prompt(
            layout, keyer.identity, count, tuple(keys), starts, ends, None, True, _NONE, tails
        )

    def _keys(
        self,
        keyer: NamespaceHasher,
        whole: bytes,
        bounds: Bounds,
        deadline: Deadline | None,
        pause: Pause,
    ) -> list[ChunkKey]:
        """Return the names of a long prompt's chunks; hashes only those not named recently."""
        former, count = self._recent.find(keyer.root, whole)
        known = former.keys[:count] if former is not None else ()
        keys = keyer.name(memoryview(whole), deadline, known, bounds, pause)
        if len(keys) == len(bounds.ends):
            full = len(whole) // TOKEN_BYTES // self._chunker.size
            self._recent.add(Named(keyer.root, whole, keys[:full]), former, count)
        return keys

    def keyers(self) -> list[NamespaceHasher]:
        """Return the hashers of every recent namespace."""
        with self._lock:
            return list(self._keyers.values())

    def keyer(self, namespace: Namespace) -> NamespaceHasher:
        """Return the hasher of *namespace*."""
        newest = self._newest
        if newest is not None and newest[0] is namespace:
            return newest[1]
        with self._lock:
            keyer = self._keyers.get(namespace)
            if keyer is not None:
                self._keyers.move_to_end(namespace)
                self._newest = namespace, keyer
                return keyer
        # Outside the lock: a new namespace concerns no other call. Two calls with it at the
        # same time both report it, and neither uses a key before that.
        keyer = NamespaceHasher(namespace, self._algorithm, self._chunker, seeded=self._seeded)
        if self._begin_namespace is not None:
            self._begin_namespace(namespace, keyer.prefix)
        with self._lock:
            keyer = self._keyers.setdefault(namespace, keyer)
            self._newest = namespace, keyer
            if len(self._keyers) > _NAMESPACES:
                self._keyers.popitem(last=False)
            return keyer
