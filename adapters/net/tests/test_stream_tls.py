"""A stream with TLS is spoken with whom its settings say, or fails by its deadline."""

import socket
import ssl
import struct
from threading import Thread

import pytest
import trustme

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import ConnectionBroken, OutOfTime, Untrusted
from hexkv.adapters.net.stream import connect
from hexkv.adapters.net.tls import Trust, server_context
from hexkv.contracts.doubles import deadline
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ConfigError, Deadline
from processes import PATIENCE


def soon(seconds=0.05):
    return Deadline.after(SystemClock(), seconds)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    pem = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    pem.write_to_path(str(folder / "server.pem"))
    return folder


@pytest.fixture
def encrypted(authority, listener):
    """Answers each connection with what comes over it, encrypted, until the client closes."""
    context = server_context(str(authority / "server.pem"))

    def serve():
        try:
            with context.wrap_socket(listener.accept(), server_side=True) as peer:
                while data := peer.recv(1 << 16):
                    peer.sendall(data)
        except OSError:
            return

    thread = Thread(target=serve)
    thread.start()
    yield listener.address
    thread.join(PATIENCE)


def test_tls_is_spoken_with_who_is_trusted(encrypted, authority):
    stream = connect(encrypted, deadline(), Trust(str(authority / "ca.pem")).context())
    stream.secure(deadline())
    sent = bytes(range(256)) * 200
    stream.send([sent[:100], sent[100:]], deadline())
    first, rest = bytearray(10), bytearray(len(sent) - 10)
    stream.fill(memoryview(first), deadline())
    stream.fill(memoryview(rest), deadline())
    assert first + rest == sent
    with pytest.raises(OutOfTime):
        stream.take(1, soon())
    stream.close()


def test_who_is_not_trusted_is_named_and_nothing_is_sent(encrypted):
    stream = connect(encrypted, deadline(), Trust().context())
    with pytest.raises(Untrusted, match=f"{encrypted} is not to be believed"):
        stream.secure(deadline())
    stream.close()


def test_a_certificate_of_another_name_is_not_believed_unless_nothing_is(encrypted, authority):
    trust = Trust(str(authority / "ca.pem"))
    stream = connect(Address("localhost", encrypted.port), deadline(), trust.context())
    with pytest.raises(Untrusted):
        stream.secure(deadline())
    stream.close()


def test_a_tls_handshake_that_is_not_answered_costs_the_deadline(listener):
    stream = connect(listener.address, deadline(), Trust(verify=False).context())
    peer = listener.accept()
    with pytest.raises(OutOfTime):
        stream.secure(soon())
    assert peer.recv(1) == b"\x16", "it began one"
    stream.close()


def test_a_tls_handshake_ends_when_the_stream_is_aborted(listener):
    stream = connect(listener.address, deadline(), Trust(verify=False).context())
    peer, failed = listener.accept(), []

    def secure():
        try:
            stream.secure(deadline(PATIENCE))
        except ConnectionBroken as error:
            failed.append(error)

    thread = Thread(target=secure)
    thread.start()
    assert peer.recv(1) == b"\x16"  # it waits for an answer
    stream.abort()
    thread.join(PATIENCE / 2)
    assert not thread.is_alive()
    assert len(failed) == 1
    stream.close()


def test_a_peer_that_resets_a_tls_handshake_breaks_it(listener):
    stream = connect(listener.address, deadline(), Trust(verify=False).context())
    peer = listener.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    with pytest.raises(ConnectionBroken):
        stream.secure(deadline())
    stream.close()


def test_files_that_cannot_be_used_are_named_by_their_setting(tmp_path, authority):
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigError, match=r"tls_ca .*missing\.pem"):
        Trust(missing).context()
    with pytest.raises(ConfigError, match=r"tls_certificate .*missing\.pem"):
        Trust(certificate=missing).context()
    with pytest.raises(ConfigError):
        server_context(missing)
    newest = Trust(str(authority / "ca.pem"), newest=True).context()
    assert newest.minimum_version == ssl.TLSVersion.TLSv1_3
    careless = Trust(verify=False).context()
    assert careless.verify_mode == ssl.CERT_NONE
