"""``hexkv check`` needs no test file, harms no service, and tells what it found."""

import importlib
import json
import re
import textwrap
import xml.etree.ElementTree as ET
from contextlib import closing
from pathlib import Path

import pytest

from depth import thorough
from hexkv.contracts.check._apart import RawApart, Salt, apart
from hexkv.contracts.check._catalogue import every_promise
from hexkv.contracts.check._targets import find
from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.plugins import AdapterSpec
from hexkv.plugins.__main__ import main
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.discovery.registry import Origin, Registry
from hexkv.plugins.memory.store import MemoryStore
from hexkv.plugins.spec import CONTRACT
from hexkv.ports import ConfigError, Item, Stored, SupportsRangeRead, SupportsScan
from servers.lm_servers import SMALL, RawHexkv, served

BROKEN = "broken"
FACTORIES = """
    from hexkv.plugins.memory.store import MemoryStore
    from hexkv.api import open_cache
    from hexkv.contracts.check import Candidate
    from hexkv.contracts.doubles.heap_kv import HeapKV
    from hexkv.plugins.clock import SystemClock
    from hexkv.ports import DType, KVLayout

    LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=4)

    class Dull(MemoryStore):
        def delete(self, keys, deadline):
            return [True for _ in super().delete(keys, deadline)]

    def dull():
        return Dull(SystemClock())

    closed = []

    def window():
        return HeapKV(LAYOUT, 30)

    def cache():
        config = {"chunk": {"size": 16}, "pool": {"bytes": "1MiB"}}
        subject = open_cache(config, model="toy", layout=LAYOUT)
        return Candidate(subject, chunk=16, close=lambda: closed.append(subject.health().state))

    def sound():
        return Candidate(MemoryStore(SystemClock()), engine="RAM 5", close=lambda: closed.append(1))
"""


