"""What a batch gives whose connection breaks in the middle."""

import pytest

from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime
from hexkv.adapters.net.outcomes import answering, collect, land, plain, slices
from hexkv.adapters.net.pool import Pool
from hexkv.contracts.doubles import ListSink, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import Failed, Hit, Miss, Reason, StoreUnreachable, TimedOut


class Line:
    def __init__(self, stream, *_):
        self.stream = stream

    def reusable(self, *, well):
        return well


@each("error", [OutOfTime("late"), ConnectionBroken("gone")])
def test_what_was_answered_before_it_broke_stays_answered(listener, error):
    pool, outcomes = Pool(listener.address, Line), [None, None]

    def call(line):
        outcomes[0] = Hit(5)
        raise error

    left = TimedOut() if isinstance(error, OutOfTime) else Failed(error)
    assert collect(pool, outcomes, deadline(), call) == [Hit(5), left]
    pool.close()


def test_a_call_that_fails_as_a_whole_names_the_server_that_did_not_answer(listener):
    told = f"{listener.address} did not answer in time"
    with pytest.raises(StoreUnreachable, match=told), answering(listener.address):
        raise OutOfTime


def test_a_value_without_room_is_read_past(listener):
    pool = Pool(listener.address, Line)
    with pool.connection(deadline()) as line:
        peer = listener.accept()
        peer.sendall(b"frame" + b"frame" + b"!")
        sink = ListSink(refuse=range(1))
        assert land(line.stream, 0, 5, sink, deadline()) == Miss(Reason.REFUSED)
        assert land(line.stream, 1, 5, sink, deadline()) == b"frame"
        assert line.stream.take(1, deadline()) == b"!"
    pool.close()


def test_a_batch_is_cut_in_order_and_whole():
    assert [list(part) for part in slices(5, 2)] == [[0, 1], [2, 3], [4]]
    assert list(slices(0, 2)) == []


def test_a_frame_of_any_format_is_its_bytes():
    wide = memoryview(bytearray(8)).cast("I")
    assert plain(wide).nbytes == len(plain(wide)) == 8
    narrow = memoryview(b"abc")
    assert plain(narrow) is narrow
