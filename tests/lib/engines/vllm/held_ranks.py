"""Ranks of a vLLM whose offloading hexkv serves: small blocks, over a real engine or a double."""

from hashlib import sha256
from types import SimpleNamespace

import torch

from hexkv.adapters.vllm.configuration.configuration import BLOCK_TOKENS
from hexkv.adapters.vllm.worker.held import OWNER, HeldBlocks
from hexkv.contracts.chunk_cache.double import HeapChunkCache
from hexkv.kernels.blocks import opaque_layout
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.schema import Calls
from hexkv.ports import NAMESPACE_BYTES, KeySpace, Namespace, frame_bytes

BLOCKS = 6
SIZES = ([61, 9000], [4200])
"""Bytes of a block in each tensor of each group. The second's take more than half a slot."""

SECONDS = Calls(lookup=60.0, retrieve=60.0, store=60.0)
LARGE = 1 << 20


SLOT = frame_bytes(sum(SIZES[0]))
"""Bytes of the pool that a block takes."""


def tensors(seed):
    made = torch.Generator().manual_seed(seed)
    return [
        [torch.randint(0, 256, (BLOCKS, n), generator=made, dtype=torch.uint8) for n in sizes]
        for sizes in SIZES
    ]


def namespaces():
    return [
        Namespace("toy", opaque_layout(BLOCK_TOKENS, sizes), extra=(("group", str(i)),))
        for i, sizes in enumerate(SIZES)
    ]


class Rank:
    """Blocks of vLLM, and what is held of them over *engine*."""

    def __init__(self, engine, limit=LARGE, clock=None):
        self.pages = tensors(1)
        self.engine = engine
        groups = dict(enumerate(zip(namespaces(), self.pages, strict=True)))
        self.held = HeldBlocks(engine, groups, limit, SECONDS, clock, "weights-1")

    def store(self, name, group, block):
        copied = self.held.store([(name, group, block)], 0)
        assert self.engine.flush(60)
        return copied

    def clear(self, generation):
        """Delete all, and begin a generation: as vLLM resets its own caches."""
        tiers = [tier.name for tier in self.engine.health().tiers]
        said = {"op": "clear", "generation": generation, "tiers": tiers}
        answer = self.held(said, memoryview(b""))
        assert not answer["left"]
        return answer["chunks"]

    def load(self, ticket, block):
        copying = self.held.load([(ticket, block)])
        assert copying.done
        assert copying.whole
        return copying.size

    def block(self, group, block):
        return b"".join(bytes(page[block].tolist()) for page in self.pages[group])

    def leases(self, owner=OWNER):
        return self.engine.health().leases.get(owner, 0)


def engine(*tiers, pool="1MiB"):
    """One whose pool overwrites what nobody holds."""
    settings = {"chunk": {"size": BLOCK_TOKENS}, "pool": {"bytes": pool, "poison": True}}
    settings["tiers"] = list(tiers) or [{"store": "memory"}]
    settings["deadlines"] = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0}
    return build(load(None, {}, settings), namespaces()[0])


class Keyed:
    """As much of an engine as is used, over the double of a cache by key."""

    def __init__(self):
        self.chunks = HeapChunkCache()

    def key_space(self, namespace):
        identity = repr(namespace)
        prefix = sha256(identity.encode()).digest()[:NAMESPACE_BYTES]
        return KeySpace(identity, prefix, namespace.layout)

    def flush(self, seconds):
        return True

    def health(self):
        tiers = [SimpleNamespace(name="heap")]
        return SimpleNamespace(leases=self.chunks.ledger(), tiers=tiers)

    def clear(self, *, tiers):
        count = len(self.chunks._chunks)
        self.chunks._chunks.clear()
        return SimpleNamespace(left={}, chunks=count)

    def close(self):
        self.chunks.close()
