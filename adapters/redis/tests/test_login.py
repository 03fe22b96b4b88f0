"""Who may do what: passwords, users, certificates, databases."""

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import Failed, Hit, Item, Stored, StoreError, StoreUnreachable
from servers.redis_servers import Certificates, RedisServer, redis_binary

KEY = chunk_key("a")
ITEM = Item(KEY, memoryview(b"frame"))


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A server behind a password, with users who may read only, or nothing but log in."""
    folder = tmp_path_factory.mktemp("locked")
    users = folder / "users.acl"
    users.write_text(
        "user default on >secret ~* &* +@all\n"
        "user writer on >word ~* resetchannels -@all +set +get +exists +unlink\n"
        "user reader on >word ~* resetchannels -@all +get +exists\n"
        "user stranger on >word ~other:* resetchannels -@all +get +set\n"
    )
    with RedisServer(folder, "--aclfile", str(users), password="secret") as server:
        yield server


@each("login", [{}, {"password": "wrong"}, {"username": "nobody", "password": "secret"}])
def test_a_wrong_password_fails_every_call_for_good_and_at_once(locked, open_store, login):
    store = open_store(locked.url, **login)
    with pytest.raises(StoreError) as caught:
        store.contains([KEY], deadline())
    for outcomes in (
        store.read([KEY], ListSink(), deadline()),
        store.write([ITEM], deadline()),
    ):
        assert isinstance(outcomes[0], Failed)
        assert not isinstance(outcomes[0].error, StoreUnreachable)
    assert not isinstance(caught.value, StoreUnreachable)


@pytest.mark.parametrize(
    "login", [{"password": "secret"}, {"username": "writer", "password": "word"}]
)
def test_the_right_password_lets_in(locked, open_store, login):
    store = open_store(locked.url, **login)
    assert store.write([ITEM], deadline()) == [Stored(5)]
    assert store.read([KEY], ListSink(), deadline()) == [Hit(5)]
    assert list(store.contains([KEY], deadline())) == [True]
    assert list(store.delete([KEY], deadline())) == [True]


def test_a_user_who_may_only_read_reads(locked, open_store):
    writer = open_store(locked.url, password="secret")
    writer.write([ITEM], deadline())
    reader = open_store(locked.url, username="reader", password="word")
    (written,) = reader.write([ITEM], deadline())
    assert isinstance(written, Failed)
    assert "NOPERM" in str(written.error)
    with pytest.raises(StoreError, match="NOPERM"):
        reader.delete([KEY], deadline())
    assert reader.read([KEY], ListSink(), deadline()) == [Hit(5)]
    writer.delete([KEY], deadline())


def test_a_user_of_other_keys_gets_none_of_ours(locked, open_store):
    store = open_store(locked.url, username="stranger", password="word")
    sink = ListSink()
    (outcome,) = store.read([KEY], sink, deadline())
    assert isinstance(outcome, Failed)
    assert sink.calls == []
    with pytest.raises(StoreError, match="NOPERM"):
        store.contains([KEY], deadline())


def test_no_message_tells_the_password(locked, open_store):
    store = open_store(locked.url, password="hunter2")
    with pytest.raises(StoreError) as caught:
        store.contains([KEY], deadline())
    assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_databases_are_apart(valkey, open_store, keys):
    one, two = (open_store(f"{valkey.url}/{database}") for database in (1, 2))
    one.write([ITEM], deadline())
    assert list(two.contains([KEY], deadline())) == [False]
    assert list(one.delete([KEY], deadline())) == [True]


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A server that lets nobody in without a certificate."""
    folder = tmp_path_factory.mktemp("strict")
    tls = Certificates(folder)
    with RedisServer(folder, binary=redis_binary(), tls=tls) as server:
        with server.admin(ssl_certfile=str(tls.client)) as admin:
            admin.config_set("tls-auth-clients", "yes")
        yield server


def test_a_client_with_a_certificate_is_let_in(strict, open_store):
    client = str(strict.tls.client)
    files = {"tls_ca": str(strict.tls.authorities), "tls_certificate": client}
    store = open_store(strict.url, tls_key=client, **files)
    frame = memoryview(bytes(range(256)) * 8192)
    assert store.write([Item(KEY, frame)], deadline()) == [Stored(len(frame))]
    sink = ListSink()
    assert store.read([KEY], sink, deadline()) == [Hit(len(frame))]
    assert sink.data(0) == frame


def test_a_client_without_one_is_not(strict, open_store):
    store = open_store(strict.url, tls_ca=str(strict.tls.authorities))
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], deadline())


def test_a_server_that_nobody_vouches_for_is_not_believed(strict, open_store):
    with pytest.raises(StoreUnreachable, match="certificate verify failed"):
        open_store(strict.url).contains([KEY], deadline())
