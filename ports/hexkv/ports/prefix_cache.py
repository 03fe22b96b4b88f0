"""The cache by tokens, in which a serving engine's adapter, or any program, stores KV.

Safe from any thread; every call waits for its configured deadline at most, or for its *timeout*, in
seconds. A failing tier makes a result smaller; it never causes an exception, or KV of other tokens
or of another namespace.

Every call with tokens takes a *namespace* if the request has one of its own, and raises
``InvalidTokens`` (no integers in ``[0, 2**32)``), ``LayoutMismatch`` (KV of another shape) and
``EngineClosed`` or ``EngineBusy`` (:class:`CacheLifecycle`), before anything is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hexkv.ports.caches.keyed import KeyedAccess
from hexkv.ports.caches.layerwise import LayerwiseCache
from hexkv.ports.caches.lookups import PrefixLookups
from hexkv.ports.device import DeviceKV
from hexkv.ports.keys import ChunkKey, Namespace, Tokens
from hexkv.ports.operate.lifecycle import CacheLifecycle
from hexkv.ports.results import Cleared, Retrieved, StoreReport


@runtime_checkable
class PrefixCache(PrefixLookups, LayerwiseCache, CacheLifecycle, KeyedAccess, Protocol):
    """A cache of KV by the tokens that it was computed from; loads the longest stored prefix."""

    @property
    def namespace(self) -> Namespace:
        """The namespace of calls without one of their own."""
        ...

    def retrieve(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
        timeout: float | None = None,
    ) -> Retrieved:
        """Load the longest prefix that arrives whole into *device*.

        Args:
            tokens: the prompt.
            device: a window on as many positions as there are tokens.
            skip: tokens at the front whose KV the device holds already; rounded down to a
                chunk, so a few positions may be written again, with the same KV.
            namespace: of this request.
            lookup_id: of the prefetch that began to load this prompt.
            timeout: in place of the configured deadline, in seconds.

        Raises:
            InvalidRequest: the window or *skip* does not fit the tokens.
        """
        ...

    def store(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> StoreReport:
        """Copy the chunks of *tokens* that no tier holds from *device*, and write them.

        Tokens that the report counts as stored can be retrieved. Chunks wholly before *skip*
        are left out. Without *wait* slower tiers are written after the call, until
        :meth:`flush`, and no store is queried: only indexes decide which chunks are present.
        Arguments and errors as for :meth:`retrieve`.
        """
        ...

    def pin(
        self,
        tokens: Tokens,
        owner: str,
        *,
        seconds: float | None = None,
        namespace: Namespace | None = None,
    ) -> int:
        """Keep the stored prefix of *tokens* from eviction; return how many tokens it has.

        Until :meth:`unpin`, or until *owner* has not renewed the pin for *seconds* (by default
        as configured).
        """
        ...

    def unpin(self, owner: str) -> int:
        """End all pins of *owner*; return how many there were, over all tiers."""
        ...

    def clear(
        self,
        tokens: Tokens | None = None,
        *,
        tiers: Sequence[str] | None = None,
        namespace: Namespace | None = None,
        everything: bool = False,
    ) -> Cleared:
        """Delete the chunks of a prompt, or of a whole namespace; pins do not protect them.

        With neither, delete those of every namespace that this cache has used; chunks of other
        models on the same tiers stay, except with *everything*. The result names the tiers that
        may still hold some.

        Raises:
            InvalidRequest: there is no such tier, or *everything* of a prompt or namespace.
        """
        ...

    def chunk_keys(
        self, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> Sequence[ChunkKey]:
        """Return the keys of the chunks of *tokens*, in order, as events name them."""
        ...
