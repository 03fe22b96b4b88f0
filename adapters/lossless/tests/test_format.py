"""What was written once can be read for ever, by whoever reads the description."""

from hashlib import sha256
from itertools import count
from pathlib import Path
from struct import unpack_from

import zstandard

from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.kit.cases import each
from hexkv.ports import DType, KVLayout

TOKENS = 64
GOLDEN_FILES = Path(__file__).parent / "golden"


def read(payload, layout, tokens):
    """The chunk in *payload*: byte by byte, and without a line of the serde's."""
    magic, raw_bytes, payload_bytes = unpack_from("<8sQQ", payload)
    assert magic == b"hexkvzp\x01"
    assert (raw_bytes, payload_bytes) == (layout.chunk_bytes(tokens), len(payload))
    if payload_bytes == 24 + raw_bytes:
        return payload[24:]
    at, chunk = 24 + 8 * layout.layers, b""
    for layer, size in enumerate(unpack_from(f"<{layout.layers}Q", payload, 24)):
        first, last = layout.layer_span(layer, tokens)
        chunk += _layer(payload[at : at + size], last - first, layout.dtype.itemsize)
        at += size
    assert at == payload_bytes
    return chunk


def _layer(part, raw_bytes, itemsize):
    if len(part) == raw_bytes:
        return part
    at, layer = 8 * itemsize, bytearray(raw_bytes)
    for place, size in enumerate(unpack_from(f"<{itemsize}Q", part)):
        plane = part[at : at + size]
        if size < raw_bytes // itemsize:
            plane = zstandard.ZstdDecompressor().decompress(plane)
        layer[place::itemsize] = plane
        at += size
    assert at == len(part)
    return bytes(layer)


def noise(size):
    """The same bytes on every machine, in every version of everything."""
    blocks = (sha256(number.to_bytes(8, "little")).digest() for number in count())
    return b"".join(block for block, _ in zip(blocks, range(-(-size // 32)), strict=False))[:size]


def layout(dtype):
    return KVLayout.attention(dtype, layers=3, heads=1, key_width=8)


def chunk(dtype):
    """Three layers: one like real KV, one of zeros, one of noise."""
    size, itemsize = layout(dtype).chunk_bytes(TOKENS) // 3, dtype.itemsize
    alike = bytearray(noise(size))
    alike[itemsize - 1 :: itemsize] = bytes(0x3C + byte % 3 for byte in alike[::itemsize])
    return bytes(alike) + bytes(size) + noise(size)


GOLDEN = {
    f"v1-{dtype}.bin": (chunk(dtype), layout(dtype))
    for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT8_E4M3)
}
GOLDEN["v1-as-it-was.bin"] = (noise(3072), layout(DType.UINT8))


@each("name", GOLDEN)
def test_a_payload_of_the_first_version_can_be_read_for_ever(name):
    raw, layout = GOLDEN[name]
    into = bytearray(len(raw))
    payload = (GOLDEN_FILES / name).read_bytes()
    ZstdSerde().decode(memoryview(payload), layout, TOKENS, memoryview(into))
    assert into == raw
    assert read(payload, layout, TOKENS) == raw


@each("level", [0, 1, 19])
@each("name", GOLDEN)
def test_what_is_written_today_is_what_the_description_says(name, level):
    raw, layout = GOLDEN[name]
    serde = ZstdSerde(level)
    room = bytearray(serde.bound(len(raw)))
    size = serde.encode(memoryview(raw), layout, TOKENS, memoryview(room))
    assert read(bytes(room[:size]), layout, TOKENS) == raw


def test_golden_payloads_are_all_there():
    assert {path.name for path in GOLDEN_FILES.iterdir()} == set(GOLDEN)
