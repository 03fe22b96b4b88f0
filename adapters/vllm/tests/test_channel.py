"""Questions reach the worker they are for, and nobody waits for long."""

import json
import os
import threading

import pytest
import zmq

from hexkv.adapters.vllm.channel import Caller, Listener, meeting_place, socket_path

SECONDS = 10.0


@pytest.fixture
def place(tmp_path):
    return meeting_place(str(tmp_path), "engine", make=True)


def echo(question, tokens):
    return {"op": question["op"], "id": question.get("id"), "tokens": tokens.cast("I").tolist()}


@pytest.fixture
def listener(place):
    listener = Listener(socket_path(place, 0), echo)
    yield listener
    listener.close()


@pytest.fixture
def caller(place):
    caller = Caller(socket_path(place, 0))
    yield caller
    caller.close()


def packed(*tokens):
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def test_an_answer_belongs_to_its_question(listener, caller):
    assert caller.reachable(SECONDS)
    numbers = {caller.ask("find", packed(i, i + 1), id=f"r{i}"): i for i in range(50)}
    for number, i in reversed(numbers.items()):
        answer = caller.take(number, SECONDS)
        assert answer["id"] == f"r{i}"
        assert answer["tokens"] == [i, i + 1]


def test_an_answer_is_given_once(listener, caller):
    assert caller.reachable(SECONDS)
    number = caller.ask("find")
    assert caller.take(number, SECONDS) is not None
    assert caller.take(number) is None


def test_nobody_waits_for_a_worker_that_is_not_there(caller):
    assert not caller.reachable(0.0)
    assert caller.ask("find", packed(1)) == 0


def test_who_lets_a_question_wait_is_not_waited_for_again_until_he_speaks(place, caller):
    go = threading.Event()

    def slow(question, tokens):
        go.wait(SECONDS)
        return {}

    listener = Listener(socket_path(place, 0), slow)
    try:
        assert caller.reachable(SECONDS)
        first = caller.ask("find")
        assert caller.take(first, 0.05) is None
        assert caller.silent
        second = caller.ask("find")
        assert caller.take(second, 1e6) is None  # returns at once
        go.set()
        third = caller.ask("find")
        until = threading.Event()
        for _ in range(1000):
            if caller.take(third) is not None:
                break
            until.wait(0.01)
        else:
            pytest.fail("no answer")
        assert not caller.silent
    finally:
        go.set()
        listener.close()


def test_a_failing_answer_says_so_and_the_next_one_comes(place, caller):
    def fragile(question, tokens):
        if question["op"] == "break":
            raise RuntimeError("on purpose")
        return {"fine": True}

    listener = Listener(socket_path(place, 0), fragile, threads=1)
    try:
        assert caller.reachable(SECONDS)
        assert caller.take(caller.ask("break"), SECONDS)["error"] == "RuntimeError: on purpose"
        assert caller.take(caller.ask("find"), SECONDS)["fine"]
    finally:
        listener.close()


def test_what_makes_no_sense_gets_no_answer_and_harms_nobody(listener, caller, place):
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"ipc://{socket_path(place, 0)}")
        for parts in ([b"{"], [b"[]", b""], [b"{}", b""], [b"1", b"2", b"3"]):
            stranger.send_multipart(parts)
        stranger.send_multipart([json.dumps({"v": 99, "n": 5, "op": "find"}).encode(), b""])
        assert stranger.poll(int(SECONDS * 1000))
        answer = json.loads(stranger.recv())
    assert (answer["n"], "version 1" in answer["error"]) == (5, True)
    assert caller.reachable(SECONDS)
    assert caller.take(caller.ask("find"), SECONDS) is not None


def test_a_worker_that_comes_back_is_found_again(place, caller):
    for _ in range(2):
        listener = Listener(socket_path(place, 0), echo)
        try:
            assert caller.reachable(SECONDS)
            for _ in range(100):  # the old connection may take a moment to be seen as gone
                number = caller.ask("find")
                if number and caller.take(number, 0.1) is not None:
                    break
            else:
                pytest.fail("no answer")
        finally:
            listener.close()


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
