"""Who may connect, and who must not."""

import hmac
import os
import socket
import struct
from contextlib import suppress

import pytest
import trustme

from hexkv.adapters.lmserver.serve import run
from hexkv.adapters.net.security import is_exposed, is_local
from hexkv.contracts.doubles import ListSink
from hexkv.ports import ConfigError, Failed, Hit, Item, Stored, StoreUnreachable
from processes import PATIENCE, until
from servers.lm_servers import SMALL, served

SECRET = "a secret of the tests"


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def guarded(secret_file):
    with served(*SMALL, "--host", "0.0.0.0", "--secret-file", str(secret_file)) as server:
        yield server


def stores(store, key, soon):
    (outcome,) = store.write([Item(key, memoryview(b"frame"))], soon)
    if not isinstance(outcome, Stored):
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StoreUnreachable)
        return str(outcome.error)
    sink = ListSink()
    assert list(store.read([key], sink, soon)) == [Hit(5)]
    return sink.data(0)


def test_who_knows_the_secret_is_served(guarded, open_store, key, soon, secret_file):
    assert stores(open_store(guarded.address, secret=SECRET), key, soon) == b"frame"
    path = str(secret_file)
    assert stores(open_store(guarded.address, secret_file=path), key, soon) == b"frame"


@pytest.mark.parametrize("secret", ["", "another secret of the tests"])
def test_who_does_not_know_the_secret_is_refused(guarded, open_store, key, soon, secret):
    store = open_store(guarded.address, secret=secret)
    assert "another secret" in stores(store, key, soon)
    with pytest.raises(StoreUnreachable, match="another secret"):
        store.contains([key], soon)


def test_a_client_with_a_secret_refuses_a_server_that_does_not_know_it(
    server, open_store, key, soon
):
    assert "another secret" in stores(open_store(server.address, secret=SECRET), key, soon)


def test_a_recorded_handshake_cannot_be_replayed(guarded):
    hello = struct.pack("<8sHH4x32s", b"hexkvTCP", 1, 0, bytes(32))
    verdicts, proof = [], None
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", guarded.port), PATIENCE) as sock:
            sock.sendall(hello)
            challenge = sock.recv(56, socket.MSG_WAITALL)
            proof = proof or hmac.digest(SECRET.encode(), b"client" + hello + challenge, "sha256")
            sock.sendall(proof)
            verdicts.append(sock.recv(40, socket.MSG_WAITALL)[0])
    assert verdicts == [0, 2]


def test_another_version_is_told_which_one_is_spoken(server):
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock:
        sock.sendall(struct.pack("<8sHH4x32s", b"hexkvTCP", 2, 0, bytes(32)))
        magic, version, verdict, *_ = struct.unpack(
            "<8sHBxIQ32s", sock.recv(56, socket.MSG_WAITALL)
        )
        assert (magic, version, verdict) == (b"hexkvTCP", 1, 1)
        assert sock.recv(1) == b""


def test_a_server_of_another_version_is_unreachable(open_store, key, soon):
    from threading import Thread

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            sock, _ = listener.accept()
            with sock:
                sock.recv(48, socket.MSG_WAITALL)
                sock.sendall(struct.pack("<8sHBxIQ32s", b"hexkvTCP", 9, 1, 1, 1, bytes(32)))

        thread = Thread(target=answer)
        thread.start()
        store = open_store(f"127.0.0.1:{listener.getsockname()[1]}")
        assert "version 9" in stores(store, key, soon)
        thread.join(30)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_no_other_address_is_served_without_authentication(host, capsys):
    with pytest.raises(ConfigError, match="takes a secret"):
        run(["--host", host, *SMALL])


def test_what_only_this_machine_can_reach_is_local():
    assert all(map(is_local, ["127.0.0.1", "127.8.8.8", "::1"]))
    assert not any(map(is_local, ["0.0.0.0", "::", "10.0.0.1", "192.168.127.0", "1127.0.0.1"]))


def test_a_file_is_readable_by_its_owner_or_by_the_group_that_root_gave_its_reader():
    """The second is a volume of secrets in a pod: root's, mode 0440, its group the pod's."""

    def exposed(mode, owner, user):
        return is_exposed(os.stat_result((mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0)), user)

    own = {mode for mode in range(0o1000) if not exposed(mode, 1000, 1000)}
    assert own == {mode for mode in range(0o1000) if not mode & 0o077}
    assert own == {mode for mode in range(0o1000) if not exposed(mode, 0, 0)}
    assert own == {mode for mode in range(0o1000) if not exposed(mode, 1001, 1000)}
    assert own | {mode | 0o040 for mode in own} == {
        mode for mode in range(0o1000) if not exposed(mode, 0, 1000)
    }


@pytest.mark.parametrize(
    ("mode", "text", "match"), [(0o644, SECRET, "chmod 600"), (0o600, "short", "16 bytes")]
)
def test_a_secret_that_is_none_is_refused(tmp_path, mode, text, match):
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=match):
        run(["--secret-file", str(path), *SMALL])


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """An authority, and a server that shows its certificate and asks for one."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name in ("127.0.0.1", "client"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(
            str(folder / f"{name}.pem")
        )
    return folder


@pytest.fixture(scope="module")
def encrypted(authority):
    ca, certificate = str(authority / "ca.pem"), str(authority / "127.0.0.1.pem")
    with served(
        *SMALL, "--host", "0.0.0.0", "--tls-certificate", certificate, "--tls-client-ca", ca
    ) as server:
        yield server


def test_tls_with_certificates_on_both_sides_serves(encrypted, authority, open_store, soon, key):
    store = open_store(
        encrypted.address,
        tls=True,
        tls_ca=str(authority / "ca.pem"),
        tls_certificate=str(authority / "client.pem"),
        checksums=True,
    )
    frame = os.urandom(3 << 20)
    (outcome,) = store.write([Item(key, memoryview(frame))], soon)
    sink = ListSink()
    assert outcome == Stored(len(frame))
    assert list(store.read([key], sink, soon)) == [Hit(len(frame))]
    assert sink.data(0) == frame


def test_tls_refuses_a_client_without_a_certificate(encrypted, authority, open_store, soon, key):
    store = open_store(encrypted.address, tls=True, tls_ca=str(authority / "ca.pem"))
    assert isinstance(stores(store, key, soon), str)


def test_tls_refuses_a_server_that_nobody_vouches_for(encrypted, open_store, soon, key):
    assert "CERTIFICATE" in stores(open_store(encrypted.address, tls=True), key, soon).upper()


def test_a_client_that_stops_within_the_tls_handshake_does_not_hold_up_the_end(authority):
    certificate = str(authority / "127.0.0.1.pem")
    patient = (*SMALL[:-2], "--patience", "600")  # longer than stopping it is waited for
    with (
        served(*patient, "--tls-certificate", certificate) as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock,
    ):
        sock.sendall(b"\x16\x03\x01")  # the first bytes of a record that never comes
        until(lambda: server.threads == 2)
        assert server.stop() == (0, "")


def test_plain_text_is_refused_where_there_is_tls(encrypted):
    with socket.create_connection(("127.0.0.1", encrypted.port), PATIENCE) as sock:
        sock.sendall(struct.pack("<8sHH4x32s", b"hexkvTCP", 1, 0, bytes(32)))
        with suppress(ConnectionResetError):
            assert not sock.recv(56, socket.MSG_WAITALL).startswith(b"hexkvTCP")
