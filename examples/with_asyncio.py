"""Requests as tasks of one loop: they share the cache, and a few of its threads.

Needs hexkv and numpy; ``numpy_alone.py`` beside it has the model.

    python examples/with_asyncio.py
"""

from __future__ import annotations

import asyncio
import sys

from numpy_alone import CONFIG, LAYOUT, VOCABULARY, TinyModel

from hexkv.api import open_cache
from hexkv.api.aio import AsyncCache
from hexkv.api.arrays import ArrayKV

MODEL = TinyModel()


async def answer(cache: AsyncCache, prompt: list[int]) -> int:
    """Compute what no earlier request has. Return the tokens that came from the cache."""
    kv = ArrayKV.zeros(LAYOUT, len(prompt))
    got = await cache.retrieve(prompt, kv, timeout=1.0)
    await asyncio.to_thread(MODEL.run, prompt, kv, got.hit_tokens)
    await cache.store(prompt, kv)
    return got.hit_tokens


async def serve() -> list[int]:
    """Answer one request, then three at once that begin as it does."""
    document = [token * token % VOCABULARY for token in range(500)]
    opened = open_cache(CONFIG, model="tiny", layout=LAYOUT)
    async with AsyncCache(opened, threads=2) as cache:
        first = await answer(cache, document)
        questions = (answer(cache, [*document, question, 7]) for question in range(3))
        return [first, *await asyncio.gather(*questions)]


def main() -> int:
    """Print the hits. 0 if the three have the document from the cache."""
    hits = asyncio.run(serve())
    print(f"tokens from the cache: {hits}")
    return 0 if hits == [0, 448, 448, 448] else 1


if __name__ == "__main__":
    sys.exit(main())
