"""Records of calls: what they say, what they never say, and how much room they take."""

import json
import multiprocessing
import os
import random
import stat
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configured import CHUNK, built, computed, hit, prompt
from hexkv.adapters.observe.observer import ServerObserver
from hexkv.adapters.observe.records.format import PATTERN
from hexkv.adapters.observe.records.recorder import QUEUE_BYTES, Recorder
from hexkv.adapters.observe.settings import ServerSettings
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.kit.cases import each
from hexkv.peers.serving.served import ServedChunks
from hexkv.plan.records import read_records
from hexkv.plan.trace import BadTrace
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.observing import ObservedCache
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import (
    ChunkKey,
    ConfigError,
    CounterName,
    RecordedCache,
    RecordedCall,
    RecordedKind,
    TierHealth,
)
from processes import PATIENCE, held_port

ANY_KEYS = [ChunkKey(random.Random(5).randbytes(48)) for _ in range(64)]


def a_call(chunks=4, began=0.0, kind=RecordedKind.RETRIEVE, **more):
    tokens = chunks * CHUNK
    keys = [ANY_KEYS[i % 64] for i in range(chunks)]
    return RecordedCall(kind, began, 0.5, tokens, keys, 0, tokens, {"disk": tokens}, **more)


def about(tiers=()):
    return RecordedCache("toy", CHUNK, 4096, 100.0, lambda: tiers)


def recorder(folder, clock=None, *, most=1 << 20, files=4, tiers=()):
    return Recorder(str(folder), about(tiers), clock or ManualClock(), most=most, files=files)


def test_a_record_says_what_the_counters_say_and_neither_tokens_nor_keys(tmp_path):
    folder = tmp_path / "record"
    observe = {"address": "", "record": str(folder)}
    with built(tmp_path / "chunks", slots=12, observe=observe) as engine:
        for number in [*range(12), 3, 7, 11, 0, 3]:
            engine.lookup(prompt(number), pin=f"a request {number}")
            hit(engine, prompt(number))
            engine.store(prompt(number), computed(prompt(number)))
        counted = engine.telemetry.counts()
        keys = engine.chunk_keys(prompt(11))
    record = read_records([folder])
    asked = [call for call in record.calls if call.kind is RecordedKind.RETRIEVE]
    hits, misses = {}, {}
    for call in asked:
        for tier, tokens in call.tiers.items():
            hits[tier] = hits.get(tier, 0) + tokens
        for reason, tokens in call.misses.items():
            misses[reason] = misses.get(reason, 0) + tokens
    assert hits == {t: n for (c, t, _), n in counted.items() if c is CounterName.HIT_TOKENS}
    assert misses == {w: n for (c, _, w), n in counted.items() if c is CounterName.MISSED_TOKENS}
    assert set(hits) == {"memory", "disk"}
    assert sum(call.present for call in record.calls) == engine.telemetry.total(
        CounterName.PRESENT_TOKENS
    )
    assert len(asked) == 17
    assert all(sum(step.seconds for step in call.steps) <= call.seconds + 1e-5 for call in asked)
    # One name for one chunk, whoever asks for it; the same for requests.
    assert [call.keys for call in asked[3:8:4]] == [call.keys for call in asked[12:14]]
    looked = [call.request for call in record.calls if call.kind is RecordedKind.LOOKUP]
    assert len(set(looked)) == 12
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    written = path.read_bytes()
    for key in keys:
        for part in (key[i : i + 8] for i in range(0, 48, 8)):
            assert part not in written
            assert part.hex().encode() not in written
    named = {bytes(key[-8:]) for call in record.calls for key in call.keys}
    assert not any(part in bytes(key) for part in named for key in keys)
    assert b"a request" not in written


@given(st.data())
def test_a_damaged_record_is_an_error_that_names_the_line(data):
    lines = DAMAGED[0].read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 1))
    line = bytearray(lines[number])
    at = data.draw(st.integers(0, len(line) - 2))
    line[at] ^= data.draw(st.integers(1, 255))
    damaged = DAMAGED[1]
    damaged.write_bytes(b"".join([*lines[:number], bytes(line), *lines[number + 1 :]]))
    with pytest.raises(BadTrace) as caught:
        read_records([damaged])
    assert f"line {number + 1}: " in str(caught.value)


DAMAGED = []


@pytest.fixture(scope="module", autouse=True)
def _a_whole_record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    tiers = [TierHealth("disk", 3, 12, 100, 0, "closed", "closed", 0, False, {})]
    one = recorder(folder, tiers=tiers)
    for number in range(3):
        one.record(a_call(1 + number, request="r", misses={"absent": 3}))
    one.close()
    (path,) = folder.iterdir()
    DAMAGED[:] = [path, folder / "damaged"]
    assert len(read_records([path]).calls) == 3


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 5))
def test_records_keep_to_their_room_and_count_what_they_lose(tmp_path_factory, sizes, files):
    folder = tmp_path_factory.mktemp("bounded")
    most = files * (1 << 14)
    for _ in range(2):  # a second life makes room by the first one's
        clock = ManualClock()
        one = recorder(folder, clock, most=most, files=files)
        for size in sizes:
            one.record(a_call(size, clock.now()))
            one.flush()
            clock.advance(1.0)
            written = [path.stat().st_size for path in folder.iterdir()]
            assert len(written) <= files
            assert sum(written) <= most
        one.close()
        assert (one.calls, one.lost) == (len(sizes), 0)
    kept = read_records([folder])
    assert [len(call.keys) for call in kept.calls][-1] == sizes[-1]
    assert kept.heads[-1].number <= len(sizes)


