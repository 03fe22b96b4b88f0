"""Who is let in, what others cost, and what the log says."""

import gc
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from os import geteuid

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from configured import built
from hexkv.adapters.admin import wire
from hexkv.adapters.admin.api import connect
from hexkv.adapters.admin.wire import HANDSHAKE, ClientMessage
from hexkv.adapters.net.rpc.wire import HEAD, Status, head, message
from hexkv.adapters.net.server.client_check import Allowed
from hexkv.adapters.net.stream import Stream
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.config import load
from hexkv.ports import ConfigError, Deadline, StoreBusy, StoreUnreachable
from operating.administration import ALL, CHUNKS
from processes import held_port, until

SECRET = "a secret of the tests"


def soon():
    return Deadline.after(SystemClock(), 60.0)


def raw(address):
    """A connection to a Unix socket, without a word."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(address)
    return sock


def greeted(address):
    """A connection that was let in, and that is not to be closed by the test's end."""
    stream = Stream(raw(address))
    HANDSHAKE.greet(stream, soon(), b"")
    return stream


def ended(sock):
    """Whether the other end closes the connection."""
    with suppress(ConnectionResetError):
        while sock.recv(65_536):
            pass
    return True


def asked(stream, name, arguments):
    stream.send(
        [message(ClientMessage.VERB, 1, 0, wire.REQUEST.dump_json((name, arguments)))], soon()
    )


def test_over_tcp_both_ends_must_know_the_secret(tmp_path):
    address = f"127.0.0.1:{held_port()}"
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    with built(tmp_path / "disk", admin={"address": address, "secret_file": str(file)}):
        assert connect(address, secret=SECRET).status().state == "open"
        assert connect(address, secret_file=str(file)).tiers()
        with pytest.raises(StoreUnreachable, match="another secret"):
            connect(address, secret="another secret than theirs")
        with pytest.raises(ConfigError, match="give secret or secret_file"):
            connect(address)
    with pytest.raises(StoreUnreachable):
        connect(address, secret=SECRET)


def test_a_server_that_does_not_know_the_secret_is_not_believed():
    one, other = socket.socketpair()
    theirs, ours = Stream(one), Stream(other)
    with ThreadPoolExecutor(1) as thread, one, other:
        greeting = thread.submit(HANDSHAKE.greet, ours, soon(), b"what the client knows")
        theirs.take(HANDSHAKE.hello_bytes, soon())
        theirs.send([HANDSHAKE.challenge()], soon())
        theirs.take(32, soon())
        theirs.send([bytes(40)], soon())
        with pytest.raises(StoreUnreachable, match="the server does not know the secret"):
            greeting.result(60)


def test_users_that_are_not_named_are_turned_away():
    assert Allowed().lets_in(geteuid(), 77_777)
    assert Allowed({0}).lets_in(0, 0)
    assert not Allowed().lets_in(77_777, 77_777)
    assert Allowed(uids={77_777}).lets_in(77_777, 1)
    assert Allowed(gids={77_777}).lets_in(1, 77_777)


def test_other_machines_reach_it_by_tls_alone(tmp_path):
    port = held_port()
    wide = {"address": f"0.0.0.0:{port}", "secret": SECRET}
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        built(tmp_path / "disk", admin=wide)
    authority = trustme.CA()
    certificate, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(ca)
    with built(tmp_path / "disk", admin=wide | {"tls_certificate": str(certificate)}):
        address = f"127.0.0.1:{port}"
        assert connect(address, secret=SECRET, tls_ca=str(ca)).status().state == "open"
        with pytest.raises(StoreUnreachable):
            connect(address, secret=SECRET)


def test_who_says_nothing_gives_way_to_who_does(busy):
    there = busy(clients=4)
    with ExitStack() as opened:
        for _ in range(12):
            opened.enter_context(raw(there.address))
        assert there.managed.admin.status().state == "open"
        until(lambda: there.server.clients <= 4)  # those that gave way go as their threads notice


