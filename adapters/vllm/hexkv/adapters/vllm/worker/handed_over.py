"""Prompts that one engine computes and another one goes on with: their KV is kept in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hexkv.adapters.vllm.lookup.under_way import UnderWay
from hexkv.adapters.vllm.messages import Computed, Load
from hexkv.adapters.vllm.scheduler.requests import PAD
from hexkv.adapters.vllm.worker.rank_cache import RankCache
from hexkv.adapters.vllm.worker.serving import Handing, Scopes
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline

Window = TypeVar("Window")

_FORGETTING = 10.0
"""Seconds to delete chunks once they have arrived: a node that is late for it counts as gone,
and a busy one may be late by more than a second."""


class HandedOver:
    """The prompts of one rank that are handed over. Safe from any thread.

    Args:
        engine: the rank's.
        scopes: namespaces of requests.
        handing: how KV is kept.
        under_way: prompts that are computed for other engines.
        chunk: tokens of a full chunk.
        block: tokens in a block.
        keeps: True if this rank stores.
    """

    def __init__(
        self,
        engine: RankCache[Window],
        scopes: Scopes,
        handing: Handing,
        under_way: UnderWay | None,
        *,
        chunk: int,
        block: int,
        keeps: bool,
    ) -> None:
        self._engine = engine
        self._scopes = scopes
        self._handing = handing
        self._chunk = chunk
        self._block = block
        self._under_way = under_way
        self._keeps = keeps

    def computed(self, prompts: Sequence[Computed]) -> None:
        """Keep the KV of *prompts*, which is stored, and withdraw their announcements."""
        if self._under_way is None:
            return
        for prompt in prompts:
            try:
                self._keep(prompt)
            finally:
                self._under_way.withdraw(prompt.request)

    def loaded(self, load: Load, arrived: int) -> None:
        """Release the KV kept for a load, and delete the chunks made for this decoder alone."""
        self._engine.unpin(load.request)
        if not load.kept.hold:
            return
        self._engine.unpin(self._handing.owner(load.kept.hold))
        if not self._handing.removes or load.kept.fresh < 0 or arrived < load.end:
            return
        namespace = self._scopes.namespace(load.scope)
        if namespace is None:
            return
        tokens, each = memoryview(load.tokens).cast("I"), self._handing.shards or 1
        keys = list(self._engine.chunk_keys(tokens, namespace=namespace))
        if tokens[-1] == PAD:  # the same tokens up to a block are another chunk
            whole = tokens[: load.end - self._block]
            keys += self._engine.chunk_keys(whole, namespace=namespace)[len(keys) - each :]
        fresh = keys[load.kept.fresh // self._chunk * each :]
        self._engine.chunks.forget(fresh, Deadline.after(SystemClock(), _FORGETTING))

    def _keep(self, prompt: Computed) -> None:
        """Keep a prompt's KV from eviction, for a while."""
        namespace = self._scopes.namespace(prompt.scope)
        if self._keeps and prompt.hold and namespace is not None:
            tokens = memoryview(prompt.tokens).cast("I")
            owner, seconds = self._handing.owner(prompt.hold), self._handing.seconds
            self._engine.pin(tokens, owner, seconds=seconds, namespace=namespace)
