"""Servers and folders that are dead, slow, lying, full or read-only: what each answer counts as.

The contract breaks the server in ``test_contracts.py``. Here is what servers say, and a folder.
"""

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    TimedOut,
)
from media.folder_contract import FolderContract
from servers.fixed_replies import FixedReplies
from servers.fixed_replies import s3_answer as answer
from servers.s3_servers import own_double

KEY, OTHER = (chunk_key(name) for name in "ab")


class Plain:
    """The back door to a folder: a file for each object, called by its key."""

    def __init__(self, root):
        self.root = root

    def get(self, key):
        path = self.root / key.hex()
        return path.read_bytes() if path.exists() else None

    def put(self, key, frame):
        (self.root / key.hex()).write_bytes(frame)

    def keys(self):
        return {bytes.fromhex(path.name) for path in self.root.glob("?" * 96)}


@pytest.mark.thorough
class TestFolder(FolderContract):
    """Gone and full, by the contract."""

    @pytest.fixture
    def make(self, open_store):
        return lambda root: open_store(scheme="file", bucket=str(root), prefix="")

    @pytest.fixture
    def raw(self, tmp_path):
        return Plain(tmp_path)

    @pytest.fixture
    def huge(self):
        return None

    @pytest.fixture
    def unreadable(self):
        return None  # the library reads by itself


def soon(seconds=60.0):
    return Deadline.after(SystemClock(), seconds)


def frame(size):
    return memoryview(bytes(size))


@pytest.fixture
def liar(open_store):
    """A store on a server that always says the same."""
    opened = []

    def liar(reply, **options):
        opened.append(FixedReplies(reply, **options))
        endpoint = f"http://127.0.0.1:{opened[-1].port}"
        return open_store(endpoint=endpoint, access_key="A", secret_key="S")

    yield liar
    for one in opened:
        one.close()


DATE = "Last-Modified: Mon, 23 Nov 2026 10:00:00 GMT\r\n"
WHOLE = f"ETag: x\r\n{DATE}"


@pytest.mark.thorough
@each(
    ("status", "code", "kind"),
    [
        (500, "InternalError", StoreUnreachable),
        (503, "SlowDown", StoreUnreachable),
        (429, "TooManyRequests", StoreUnreachable),
        (409, "OperationAborted", StoreUnreachable),
        (507, "XMinioStorageFull", StoreFull),
        (403, "QuotaExceeded", StoreFull),
        (403, "AccessDenied", StoreError),
        (401, "InvalidAccessKeyId", StoreError),
    ],
)
def test_throttling_full_and_forbidding_servers_are_told_apart(liar, status, code, kind):
    store = liar(answer(status, code))
    (read,) = store.read([KEY], ListSink(), soon())
    (written,) = store.write([Item(KEY, frame(10))], soon())
    assert (type(read.error), type(written.error)) == (kind, kind)
    for call in (store.contains, store.delete):
        with pytest.raises(StoreError):
            call([KEY], soon())
    with pytest.raises(StoreError):
        list(store.scan())


@each(
    "reply",
    [
        answer(200, headers=WHOLE, body=b"012345", length=10),
        answer(200, headers=DATE, body=b"0123456789", length=999_999_999_999),
        answer(304),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
    ids=["cut short", "of a size that nobody holds", "not modified", "no HTTP", "none"],
)
@pytest.mark.thorough
def test_an_answer_that_is_not_what_its_head_says_is_no_hit(liar, reply):
    class Frugal(ListSink):
        def room(self, index, size):
            return None if size > 1 << 30 else super().room(index, size)

    store = liar(reply)
    (outcome,) = store.read([KEY], Frugal(), soon(5.0))
    assert isinstance(outcome, Failed | TimedOut | Miss)
    outcome = store.read_range(KEY, 3, memoryview(bytearray(7)), soon(5.0))
    assert isinstance(outcome, Failed | TimedOut)


@pytest.mark.thorough
def test_what_a_name_or_a_time_says_by_chance_is_no_lack_of_room(open_store):
    """``507`` in a time that a request took, and words in a prefix."""
    server = FixedReplies(answer(500, "InternalError"))
    endpoint = f"http://127.0.0.1:{server.port}"
    keys = {"endpoint": endpoint, "access_key": "A", "secret_key": "S"}
    store = open_store(prefix="No space left, StorageFull, 507 QuotaExceeded", **keys)
    (written,) = store.write([Item(KEY, frame(10))], soon())
    server.close()
    assert type(written.error) is StoreUnreachable


@pytest.mark.thorough
def test_a_server_that_trickles_costs_the_deadline_not_its_patience_for_each_byte(liar):
    store = liar(answer(200, headers=WHOLE, body=bytes(1200)), drip=0.05)
    late = soon(0.3)
    assert store.read([KEY], ListSink(), late) == [TimedOut()]
    assert SystemClock().now() - late.at < 20, "all of it takes more than a minute"


@pytest.mark.thorough
def test_a_listing_that_cannot_be_read_is_a_failure(liar):
    entry = b"<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>"
    for body in (b"<html>", b"so it is", entry, entry.replace(b"<Size>x</Size>", b"")):
        with pytest.raises(StoreError):
            list(liar(answer(200, body=body)).scan())


def test_where_nothing_may_be_written_what_is_there_is_still_read(open_store):
    with own_double() as service:
        store = open_store(**service.settings)
        item = Item(KEY, frame(9000))
        assert store.write([item], deadline()) == [Stored(9000)]
        service.double.limit(-1)
        for outcome in store.write([item, item._replace(key=OTHER)], deadline(30.0)):
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, StoreError)
        assert store.read([KEY, OTHER], ListSink(), deadline()) == [Hit(9000), Miss()]