def test_nonsense_ends_its_own_connection_alone(busy):
    there = busy()
    huge = HEAD.pack(0xFFFF_FFFF, ClientMessage.VERB, 0, 1, 0, 0.0)
    for said in (b"GET / HTTP/1.1\r\n\r\n" * 4, HANDSHAKE.hello()[:8] + bytes(99)):
        with raw(there.address) as sock:
            with suppress(OSError):
                sock.sendall(said)
            assert ended(sock)
    for said in (
        huge,
        message(ClientMessage.STOP, 1, 0, b"{}"),
        message(ClientMessage.VERB, 1, 0, b"[[[[[[[[["),
    ):
        stream = greeted(there.address)
        stream.send([said], soon())
        assert ended(stream.socket)
        stream.close()
    assert there.managed.counts()["memory"] == 2 * CHUNKS
    until(lambda: not there.server.clients)


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=9) | st.sampled_from(["memory"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
HARMLESS = sorted(set(wire.VERBS) - {"freeze", "detach", "rules"})


def test_any_argument_of_any_verb_gets_an_answer(busy):
    there = busy()

    @settings(deadline=None, max_examples=60)
    @given(name=st.sampled_from(HARMLESS), arguments=st.lists(VALUES, max_size=4))
    def ask(name, arguments):
        stream = greeted(there.address)
        try:
            asked(stream, name, arguments)
            status = Status.BEGUN
            while status == Status.BEGUN:
                said = head(stream.take(HEAD.size, soon()), wire.MAX_ANSWER)
                stream.take(said.length, soon())
                status = said.status
            assert status in (Status.DONE, Status.FAILED)
        finally:
            stream.close()

    ask()
    assert there.managed.admin.status().state == "open"


def test_requests_go_on_beside_a_verb_and_a_client_that_is_gone_stops_it(busy, caplog):
    caplog.set_level(logging.INFO, "hexkv.admin")
    there = busy()
    there.store.hang()
    stream = greeted(there.address)
    asked(stream, "copy", [{"everything": True}, "memory", "slow"])
    until(lambda: "copy chosen=(everything)" in caplog.text)
    assert there.managed.hit() == CHUNKS
    assert there.managed.admin.status().state == "open"
    stream.close()
    until(lambda: "is gone, its verb ends" in caplog.text)  # or the verb might end before
    there.store.release()
    until(lambda: "stopped" in caplog.text)
    assert there.managed.counts()["slow"] < 2 * CHUNKS


def test_no_more_verbs_change_something_at_a_time_than_may(busy, caplog):
    caplog.set_level(logging.INFO, "hexkv.admin")
    there = busy(verbs=1)
    there.store.hang()
    with ThreadPoolExecutor(1) as other:
        admin = there.managed.admin
        copying = other.submit(admin.copy, ALL, "memory", "slow")
        until(lambda: "begins" in caplog.text)
        with pytest.raises(StoreBusy):
            admin.clear(ALL)
        assert admin.lookup(there.managed.engine.chunk_keys(there.managed.prompt(0)))
        there.store.release()
        assert copying.result(60).done == 2 * CHUNKS


def test_the_log_says_who_did_what_to_what_and_no_secret(folder, tmp_path, caplog):
    caplog.set_level(logging.INFO, "hexkv.admin")
    address = str(folder / "admin.sock")
    with built(tmp_path / "disk", admin={"address": address, "secret": SECRET}):
        admin = connect(address, secret=SECRET)
        admin.clear(ALL, ["memory"])
        redis = {"store": "redis", "settings": {"password": SECRET, "ur": "x"}}
        for wrong in (redis, {"stor": SECRET}):
            with pytest.raises(ConfigError) as caught:
                admin.attach(wrong)
            assert SECRET not in str(caught.value)
    lines = [record.getMessage() for record in caplog.records]
    who = f"uid {geteuid()}"
    cleared = f"{who}: clear chosen=(everything) tiers=('memory',): 0 of 0 chunks"
    assert [line.startswith("admin: pid ") for line in lines if line.endswith(cleared)] == [True]
    refused = [line for line in lines if f"{who}: attach: refused: tiers[" in line]
    assert len(refused) == 2
    assert SECRET not in caplog.text


def test_an_engine_that_is_dropped_is_not_kept_by_what_it_serves(folder, tmp_path):
    address = str(folder / "admin.sock")
    engines = [built(tmp_path / "disk", admin={"address": address})]
    assert connect(address).status().state == "open"

    def drop():
        engines.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="dropped without close"):
        drop()
    until(lambda: not (folder / "admin.sock").exists())
    with built(tmp_path / "disk", admin={"address": address}):
        with pytest.raises(ConfigError, match=r"admin.*another process serves it"):
            built(tmp_path / "two", admin={"address": address})
        assert connect(address).status().state == "open"


def test_settings_that_mean_nothing_are_named(tmp_path, folder):
    path = str(folder / "admin.sock")
    for wrong, said in (
        ({"address": "admin.sock"}, "admin.address"),
        ({"address": "/" + "x" * 108}, "admin.address"),
        ({"address": "127.0.0.1:7"}, "admin.secret"),
        ({"address": path, "mode": "999"}, "admin.mode"),
        ({"address": path, "clients": 0}, "admin.clients"),
        ({"address": path, "secret": SECRET, "secret_file": "x"}, "admin.secret"),
        ({"address": path, "secret_file": str(folder / "none")}, "admin.secret_file"),
        ({"address": path, "adress": 1}, "did you mean 'address'"),
    ):
        with pytest.raises(ConfigError, match=said):
            built(tmp_path / "disk", admin=wrong)
    with pytest.raises(ConfigError, match=r"admin.*is the node's to say"):
        load(environ={}, overrides={"node": path, "admin": {"address": path}})
