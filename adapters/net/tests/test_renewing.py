"""Secrets, certificates and authorities are read anew, by servers and clients that go on."""

import logging
import os
from contextlib import contextmanager
from threading import Event, Thread

import pytest
import trustme

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.renewing import Renewing
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.adapters.net.security import RotatedSecret
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.net.server.server import StreamServer, listen
from hexkv.adapters.net.stream import connect
from hexkv.adapters.net.tls import Trust, server_context
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ConfigError, Deadline, StoreUnreachable
from processes import until

HANDSHAKE = Handshake("test server", b"hexktest", 1, "N", "N")
OLD, NEW = b"an old secret of bytes", b"a new secret of bytes"


def deadline():
    return Deadline.after(SystemClock(), 60.0)


def write(file, data):
    """Replace *file* in one step, as a volume of secrets is."""
    made = file.with_suffix(".made")
    made.write_bytes(data)
    made.chmod(0o600)
    os.replace(made, file)


def test_a_value_is_made_again_when_its_files_change_and_only_then(tmp_path, caplog):
    caplog.set_level(logging.INFO, "hexkv")
    file, made = tmp_path / "file", []

    def make():
        made.append(file.read_text() if file.exists() else "none")
        if made[-1] == "bad":
            raise ConfigError("bad")
        return made[-1]

    value = Renewing("a value", [str(file)], make)
    assert [value.current(), value.current(), made] == ["none", "none", ["none"]]
    file.write_text("first")
    assert [value.current(), value.current()] == ["first", "first"]
    write(file, b"bad")
    assert [value.current(), value.current()] == ["first", "first"]
    write(file, b"good")
    assert value.current() == "good"
    assert made == ["none", "first", "bad", "good"]
    assert caplog.messages == [
        "a value: read anew",
        "a value: the former one is kept: bad",
        "a value: read anew",
    ]


class Machine:
    """The files of one end."""

    def __init__(self, folder, authority):
        folder.mkdir()
        self.secret, self.ca = folder / "secret", folder / "ca.pem"
        self.certificate = folder / "own.pem"
        self.also = folder / "secret.also"
        write(self.secret, OLD)
        self.trust(authority)
        self.present(authority)

    def trust(self, *authorities):
        write(self.ca, b"".join(each.cert_pem.bytes() for each in authorities))

    def present(self, authority):
        write(
            self.certificate,
            authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes(),
        )


@contextmanager
def serving(machine):
    """A server that greets, by the files of *machine*; its address."""
    clock = SystemClock()
    listener = listen("127.0.0.1", 0)
    secret = RotatedSecret(str(machine.secret))
    server = StreamServer(
        listener,
        lambda connection: HANDSHAKE.answer(connection, secret),
        clock,
        Limits(1 << 16),
        secret=secret,
        tls=server_context(str(machine.certificate), str(machine.ca)),
    )
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield Address(*listener.getsockname())
    finally:
        server.stop()
        thread.join()
        listener.close()


class Client:
    """Connects again and again, by the files of its machine."""

    def __init__(self, machine, place):
        self.secret = RotatedSecret(str(machine.secret))
        self.tls = Trust(str(machine.ca), str(machine.certificate), newest=True).context()
        self.place, self.well, self.failed = place, 0, []
        self._end = Event()
        self._thread = Thread(target=self._run)

    def greet(self):
        stream = connect(self.place, deadline(), self.tls)
        try:
            HANDSHAKE.greet(stream, deadline(), self.secret)
        finally:
            stream.close()

    def _run(self):
        while not self._end.is_set():
            try:
                self.greet()
                self.well += 1
            except StoreUnreachable as error:
                self.failed.append(error)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def go_on(self):
        """Wait until some more connections have begun after this moment."""
        before = self.well
        until(lambda: self.well > before + 2 or self.failed)
        assert not self.failed


def test_all_of_them_are_replaced_under_load_and_no_connection_fails(tmp_path):
    old, new = trustme.CA(), trustme.CA()
    here, there = Machine(tmp_path / "here", old), Machine(tmp_path / "there", old)
    stale = Machine(tmp_path / "stale", old)
    ends = here, there
    with serving(here) as place, Client(there, place) as load:
        steps = (
            [lambda end=end: write(end.also, NEW) for end in ends]
            + [lambda end=end: (write(end.secret, NEW), write(end.also, OLD)) for end in ends]
            + [lambda end=end: end.also.unlink() for end in ends]
            + [lambda end=end: end.trust(old, new) for end in ends]
            + [lambda end=end: end.present(new) for end in ends]
            + [lambda end=end: end.trust(new) for end in ends]
        )
        for step in steps:
            load.go_on()
            step()
        load.go_on()
        assert load.secret.current() == NEW
        for wrong in ("all", "certificate"):
            if wrong == "certificate":
                write(stale.secret, NEW)
                stale.trust(new)
            with pytest.raises(StoreUnreachable):
                Client(stale, place).greet()


def test_a_secret_that_is_missing_for_a_moment_or_read_by_others_is_kept(tmp_path, caplog):
    file = tmp_path / "secret"
    write(file, OLD)
    secret = RotatedSecret(str(file))
    file.unlink()
    assert secret.current() == OLD
    file.write_bytes(NEW)
    file.chmod(0o644)
    assert secret.accepted() == (OLD,)
    assert "can be read by others" in caplog.messages[-1]
    file.chmod(0o600)
    assert secret.accepted() == (NEW,)
