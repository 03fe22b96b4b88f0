"""Questions reach the worker they are for, and nobody waits for long."""

import os
import socket
import threading
import time
from contextlib import ExitStack, closing
from functools import partial

import pytest

from hexkv.adapters.net.rpc.wire import message
from hexkv.adapters.vllm.lookup import channel
from hexkv.adapters.vllm.lookup.channel import (
    VERSION,
    ChannelClient,
    ChannelServer,
    meeting_place,
    socket_path,
)
from hexkv.adapters.vllm.lookup.in_process import InProcessLookupClient

SECONDS = 60.0
"""After which what should have happened long ago counts as lost."""

PAUSE = threading.Event()


@pytest.fixture
def place(tmp_path):
    return meeting_place(str(tmp_path), "engine", make=True)


def echo(question, tokens):
    return {"op": question["op"], "id": question.get("id"), "tokens": tokens.cast("I").tolist()}


@pytest.fixture
def listen(place):
    """Begins listeners."""
    with ExitStack() as opened:

        def begin(answer, **settings):
            listener = ChannelServer(socket_path(place, 0), answer, **settings)
            opened.callback(listener.close, SECONDS)
            return listener

        yield begin


@pytest.fixture
def listener(listen):
    return listen(echo)


@pytest.fixture(params=["by socket", "in one process"])
def call(request, place, monkeypatch):
    """Makes callers of whoever listens."""
    with ExitStack() as opened:

        def begin():
            with monkeypatch.context() as patch:
                if request.param == "by socket":
                    patch.setattr(InProcessLookupClient, "leads_to", lambda path: False)
                caller = ChannelClient(socket_path(place, 0))
            opened.callback(caller.close)
            return caller

        yield begin


@pytest.fixture
def caller(listener, call):
    return call()


@pytest.fixture
def distant(place):
    """A caller that was there first."""
    with closing(ChannelClient(socket_path(place, 0))) as caller:
        yield caller


def packed(*tokens):
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def until(reached):
    """Ask again and again: what a socket is about to see can only be polled."""
    end = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < end
        PAUSE.wait(0.01)


def answered(caller):
    """Whether a question gets its answer."""
    number = caller.ask("find")
    answer = caller.take(number, 0.1) if number else None
    caller.drop(number)
    return answer is not None


def test_an_answer_belongs_to_its_question(caller):
    assert caller.reachable(SECONDS)
    numbers = {caller.ask("find", packed(i, i + 1), id=f"r{i}"): i for i in range(50)}
    for number, i in reversed(numbers.items()):
        answer = caller.take(number, SECONDS)
        assert answer["id"] == f"r{i}"
        assert answer["tokens"] == [i, i + 1]


def test_an_answer_is_given_once(caller):
    assert caller.reachable(SECONDS)
    number = caller.ask("find")
    assert caller.take(number, SECONDS) is not None
    assert caller.take(number) is None


def test_nobody_waits_for_a_worker_that_is_not_there(distant):
    assert not distant.reachable(0.0)
    assert distant.ask("find", packed(1)) == 0


def test_nobody_waits_for_a_worker_that_has_left(listener, call):
    caller = call()
    assert caller.reachable(SECONDS)
    listener.close(SECONDS)

    def gone():
        number = caller.ask("find", packed(1))
        caller.drop(number)
        return number == 0 and not caller.reachable(0.0)

    until(gone)  # a socket may take a moment to see it


def test_no_more_questions_wait_than_may(listen, call):
    go = threading.Event()
    listen(lambda question, tokens: {"waited": go.wait(SECONDS)}, threads=1)
    caller = call()
    try:
        assert caller.reachable(SECONDS)
        # On a socket they wait on both sides, and in the system between them.
        refused = 0
        for _ in range(100_000):
            refused += not caller.ask("find", bytes(1024), wanted=False)
            if refused:
                break
        assert refused
    finally:
        go.set()


