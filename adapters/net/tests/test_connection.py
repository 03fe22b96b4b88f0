"""A server waits for a client so long and no longer, and knows which one it waits for longest."""

import pytest

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.stream import Stream, connect
from hexkv.contracts.doubles import ManualClock, deadline
from processes import until

LIMITS = Limits(1 << 20, patience=10.0, rate=1000.0, idle=50.0)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def ends(listener, clock):
    client = connect(listener.address, deadline())
    connection = Connection(Stream(listener.accept()), LIMITS, clock)
    yield connection, client
    client.close()


def say(client, data=b"head"):
    client.send([data], deadline())


def test_all_transfers_of_a_request_share_its_patience(ends, clock):
    connection, client = ends
    for _ in range(2):  # each request has all of it
        say(client)
        assert connection.request(4, 50.0) == b"head"
        clock.advance(30.0)  # what the server takes is not the client's
        for late in (3.0, 3.0, 3.0):
            with connection.transfer(5000) as until_then:
                clock.advance(5.0 + late)
                assert not until_then.expired
        with connection.transfer(2000) as until_then:
            assert until_then.remaining() == pytest.approx(3.0)
            clock.advance(1.0)  # sooner than it has to be: nothing is won by that
        clock.advance(30.0)
        with connection.transfer() as until_then:
            clock.advance(1.0)
            with pytest.raises(OutOfTime):
                connection.stream.take(1, until_then)


def test_a_client_lags_by_what_it_is_waited_for_beside_what_its_bytes_take(ends, clock):
    connection, client = ends
    clock.advance(4.0)
    assert connection.lag == 4.0, "nothing has come"
    say(client, b"he")
    assert connection.look(2) == b"he"
    clock.advance(2.0)
    assert connection.lag == pytest.approx(6.0, abs=0.1), "half a request is none"
    say(client, b"ad")
    assert connection.request(4) == b"head"
    clock.advance(60.0)
    assert connection.lag is None, "the client waits"
    with connection.transfer(100_000):
        clock.advance(0.5)
        assert connection.lag is None
        clock.advance(8.5)
        assert connection.lag == pytest.approx(8.0, abs=0.1)
        say(client, bytes(20_000))
        until(lambda: connection.lag is None)
    assert connection.lag is None
