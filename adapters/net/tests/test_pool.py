"""A pool gives each call a connection of its own, none in doubt, and no more than it may."""

from contextlib import ExitStack
from select import POLLIN, poll
from threading import Thread

import pytest

from hexkv.adapters.net.errors import BadMessage, OutOfTime
from hexkv.adapters.net.pool import Pool
from hexkv.adapters.net.tls import Trust
from hexkv.contracts.doubles import deadline
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, StoreError, StoreUnreachable
from processes import PATIENCE, until


class Line:
    """A protocol that says itself when a reply was taken whole."""

    def __init__(self, stream, *_):
        self.stream = stream
        self.whole = True

    def reusable(self, *, well):
        return well and self.whole


@pytest.fixture
def pools(listener):
    """Makes pools of connections to the listener; closes them."""
    made = []

    def pool(ready=Line, **options):
        made.append(Pool(listener.address, ready, **options))
        return made[-1]

    yield pool
    for one in made:
        one.close()


def soon(seconds=0.05):
    return Deadline.after(SystemClock(), seconds)


def gone(peer):
    """Wait until the client closes a connection on which it says nothing."""
    assert peer.recv(1) == b""


def ready_of(sockets):
    """How many of them can be read, once one can; select() knows no number above 1,023."""
    waiting = poll()
    for one in sockets:
        waiting.register(one, POLLIN)
    return len(waiting.poll(PATIENCE * 1_000))


def test_nothing_is_connected_before_the_first_call(pools, listener):
    pools()
    listener.sock.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.sock.accept()


def test_a_connection_is_kept_for_the_next_call(pools):
    pool = pools()
    with pool.connection(deadline()) as first:
        pass
    with pool.connection(deadline()) as second:
        assert second is first
    with pool.connection(deadline(), fresh=True) as third:
        assert third is not first


def test_calls_at_a_time_have_connections_of_their_own(pools):
    pool = pools()
    with pool.connection(deadline()) as one, pool.connection(deadline()) as other:
        assert one.stream is not other.stream


def fail():
    raise RuntimeError("in the middle of a reply")


def test_a_connection_whose_call_raised_is_never_used_again(pools, listener):
    pool = pools()
    with pytest.raises(RuntimeError), pool.connection(deadline()):
        fail()
    gone(listener.accept())


def test_a_connection_whose_reply_was_incomplete_is_never_used_again(pools, listener):
    pool = pools()
    with pool.connection(deadline()) as line:
        line.whole = False
    gone(listener.accept())


def test_a_connection_with_bytes_that_nobody_took_is_never_used_again(pools, listener):
    pool = pools()
    with pool.connection(deadline()) as line:
        peer = listener.accept()
        peer.sendall(b"answer, and more")
        assert line.stream.take_until(b",", 99, deadline(), ahead=64) == b"answer,"
    gone(peer)


@pytest.mark.parametrize("unasked", [b"", b"more"])
def test_a_connection_that_changed_while_it_was_idle_is_never_used_again(pools, listener, unasked):
    pool = pools()
    with pool.connection(deadline()) as first:
        peer = listener.accept()
    peer.sendall(unasked)
    if not unasked:
        peer.close()
    assert ready_of([first.stream.socket]) == 1
    with pool.connection(deadline()) as second:
        assert second is not first


def test_no_more_connections_are_kept_than_asked_for(pools, listener):
    pool = pools(idle=1)
    with pool.connection(deadline()), pool.connection(deadline()):
        peers = [listener.accept(), listener.accept()]
    assert ready_of(peers) == 1


def test_no_more_calls_than_allowed_have_a_connection(pools):
    pool = pools(most=2)
    with (
        pool.connection(deadline()),
        pool.connection(deadline()),
        pytest.raises(OutOfTime),
        pool.connection(soon()),
    ):
        pytest.fail("a third one")
    with pool.connection(deadline()), pool.connection(deadline()):
        pass  # who gave up has taken no turn with it


def test_a_call_that_fails_gives_its_turn_back(pools):
    pool = pools(most=1)
    for _ in range(3):
        with pytest.raises(RuntimeError), pool.connection(deadline()):
            fail()
    with pool.connection(deadline()):
        pass