@pytest.mark.thorough
def test_what_finds_no_room_is_told_and_never_waited_for(tmp_path):
    one = recorder(tmp_path, ManualClock(), most=1 << 26)
    with one._writing:  # as if the disk hung
        for _ in range(QUEUE_BYTES // (96 * 1000)):
            one.record(a_call(1000))
        assert one.lost
        assert one._held <= QUEUE_BYTES
    one.close()
    record = read_records([tmp_path])
    assert record.lost == one.lost
    assert one.calls + one.lost == QUEUE_BYTES // (96 * 1000)


@pytest.mark.thorough
def test_a_disk_that_fails_costs_a_minute_of_the_record_and_nothing_else(tmp_path, monkeypatch):
    clock = ManualClock()
    one = recorder(tmp_path, clock)
    real = os.write

    def full(file, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    one.record(a_call())
    one.flush()
    monkeypatch.setattr(os, "write", real)
    one.record(a_call())
    one.flush()
    assert (one.calls, one.lost) == (0, 2)
    clock.advance(61.0)
    one.record(a_call())
    one.close()
    record = read_records([tmp_path])
    assert (len(record.calls), record.lost) == (1, 2)
    assert len(record.heads) == 2


def _another(folder, ready, done):
    one = recorder(Path(folder), SystemClock(), most=3 << 14, files=3)
    one.record(a_call(3, SystemClock().now()))
    one.flush()
    ready.set()
    assert done.wait(60)
    one.record(a_call(5, SystemClock().now()))
    one.close()


@pytest.mark.thorough
def test_no_process_takes_the_file_that_another_one_writes(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_another, args=(str(tmp_path), ready, done))
    other.start()
    assert ready.wait(60)
    mine = recorder(tmp_path, SystemClock(), most=3 << 14, files=3)
    for _ in range(60):
        mine.record(a_call(200, SystemClock().now()))
        mine.flush()
    done.set()
    other.join(60)
    mine.close()
    sizes = [len(call.keys) for call in read_records([tmp_path]).calls]
    assert [size for size in sizes if size != 200] == [3, 5]
    assert len(list(tmp_path.iterdir())) <= 3


@pytest.mark.thorough
def test_a_file_that_was_cut_is_read_as_far_as_it_is_whole(tmp_path):
    one = recorder(tmp_path)
    one.record(a_call(2))
    one.record(a_call(3))
    one.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    record = read_records([path])
    assert ([len(call.keys) for call in record.calls], record.cut) == ([2], 1)


@pytest.mark.thorough
def test_what_is_no_record_or_not_of_one_kind_is_an_error(tmp_path):
    for name, tokens in (("one", CHUNK), ("two", 2 * CHUNK)):
        cache = RecordedCache("toy", tokens, 4096)
        made = Recorder(str(tmp_path / name), cache, ManualClock(), most=1 << 20, files=1)
        made.record(a_call(2))
        made.close()
    (path,) = (tmp_path / "one").iterdir()
    (tmp_path / "foreign.jsonl").write_text(json.dumps({"timestamp": 1}) + "\n")
    (tmp_path / "empty").mkdir()
    for paths, words in [
        (["foreign.jsonl"], "foreign.jsonl, line 1: no line of a record"),
        (["empty"], "no files of a record in it"),
        (["absent"], "absent: No such file"),
        (["one", "two"], "read one at a time"),
        (["one", path], "the same file of the same record twice"),
    ]:
        with pytest.raises(BadTrace, match=words):
            read_records([tmp_path / name for name in paths])
    assert PATTERN.fullmatch(path.name)


@pytest.mark.thorough
@each(
    ("observe", "words"),
    [
        ({"record_bytes": 1000}, "record_bytes"),
        ({"record_bytes": 1 << 20, "record_files": 100}, "leaves less than 65536 for each file"),
        ({"record": "/proc/nowhere"}, "no record can be written"),
    ],
)
def test_a_record_that_cannot_be_is_refused_at_the_start(tmp_path, observe, words):
    with pytest.raises(ConfigError, match=words):
        built(tmp_path, observe={"address": "", **observe})


@pytest.mark.thorough
def test_a_node_says_that_engines_record(tmp_path):
    loaded = load(None, {}, {"observe": {"address": "", "record": str(tmp_path / "record")}})
    with pytest.raises(ConfigError, match="is for engines"):
        ServedChunks(loaded, discover(), SystemClock())


@pytest.mark.thorough
def test_only_the_first_rank_records_and_its_page_says_how_much(tmp_path):
    port = held_port()
    settings = ServerSettings(address=f"127.0.0.1:{port}", record=str(tmp_path / "record"))
    one, other = (ServerObserver(settings, SystemClock()) for _ in range(2))
    assert other.recording(about(), rank=1) is None
    sink = one.recording(about())
    sink.record(a_call())
    sink.flush()
    with built(tmp_path / "chunks") as engine, closing(one):
        one.serve(ObservedCache(engine))
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
            shown = page.read().decode()
    assert "hexkv_record_calls_total 1" in shown
    assert "hexkv_record_lost_calls_total 0" in shown
    assert "hexkv_record_bytes_total" in shown
