"""What ``docs/embedding.md`` promises beyond what its own code shows."""

import asyncio
import re
from pathlib import Path
from threading import Event

import pytest

import hexkv.api
from hexkv.api import DType, KVLayout, PrefixCache
from hexkv.contracts.device import DeviceContract
from hexkv.contracts.doubles.heap_kv import HeapKV

PAGE = (Path(__file__).parent.parent / "docs" / "embedding.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=8, value_width=4)


def block(beginning, **scope):
    """What the page's block of code that has *beginning* defines."""
    (code,) = (
        code
        for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        if beginning in code
    )
    exec(code.partition("\n\n\nasync def serve")[0], scope)
    return scope


class RawArrays:
    """The back door to the window's memory."""

    def __init__(self, window):
        self.window = window

    def _slice(self, layer, plane, position):
        row = self.window.rows[layer][plane]
        return slice(position * row, (position + 1) * row)

    def get(self, layer, plane, position):
        return bytes(self.window.planes[layer][plane][self._slice(layer, plane, position)])

    def put(self, layer, plane, position, row):
        self.window.planes[layer][plane][self._slice(layer, plane, position)] = row

    def everything(self):
        return b"".join(bytes(plane) for planes in self.window.planes for plane in planes)


class TestTheWindowOfThePage(DeviceContract):
    @pytest.fixture
    def device(self):
        return block("class ArrayKV")["ArrayKV"](LAYOUT, 30)

    @pytest.fixture
    def raw(self, device):
        return RawArrays(device)


class BlockedKV(HeapKV):
    """A window that says when it is written to, and stays in there until it may go on."""

    def __init__(self, layout, tokens):
        super().__init__(layout, tokens)
        self.entered, self.go_on = Event(), Event()

    def scatter(self, spans, layers=None):
        self.entered.set()
        assert self.go_on.wait(60)
        return super().scatter(spans, layers)


def test_a_cancelled_task_ends_when_its_window_is_written_to_no_more():
    prompt = list(range(32))
    config = {"pool": {"bytes": "1MiB"}, "chunk": {"size": 16}}
    computed = HeapKV(LAYOUT, len(prompt)).compute(prompt)
    window = BlockedKV(LAYOUT, len(prompt))

    async def cancelled(load):
        task = asyncio.ensure_future(load(prompt, window))
        await asyncio.to_thread(window.entered.wait, 60)
        task.cancel()
        for _ in range(100):  # turns of the loop, which is all that an unguarded task would need
            await asyncio.sleep(0)
        assert not task.done()
        window.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with hexkv.api.open_cache(config, model="toy", layout=LAYOUT) as cache:
        cache.store(prompt, computed)
        asyncio.run(cancelled(block("async def load", cache=cache)["load"]))
    assert window.agrees(computed, len(prompt))


def test_the_page_names_every_call_of_the_port():
    calls = {name for name in dir(PrefixCache) if not name.startswith("_")}
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"\w+", " ".join([*re.findall(r"`[^`]+`", prose), *BLOCKS])))
    assert calls - named == set()


def test_the_page_lists_every_name_of_the_front_door():
    rows = PAGE.partition("| names | for |\n")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in rows.splitlines()))
    assert sorted(named) == sorted(hexkv.api.__all__)
