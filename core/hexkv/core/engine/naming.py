"""Keys for the chunks of prompts, in the engine's namespace or another one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.prompts import ChunkHasher, Prompt
from hexkv.core.keys.tokens import pack, pack_within
from hexkv.core.requests.checks import check_namespace, check_window, skipped
from hexkv.core.requests.layers.limits import TimeBudget
from hexkv.core.tiers.index.tenants import TenantsBySalt
from hexkv.ports import (
    ChunkService,
    Deadline,
    DeviceKV,
    KeySpace,
    LayoutMismatch,
    Namespace,
    Tokens,
)

_MOST_FIRST = 256
"""Enough to copy while the names of some thousand chunks are computed."""


class Naming:
    """Names the chunks of an engine's requests, once their namespaces were checked."""

    def __init__(
        self,
        namespace: Namespace,
        namer: Callable[..., ChunkHasher],
        chunks: ChunkService,
        chunker: PrefixChunker,
        segments: Callable[[Namespace], bytes],
        begin_namespace: Callable[[Namespace, bytes], None],
    ) -> None:
        """Name by *namer*, in *namespace* if a call gives none of its own.

        *segments* returns the key prefix of a namespace's segments. *begin_namespace* is called
        with each namespace and its key prefix, before any key is used.
        """
        self._segments = segments
        self.begin_namespace = begin_namespace
        self._namespace = namespace
        self._size = chunker.size
        self._check = partial(check_fits, chunks, chunker.size)
        self._namer = namer(begin_namespace=begin_namespace, default=namespace, check=self._check)
        # The same bound methods, without an extra call.
        self.prompt = self._namer.name
        self.keyer = self._namer.keyer

    def in_steps(
        self,
        tokens: Tokens,
        device: DeviceKV,
        skip: int,
        namespace: Namespace | None,
        patience: TimeBudget,
    ) -> tuple[Prompt, int]:
        """Return the prompt of a layered request behind its *skip* tokens, and how many these are.

        Raises:
            InvalidRequest, InvalidTokens, LayoutMismatch
        """
        with patience.step() as until:
            prompt = self.prompt(tokens, namespace, until)
        check_window(device, prompt.layout, prompt.length)
        first = skipped(skip, prompt.length)
        return prompt.since(first), first

    def first(
        self,
        tokens: Tokens,
        namespace: Namespace | None,
        skip: int,
        deadline: Deadline,
        least: int,
    ) -> Prompt | None:
        """Return *least* full chunks behind *skip* tokens, or a sixteenth of all, 256 at most.

        ``None`` if no full chunk follows these, or after *deadline*.

        Raises:
            Exception: the first tokens cannot be cut off, or are refused.
        """
        namespace, count = self.checked(namespace), self._namer.count(tokens)
        whole = count // self._size
        start = skipped(skip, count) // self._size
        end = start + max(least, min(whole // 16, _MOST_FIRST))
        if end >= whole:
            return None
        some: Any = tokens
        if not isinstance(tokens, list | tuple):
            some = memoryview(some)
        keyer, packed = self.keyer(namespace), pack_within(some[: end * self._size], deadline)
        keys = [] if packed is None else keyer.name(packed, deadline)
        if packed is None or len(keys) < end:
            return None
        part = Prompt(namespace.layout, keyer.identity, count, keys, *keyer.cut(packed))
        return part.part(start, end)

    def packed(self, tokens: Tokens) -> memoryview:
        """Return *tokens* that are not named as a prefix, each in four bytes.

        Raises:
            InvalidTokens: as for :meth:`ChunkHasher.name`.
        """
        self._namer.count(tokens)
        return pack(tokens)

    def checked(self, namespace: Namespace | None) -> Namespace:
        """Return *namespace*, checked, or the engine's for ``None``.

        Raises:
            InvalidRequest, LayoutMismatch
        """
        if namespace is None:
            return self._namespace
        self._check(namespace)
        return namespace

    def prefixes(self, namespace: Namespace) -> Collection[bytes]:
        """Return the prefixes of all keys of *namespace*, those of its segments included."""
        check_namespace(namespace)
        return self._namer.keyer(namespace).prefix, self._segments(namespace)

    def key_space(self, namespace: Namespace | None) -> KeySpace:
        """Return the key space of a namespace."""
        namespace = self._namespace if namespace is None else namespace
        check_namespace(namespace)
        keyer = self._namer.keyer(namespace)
        return KeySpace(keyer.identity, keyer.prefix, namespace.layout)

    def keyers(self) -> Sequence[NamespaceHasher]:
        """Return the hashers of all recently used namespaces."""
        return self._namer.keyers()


def check_fits(chunks: ChunkService, chunk_tokens: int, namespace: Namespace) -> None:
    """Check that *namespace* is one, and that its chunks of *chunk_tokens* fit the memory.

    Raises:
        InvalidRequest, LayoutMismatch
    """
    check_namespace(namespace)
    if not chunks.fits(namespace.layout.chunk_bytes(chunk_tokens)):
        raise LayoutMismatch(
            f"a chunk of {namespace.layout.describe()} is larger than the pool's blocks"
        )


def meet(
    chunks: ChunkService,
    tenants: TenantsBySalt,
    known: set[bytes],
    segments: Callable[[Namespace], bytes],
    space: Namespace,
    prefix: bytes,
) -> None:
    """Add the *prefix* of a namespace's keys to *known*, and assign its chunks to its tenant.

    The prefix of its segments is known, too: another process may have stored some.
    """
    known |= {prefix, segments(space)}
    chunks.assign(prefix, tenants.name(space.salt))