def test_who_lets_a_question_wait_is_not_waited_for_again_until_he_speaks(listen, call):
    go = threading.Event()

    def slow(question, tokens):
        go.wait(SECONDS)
        return {}

    listen(slow)
    caller = call()
    try:
        assert caller.reachable(SECONDS)
        first = caller.ask("find")
        assert caller.take(first, 0.05) is None
        assert caller.silent
        second = caller.ask("find")
        assert caller.take(second, 1e6) is None  # returns at once
        go.set()
        third = caller.ask("find")
        until(lambda: caller.take(third) is not None)
        assert not caller.silent
    finally:
        go.set()


def test_a_failing_answer_says_so_and_the_next_one_comes(listen, call):
    def fragile(question, tokens):
        if question["op"] == "break":
            raise RuntimeError("on purpose")
        return {"fine": True}

    listen(fragile, threads=1)
    caller = call()
    assert caller.reachable(SECONDS)
    assert caller.take(caller.ask("break"), SECONDS)["error"] == "RuntimeError: on purpose"
    assert caller.take(caller.ask("find"), SECONDS)["fine"]


def test_nonsense_ends_its_own_connection_alone(caller, place):
    """Also a question of another version."""
    size = (2).to_bytes(4, "little")
    for generation, body in (
        (VERSION, b""),
        (VERSION, size + b"{"),
        (VERSION, size + b"[]"),
        (VERSION + 1, size + b"{}"),
    ):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(SECONDS)
            stranger.connect(str(socket_path(place, 0)))
            stranger.sendall(message(1, 1, generation, body))
            assert stranger.recv(1) == b""
    assert caller.reachable(SECONDS)
    assert caller.take(caller.ask("find"), SECONDS) is not None


def test_a_worker_that_comes_back_is_found_again(listen, call):
    caller = None
    for _ in range(2):
        listener = listen(echo)
        caller = caller or call()
        assert caller.reachable(SECONDS)
        until(partial(answered, caller))  # the old connection is not seen as gone at once
        listener.close(SECONDS)  # else its end might take the next one's socket along


def test_a_fork_does_not_take_its_parents_worker_for_its_own(listener, place, monkeypatch):
    assert InProcessLookupClient.leads_to(socket_path(place, 0))
    monkeypatch.setattr(os, "getpid", lambda: 0)
    assert not InProcessLookupClient.leads_to(socket_path(place, 0))


def test_the_sockets_are_the_users_alone(tmp_path, place):
    assert place.stat().st_mode & 0o777 == 0o700
    assert place.parent.stat().st_mode & 0o777 == 0o700
    place.chmod(0o755)
    for make in (True, False):
        with pytest.raises(PermissionError, match="0700"):
            meeting_place(str(tmp_path), "engine", make=make)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path):
    aside = tmp_path / "aside"
    aside.mkdir(mode=0o700)
    (tmp_path / f"hexkv-{os.getuid()}").symlink_to(aside)
    with pytest.raises(PermissionError):
        meeting_place(str(tmp_path), "engine", make=True)


def test_a_socket_has_a_short_name_whatever_the_instance_is_called():
    assert len(str(socket_path(meeting_place("", "x" * 1000, make=False), 127))) < 100


def test_instances_do_not_meet(tmp_path):
    assert meeting_place(str(tmp_path), "a", make=True) != meeting_place(
        str(tmp_path), "b", make=True
    )


def test_closing_twice_is_allowed(listener, caller):
    listener.close()
    listener.close()
    caller.close()
    caller.close()


def test_no_more_waits_for_an_answer_than_fits_into_a_message(listen, call, monkeypatch):
    """Whoever does not answer would have to keep it all."""
    goes_on = threading.Event()

    def late(question, tokens):
        assert goes_on.wait(SECONDS)
        return echo(question, tokens)

    listen(late)
    caller = call()
    assert caller.reachable(SECONDS)
    monkeypatch.setattr(channel, "MAX_MESSAGE", 8)
    assert not caller.ask("find", packed(1, 2, 3))
    numbers = [caller.ask("find", packed(1)), caller.ask("find", packed(2))]
    assert all(numbers)
    caller.drop(numbers[0])
    assert not caller.ask("find", packed(3))
    assert caller.ask("release", wanted=False)
    goes_on.set()
    assert caller.take(numbers[1], SECONDS)["tokens"] == [2]
    until(lambda: caller.ask("find", packed(3)))
