"""What ``docs/embedding.md`` promises beyond what its own code shows."""

import asyncio
import re
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import hexkv.api
from hexkv.api import Cache, EngineClosed, KVLayout, open_cache
from hexkv.api.aio import AsyncCache
from hexkv.api.arrays import ArrayKV
from hexkv.contracts.device import DeviceContract
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.clock import SystemClock

PAGE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LAYOUT = KVLayout.attention("bfloat16", layers=3, heads=2, key_width=8, value_width=4)


class InArrays:
    """The back door to the window's memory."""

    def __init__(self, window):
        self.planes = window.planes

    def get(self, layer, plane, position):
        return self.planes[layer][plane][position].tobytes()

    def put(self, layer, plane, position, row):
        there = self.planes[layer][plane][position]
        there[...] = np.frombuffer(row, there.dtype).reshape(there.shape)

    def everything(self):
        return b"".join(plane.tobytes() for planes in self.planes for plane in planes)


class TestAWindowOnArraysOfAnyStrides(DeviceContract):
    @pytest.fixture
    def device(self):
        """Of an engine that keeps the tokens of a head together."""
        planes = [
            [np.zeros((p.heads, 30, p.width), np.uint16).transpose(1, 0, 2) for p in some]
            for some in LAYOUT.planes
        ]
        return ArrayKV(LAYOUT, planes)

    @pytest.fixture
    def raw(self, device):
        return InArrays(device)


class BlockedKV(HeapKV):
    """A window that says when it is written to, and stays in there until it may go on."""

    def __init__(self, layout, tokens):
        super().__init__(layout, tokens)
        self.entered, self.go_on = Event(), Event()

    def scatter(self, spans, layers=None):
        self.entered.set()
        assert self.go_on.wait(60)
        return super().scatter(spans, layers)


def test_a_cancelled_task_ends_with_its_call_and_at_once_if_that_has_not_begun():
    prompt = list(range(32))
    config = {"pool": {"bytes": "1MiB"}, "chunk": {"size": 16}}
    computed = HeapKV(LAYOUT, len(prompt)).compute(prompt)
    window, unused = BlockedKV(LAYOUT, len(prompt)), BlockedKV(LAYOUT, len(prompt))

    async def turns(task):
        task.cancel()
        for _ in range(100):  # turns of the loop, which is all that an unguarded task would need
            await asyncio.sleep(0)

    async def cancelled():
        async with AsyncCache(open_cache(config, model="toy", layout=LAYOUT), threads=1) as cache:
            await cache.store(prompt, computed)
            running = asyncio.ensure_future(cache.retrieve(prompt, window))
            waiting = asyncio.ensure_future(cache.retrieve(prompt, unused))
            await asyncio.to_thread(window.entered.wait, 60)
            await turns(waiting)
            assert waiting.cancelled()
            for _ in "twice":
                await turns(running)
                assert not running.done()
            window.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await cache.lookup(prompt)).hit_tokens == 32
        assert cache.cache.health().state == "closed"
        with pytest.raises(EngineClosed):
            await cache.lookup(prompt)
        await cache.close()

    asyncio.run(cancelled())
    assert window.agrees(computed, len(prompt))
    assert not unused.entered.is_set()


def test_a_close_that_is_cancelled_closes_the_cache_and_a_second_one_waits_for_it():
    prompt = list(range(32))
    config = {"pool": {"bytes": "1MiB"}, "chunk": {"size": 16}}
    window = BlockedKV(LAYOUT, len(prompt))

    async def closed():
        cache = AsyncCache(open_cache(config, model="toy", layout=LAYOUT), threads=1)
        await cache.store(prompt, HeapKV(LAYOUT, len(prompt)).compute(prompt))
        running = asyncio.ensure_future(cache.retrieve(prompt, window))
        await asyncio.to_thread(window.entered.wait, 60)
        first, second = (asyncio.ensure_future(cache.close()) for _ in "ab")
        try:
            for turn in range(200):
                await asyncio.sleep(0)
                if turn == 100:
                    first.cancel()
            assert [first.done(), second.done()] == [False, False]
            with pytest.raises(EngineClosed):
                await cache.lookup(prompt)
        finally:
            window.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert cache.cache.health().state == "closed"
        await second
        assert (await running).hit_tokens == 32

    asyncio.run(closed())


@pytest.mark.thorough
def test_a_machine_whose_clock_is_before_1970_keeps_chunks_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: -5.0)
    tokens = list(range(40))
    for first in (True, False):
        config = {"pool": {"bytes": "1MiB"}, "chunk": {"size": 16}, "disk": str(tmp_path)}
        with open_cache(config, model="toy", layout=LAYOUT) as cache:
            if first:
                cache.store(tokens, HeapKV(LAYOUT, 40).compute(tokens))
                assert cache.flush(60)
            assert cache.retrieve(tokens, HeapKV(LAYOUT, 40)).hit_tokens == 32
    assert SystemClock().wall() > 0, "the life of a node is a time in nanoseconds, but never 0"


def test_the_page_names_every_call_of_a_cache_and_every_name_of_the_front_door():
    calls = {name for name in dir(Cache) if not name.startswith("_")}
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"\w+", " ".join([*re.findall(r"`[^`]+`", prose), *BLOCKS])))
    assert calls - named == set()
    rows = PAGE.partition("| names | for |\n")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows.splitlines()))
    assert sorted(named) == sorted(hexkv.api.__all__)
