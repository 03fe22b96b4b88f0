"""The wire, byte by byte: a version never changes its meaning."""

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.lmserver import wire
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.messages import verify
from hexkv.adapters.net.rpc import handshake
from servers.lm_servers import RawHexkv, request

KEY = bytes(range(48))


def test_a_request_has_the_bytes_that_version_1_gives_it():
    packed = wire.message(wire.Kind.WRITE, 1, wire.WISHES.pack(KEY, 4096), patience=250)
    assert packed.hex() == (
        "68786b760300000001000000fa00000038000000237613c6"
        + KEY.hex() + "0010000000000000"
    )  # fmt: skip


def test_a_size_has_the_bytes_that_version_1_gives_it():
    assert wire.pack_size(33558528).hex() == "0010000200000000c7103c78"


def test_a_conversation_has_the_bytes_that_version_1_gives_it(server):
    """A client that knows nothing but these bytes is served."""
    raw = RawHexkv(server.address)
    raw.sock.sendall(request(3, 1, KEY + (5).to_bytes(8, "little")))
    assert raw.exactly(25)[:20].hex() == "68786b7603000000010000000000000001000000"
    raw.sock.sendall(b"frame")
    assert raw.exactly(25)[24:] == b"\0"
    raw.sock.sendall(request(5, 1, KEY + (1).to_bytes(8, "little") + (3).to_bytes(8, "little")))
    assert raw.exactly(24 + 12 + 3)[24:] == wire.pack_size(3) + b"ram"
    raw.close()


@given(st.binary(min_size=24, max_size=24), st.integers(0, 191))
def test_no_flipped_bit_of_a_message_is_overlooked(body, place):
    packed = bytearray(wire.message(wire.Kind.SCAN, 1, body))
    packed[place // 8] ^= 1 << place % 8
    with pytest.raises(BadMessage):
        verify(wire.head(bytes(packed[:24])), bytes(packed[24:]))


def test_proofs_are_hmac_sha256_over_the_whole_greeting():
    expected = hmac.new(b"secret", b"clienthellochallenge", "sha256").digest()
    assert handshake._proof(b"secret", b"client", b"hello", b"challenge") == expected