@pytest.fixture
def check(capsys):
    """Runs the command: exit code, output, errors."""

    def check(*words):
        code = main(["check", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return check


@pytest.fixture
def factories(tmp_path, monkeypatch):
    """A module of factories in the working directory; its name."""
    name = f"factories_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(FACTORIES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def verdicts(out):
    (card,) = json.loads(out)["cards"]
    return {promise["number"]: promise["verdict"] for promise in card["promises"]}


def test_an_installed_store_is_checked_and_its_folder_left_as_it_was(check, tmp_path):
    root, badge = tmp_path / "cache", tmp_path / "badge.svg"
    root.mkdir()
    (root / "mine").write_text("mine")
    code, out, err = check(
        *("disk", "--set", f"root={root}", "--json", "-", "--badge", badge),
        *("--level", "L0", "--level", "L2"),
    )
    assert (code, err) == (0, "")
    found = verdicts(out)
    assert found["plugin.1"] == found["L0.5"] == found["L0.6"] == "kept"
    assert found["L2.1"] == found["L2.4"] == "kept", "its back door leads to the same folder"
    assert not any(number.startswith(("L1", "L3")) for number in found)
    assert [path.name for path in root.iterdir()] == ["mine"]
    assert "L0" in ET.parse(badge).getroot().get("aria-label")
    (card,) = json.loads(out)["cards"]
    assert card["subject"]["distribution"].startswith("disk of local (hexkv-local")
    assert card["subject"]["contract"] == CONTRACT


def test_what_the_author_does_not_give_is_not_checked(check, factories):
    code, out, _ = check(f"{factories}:window", "--json")
    found = verdicts(out)
    assert code == 0
    assert {"kept", "not checked"} <= set(found.values())
    assert all(number.startswith("device.") for number in found)


def test_a_cache_by_tokens_is_checked_and_closed(check, factories):
    code, out, _ = check(f"{factories}:cache", "--json", "--level", "L0", "--level", "L5")
    assert code == 0
    assert verdicts(out) == dict.fromkeys(["prefix.4", "prefix.7", "prefix.19"], "kept")
    assert set(importlib.import_module(factories).closed) == {"closed"}


@pytest.mark.parametrize("name", ["lru", *thorough("zstd", "mmap")])
def test_other_kinds_are_checked_too(check, name):
    code, out, err = check(name, "--level", "L0")
    assert (code, err) == (0, "")
    assert f"subject: {name}" in out


def test_a_broken_promise_is_named_with_its_reason_and_may_be_waived(check, factories):
    target = [f"{factories}:dull", "--level", "L1"]
    code, out, err = check(*target)
    assert (code, err) == (1, "")
    assert "broken L1.10: tells for each deleted chunk whether it was there" in out
    assert "L1.11" not in out
    broken = re.findall(r"^broken (\S+):", out, flags=re.MULTILINE)
    waivers = [f"--waive={number}=all is gone anyway" for number in broken]
    code, out, _ = check(*target, "--json", *waivers)
    assert code == 0
    (card,) = json.loads(out)["cards"]
    waived = {p["number"]: p["reason"] for p in card["promises"] if p["verdict"] == "waived"}
    assert waived == dict.fromkeys(broken, "all is gone anyway")


def test_a_factory_may_give_more_than_the_store(check, factories):
    code, out, _ = check(f"{factories}:sound", "--level", "L0", "--json")
    assert code == 0
    (card,) = json.loads(out)["cards"]
    assert card["subject"]["engine"] == "RAM 5"
    assert len(importlib.import_module(factories).closed) > 5


@each(
    ("words", "message"),
    [
        (["nonsense"], "no adapter 'nonsense'"),
        (["blake3"], "no adapter 'blake3'"),
        (["gopher://a:1"], "no adapter for gopher://; installed: "),
        (["lm://127.0.0.1:1"], "refused"),
        (["disk"], "a check of it needs --set root=..."),
        (["redis", "--set", "ulr=x"], "did you mean 'url'?"),
        (["unix"], "with --black-box node:///path"),
        (["server"], "give a function that makes one"),
        (["disk", "--set", "rot=x"], "did you mean 'root'?"),
        (["no_such_module:make"], "no_such_module:make: No module named"),
        (["json:dumps2"], "has no attribute 'dumps2'"),
        (["string:digits"], "cannot be called"),
        (["json:dumps"], "json:dumps() raised TypeError: "),
        (["lm://127.0.0.1:1", "--black-box"], "refused"),
        (
            ["lm://127.0.0.1:99999", "--black-box"],
            "a black box is at lm://host:port or node:///path",
        ),
        (["lm://127.0.0.1:1", "--set", "address=x"], "the URL is the setting 'address' already"),
        (["redis://127.0.0.1:1", "--black-box"], "a black box is at lm://host:port"),
    ],
)
def test_what_cannot_be_checked_is_one_line_of_error(check, words, message):
    code, out, err = check(*words)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_black_box_that_nothing_installed_checks_says_what_to_install(check, monkeypatch):
    def without():
        registry = discover()
        registry.adapters = {k: s for k, s in registry.adapters.items() if not s.black_box}
        return registry

    monkeypatch.setattr("hexkv.contracts.check.command.installed", without)
    code, out, err = check("lm://127.0.0.1:1", "--black-box")
    assert (code, out) == (1, "")
    assert "pip install hexkv-lmcache" in err


@each(
    "words",
    [
        [],
        ["--nonsense"],
        ["memory", "--waive", "L1.1="],
        ["memory", "--waive", "L1.1=  "],
        ["memory", "--waive", "L77.1=reason"],
        ["memory", "--set", "novalue"],
        ["memory", "disk"],
        ["memory", "--level", "L7"],
        ["lm://127.0.0.1:1", "--black-box", "--set", "a=b"],
    ],
)
def test_a_wrong_call_is_told_apart_by_its_exit_code(check, words):
    code, out, err = check(*words)
    assert code == 2
    assert out == ""
    assert "Usage: hexkv check" in err


@pytest.mark.parametrize("option", ["--json", *thorough("--badge")])
def test_a_scorecard_that_cannot_be_written_is_one_line_of_error(check, tmp_path, option):
    code, out, err = check("lru", "--level", "L0", option, tmp_path / "nowhere" / "card")
    assert code == 2
    assert "subject: lru" in out, "it is shown at least"
    assert err.startswith(f"error: {option}: ")
    assert err.count("\n") == 1


def test_every_promise_can_be_listed_by_a_number_of_its_own_and_says_what_it_is_for(check):
    code, out, _ = check("--list", "--json")
    assert code == 0
    listed = json.loads(out)
    assert {promise["level"] for promise in listed} == {f"L{n}" for n in range(7)}
    for promise in listed:
        assert promise["clause"], promise["number"]
        assert promise["why"], promise["number"]
    numbers = [promise["number"] for promise in listed]
    assert len(numbers) == len(set(numbers))
    assert {"L1.4", "plugin.3", "policy.8", "serde.17", "wire.30", "segments.1", "holds.1"} <= set(
        numbers
    )
    code, out, _ = check("--list")
    assert code == 0
    assert [number for number in numbers if f"\n{number} " not in f"\n{out}"] == []
    assert max(map(len, out.splitlines())) <= 100
    texts = {}
    for promise in every_promise():
        assert texts.setdefault(promise.number, promise.text) == promise.text, "two of one number"


@pytest.fixture(scope="module")
def server():
    """One that keeps all, however slow we are."""
    with served(*SMALL, "--patience", "60") as server:
        yield server


def test_a_live_service_is_left_as_it_was(server):
    foreign, frame = chunk_key("foreign", "somebody else"), b"theirs" * 1000
    with closing(RawHexkv(server.address)) as raw:
        raw.put(foreign, frame)
        code = main(["check", f"hexkv://{server.address}", "--level", "L1", "--level", "L5"])
        assert code == 0
        assert raw.keys() == {foreign}
        assert raw.get(foreign) == frame


@pytest.mark.thorough
def test_faults_are_tried_on_a_service_that_is_not_ours_to_kill(check):
    with served() as server:
        code, out, _ = check(f"hexkv://{server.address}", "--level", "L4", "--json")
    found = verdicts(out)
    assert found["L4.1"] == "not checked", "nobody may kill it"
    assert found["L4.6"] == "kept"
    assert code in (0, 1)


def test_a_server_on_this_machine_is_compared_with_a_bare_connection(check, server):
    code, out, _ = check(f"hexkv://{server.address}", "--level", "L6", "--json")
    found = verdicts(out)
    assert {found["L6.1"], found["L6.2"]} <= {"kept", BROKEN}, "how fast it is, is not asked here"
    assert code == (BROKEN in found.values())


def test_what_makes_windows_is_not_taken_for_one():
    registry = Registry()
    spec = AdapterSpec(
        "device", "maker", "makes windows", lambda settings, context: object(), contract=CONTRACT
    )
    registry.offer(Origin("builtin", ""), [spec])
    with (
        pytest.raises(ConfigError, match="give hexkv check a function that makes one"),
        find("maker", registry, {}).open(()),
    ):
        pass


def test_every_store_of_ours_says_how_a_check_is_alone():
    ours = [s for (kind, _), s in discover().adapters.items() if kind == "store"]
    assert len(ours) > 6
    # What peers hold is read, never written, and asked for at those who serve: nothing to certify.
    assert [spec.name for spec in ours if spec.isolate is None] == ["peers"]


class Door:
    """The back door to all of a memory store."""

    def __init__(self, store):
        self.store = store

    def get(self, key):
        sink = ListSink()
        self.store.read([key], sink, deadline())
        return sink.data(0)

    def put(self, key, frame):
        self.store.write([Item(key, memoryview(frame))], deadline())

    def keys(self):
        return {entry.key for entry in self.store.scan()}


def test_candidates_of_one_service_do_not_meet():
    inner, key = MemoryStore(ManualClock()), chunk_key("a")
    one, other = apart(inner, Salt()), apart(inner, Salt())
    assert isinstance(one, SupportsScan)
    assert not isinstance(one, SupportsRangeRead)
    assert list(one.write([Item(key, memoryview(b"one"))], deadline())) == [Stored(3)]
    assert list(other.contains([key], deadline())) == [False]
    assert list(inner.contains([key], deadline())) == [False]
    sink = ListSink()
    one.read([key], sink, deadline())
    assert sink.data(0) == b"one"
    other.write([Item(key, memoryview(b"other"))], deadline())
    door = RawApart(Door(inner), one.salt)
    assert (door.get(key), door.keys()) == (b"one", {key})
    door.put(chunk_key("b"), b"two")
    assert list(one.contains([chunk_key("b")], deadline())) == [True]
    assert list(other.contains([chunk_key("b")], deadline())) == [False]
    one.delete([chunk_key("b")], deadline())
    other.delete([key], deadline())
    assert [entry.key for entry in one.scan()] == [key]
    assert list(other.scan()) == []
    assert list(one.delete([key], deadline())) == [True]


@pytest.mark.thorough
def test_the_badge_in_the_tutorial_is_the_one_that_the_tape_gets(check, tmp_path):
    tutorial = Path(__file__).parents[2] / "docs" / "writing-an-adapter.md"
    (shown,) = re.findall(
        rf"^    hexkv contract {CONTRACT} \| (.+)$", tutorial.read_text(), re.MULTILINE
    )
    badge = tmp_path / "badge.svg"
    assert check("tape", "--badge", badge)[0] == 0
    assert ET.parse(badge).getroot().get("aria-label") == f"tape: {shown}"