def test_a_connection_that_cannot_be_made_gives_its_turn_back(pools):
    def refuse(stream, late):
        raise BadMessage("nonsense")

    pool = pools(refuse, most=1)
    told = f"{pool.address}: nonsense"
    for _ in range(3):
        with pytest.raises(BadMessage, match=told), pool.connection(deadline()):
            pytest.fail("it is not ready")


def queued(pool, calls):
    """Wait until so many calls wait for their turn."""
    until(lambda: len(pool._turns._waiting) == calls)


def test_turns_are_given_in_the_order_in_which_they_were_asked_for(pools):
    pool, order, threads = pools(most=1), [], []

    def call(number, late):
        with pool.connection(late):
            order.append(number)

    with pool.connection(deadline()):
        for number in range(8):
            late = deadline(PATIENCE)
            threads.append(Thread(target=call, args=(number, late)))
            threads[-1].start()
            queued(pool, number + 1)
    for thread in threads:
        thread.join(PATIENCE)
    assert order == list(range(8))


def test_who_comes_later_does_not_pass_who_waits(pools):
    pool, order = pools(most=1), []

    def call():
        with pool.connection(deadline(PATIENCE)):
            order.append("waited")

    waiter = Thread(target=call)
    with pool.connection(deadline()):
        waiter.start()
        queued(pool, 1)
    # The turn is the waiter's from the moment in which it was given back, awake or not.
    with pool.connection(deadline()):
        order.append("came later")
    waiter.join(PATIENCE)
    assert order == ["waited", "came later"]


def test_patience_ends_what_the_deadline_would_wait_for(pools, listener):
    def ready(stream, late):
        stream.take(1, late)
        return Line(stream)

    pool = pools(ready, patience=0.05)
    told = r"did not answer within 0\.05 s"
    with pytest.raises(StoreUnreachable, match=told), pool.connection(deadline()):
        pytest.fail("nobody answered")
    gone(listener.accept())


def test_a_deadline_before_the_patience_is_out_of_time(pools):
    pool = pools(lambda stream, late: stream.take(1, late), patience=PATIENCE)
    with pytest.raises(OutOfTime), pool.connection(soon()):
        pytest.fail("nobody answered")


def held(pool, deadline, failed):
    """A thread with a call that waits for an answer that never comes."""

    def call():
        try:
            with pool.connection(deadline) as line:
                line.stream.take(1, deadline)
        except StoreError as error:
            failed.append(error)

    thread = Thread(target=call)
    thread.start()
    return thread


@pytest.mark.parametrize("tls", [None, Trust(verify=False)])
def test_closing_ends_calls_in_use_in_a_handshake_and_waiting(pools, listener, tls):
    pool = pools(most=2, tls=tls and tls.context())
    failed, threads = [], []
    for number in range(4):
        threads.append(held(pool, deadline(PATIENCE), failed))
        if number < 2:
            peer = listener.accept()
            if tls:
                assert peer.recv(1) == b"\x16"  # in its handshake
    queued(pool, 2)
    until(lambda: len(pool._busy) == 2)
    pool.close()
    for thread in threads:
        thread.join(PATIENCE / 2)
        assert not thread.is_alive()
    assert len(failed) == 4
    with pytest.raises(StoreError, match="closed"), pool.connection(deadline()):
        pytest.fail("it is closed")
    pool.close()


def test_closing_ends_a_greeting_that_is_never_answered(pools, listener):
    def ready(stream, late):
        stream.send([b"hello"], late)
        stream.take(1, late)
        return Line(stream)

    pool, failed = pools(ready), []
    thread = held(pool, deadline(PATIENCE), failed)
    peer = listener.accept()
    assert peer.recv(5) == b"hello"
    pool.close()
    thread.join(PATIENCE / 2)
    assert not thread.is_alive()
    assert len(failed) == 1
    gone(peer)


def test_a_connection_in_use_is_not_kept_once_the_pool_is_closed(pools, listener):
    pool = pools()
    with ExitStack() as used:
        used.enter_context(pool.connection(deadline()))
        peer = listener.accept()
        pool.close()
    gone(peer)
