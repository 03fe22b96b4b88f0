"""The keys of KV: a namespace, then a digest of all tokens up to the end of the chunk.

Equal on every host, Python version and ``PYTHONHASHSEED``. The rules by which keys are
derived are in :mod:`hexkv.core.keys.hashing`; adapters treat a key as opaque bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol, TypeAlias

from hexkv.ports.errors import InvalidRequest
from hexkv.ports.layout import KVLayout
from hexkv.ports.runtime._kinds import brief, check_kinds, check_parts

NAMESPACE_BYTES = 16
"""Bytes of the namespace's digest at the start of every key."""

DIGEST_BYTES = 32
"""Bytes of the chained chunk digest that follow."""

KEY_BYTES = NAMESPACE_BYTES + DIGEST_BYTES

ChunkKey = NewType("ChunkKey", bytes)
"""The name of one chunk: ``KEY_BYTES`` bytes, namespace first.

Bytes rather than a class of fields: a store cannot drop a field, a prompt of 512 chunks
makes no 512 objects with a dictionary each, and every language can hold one.
"""


def namespace_of(key: ChunkKey) -> bytes:
    """Return the part of *key* that all chunks of its namespace share."""
    return key[:NAMESPACE_BYTES]


@dataclass(frozen=True, slots=True)
class ParallelSlice:
    """The part of the model's KV heads or layers that a rank holds."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        check_kinds("ParallelSlice", int, rank=self.rank, world=self.world)
        if not 0 <= self.rank < self.world:
            raise InvalidRequest(f"rank {self.rank} is not in a world of {self.world}")


@dataclass(frozen=True, slots=True)
class Namespace:
    """All properties besides the tokens on which KV depends.

    Two caches that may not be mixed differ in at least one field. Changing any field
    changes every key.
    """

    model: str
    """Model id, as the serving engine knows it."""

    layout: KVLayout
    """Dtype and shape of the KV of one token."""

    revision: str = ""
    """Revision or digest of the weights."""

    parallel: ParallelSlice = ParallelSlice()

    lora: str = ""
    """Identity of the LoRA adapter, empty for the base model."""

    salt: str = field(default="", repr=False)
    """The tenant's salt. A secret: only its digest is ever written anywhere."""

    extra: tuple[tuple[str, str], ...] = ()
    """Further identity as sorted (name, value) pairs: quantisation, multimodal inputs, ..."""

    def __post_init__(self) -> None:
        texts = {"model": self.model, "revision": self.revision, "lora": self.lora}
        check_kinds("Namespace", str, **texts, salt=self.salt)
        check_kinds("Namespace", KVLayout, layout=self.layout)
        check_kinds("Namespace", ParallelSlice, parallel=self.parallel)
        check_parts("Namespace", "extra", self.extra, tuple)
        for pair in self.extra:
            check_parts("Namespace", "extra", pair, str)
        if any(len(pair) != 2 for pair in self.extra):
            raise InvalidRequest("Namespace.extra is made of pairs of texts")
        names = [name for name, _ in self.extra]
        if names != sorted(set(names)):
            raise InvalidRequest("extra identity must have sorted, unique names")

    __repr__ = brief


class Buffer(Protocol):
    """An object that ``memoryview`` accepts: ``collections.abc.Buffer``, from Python 3.12 on."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class Values(Protocol):
    """An array library's array. Most are buffers, too, which some type stubs do not declare."""

    def tolist(self) -> object:
        """Return its elements as (nested) lists."""
        ...


Tokens: TypeAlias = Sequence[int] | Buffer | Values
"""Integers in ``[0, 2**32)``: a sequence of them, a one-dimensional buffer of an integer format
(``array.array``, numpy, memoryview), or a torch tensor on any device."""
