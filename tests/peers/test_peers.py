"""Engines that serve their chunks to each other, fetch them, and give them."""

import json
import threading
from dataclasses import fields
from threading import Thread

import pytest

from configured import CHUNK, FRAME, PROMPT, computed, hit
from hexkv.contracts.doubles import ManualClock, chunk_key
from hexkv.contracts.kit.cases import each
from hexkv.peers.lending.allowance import Allowance
from hexkv.peers.questions import HAVE, SELF, ask_of_each, unpack_member
from hexkv.peers.service import takes_offers
from hexkv.plugins.__main__ import main
from hexkv.plugins.channels import ChannelSettings
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.config import load
from hexkv.plugins.configuration.secret import Secret
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext, SettingError
from hexkv.ports import (
    PAGE,
    ConfigError,
    CounterName,
    Deadline,
    Destination,
    Failed,
    Hit,
    InvalidRequest,
    Miss,
    Part,
    Peer,
    StoreBusy,
    Stored,
    StoreError,
    StoreUnreachable,
)
from media.fronted import HeapLease
from peers.peering import (
    address_of,
    configuration,
    directory_of,
    eventually,
    free_address,
    keys_of,
    opened,
    peers_of,
    serving,
    soon,
)
from rigging import ByTheClock

ALL = len(PROMPT) // CHUNK


def test_chunks_are_fetched_from_a_peer_and_kept():
    lasting = {"channel": "tcp", "serve": {"settle": 60.0}}
    with opened(serving("a", peers=lasting), *map(serving, "bcd")) as (a, b, c, d):
        a.store(PROMPT, computed())
        keys = keys_of(a)
        got = peers_of(b).pull(address_of(a), [*keys, chunk_key("nobody's")], soon())
        assert got == [Stored(FRAME)] * ALL + [Miss()]
        assert hit(b) == len(PROMPT)
        assert peers_of(b).pull(address_of(a), keys, soon()) == [Stored(0)] * ALL
        eventually(lambda: a.telemetry.total(CounterName.LENT_BYTES) == ALL * FRAME)
        peers_of(c).pull(address_of(a), keys[:1], soon())
        first, second = peers_of(d).pull(address_of(a), keys[:2], soon())
        assert isinstance(first.error, StoreBusy)  # b and c were given it
        assert second == Stored(FRAME)


def test_chunks_are_given_to_a_peer_that_has_room(tmp_path):
    disk = {"store": "disk", "settings": {"root": str(tmp_path), "exclusive": True}}
    willing = {"channel": "tcp", "serve": {"accept": True}}
    with opened(serving("a", tiers=[disk]), serving("b", peers=willing)) as (a, b):
        a.store(PROMPT, computed())
        keys = keys_of(a)
        missing = chunk_key("nobody's")
        assert peers_of(a).push(address_of(b), [*keys, missing], soon()) == (
            [Stored(FRAME)] * ALL + [Miss()]
        )
        assert hit(b) == len(PROMPT)
        assert peers_of(a).push(address_of(b), keys, soon()) == [Stored(0)] * ALL


def takes(channel, settings, serve):
    wanted = {"channel": channel, "settings": settings, "serve": serve}
    return takes_offers(load(None, {}, {"peers": wanted}).settings.peers, discover())


@each(
    "channel, settings, serve, taken",
    [
        ("tcp", {}, {}, False),
        ("tcp", {"secret": "a secret of the tests"}, {}, True),
        ("tcp", {"secret_file": "/run/secret"}, {}, True),
        ("tcp", {"tls": True, "tls_certificate": "a", "tls_ca": "b"}, {}, True),
        ("tcp", {}, {"accept": True}, True),
        ("tcp", {"secret": "a secret of the tests"}, {"accept": False}, False),
        ("shm", {}, {}, True),
    ],
)
def test_chunks_are_taken_from_peers_that_show_who_they_are(channel, settings, serve, taken):
    """Or where the operator says so: over loopback every container of a pod is a peer."""
    assert takes(channel, settings, serve) == taken


