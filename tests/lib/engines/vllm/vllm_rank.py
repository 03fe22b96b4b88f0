"""One worker without vLLM: an engine over tensors of vLLM's shape, and the half between."""

import random
from array import array

import torch

from hexkv.adapters.vllm.configuration.lora import Adapters
from hexkv.adapters.vllm.configuration.windows import LayerShape, pages_of
from hexkv.adapters.vllm.messages import Load, Save, Scope, Step
from hexkv.adapters.vllm.worker.serving import LookupServer, Scopes
from hexkv.adapters.vllm.worker.worker_connector import WorkerConnector
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load as configure
from hexkv.ports import Namespace

LAYERS, BLOCKS, HEADS, BLOCK, WIDTH = 3, 24, 2, 8, 8
CHUNK = 2 * BLOCK
PROMPT = random.Random(5).choices(range(50_000), k=4 * CHUNK)
ALL, PLAIN = len(PROMPT), Scope()
NAMES = [f"layer.{i}" for i in range(LAYERS)]
MINE, OTHER = [1, 2, 3, 4, 5, 6, 7, 8], [20, 11, 12, 13, 14, 15, 16, 17]


class Rank:
    """One worker: its KV memory, its engine and the half between them."""

    def __init__(self, *, layerwise=False, tiers=None, tail=0, ledger=None):
        made = torch.Generator().manual_seed(1)
        self.caches = {
            name: torch.randn(BLOCKS, HEADS, BLOCK, 2 * WIDTH, generator=made) for name in NAMES
        }
        size = HEADS * BLOCK * 2 * WIDTH * 4
        shapes = dict.fromkeys(NAMES, LayerShape(size, HEADS, WIDTH, WIDTH))
        self.pages = pages_of(self.caches, shapes, count=BLOCKS, block=BLOCK, apart=False)
        settings = {
            "chunk": {"size": CHUNK, "tail": tail},
            "pool": {"bytes": "4MiB"},
            "tiers": tiers or [{"store": "memory"}],
            "deadlines": {"lookup": 60.0, "retrieve": 60.0, "store": 60.0},
        }
        space, sinks = Namespace("toy", self.pages.layout), [ledger] if ledger else []
        self.engine = build(configure(None, {}, settings), space, events=sinks)
        self.adapters = Adapters()
        self.scopes = Scopes(self.engine.namespace, self.adapters)
        self.half = WorkerConnector(
            self.engine,
            self.pages,
            self.scopes,
            layer_names=NAMES,
            layerwise=layerwise,
            loaders=1,
            ledger=ledger,
            chunk=CHUNK,
        )
        self.desk = LookupServer(self.engine, self.scopes)

    def run(self, step, *, layers=NAMES):
        """One step as vLLM runs it."""
        self.half.start(step)
        for name in layers:
            self.half.wait_for_layer(name)
        self.half.end_loads(step)
        self.half.save(step)
        assert self.half._saving.wait(60)

    def find(self, tokens=PROMPT, scope=PLAIN, name="r"):
        question = {"op": "find", "id": name, "scope": list(scope)}
        return self.desk(question, memoryview(packed(tokens)))["hit"]

    def equal(self, left, right):
        """Whether the blocks *left* hold the same as the blocks *right*, in every layer."""
        return all(torch.equal(cache[left], cache[right]) for cache in self.caches.values())


def packed(tokens):
    return array("I", tokens).tobytes()


def save(end=ALL, blocks=MINE, start=0, scope=PLAIN):
    return Save("s", scope, packed(PROMPT[:end]), start, end, blocks[: end // BLOCK])


def load(end=ALL, blocks=OTHER, start=0, later=False, scope=PLAIN):
    return Load("r", scope, packed(PROMPT[:end]), start, end, blocks, later)


def store(rank, **said):
    rank.run(Step(1, saves=[save(**said)]))


def lose(rank, chunk):
    """Take one chunk, and none after it, off every tier."""
    tokens = PROMPT[: (chunk + 1) * CHUNK]
    kept = [PROMPT[:CHUNK]] if chunk else []
    rank.engine.clear(tokens)
    for prefix in kept:
        rank.half.save(Step(2, saves=[save(end=len(prefix))]))
        assert rank.half._saving.wait(60)
