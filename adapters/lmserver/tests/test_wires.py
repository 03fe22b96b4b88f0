"""Both wires, byte by byte: a version never changes its meaning."""

import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.lmserver import historic, wire
from hexkv.adapters.lmserver.historic import Answer, Command, Request, Tensor
from hexkv.contracts.doubles import chunk_key
from lm_servers import RawHexkv, RawLM, request

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


def test_the_historic_wire_has_the_bytes_of_its_description():
    tensor = Tensor(1, 3, (2, 32, 256, 1024))
    asked = Request(Command.PUT, b"m@1@0@ff@bfloat16", 33554432, tensor)
    assert asked.pack() == (
        struct.pack("<9i", 1, 33554432, 1, 3, 0, 2, 32, 256, 1024) + b"m@1@0@ff@bfloat16".ljust(150)
    )
    assert len(asked.pack()) == 186
    assert Answer(True, 7, tensor).pack() == struct.pack("<9i", 200, 7, 1, 3, 2, 32, 256, 1024, 0)
    assert Answer(False, 0, historic.NOTHING).pack().hex().startswith("90010000")


def test_the_name_of_a_chunk_on_the_historic_wire_stays_the_same():
    name = historic.name_of(KEY)
    assert name == b"hexkv@1@0@" + KEY.hex().encode() + b"@uint8"
    assert len(name) <= historic.KEY_LENGTH


numbers = st.integers(-(2**31), 2**31 - 1)


@given(
    st.sampled_from(Command),
    st.binary(max_size=150).filter(lambda key: not key.endswith(b" ")),
    st.integers(0, 2**31 - 1),
    st.tuples(numbers, numbers, st.tuples(*[numbers] * 4), numbers),
)
def test_what_the_historic_wire_packs_it_parses(command, key, length, tensor):
    asked = Request(command, key, length, Tensor(*tensor))
    assert historic.parse_request(asked.pack()) == asked
    answer = Answer(command == Command.GET, length, Tensor(*tensor))
    assert historic.parse_answer(answer.pack()) == answer


@given(st.binary(min_size=186, max_size=186))
def test_a_request_that_is_none_is_refused(data):
    try:
        asked = historic.parse_request(data)
    except wire.BadMessage:
        return
    assert asked.length >= 0


@given(st.binary(min_size=24, max_size=24), st.integers(0, 191))
def test_no_flipped_bit_of_a_message_is_overlooked(body, place):
    packed = bytearray(wire.message(wire.Kind.SCAN, 1, body))
    packed[place // 8] ^= 1 << place % 8
    with pytest.raises(wire.BadMessage):
        wire.verify(wire.head(bytes(packed[:24])), bytes(packed[24:]))


def test_an_old_client_gets_back_what_it_put(server):
    raw = RawLM(server.address)
    numbers = (1, 3, 0, 2, 4, 8, 16)
    raw.ask(1, b"some model@2@1@-abc@bfloat16", 6, numbers)
    raw.sock.sendall(b"tensor")
    raw.ask(3, b"some model@2@1@-abc@bfloat16")
    assert raw.answer() == (200, 0, 1, 2, 0, 0, 0, 0, 0)
    raw.ask(2, b"some model@2@1@-abc@bfloat16")
    assert raw.answer() == (200, 6, 1, 3, 2, 4, 8, 16, 0)
    assert raw.exactly(6) == b"tensor"
    raw.ask(2, b"another")
    assert raw.answer() == (400, 0, 1, 2, 0, 0, 0, 0, 0)
    raw.ask(3, b"another")
    assert raw.answer()[0] == 400
    raw.ask(5, b"anything")
    assert raw.answer()[0] == 200
    raw.ask(4, b"anything")
    assert raw.exactly(raw.answer()[1]) == b"some model@2@1@-abc@bfloat16"
    raw.close()


def test_the_two_wires_share_no_chunk(server, open_store, soon):
    from hexkv.contracts.doubles import ListSink
    from hexkv.ports import Item, Miss

    key = chunk_key("one")
    modern, old = open_store(server.address), open_store(server.address, "lm")
    modern.write([Item(key, memoryview(b"modern"))], soon)
    assert list(old.read([key], ListSink(), soon)) == [Miss()]


def test_proofs_are_hmac_sha256_over_the_whole_greeting():
    from hexkv.adapters.lmserver import handshake

    expected = hmac.new(b"secret", b"clienthellochallenge", "sha256").digest()
    assert handshake._proof(b"secret", b"client", b"hello", b"challenge") == expected
