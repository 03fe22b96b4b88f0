"""Requests that move one layer at a time, while the model computes another one.

:class:`~hexkv.ports.prefix_cache.PrefixCache` gives them as contexts. One thread at a time uses
such a request; it need not always be the same. Only the time inside the calls below counts
against the request's deadline: the time in which the model computes does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, Self

from hexkv.ports.device import DeviceKV
from hexkv.ports.keys import Namespace
from hexkv.ports.results import Retrieved, StoreReport
from hexkv.ports.tokens import Tokens


class LayeredRead(Protocol):
    """A retrieve under way: an iterator over the layers, which come in order.

    When an iteration gives a layer, the device holds that layer's KV of the tokens
    ``[0, hit_tokens)``. Every layer comes, also if nothing was found.

    Later layers may be written before they come, at the positions that are hit and not skipped,
    but none once the context was left. A request of which a step raised anything is over.
    """

    @property
    def hit_tokens(self) -> int:
        """The number of tokens that will be hit, as far as is known by now.

        It may become smaller at each layer. What a layer that came before holds of the
        tokens that were lost is not to be used: the model computes them from layer 0 on.
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
        """Return what was loaded. Only after the last layer.

        Raises:
            InvalidRequest: there are layers still to come.
        """
        ...


class LayeredWrite(Protocol):
    """A store under way: the model's adapter says which layer is complete."""

    def layer_done(self, layer: int) -> None:
        """Copy *layer*, whose KV the device holds now. Layers may come in any order.

        The KV must stay as it is until :meth:`result`, or the end of the context.

        Raises:
            InvalidRequest: there is no such layer, it was done before, the context was left,
                or the device refuses the copy.
        """
        ...

    def result(self) -> StoreReport:
        """Write what was copied and return what became of it. Only after the last layer.

        Raises:
            InvalidRequest: there are layers that are not done, the context was left before
                all were, or the device refuses a copy.
        """
        ...


class LayerwiseCache(Protocol):
    """The part of a cache that moves layers; arguments and errors as for bulk calls."""

    def retrieve_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        mask: Sequence[bool] | None = None,
        namespace: Namespace | None = None,
        lookup_id: str | None = None,
    ) -> AbstractContextManager[LayeredRead]:
        """``retrieve``, layer by layer. Leaving the context early frees everything."""
        ...

    def store_layers(
        self,
        tokens: Tokens,
        device: DeviceKV,
        *,
        skip: int = 0,
        mask: Sequence[bool] | None = None,
        namespace: Namespace | None = None,
        wait: bool = True,
    ) -> AbstractContextManager[LayeredWrite]:
        """:meth:`store`, layer by layer. Nothing is on a tier before its result was asked for.

        What does not fit the pool at once is dropped, from the end. Leaving early stores nothing.
        """
        ...