def test_without_a_secret_a_peer_that_offers_is_refused():
    with opened(serving("a"), serving("b")) as (a, b):
        a.store(PROMPT, computed())
        for outcome in peers_of(a).push(address_of(b), keys_of(a), soon()):
            assert isinstance(outcome, Failed)
        assert hit(b) == 0


def test_what_a_peer_does_not_accept_stays_where_it_is():
    wanted = {"listen": "127.0.0.1:0"}
    shy = {"channel": "tcp", "settings": wanted, "serve": {"accept": False}}
    with opened(serving("a"), serving("b", peers=shy)) as (a, b):
        a.store(PROMPT, computed())
        for outcome in peers_of(a).push(address_of(b), keys_of(a), soon()):
            assert isinstance(outcome, Failed)
        assert hit(b) == 0
        assert hit(a) == len(PROMPT)


def test_peers_are_asked_small_questions():
    with opened(serving("a"), serving("b")) as (a, b):
        a.store(PROMPT, computed())
        keys = keys_of(a)
        many = [chunk_key(str(n)) for n in range(1400)]

        def ask(kind, body):
            return peers_of(b).ask(address_of(a), kind, body, soon())

        assert ask_of_each(ask, [*many, *keys]) == [False] * 1400 + [True] * ALL
        assert unpack_member(ask(SELF, b"")) == peers_of(a).member
        peers_of(a).register(b"fill", lambda body, who, until: body + b"!")
        assert ask(b"fill", b"half") == b"half!"
        for kind in (b"what", HAVE):
            with pytest.raises(StoreUnreachable):
                ask(kind, b"no keys")
        with pytest.raises(InvalidRequest):
            peers_of(a).register(b"fill", lambda body, who, until: body)


def test_what_is_lent_at_a_time_is_bounded():
    """A second reader waits until the first lets go; nothing is refused for that."""
    wanted = {"channel": "tcp", "settings": {"listen": "127.0.0.1:0"}}
    bounded = wanted | {"serve": {"bytes": 2 * FRAME, "copies": None}}
    with opened(serving("a", peers=bounded)) as (a,):
        a.store(PROMPT, computed())
        keys, source = keys_of(a), peers_of(a)
        first = source.lend(keys[:2], "x", soon())
        assert all(first)
        assert source.lend(keys[2:4], "y", soon(0.0)) == [None, None]
        got = []
        waits = threading.Thread(target=lambda: got.extend(source.lend(keys[2:4], "y", soon())))
        waits.start()
        share = first[0].share("channel")
        for lease in first:
            lease.release()
        assert not got  # the share counts
        share.release()
        waits.join()
        assert [lease.spec.key for lease in got] == keys[2:4]
        for lease in got:
            lease.release()
        some = source.lend(keys, "z", soon())
        assert [lease is not None for lease in some] == [True] * 2 + [False] * (ALL - 2)
        for lease in some[:2]:
            lease.release()
        with opened(serving("b")) as (b,):  # reads them two by two
            assert peers_of(b).pull(address_of(a), keys, soon()) == [Stored(FRAME)] * ALL
        a.close()
        assert source.lend(keys, "z", soon()) == [None] * ALL
        with pytest.raises(StoreError):
            source.pull(Peer("127.0.0.1:1"), keys, soon())


def test_a_static_directory_asks_over_the_channel():
    """And knows a node again that was started anew: its former life is not named."""
    places = [free_address() for _ in range(3)]
    names = "abc"

    def start(i):
        others = [place for place in places if place != places[i]]
        directory = directory_of(*others) | {"name": names[i]}
        return serving(listen=places[i], directory=directory)

    with opened(*map(start, range(3))) as (a, b, c):
        a.store(PROMPT, computed())
        b.store(PROMPT[: 2 * CHUNK], computed(PROMPT[: 2 * CHUNK]))
        keys, directory = keys_of(a), peers_of(c).directory

        def located():
            return [{it.name for it in row} for row in directory.locate(keys, soon())]

        assert located() == [{"a", "b"}] * 2 + [{"a"}] * (ALL - 2)
        assert {it.name for it in directory.members(soon())} == {*names}
        before = peers_of(b).member
        b.close()
        eventually(lambda: located() == [{"a"}] * ALL)
        with opened(start(1)) as (b,):
            b.store(PROMPT, computed())
            eventually(lambda: located() == [{"a", "b"}] * ALL)
            (again,) = {it for it in directory.locate(keys, soon())[0] if it.name == "b"}
            assert again == peers_of(b).member
            assert again.generation != before.generation


