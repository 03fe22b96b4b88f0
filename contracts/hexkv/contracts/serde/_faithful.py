"""Promises about round trips: the same bytes back, and no other memory touched."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.serde._base import (
    CONTENTS,
    GUARD,
    LAYOUTS,
    Chunk,
    Close,
    SerdeCase,
    decoded,
    encoded,
    free,
    noise,
    plausible,
    same,
)
from hexkv.ports import PAGE, CorruptFrame, DType, KVLayout, LayerSerde, Serde

TOKENS = (1, 7, 32)
SIZES = (1 << 24, (1 << 31) - PAGE, 1 << 31, (1 << 32) - PAGE, 1 << 32, (1 << 32) + PAGE, 1 << 40)
"""Bytes of chunks that are large, or too large for 31 and 32 bits."""

WORKERS, ROUNDS = 4, 20


class Faithful(SerdeCase):
    """The promises of every serde."""

    @promise(
        "serde.1",
        "has every method and property of the port",
        level="L0",
        clause="Serde",
        why="the tier cannot be built",
    )
    def test_is_a_serde(self, serde: Serde) -> None:
        assert isinstance(serde, Serde)
        assert isinstance(serde.lossless, bool)
        assert isinstance(serde.per_layer, bool)

    @promise(
        "serde.2",
        "has a name that fits a frame's header: 1 to 32 printable ASCII characters",
        level="L0",
        clause="Serde.name",
        why="frames could not say how they are to be read, and are lost with a restart",
    )
    def test_its_name_fits_a_header(self, serde: Serde) -> None:
        assert serde.name.isascii()
        assert serde.name.isprintable()
        assert 1 <= len(serde.name) <= 32

    @each("tokens", TOKENS)
    @each("shape", LAYOUTS)
    @pytest.mark.parametrize("dtype", list(DType))
    @promise(
        "serde.3",
        "gives back what it was given, for every dtype, layout and number of tokens",
        clause="Serde.decode",
        why="the model computes on with KV that is not its own",
        hint="bit for bit if lossless; otherwise what the `close` fixture accepts",
    )
    def test_what_comes_back_is_what_went_in(
        self,
        serde: Serde,
        same: Close,
        dtypes: Collection[DType],
        dtype: DType,
        shape: str,
        tokens: int,
    ) -> None:
        if dtype not in dtypes:
            not_offered(dtype)
        layout = LAYOUTS[shape](dtype)
        raw = plausible(layout, tokens)
        back = decoded(serde, encoded(serde, (raw, layout, tokens)), layout, tokens)
        assert same(raw, back, layout), "other KV came back"

    @each("tokens", TOKENS)
    @each("content", CONTENTS)
    @promise(
        "serde.4",
        "takes every content within its bound, and if it is lossless every bit comes back",
        clause="Serde.encode",
        why="real KV has infinities and constant channels; a store of it would fail, or lie",
        hint="constant channels have no spread to divide by; noise does not shrink",
    )
    def test_any_bytes_are_kv(
        self, serde: Serde, dtypes: Collection[DType], content: str, tokens: int
    ) -> None:
        for dtype in dtypes:
            for shape in LAYOUTS.values():
                layout = shape(dtype)
                raw = CONTENTS[content](layout, tokens)
                back = decoded(serde, encoded(serde, (raw, layout, tokens)), layout, tokens)
                if serde.lossless:
                    same(raw, back, f"{content} in {dtype}: a bit was lost")

    @promise(
        "serde.5",
        "keeps its bound when there are many layers and next to nothing in each",
        clause="Serde.bound",
        why="short chunks of deep models would overrun their block",
        hint="a table with an entry per layer may be longer than the layers",
    )
    def test_the_bound_holds_for_many_small_layers(
        self, serde: Serde, dtypes: Collection[DType]
    ) -> None:
        for dtype in dtypes:
            layout = KVLayout.attention(dtype, layers=96, heads=1, key_width=1)
            for tokens in (1, 2, 3):
                for content in (noise, CONTENTS["zeros"]):
                    encoded(serde, (content(layout, tokens), layout, tokens))
        bounds = [serde.bound(size) for size in SIZES]
        assert {type(bound) for bound in bounds} == {int}
        assert bounds == sorted(bounds), "a larger chunk has a smaller bound"
        shares = [bound / size for bound, size in zip(bounds, SIZES, strict=True)]
        assert min(shares) > max(shares) / 2, "the bound does not grow with the chunk"

    @promise(
        "serde.6",
        "writes nothing beside the payload",
        clause="Serde.encode",
        why="what lies behind the payload in the block is another's",
        hint="`into` is no room to work in",
    )
    def test_encoding_writes_the_payload_only(self, serde: Serde, chunk: Chunk) -> None:
        raw, layout, tokens = chunk
        payload = encoded(serde, chunk)
        for fresh in (0x00, 0xFF):
            room = bytearray([fresh]) * (serde.bound(len(raw)) + 2 * GUARD)
            into = memoryview(room)[GUARD:]
            size = serde.encode(memoryview(raw), layout, tokens, into)
            same(into[:size], payload, "the payload depends on what the buffer held")
            assert set(room[:GUARD]) | set(into[size:]) == {fresh}, "bytes beside it were written"

    @promise(
        "serde.7",
        "fills its whole target, and nothing else",
        clause="Serde.decode",
        why="what a block held before shows through as KV",
        hint="zeros must be written, too: the buffer has been used before",
    )
    @each("content", CONTENTS)
    def test_decoding_fills_exactly(self, serde: Serde, chunk: Chunk, content: str) -> None:
        _, layout, tokens = chunk
        payload = encoded(serde, (CONTENTS[content](layout, tokens), layout, tokens))
        backs = {decoded(serde, payload, layout, tokens, fresh) for fresh in (0x00, 0xFF)}
        assert len(backs) == 1, "what the buffer held before shows through"

    @each("offset", [1, 2, 3])
    @promise(
        "serde.8",
        "works on buffers that are read-only, or start at odd addresses",
        clause="Serde.encode",
        why="blocks are shared by several readers, and parts of them start anywhere",
    )
    def test_buffers_may_lie_anywhere(self, serde: Serde, chunk: Chunk, offset: int) -> None:
        raw, layout, tokens = chunk
        payload = encoded(serde, chunk)
        back = decoded(serde, payload, layout, tokens)

        def moved(data: bytes) -> memoryview:
            return memoryview(bytearray(PAGE + offset) + data)[PAGE + offset :]

        into = moved(bytes(serde.bound(len(raw))))
        size = serde.encode(moved(raw).toreadonly(), layout, tokens, into)
        same(into[:size], payload, "the payload is another one")
        target = moved(bytes(len(raw)))
        serde.decode(moved(payload).toreadonly(), layout, tokens, target)
        same(target, back, "the chunk is another one")

    @promise(
        "serde.9",
        "leaves its input as it is, and lets go of every buffer when the call returns",
        clause="Serde.encode",
        why="the pool gives the memory to another chunk at once",
        hint="keep no memoryview and no array over a buffer of the caller",
    )
    def test_lets_go_of_the_callers_buffers(self, serde: Serde, chunk: Chunk) -> None:
        raw, layout, tokens = chunk
        payload = encoded(serde, chunk)
        given, read = bytearray(raw), bytearray(payload)
        room, target = bytearray(serde.bound(len(raw))), bytearray(len(raw))
        # No view is released here: a serde that kept it would hold a dead one, and not be noticed.
        size = serde.encode(memoryview(given), layout, tokens, memoryview(room))
        decode: Callable[..., object] = serde.decode
        nothing = decode(memoryview(read), layout, tokens, memoryview(target))
        same(given, raw, "encoding changed the chunk")
        same(read, payload, "decoding changed the payload")
        assert size == len(payload), "another payload than before"
        assert nothing is None, "decoding gave something, which may be a view"
        for name, buffer in (("chunk", given), ("payload's room", room)):
            free(buffer, f"encoding keeps a view of the {name}")
        for name, buffer in (("payload", read), ("chunk", target)):
            free(buffer, f"decoding keeps a view of the {name}")
        for length in (0, 1, len(payload) // 2, len(payload) - 1):
            target = bytearray(len(raw))
            turned_away = bytearray(payload[:length])
            _lets_go(lambda cut, into: serde.decode(cut, layout, tokens, into), turned_away, target)
        if serde.per_layer and isinstance(serde, LayerSerde):
            _lets_go_of_layers(serde, payload, layout, tokens)

    @promise(
        "serde.10",
        "needs the payload alone to decode, not what it encoded before",
        clause="Serde.decode",
        why="payloads are read by other processes, after a restart",
        hint="a payload is read by other processes, years later",
    )
    def test_payloads_describe_themselves(self, serde: Serde, chunk: Chunk, same: Close) -> None:
        _, layout, tokens = chunk
        chunks = [plausible(layout, tokens, seed) for seed in range(3)]
        chunks.insert(1, CONTENTS["zeros"](layout, tokens))
        payloads = [encoded(serde, (raw, layout, tokens)) for raw in chunks]
        for raw, payload in zip(chunks, payloads, strict=True):
            assert same(raw, decoded(serde, payload, layout, tokens), layout)
        # The pool uses the same blocks for one chunk after the other.
        room, target = bytearray(max(map(len, payloads))), bytearray(len(chunks[0]))
        with memoryview(room) as held, memoryview(target) as into:
            for turn, (raw, payload) in enumerate(zip(chunks, payloads, strict=True)):
                held[: len(payload)] = payload
                serde.decode(held[: len(payload)], layout, tokens, into)
                assert same(raw, bytes(into), layout), f"chunk {turn} in the block of another"
                held[: len(payload)] = bytes(len(payload))
                assert same(raw, bytes(into), layout), f"chunk {turn} ends with its payload"

    @promise(
        "serde.11",
        "keeps what different threads do apart",
        level="L3",
        clause="Serde",
        why="I/O workers encode and decode at the same time",
        hint="threading.local, or no state",
    )
    def test_threads_do_not_disturb_each_other(self, serde: Serde, chunk: Chunk) -> None:
        _, layout, tokens = chunk
        chunks = [(plausible(layout, tokens, seed), layout, tokens) for seed in range(WORKERS)]
        payloads = [encoded(serde, one) for one in chunks]
        backs = [decoded(serde, payload, layout, tokens) for payload in payloads]
        barrier = Barrier(WORKERS)

        def work(worker: int) -> None:
            barrier.wait(30)
            for turn in range(worker, worker + ROUNDS):
                mine = turn % WORKERS
                same(encoded(serde, chunks[mine]), payloads[mine], "another's payload")
                back = decoded(serde, payloads[mine], layout, tokens)
                same(back, backs[mine], "another's chunk")

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # threads that take turns very often
        try:
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(work, range(WORKERS)))
        finally:
            sys.setswitchinterval(before)


def _lets_go(
    decode: Callable[[memoryview, memoryview], object], payload: bytearray, target: bytearray
) -> None:
    """Check that no view of the buffers exists after the call, also a refused one."""
    with suppress(CorruptFrame):
        decode(memoryview(payload), memoryview(target))
    gc.collect()  # an error may be part of a cycle with the frames of its traceback
    free(payload, f"a view of {len(payload)} bytes of a payload is kept")
    free(target, f"a view of the room for a chunk is kept, after {len(payload)} bytes of a payload")


def _lets_go_of_layers(serde: LayerSerde, payload: bytes, layout: KVLayout, tokens: int) -> None:
    index = bytearray(payload[: serde.index_bytes(layout)])
    start, end = serde.layer_parts(memoryview(index), len(payload), layout, tokens)[1]
    free(index, "a view of a payload's index is kept")
    first, last = layout.layer_span(1, tokens)
    for length in (end - start, end - start - 1, 0):
        _lets_go(
            lambda part, into: serde.decode_layer(part, 1, layout, tokens, into),
            bytearray(payload[start : start + length]),
            bytearray(last - first),
        )
