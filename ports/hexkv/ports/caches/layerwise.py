"""Requests that copy one layer at a time, while the model computes another one.

:class:`~hexkv.ports.prefix_cache.PrefixCache` returns them as contexts. One thread at a time uses
such a request; it need not always be the same. Only the time inside the calls below counts
against the request's deadline: the time in which the model computes does not.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, Self

from hexkv.ports.device import DeviceKV
from hexkv.ports.keys import Namespace, Tokens
from hexkv.ports.results import Retrieved, StoreReport


class LayeredRead(Protocol):
    """A retrieve under way: an iterator over the layers, which come in order.

    When an iteration returns a layer, the device holds that layer's KV of the tokens
    ``[0, hit_tokens)``. Every layer is returned, also if nothing was found.

    Later layers may be written before they are returned, at the positions that are hit and not
    skipped, but none after the context was left. An exception in a step ends the request.
    """

    @property
    def hit_tokens(self) -> int:
        """The number of tokens that will be hit, as far as known by now.

        It may become smaller at each layer. Do not use the KV of lost tokens in the layers
        before: the model computes these tokens from layer 0 on.
        """
        ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> int:
        """Wait for the next layer and return its number.

        Raises:
            InvalidRequest: the context was left, or the device refuses the copy.
        """
        ...

    def result(self) -> Retrieved:
        """Return the result of the load. Only after the last layer.

        Raises:
            InvalidRequest: not all layers have been returned.
        """
        ...


class LayeredWrite(Protocol):
    """A store under way: the model's adapter calls it for each complete layer."""

    def layer_done(self, layer: int) -> None:
        """Copy *layer*, whose KV the device holds now. Layers may come in any order.

        The KV must stay unchanged until :meth:`result`, or the end of the context.

        Raises:
            InvalidRequest: there is no such layer, it was done before, the context was left,
                or the device refuses the copy.
        """
        ...

    def result(self) -> StoreReport:
        """Write the copied chunks and return the report. Only after the last layer.

        Raises:
            InvalidRequest: a layer is not done, the context was left before all were, or the
                device refuses a copy.
        """
        ...


class LayerwiseCache(Protocol):
    """The layer-by-layer calls of a cache; arguments and errors as for bulk calls."""

    def retrieve_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
        timeout: float | None = None,
    ) -> AbstractContextManager[LayeredRead]:
        """``retrieve``, layer by layer. Leaving the context early frees everything."""
        ...

    def store_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        namespace: Namespace | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> AbstractContextManager[LayeredWrite]:
        """:meth:`store`, layer by layer. No tier has anything before the call of its ``result``.

        Chunks that do not fit the pool at once are dropped, from the end. Leaving early stores
        nothing.
        """
        ...
