"""Naming chunks: the namespace's digest, then a digest chained over the tokens.

::

    root     = H(identity)                       identity: canonical JSON, see identity()
    digest_i = H(digest_i-1 || tokens of chunk i as little-endian uint32)
    key_i    = root[:16] || digest_i

In a chain that is not seeded the first chunk is hashed without the root, although keys still start
with it: digests then depend on the tokens only, as those of some engines do (SGLang's pages).

``digest_i-1`` is the root where a chunk does not continue the one before it
(:class:`~hexkv.ports.Bounds`): a prefix chunk is named by everything before it, a segment
by itself. The digest before has a fixed length, so no two inputs of ``H`` run together.
The hash must resist collisions, or a crafted prompt could be served another prompt's KV.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import cast

from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.tokens import TOKEN_BYTES
from hexkv.core.runtime import Pause, no_pause
from hexkv.ports import (
    DIGEST_BYTES,
    IDENTITY_BYTES,
    NAMESPACE_BYTES,
    Bounds,
    Chunker,
    ChunkKey,
    ConfigError,
    Deadline,
    HashFunction,
    Namespace,
)

KEY_FORMAT = 2
"""Version of the rules above; part of every identity.

A new frame version raises it, too. So hosts of two versions that share a store use different
keys, and none takes a frame that it cannot read for a damaged one and deletes it.
"""

_PIECE = 64
"""The number of chunks that are named between two checks of the clock: some 50 us."""

UNSEEDED = "/unseeded"
"""The suffix of the scheme, in the identity of a chain that the root does not seed."""


def _sha256(data: bytes | memoryview) -> bytes:
    return sha256(data).digest()


def _blake2b(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


# The default is part of every Python, so that any two hosts use the same. Measured for
# 131,072 tokens in chained chunks of 256: SHA-256 0.45 ms, BLAKE2b 0.64 ms on a CPU with
# SHA extensions; SHA-256 0.98 ms with these masked, so the order turns. Either is far
# below the time that moving the KV of one such chunk takes.
SHA256 = HashFunction("sha256", _sha256)
BLAKE2B = HashFunction("blake2b-256", _blake2b)


def identity(namespace: Namespace, scheme: str, algorithm: str) -> str:
    """Return the properties that KV depends on besides the tokens, as canonical JSON.

    Sorted, dense and printable. All properties are in plain text except the salt, which is a
    secret: its SHA-256 stands for it. A salt that can be guessed can be found by trying; give it
    128 random bits.

    Args:
        namespace: every field is part of the result.
        scheme: how prompts are cut, so that a segment never has a prefix's key.
        algorithm: name of the hash that keys are made with.

    Raises:
        ConfigError: longer than the ``IDENTITY_BYTES`` that a frame's header has room for, or a
            field holds surrogates, which are not text.
    """
    text = _described(namespace, scheme, algorithm)
    if len(text) > IDENTITY_BYTES:
        raise ConfigError(
            f"the namespace of model {namespace.model[:80]!r} takes {len(text)} bytes to "
            f"describe; a frame has room for {IDENTITY_BYTES}"
        )
    return text


def _described(namespace: Namespace, scheme: str, algorithm: str) -> str:
    """Return an identity of any length."""
    try:
        described = {
            "algorithm": algorithm,
            "extra": namespace.extra,
            "format": KEY_FORMAT,
            "layout": namespace.layout.describe(),
            "lora": namespace.lora,
            "model": namespace.model,
            "parallel": [namespace.parallel.rank, namespace.parallel.world],
            "revision": namespace.revision,
            "salt": hashed_salt(namespace.salt),
            "scheme": scheme,
        }
        # JSON would encode two surrogates like the character that they stand for.
        json.dumps(described, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"the namespace of model {namespace.model!a}: {error}") from error
    return json.dumps(described, sort_keys=True, separators=(",", ":"))


def scheme_of(chunker: Chunker, *, seeded: bool) -> str:
    """Return the scheme in identities: how prompts are cut and chunks chained."""
    return chunker.scheme if seeded else chunker.scheme + UNSEEDED


def segment_scheme(tokens: int) -> str:
    """Return the scheme of segments, cut into pieces of *tokens*; it is no prefix's scheme."""
    return f"segment/{tokens}"


def segment_prefix(namespace: Namespace, tokens: int, algorithm: HashFunction) -> bytes:
    """Return the start of the keys of all segments of *namespace*."""
    text = _described(namespace, segment_scheme(tokens), algorithm.name)
    return algorithm.digest(text.encode("ascii"))[:NAMESPACE_BYTES]


def hashed_salt(salt: str) -> str:
    """Return the digest that replaces a tenant's *salt* in identities; empty without a salt."""
    return hashlib.sha256(b"hexkv salt\0" + salt.encode()).hexdigest() if salt else ""


