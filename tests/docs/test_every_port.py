"""The classes of the tutorials keep the contracts of their ports."""

import re
import socket
from pathlib import Path

import pytest

from hexkv.contracts.announcing import AnnouncingContract
from hexkv.contracts.channel import ChannelContract
from hexkv.contracts.channel.double import Exchange, LocalChannel
from hexkv.contracts.checksum import ChecksumContract
from hexkv.contracts.chunker import ChunkerContract
from hexkv.contracts.device import RawKV
from hexkv.contracts.directory import DirectoryContract
from hexkv.contracts.directory.double import DictDirectory
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.encoded import EncodedContract
from hexkv.contracts.memory import MemoryContract
from hexkv.contracts.observer import ObserverContract, Reading
from hexkv.contracts.policy import PolicyContract
from hexkv.contracts.serde import SerdeContract
from hexkv.contracts.store import StoreContract
from hexkv.contracts.telemetry import EventSinkContract, TelemetryContract
from hexkv.ports import DType, KVLayout

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).parents[2] / "docs" / "every-port.md"
SHOWN = {}
for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
    exec(compile(code, PAGE.name, "exec"), SHOWN)


class Client:
    """Knows no deadlines."""

    def __init__(self):
        self.frames = {}
        self.get = self.frames.get
        self.set = self.frames.__setitem__

    def delete(self, key):
        return self.frames.pop(key, None) is not None


class RawClient:
    def __init__(self, client):
        self._frames = client.frames

    def get(self, key):
        return self._frames.get(key)

    def put(self, key, frame):
        self._frames[key] = frame

    def keys(self):
        return set(self._frames)


class TestPatientStore(StoreContract):
    @pytest.fixture
    def client(self):
        return Client()

    @pytest.fixture
    def store(self, client):
        store = SHOWN["PatientStore"](client)
        yield store
        store.close()

    @pytest.fixture
    def raw(self, client):
        return RawClient(client)


class TestDeflated(SerdeContract):
    @pytest.fixture
    def serde(self):
        return SHOWN["Deflated"]()


class TestOldestFirst(PolicyContract):
    @pytest.fixture
    def policy(self):
        return SHOWN["OldestFirst"]()


class TestAnonymousMemory(MemoryContract):
    @pytest.fixture
    def provider(self):
        return SHOWN["AnonymousMemory"]()


class TestBlake(ChecksumContract):
    @pytest.fixture
    def checksum(self):
        return SHOWN["BLAKE"]


class TestEqual(ChunkerContract):
    @pytest.fixture
    def chunker(self):
        return SHOWN["Equal"](16)


class RawHeap:
    def __init__(self, kv):
        self._kv = kv

    def _place(self, layer, plane, position):
        shape = self._kv.layout.planes[layer][plane]
        row = shape.heads * shape.width * self._kv.layout.dtype.itemsize
        return slice(position * row, (position + 1) * row)

    def get(self, layer, plane, position):
        return bytes(self._kv.memory[layer][plane][self._place(layer, plane, position)])

    def put(self, layer, plane, position, row):
        self._kv.memory[layer][plane][self._place(layer, plane, position)] = row

    def everything(self):
        return b"".join(bytes(plane) for planes in self._kv.memory for plane in planes)


class TestInflatingKV(EncodedContract):
    @pytest.fixture
    def device(self):
        layout = KVLayout.attention(DType.FLOAT16, layers=2, heads=2, key_width=4)
        return SHOWN["InflatingKV"](layout, 24)

    @pytest.fixture
    def raw(self, device) -> RawKV:
        return RawHeap(device)

    @pytest.fixture
    def serde(self):
        return SHOWN["Deflated"]()


class TestNarrow(ChannelContract):
    @pytest.fixture
    def make(self):
        exchange, made = Exchange(), []

        def make():
            made.append(SHOWN["Narrow"](LocalChannel(exchange)))
            return made[-1]

        yield make
        for channel in made:
            channel.close()


class TestNearby(DirectoryContract):
    @pytest.fixture
    def clock(self):
        return ManualClock()

    @pytest.fixture
    def directory(self, clock):
        return DictDirectory(clock)

    @pytest.fixture
    def seen(self, directory):
        shown = SHOWN["Nearby"](directory, "a")
        return lambda name: shown

    @pytest.fixture
    def elapse(self, clock):
        return clock.advance

    @pytest.fixture
    def forget(self, directory):
        return directory.forget


class TestStatsD(TelemetryContract):
    """A socket that no other process reads."""

    @pytest.fixture
    def telemetry(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            statsd = SHOWN["StatsD"](silent.getsockname())
            yield statsd
            statsd.close()

    @pytest.fixture
    def end(self, telemetry):
        return telemetry.close


class TestBounded(EventSinkContract):
    @pytest.fixture
    def sink(self):
        return SHOWN["Bounded"]()


class TestBlackboard(AnnouncingContract):
    @pytest.fixture
    def clock(self):
        from mutants.fleet.announcings import LateClock

        return LateClock()

    @pytest.fixture
    def board(self, clock):
        return SHOWN["Blackboard"](clock)

    @pytest.fixture
    def seen(self, board):
        return board.of

    @pytest.fixture
    def publish(self, board):
        return lambda name, keys: board.published(keys)

    @pytest.fixture
    def elapse(self, clock):
        def elapse(seconds):
            clock.ahead += seconds

        return elapse

    @pytest.fixture
    def vanish(self, board):
        return lambda name: board.end(lambda _, entry: entry.client == name)


class TestTextFile(ObserverContract):
    @pytest.fixture
    def place(self, tmp_path):
        return tmp_path / "hexkv.prom"

    @pytest.fixture
    def observer(self, place):
        return SHOWN["TextFile"](place, every=0.01)

    @pytest.fixture
    def reading(self, place):
        def page():
            return place.read_text() if place.exists() else None

        def unready():
            return re.search(r'why="(.*)"', page() or 'why="nothing"')[1]

        return Reading(page, unready)


def test_a_client_that_hangs_costs_no_more_than_the_deadline_and_no_more_threads_than_there_are():
    from threading import Event, active_count

    from hexkv.contracts.doubles import ListSink, chunk_key
    from hexkv.plugins.clock import SystemClock
    from hexkv.ports import Deadline, TimedOut

    client, going = Client(), Event()
    client.get = lambda key: going.wait(60) and None
    store = SHOWN["PatientStore"](client, most=3)
    before = active_count()
    for _ in range(9):
        soon = Deadline.after(SystemClock(), 0.02)
        assert store.read([chunk_key("a")], ListSink(), soon) == [TimedOut()]
    assert active_count() - before <= 3
    going.set()
    store.close()
