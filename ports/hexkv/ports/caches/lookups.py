"""The calls of a cache by tokens that find chunks, or begin to load them, and wait for no copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hexkv.ports.keys import Namespace, Tokens
from hexkv.ports.results import Lookup


class PrefixLookups(Protocol):
    """Lookups and prefetches; arguments and errors as for the other calls of a ``PrefixCache``."""

    def lookup(
        self,
        tokens: Tokens,
        *,
        pin: str | None = None,
        namespace: Namespace | None = None,
        timeout: float | None = None,
    ) -> Lookup:
        """Return the longest prefix of *tokens* that the tiers hold. Loads nothing.

        A hint: chunks may be evicted before a later load. With *pin* the chunks are pinned for
        that owner, until ``unpin``.
        """
        ...

    def lookup_many(
        self,
        prompts: Sequence[Tokens],
        *,
        namespace: Namespace | None = None,
        timeout: float | None = None,
    ) -> Sequence[Lookup]:
        """Return the same for each prompt, within one deadline.

        Chunks that prompts share are looked up once, and a store that has to be queried gets one
        query. Which of the slower tiers serve is decided for all of them at once, and not kept for
        their loads, as that of :meth:`lookup` is: a load may find more or less.
        """
        ...

    def prefetch(
        self, lookup_id: str, tokens: Tokens, *, namespace: Namespace | None = None
    ) -> int | None:
        """Begin to load *tokens* for a retrieve with this *lookup_id*. Waits for no tier.

        Return how many tokens the tiers hold; ``None`` while a store has not answered: call
        it again later. Zero also if naming a very long prompt would delay the caller.
        Calling it again begins nothing new. Chunks that no retrieve takes are released
        after a time, or by :meth:`cancel`.
        """
        ...

    def cancel(self, lookup_id: str) -> bool:
        """Release the chunks of a prefetch. True if there was one of that id."""
        ...