class NamespaceHasher:
    """Names the chunks of prompts of one namespace. Immutable: any thread may use it.

    Made from a namespace, or by :meth:`of_identity` from the identity in a frame.

    Raises:
        ConfigError: the identity does not fit (:func:`identity`), or *algorithm* does not give
            ``DIGEST_BYTES`` bytes.
    """

    __slots__ = ("_anchor", "_chunker", "_digest", "identity", "prefix", "root")

    def __init__(
        self,
        namespace: Namespace,
        algorithm: HashFunction = SHA256,
        chunker: Chunker | None = None,
        *,
        seeded: bool = True,
    ) -> None:
        chunker = PrefixChunker() if chunker is None else chunker
        text = identity(namespace, scheme_of(chunker, seeded=seeded), algorithm.name)
        self._begin(text, algorithm, chunker, seeded=seeded)

    @classmethod
    def of_identity(
        cls, identity: str, algorithm: HashFunction, chunker: Chunker
    ) -> NamespaceHasher:
        """Return the hasher of the namespace with this *identity*, whose salt need not be known.

        Raises:
            ConfigError: *identity* is of another algorithm or scheme, or no identity at all.
        """
        try:
            described = json.loads(identity)
            scheme = str(described["scheme"])
            made_with = described["algorithm"], scheme.removesuffix(UNSEEDED), described["format"]
            root = identity.encode("ascii")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"no identity: {identity[:80]!r}") from error
        if made_with != (algorithm.name, chunker.scheme, KEY_FORMAT):
            raise ConfigError(f"this identity's keys are made with {made_with}")
        keyer = cls.__new__(cls)
        keyer._begin(root.decode(), algorithm, chunker, seeded=not scheme.endswith(UNSEEDED))
        return keyer

    def _begin(
        self, identity: str, algorithm: HashFunction, chunker: Chunker, *, seeded: bool
    ) -> None:
        self._chunker: Chunker = chunker
        self._digest = algorithm.digest
        self.identity = identity
        self.root = self._digest(self.identity.encode("ascii"))
        if len(self.root) != DIGEST_BYTES:
            raise ConfigError(
                f"hash {algorithm.name!r} gives {len(self.root)} bytes, not {DIGEST_BYTES}"
            )
        self.prefix = self.root[:NAMESPACE_BYTES]
        """The start of every key of the namespace."""
        self._anchor = self.root if seeded else b""

    def cut(self, packed: memoryview) -> Bounds:
        """Return the bounds of the chunks of one prompt."""
        return self._chunker.cut(packed)

    def name(
        self,
        packed: memoryview,
        deadline: Deadline | None = None,
        known: Sequence[ChunkKey] = (),
        bounds: Bounds | None = None,
        pause: Pause = no_pause,
    ) -> list[ChunkKey]:
        """Return the names of one prompt's chunks; only the first ones if the deadline passes.

        Args:
            packed: the tokens, as :func:`~hexkv.core.keys.tokens.pack` gives them.
            deadline: after which the others are not named.
            known: the keys of the first ones, if these are known already.
            bounds: the bounds of the chunks, if these are known already.
            pause: called between pieces.
        """
        starts, ends = self.cut(packed) if bounds is None else bounds
        digest, prefix, words = self._digest, self.prefix, packed.cast("I")
        first = len(known)
        link = known[-1][NAMESPACE_BYTES:] if first else self._anchor
        keys: list[ChunkKey] = [*known]
        reached = ends[first - 1] if first else 0
        while first < len(ends):
            piece = slice(first, first + _PIECE)
            for start, end in zip(starts[piece], ends[piece], strict=True):
                if start != reached:
                    link = self._anchor
                link = digest(link + words[start:end])
                keys.append(prefix + link)  # type: ignore[arg-type] # of this length
                reached = end
            first += _PIECE
            pause()
            if first < len(ends) and deadline is not None and deadline.expired:
                break
        return keys

    def name_of(self, data: bytes, after: ChunkKey | None) -> ChunkKey:
        """Return the name of one chunk of packed tokens, behind *after*, or as the first."""
        link = self._anchor if after is None else after[NAMESPACE_BYTES:]
        return cast("ChunkKey", self.prefix + self._digest(link + data))

    def name_ends(
        self, packed: memoryview, start: int, ends: Iterable[int], after: ChunkKey | None
    ) -> list[ChunkKey]:
        """Return the names of one chunk, cut off at each of *ends*.

        Args:
            packed: the prompt's tokens.
            start: the token position of the chunk's start.
            ends: token positions behind *start*.
            after: the chunk that it continues; ``None`` if it is the first one.
        """
        link = self._anchor if after is None else after[NAMESPACE_BYTES:]
        keys = [
            self.prefix + self._digest(link + packed[start * TOKEN_BYTES : end * TOKEN_BYTES])
            for end in ends
        ]
        return cast("list[ChunkKey]", keys)
