"""An engine loads by cuFile into pages: verified by a kernel, and never wrong."""

from contextlib import contextmanager

import pytest
import torch

from hexkv.api import DType, KVLayout, open_cache
from hexkv.contracts.doubles import deadline
from hexkv.contracts.kit.waiting import promptly
from hexkv.kernels import PagedKV
from hexkv.kernels.gpu.buffers import DeviceBuffers
from hexkv.ports import PAGE, InvalidRequest, RoomSpan
from media.chunk_files import Files
from processes import until

LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=16)
CHUNK, BLOCK, CHUNKS = 16, 8, 3
TOKENS = CHUNK * CHUNKS
LIES = ["nothing came", "more came", "a bit is flipped", "of another place"]
PROMPT = list(range(TOKENS))


def pages(fill):
    shape = (TOKENS // BLOCK + 2, BLOCK, 2, 16)
    return [[fill(shape, dtype=torch.bfloat16) for _ in "kv"] for _ in range(LAYOUT.layers)]


def window(made, *, fused=True):
    slots = [(b + 1) * BLOCK + t for b in reversed(range(TOKENS // BLOCK)) for t in range(BLOCK)]
    return PagedKV(LAYOUT, made, slots, fused=fused)


@contextmanager
def opening(root, cufile, wait=60.0):
    """A cache over gds, which holds the prompt, what was computed, and where its files are."""
    config = {
        "pool": {"bytes": "8MiB"},
        "chunk": {"size": CHUNK},
        "deadlines": {"retrieve": wait},
        "tiers": [{"store": "gds", "settings": {"root": str(root), "library": cufile.path}}],
    }
    computed = pages(torch.rand)
    with open_cache(config, model="m", layout=LAYOUT) as cache:
        assert cache.store(PROMPT, window(computed)).stored_tokens == TOKENS
        yield cache, computed, root


@pytest.fixture
def opened(tmp_path, cufile):
    with opening(tmp_path / "frames", cufile) as opened:
        yield opened


def load(opened, **options):
    """The tokens that were hit, and whether what is in the pages is what was computed."""
    cache, computed, _ = opened
    loaded = pages(torch.zeros)
    hit = cache.retrieve(PROMPT, window(loaded, **options)).hit_tokens
    keep = window(loaded)._slots[:hit].tolist()
    same = all(
        torch.equal(there.flatten(0, 1)[keep], here.flatten(0, 1)[keep])
        for layers in zip(loaded, computed, strict=True)
        for there, here in zip(*layers, strict=True)
    )
    return hit, same


def test_chunks_come_past_the_host_and_are_verified_by_the_device(opened, cufile):
    assert load(opened) == (TOKENS, True)
    assert cufile.calls("read") == CHUNKS
    assert cufile.broken == 0
    # A window on the CPU has no such room: the host reads.
    assert load(opened, fused=False) == (TOKENS, True)
    assert cufile.calls("read") == CHUNKS


def test_what_is_damaged_is_never_loaded_whichever_byte_it_is(opened, cufile):
    _, _, root = opened
    files = Files(root)
    key = next(iter(files.keys()))
    whole = files.get(key)
    for at in (0, 60, 1030, PAGE, PAGE + 1000, len(whole) // 2, len(whole) - 1):
        files.put(key, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        hit, same = load(opened)
        assert same
        assert hit < TOKENS
        files.put(key, whole)
        for aside in root.glob("quarantine/*"):
            aside.unlink()
    assert load(opened)[1]


@pytest.mark.parametrize("function", ["buf", "read"])
def test_where_cufile_fails_the_host_reads_the_same(opened, cufile, function):
    cufile.fail(function, 5030)
    assert load(opened) == (TOKENS, True)
    assert load(opened) == (TOKENS, True)


@pytest.mark.parametrize("how", LIES)
def test_whatever_cufile_lies_about_is_seen_by_the_device_and_read_by_the_host(opened, cufile, how):
    cufile.lie(how)
    assert load(opened) == (TOKENS, True)
    assert cufile.calls("read")
    assert not list(opened[2].glob("quarantine/*")), "the file is as it should be"
    cufile.lie("")
    before = cufile.calls("read")
    assert load(opened) == (TOKENS, True)
    assert cufile.calls("read") == before + CHUNKS


def test_reads_that_hang_cost_a_deadline_and_nothing_else(tmp_path, cufile):
    with opening(tmp_path / "frames", cufile, wait=1.0) as opened:
        cache, _, _ = opened
        cufile.stall()

        def loading():
            hit, same = load(opened)
            assert same
            return hit

        try:
            assert promptly(loading, 20.0) == 0
            assert cufile.waiting, "the driver still has what it reads into"
        finally:
            cufile.go_on()
        until(lambda: loading() == TOKENS)
        until(lambda: not cache.health().leases)


def test_a_room_is_used_again_when_the_last_who_held_it_let_go():
    made = window(pages(torch.zeros))
    room = made.device_room(10_000, "a")
    assert (room.size, room.base % PAGE, room.owner) == (12288, 0, "a")
    other, held = made.device_room(10, "b"), room.share("c")
    assert other.base != room.base
    room.release()
    room.release()
    again = made.device_room(12288, "d")
    assert again.base != room.base
    held.release()
    assert made.device_room(12288, "e").base == room.base
    with pytest.raises(ValueError, match="released"):
        room.share("f")
    for wrong in (RoomSpan(0, TOKENS + 1, 0), RoomSpan(0, CHUNK, 8), RoomSpan(0, TOKENS, 0)):
        with pytest.raises(InvalidRequest):
            other.scatter([wrong])
    assert other.digests("crc32", [(0, 1024)], deadline()) is None
    assert isinstance(made._pages.buffers, DeviceBuffers)