def test_a_static_directory_without_a_channel_to_ask_over_is_refused():
    with pytest.raises(ConfigError, match=r"directory.settings.over_channel.*names no channel"):
        serving(directory=directory_of("127.0.0.1:1"), peers={})


def test_what_leaves_per_second_is_bounded_by_what_left():
    """Parts of a frame count as what they are; who comes too early waits, or gets nothing."""
    clock = ManualClock()
    allowance = Allowance(1000, 100, clock, ByTheClock())
    assert allowance.take(1000, Deadline(clock, 0.0))
    allowance.give_back(1000, 300)
    assert not allowance.take(1, Deadline.after(clock, 2.9))
    clock.advance(2.0)
    assert not allowance.take(1001, Deadline.after(clock, 60.0))
    later = Thread(target=clock.advance, args=(1.0,))
    later.start()
    assert allowance.take(1, Deadline.after(clock, 2.0))
    later.join()
    allowance.give_back(1)
    with opened(serving("a"), serving("b")) as (a, b):
        a.store(PROMPT, computed())
        (key, *_) = keys_of(a)
        into = memoryview(bytearray(PAGE))
        parts = [Part(key, start, PAGE) for start in (0, PAGE)]
        outcomes = peers_of(b)._channel.read(address_of(a), parts, Landing(into), soon())
        assert outcomes == [Hit(PAGE)] * 2
        eventually(lambda: a.telemetry.total(CounterName.LENT_BYTES) == 2 * PAGE)


class Landing:
    """A sink over one buffer."""

    def __init__(self, into):
        self.lease = HeapLease(into)

    def room(self, index, size):
        return Destination(self.lease, self.lease.frame)

    def filled(self, index, upto):
        pass


def test_commands_on_the_tiers_of_a_running_engine_are_no_peers(tmp_path, capsys):
    """With its name and its port they would take its place."""
    place, disk = free_address(), {"root": str(tmp_path / "disk"), "exclusive": True}
    tiers = [{"store": "peers"}, {"store": "disk", "settings": disk}]
    config = configuration("a", tiers=tiers, listen=place)
    config["directory"] = directory_of() | {"name": "a"}
    file = tmp_path / "hexkv.yaml"
    file.write_text(json.dumps(config))
    with opened(serving("a", tiers=tiers, listen=place, directory=config["directory"])) as (a,):
        a.store(PROMPT, computed())
    with opened(serving("a", listen=place, directory=config["directory"])):
        archive = tmp_path / "archive"
        assert main(["export", "--config", str(file), str(archive)]) == 0
    assert archive.stat().st_size > ALL * FRAME, capsys.readouterr()


def test_channels_have_their_settings_in_common_and_say_who_asks():
    """Who says no name counts as somebody else each time, and is given too many copies."""
    registry = discover()
    assert registry.names("channel") == ["mooncake", "nixl", "shm", "tcp"]
    common = [(field.name, field.default) for field in fields(ChannelSettings)]
    process = "a/machine/with/a/long/name/" * 4 + "7"
    for spec in (registry.find("channel", name) for name in registry.names("channel")):
        found = [(field.name, field.default) for field in fields(spec.settings)]
        assert found[: len(common)] == common
        said = spec.settings().own_name(OpenContext(SystemClock(), process))
        assert process.endswith(said)
        assert len(said) == 64
        with pytest.raises(SettingError, match="not both"):
            spec.settings(secret=Secret("a"), secret_file="/b")
