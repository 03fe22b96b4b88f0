"""Blocks for vLLM's own offloading: named by vLLM, and whole in memory before they are promised.

vLLM's OffloadingConnector cannot be told that a load failed. So a block only counts as found
once its bytes have been read, verified and put aside here; loading them is then a copy that
cannot fail. A block is one chunk of the engine: a prompt of ``WORDS`` words that are the digest of
the block's name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from threading import Lock

import torch

from hexkv.adapters.vllm.serving import emptied
from hexkv.kernels.blocks import BlockKV
from hexkv.ports import InvalidRequest, Namespace, PrefixCache

WORDS = 8
"""Tokens of a block's prompt: a SHA-256 in words of 32 bits."""

_REMEMBERED = 1 << 14
"""Tickets that were released before they were used: a question may still be on its way. More
than the queues of :mod:`~hexkv.adapters.vllm.channel` hold."""


def words(name: bytes) -> bytes:
    """The prompt that stands for a block."""
    return sha256(name).digest()


class Staging:
    """Blocks of one rank, on their way from the engine to vLLM. Safe from any thread.

    Args:
        engine: of the rank.
        groups: by vLLM's number of a group of layers, its namespace and its tensors
            ``[blocks, bytes]``.
        limit: bytes that may be put aside; beyond, blocks are not found.
    """

    def __init__(
        self,
        engine: PrefixCache,
        groups: Mapping[int, tuple[Namespace, Sequence[torch.Tensor]]],
        limit: int,
    ) -> None:
        self._engine = engine
        self._groups = groups
        self._limit = limit
        self._used = 0
        self._aside: dict[int, list[torch.Tensor]] = {}
        self._released: OrderedDict[int, None] = OrderedDict()
        self._given_up: OrderedDict[int, None] = OrderedDict()
        self._lock = Lock()
        self._generation = 0
        self._storing = Lock()

    def __call__(self, question: Mapping[str, object], name: memoryview) -> Mapping[str, object]:
        """Answer the scheduler.

        ``stage`` a block with a ticket, ``release`` tickets, ``give_up`` loads, ``clear``. The
        last has the number of the ``generation`` that begins with it: blocks that vLLM
        named before, and hands over after, are not stored any more.
        """
        match question:
            case {"op": "stage", "ticket": int(ticket), "group": int(group)}:
                return {"held": self.stage(ticket, group, bytes(name))}
            case {"op": "release", "tickets": [*tickets]}:
                self.release([ticket for ticket in tickets if isinstance(ticket, int)])
                return {}
            case {"op": "give_up", "tickets": [*tickets]}:
                self.give_up([ticket for ticket in tickets if isinstance(ticket, int)])
                return {}
            case {"op": "clear", "generation": int(generation)}:
                return {"chunks": self.clear(generation)}
        raise InvalidRequest(f"no such question: {question.get('op')!r}")

    def stage(self, ticket: int, group: int, name: bytes) -> bool:
        """Put a block aside until its ticket is released. Whether it is there, whole."""
        namespace, pages = self._groups[group]
        size = namespace.layout.chunk_bytes(WORDS)
        tokens = memoryview(words(name)).cast("I")
        if not self._engine.lookup(tokens, namespace=namespace).hit_tokens:
            return False
        with self._lock:
            if self._used + size > self._limit:
                return False
            self._used += size
        room = [torch.empty(1, page.shape[1], dtype=page.dtype) for page in pages]
        whole = False
        try:
            window = BlockKV(namespace.layout, room, [0], WORDS)
            whole = self._engine.retrieve(tokens, window, namespace=namespace).hit_tokens == WORDS
        finally:
            with self._lock:
                # Threads overtake each other: it may have been released meanwhile.
                whole = whole and ticket not in self._released
                if whole:
                    self._aside[ticket] = room
                else:
                    self._used -= size
        return whole

    def release(self, tickets: Sequence[int]) -> None:
        """Forget what was put aside."""
        with self._lock:
            for ticket in tickets:
                pages = self._aside.pop(ticket, None)
                if pages is None:
                    _remember(self._released, ticket)
                for page in pages or ():
                    self._used -= page.numel() * page.element_size()

    def give_up(self, loads: Sequence[int]) -> None:
        """Nobody waits for some loads any more."""
        with self._lock:
            for load in loads:
                _remember(self._given_up, load)

    def gave_up(self, load: int) -> bool:
        """Whether nobody waits for a load any more."""
        with self._lock:
            return load in self._given_up

    def ready(self, tickets: Sequence[int]) -> bool:
        """Whether blocks are all aside."""
        with self._lock:
            return all(ticket in self._aside for ticket in tickets)

    def load(self, ticket: int, group: int, block: int) -> int:
        """Copy a block that was put aside to vLLM's *block*. Its bytes.

        Raises:
            KeyError: it was not put aside, or was released.
        """
        with self._lock:
            room = self._aside[ticket]
        _, pages = self._groups[group]
        with torch.inference_mode():
            for page, aside in zip(pages, room, strict=True):
                page[block].copy_(aside[0])
        return sum(page.numel() * page.element_size() for page in room)

    def store(self, name: bytes, group: int, block: int, generation: int) -> int:
        """Keep vLLM's *block* under *name*.

        Bytes copied; 0 where it is kept already, and where it is of a *generation* that is over.
        """
        namespace, pages = self._groups[group]
        window = BlockKV(namespace.layout, pages, [block], WORDS)
        tokens = memoryview(words(name)).cast("I")
        with self._storing:
            if generation < self._generation:
                return 0
            report = self._engine.store(tokens, window, namespace=namespace, wait=False)
        return (report.stored_tokens + report.queued_tokens) * namespace.layout.token_bytes

    def clear(self, generation: int) -> int:
        """Empty the cache, and store nothing more of an earlier generation. Chunks that went.

        Raises:
            StoreUnreachable: some may be left.
        """
        with self._storing:
            self._generation = max(self._generation, generation)
        return emptied(self._engine)

    def close(self) -> None:
        """Close the engine. Twice is allowed."""
        self._engine.close()


def _remember(tickets: OrderedDict[int, None], ticket: int) -> None:
    tickets[ticket] = None
    if len(tickets) > _REMEMBERED:
        tickets.popitem(last=False)
