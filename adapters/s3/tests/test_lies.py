"""A server of S3 that throttles, refuses and lies: each answer is taken for what it is."""

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    Deadline,
    Failed,
    Hit,
    Item,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    TimedOut,
)
from servers.fixed_replies import FixedReplies
from servers.fixed_replies import s3_answer as answer

KEY = chunk_key("a")

both = each("client", ["http", "awscrt"])


def soon(seconds=60.0):
    return Deadline.after(SystemClock(), seconds)


def frame(size):
    return memoryview(bytes(size))


@pytest.fixture
def liar(open_store):
    """A store on a server that always says the same."""
    opened = []

    def liar(reply, client="http", **options):
        opened.append(FixedReplies(reply, **options))
        endpoint = f"http://127.0.0.1:{opened[-1].port}"
        return open_store(endpoint=endpoint, access_key="A", secret_key="S", client=client)

    yield liar
    for one in opened:
        one.close()


REFUSALS = [
    (500, "InternalError", StoreUnreachable),
    (503, "SlowDown", StoreUnreachable),
    (503, "", StoreUnreachable),
    (429, "TooManyRequests", StoreUnreachable),
    (400, "RequestTimeout", StoreUnreachable),
    (409, "OperationAborted", StoreUnreachable),
    (507, "XMinioStorageFull", StoreFull),
    (403, "QuotaExceeded", StoreFull),
]


@both
@each(("status", "code", "kind"), REFUSALS)
def test_throttling_and_full_servers_are_told_apart(liar, client, status, code, kind):
    store = liar(answer(status, code), client)
    (read,) = store.read([KEY], ListSink(), soon())
    (written,) = store.write([Item(KEY, frame(10))], soon())
    assert (type(read.error), type(written.error)) == (kind, kind)


@each("status", [500, 503, 429])
def test_a_lookup_and_a_deletion_of_a_throttling_server_may_be_tried_again(liar, status):
    store = liar(answer(status, "SlowDown"))
    for call in (store.contains, store.delete):
        with pytest.raises(StoreUnreachable):
            call([KEY] * 3, soon())
    with pytest.raises(StoreUnreachable):
        list(store.scan())


@both
@each(
    ("status", "code", "advice"),
    [
        (403, "AccessDenied", "s3:ListBucket"),
        (403, "InvalidAccessKeyId", "check access_key"),
        (403, "SignatureDoesNotMatch", "check secret_key"),
        (403, "RequestTimeTooSkewed", "clock is wrong"),
        (401, "", "check the keys"),
        (404, "NoSuchBucket", "check url"),
        (301, "PermanentRedirect", "check region"),
        (400, "AuthorizationHeaderMalformed", "check region"),
    ],
)
def test_what_the_configuration_is_to_blame_for_is_not_tried_again(
    liar, client, status, code, advice
):
    store = liar(answer(status, code), client)
    (outcome,) = store.read([KEY], ListSink(), soon())
    assert type(outcome.error) is StoreError
    assert advice in str(outcome.error)


PARTIAL = "Content-Range: bytes 0-9/10\r\nETag: x\r\n"


@both
@each(
    "reply",
    [
        answer(206, headers=PARTIAL, body=b"0123456789")[:-4],
        answer(206, headers=PARTIAL.replace("/10", "/9"), body=b"0123456789"),
        answer(206, headers="ETag: x\r\n", body=b"0123456789"),
        answer(206, headers="Content-Range: bytes 0-9/*\r\n", body=b"0123456789"),
        answer(304),
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["cut short", "too long", "no range", "no size", "not modified", "no HTTP"],
)
def test_a_body_that_is_not_what_its_head_says_is_no_hit(liar, client, reply):
    store = liar(reply, client)
    (outcome,) = store.read([KEY], ListSink(), soon())
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreError)


def test_a_size_that_nobody_can_hold_takes_no_memory(liar):
    head = b"HTTP/1.1 206 X\r\nContent-Length: 999999999999\r\nContent-Range: bytes 0-999999999998/"
    store = liar(head + b"999999999999\r\nETag: x\r\n\r\n")

    class Frugal(ListSink):
        def room(self, index, size):
            return None if size > 1 << 30 else super().room(index, size)

    (outcome,) = store.read([KEY], Frugal(), soon())
    assert not isinstance(outcome, Hit)


def test_a_part_that_does_not_say_where_it_belongs_is_no_range(liar):
    store = liar(answer(206, headers="Content-Range: bytes 5-14/99\r\n", body=b"0123456789"))
    outcome = store.read_range(KEY, 3, memoryview(bytearray(10)), soon())
    assert isinstance(outcome, Failed)


def test_a_server_that_ends_kept_connections_without_a_word_costs_no_failure(liar):
    store = liar(answer(200).replace(b"Connection: close\r\n", b""))
    for _ in range(50):
        assert store.write([Item(KEY, frame(10))], soon()) == [Stored(10)]


def test_a_server_that_refuses_a_large_body_at_once_is_heard(liar):
    store = liar(answer(503, "SlowDown"), early=True)
    (outcome,) = store.write([Item(KEY, frame(16 << 20))], soon())
    assert isinstance(outcome.error, StoreUnreachable)


@both
def test_a_server_that_trickles_costs_the_deadline_not_its_patience_for_each_byte(liar, client):
    head = "Content-Range: bytes 0-1199/1200\r\nETag: x\r\n"
    store = liar(answer(206, headers=head, body=bytes(1200)), client, drip=0.05)
    late = soon(0.3)
    assert store.read([KEY], ListSink(), late) == [TimedOut()]
    assert SystemClock().now() - late.at < 20, "all of it takes more than a minute"


def test_a_listing_that_cannot_be_read_is_a_failure(liar):
    bad = [
        b"<html>",
        b"<Error/>",
        b"<!DOCTYPE x [<!ENTITY a 'b'>]><ListBucketResult/>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>",
    ]
    for body in bad:
        with pytest.raises(StoreUnreachable):
            list(liar(answer(200, body=body)).scan())
