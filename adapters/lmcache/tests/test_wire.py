"""The wire, byte by byte: it never changes its meaning."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.lmcache import wire
from hexkv.adapters.lmcache.wire import AnswerHead, Command, RequestHead, Tensor
from hexkv.adapters.net.errors import BadMessage
from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.ports import Item, Miss
from servers.lm_servers import RawLM

KEY = bytes(range(48))
numbers = st.integers(-(2**31), 2**31 - 1)


def test_the_wire_has_the_bytes_of_its_description():
    tensor = Tensor(1, 3, (2, 32, 256, 1024))
    asked = RequestHead(Command.PUT, b"m@1@0@ff@bfloat16", 33554432, tensor)
    assert asked.pack() == (
        struct.pack("<9i", 1, 33554432, 1, 3, 0, 2, 32, 256, 1024) + b"m@1@0@ff@bfloat16".ljust(150)
    )
    assert len(asked.pack()) == 186
    assert AnswerHead(True, 7, tensor).pack() == struct.pack(
        "<9i", 200, 7, 1, 3, 2, 32, 256, 1024, 0
    )
    assert AnswerHead(False, 0, wire.NOTHING).pack().hex().startswith("90010000")


def test_the_name_of_a_chunk_stays_the_same():
    name = wire.name_of(KEY)
    assert name == b"hexkv@1@0@" + KEY.hex().encode() + b"@uint8"
    assert len(name) <= wire.KEY_LENGTH


@given(
    st.sampled_from(Command),
    st.binary(max_size=150).filter(lambda key: wire.is_name(key) and not key.endswith(b" ")),
    st.integers(0, 2**31 - 1),
    st.tuples(numbers, numbers, st.tuples(*[numbers] * 4), numbers),
)
def test_what_the_wire_packs_it_parses(command, key, length, tensor):
    asked = RequestHead(command, key, length, Tensor(*tensor))
    assert wire.parse_request(asked.pack()) == asked
    answer = AnswerHead(command == Command.GET, length, Tensor(*tensor))
    assert wire.parse_answer(answer.pack()) == answer


@given(st.binary(min_size=186, max_size=186))
def test_a_request_that_is_none_is_refused(data):
    try:
        asked = wire.parse_request(data)
    except BadMessage:
        return
    assert asked.length >= 0


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
    key = chunk_key("one")
    modern, old = open_store(server.address), open_store(server.address, "lm")
    modern.write([Item(key, memoryview(b"modern"))], soon)
    assert list(old.read([key], ListSink(), soon)) == [Miss()]
